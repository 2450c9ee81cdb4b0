#!/usr/bin/python3
"""Which optimizer steps, and where, at every size of the device (docs/testing.md)."""
from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from hybridps_model import FEW, Case, adam  # noqa: E402


class Matrix(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_torch_adam(self):
        Case(self).everywhere()

    def test_host_adam(self):
        Case(self, native=True).everywhere()

    def test_host_adamw(self):
        Case(self, lambda m: adam(m, torch.optim.AdamW), native=True, steps=FEW).everywhere()

    def test_device_adam(self):
        Case(self, native=True, where="device").everywhere(most=0.35)


if __name__ == "__main__":
    unittest.main()

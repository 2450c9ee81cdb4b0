#!/usr/bin/python3
"""Training loops of several kinds, at every size of the device (docs/testing.md)."""
from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from hybridps_model import FEW, Case  # noqa: E402


class Matrix(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_accumulation_of_two_batches(self):
        Case(self, accumulate=2, native=True).everywhere()

    def test_accumulation_with_steps_on_the_device(self):
        Case(self, accumulate=2, native=True, where="device", steps=FEW).everywhere(most=0.35)

    def test_clipping_by_the_norm_of_all_gradients(self):
        Case(self, clip=1.0, native=True).everywhere()

    def test_clipping_with_steps_on_the_device(self):
        Case(self, clip=1.0, native=True, where="device", steps=FEW).everywhere(most=0.35)


if __name__ == "__main__":
    unittest.main()

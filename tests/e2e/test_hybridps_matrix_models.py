#!/usr/bin/python3
"""Models of several kinds, at every size of the device (docs/testing.md)."""
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

    def test_tied_parameters(self):
        Case(self, shape={"tied": True}, native=True).everywhere()

    def test_reentrant_checkpointing(self):
        Case(self, shape={"checkpointing": "reentrant"}, native=True, steps=FEW).everywhere()

    def test_checkpointing_by_saved_tensors(self):
        Case(self, shape={"checkpointing": "saved"}, native=True).everywhere()

    def test_bfloat16(self):
        Case(self, dtype=torch.bfloat16).everywhere()


if __name__ == "__main__":
    unittest.main()

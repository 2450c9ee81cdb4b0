#!/usr/bin/python3
"""Two ranks that train one model, at every size of the device (docs/testing.md)."""
from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from hybridps_model import FEW, SIZES, STEPS, hybridps, make, model_bytes  # noqa: E402
from hybridps_world import WORLD, compare, managed, minimum, name, plain  # noqa: E402


class Matrix(unittest.TestCase):
    """A rank's data: parameters, gradients, and its half of the optimizer's state."""

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.expected = {steps: plain(steps=steps) for steps in (STEPS, FEW)}
        cls.bytes = model_bytes(make()) * 3

    def row(self, steps, **options):
        least = minimum(**options)
        self.assertLess(least, self.bytes * min(SIZES))
        for capacity in [self.bytes * part for part in SIZES] + [least]:
            with self.subTest(capacity=capacity):

                def run(rank, capacity=capacity):
                    with hybridps.Group.shm(name(), rank, WORLD) as group:
                        return managed(rank, group, capacity, steps=steps, **options)

                kept = compare(self, run, self.expected[steps])
                # each state once
                self.assertEqual(sum(kept), 2 * len(self.expected[steps][2]["state"]))
                self.assertLess(max(kept), sum(kept))

    def test_host_adam(self):
        self.row(STEPS, optimizer_device="host")

    def test_device_adam(self):
        self.row(FEW, optimizer_device="device")


if __name__ == "__main__":
    unittest.main()

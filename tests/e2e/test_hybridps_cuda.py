#!/usr/bin/python3
"""HybridPS on a stand-in for the CUDA driver: its accounting, its moves, and its steps with torch's
operations. What only a GPU shows (torch demands tensors of one device; kernels that are still
running) is in tests/gpu."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

needs.torch()


class Cuda(unittest.TestCase):
    def near(self, *args: Any) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as place:
            os.symlink(
                needs.BUILD.absolute() / "tests" / "libcuda_stub.so", f"{place}/libcuda.so.1"
            )
            env = {
                **os.environ,
                "LD_LIBRARY_PATH": place,
                "CUDA_STUB_NEAR": "1",
                "CUDA_STUB_DELAY_US": "0",
                "HELIOS_LIBRARY": str(needs.BUILD.absolute() / "lib" / "libhelios.so.0"),
            }
            done = subprocess.run(
                [sys.executable, needs.ROOT / "tests/support/hybridps_near.py", *map(str, args)],
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_random_programs_are_equal_to_plain_torch(self) -> None:
        found = self.near("programs", 0, 40)
        self.assertEqual(found["wrong"], {})
        self.assertGreater(found["counts"]["same"], 30)

    def test_a_frozen_parameter_that_gets_a_gradient_by_hand_keeps_its_state_in_the_optimizer(
        self,
    ) -> None:
        self.assertEqual(self.near("programs", 987, 1), {"counts": {"same": 1}, "wrong": {}})

    def test_gradients_in_the_place_of_parameters_step_as_on_an_emulated_device(self) -> None:
        self.assertTrue(self.near("reuse")["equal"])

    def test_chunks_are_counted_at_the_device_s_number_in_the_table_of_an_agent(self) -> None:
        self.assertEqual(self.near("counted"), {"": 0, "2,0": 2, "40": 0})


if __name__ == "__main__":
    unittest.main()

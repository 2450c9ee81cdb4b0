#!/usr/bin/python3
"""The examples of MACO run, and the benchmark prints no efficiency where none can be measured."""
from __future__ import annotations

import contextlib
import io
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
EXAMPLES = needs.ROOT / "examples" / "maco"
sys.path.insert(0, str(EXAMPLES))
from benchmark_nccl_2gpu import report, unmeasurable  # noqa: E402


def run(name, *args):
    done = subprocess.run(
        needs.command(EXAMPLES / f"{name}.py", *args),
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Examples(unittest.TestCase):
    def test_the_scheduling_demo(self):
        self.assertIn("all as promised", run("test_sm_scheduler"))

    def test_launches(self):
        out = run("persistent_kernel_demo", "--repeats", "2")
        self.assertEqual(len(re.findall("maco, (direct|scheduler)", out)), 4)

    def test_blocks(self):
        for name, sizes in (("llm_block", ("--tokens", "16")), ("dit_block", ("--patches", "16"))):
            out = run(name, "--width", "64", "--heads", "4", *sizes, "--repeats", "2")
            self.assertIn("'calls': []", out)

    def test_two_ranks(self):
        out = run("benchmark_nccl_2gpu", "--rows", "64", "--inner", "32", "--outer", "32")
        self.assertIn("overlapped has the serial run's bits", out)
        self.assertRegex(out, r"E: unmeasurable here \(.+\)|hidden .+ of at most E\*")
        self.assertIn("simulated, not measured", out)

    def test_when_no_efficiency_is_told(self):
        steady = [9.0] * 20
        self.assertEqual(unmeasurable(8, 4, 12, steady), "")
        self.assertIn("smaller side is 4", unmeasurable(8, 0.32, 8.32, steady))
        self.assertIn("+20% of S", unmeasurable(8, 4, 10, steady))
        self.assertIn("apart", unmeasurable(8, 4, 12, [9.0, 12.0] * 10))

    def test_what_is_told(self):
        text = io.StringIO()
        # 4 chunks of 2 ms beside 4 of 1 ms, the best there is
        with contextlib.redirect_stdout(text):
            report(
                torch.tensor([[8.0], [4.0], [12.0], [9.0], [12.0]]).double().expand(5, 20) / 1e3,
                ["C", "X", "S", "O", "S0"],
                4,
            )
        self.assertIn("gain S0 / O = 1.333", text.getvalue())
        self.assertIn("hidden 75.0%, E 75.0% of at most E* 75.0%: 100.0%", text.getvalue())


if __name__ == "__main__":
    unittest.main()

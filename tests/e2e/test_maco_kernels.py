#!/usr/bin/python3
"""tools/check_kernels.py reads what the present build reports of its kernels, not what an earlier
one left. nvcc is a stand-in that records what it compiles."""
from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tools/check_kernels.py"

NVCC = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
--version) echo "a stand-in" ;;
--list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_90\\n' ;;
*" -cubin "*) echo "$*" >>"$here/compiled"; cat "$here/said" ;;
*" -ptx "*) echo "$*" >>"$here/compiled"
    for last; do case $before in -o) cp "$here/ptx" "$last" ;; esac; before=$last; done ;;
esac
"""


def ptxas(spilled):
    return (
        "ptxas info    : Compiling entry function 'hl_maco_persistent' for 'sm_00'\n"
        f"    0 bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem\n"
    )


class Kernels(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.dir / "nvcc").write_text(NVCC)
        (self.dir / "nvcc").chmod(0o755)
        (self.dir / "said").write_text(ptxas(0))
        (self.dir / "ptx").write_text(
            "\n".join(re.findall(r'\("([^"]+)", \d+\)', SCRIPT.read_text()) * 20)
        )
        # left in the build folder: sm_75 by an earlier configuration, sm_90 by every one
        (self.dir / "kernel.sm_75.txt").write_text(ptxas(8))
        (self.dir / "kernel.compute_75.ptx").write_text("ld.global.nc")
        (self.dir / "kernel.sm_90.txt").write_text(ptxas(0))

    def check(self, archs):
        done = subprocess.run(
            [sys.executable, "-B", SCRIPT, self.dir / "nvcc", ROOT, self.dir, archs],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        compiled = (self.dir / "compiled").read_text() if (self.dir / "compiled").exists() else ""
        return done, sorted(re.findall(r"-arch=(\w+)", compiled))

    def test_logs_of_an_earlier_configuration_are_not_read(self):
        for _ in range(2):  # and each is compiled once
            done, compiled = self.check("90")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("kernels: 3 architectures ok", done.stdout)
            self.assertEqual(compiled, ["compute_75", "compute_80", "sm_75", "sm_80"])

    def test_logs_of_this_configuration_are(self):
        done, compiled = self.check("75,90")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("sm_75: hl_maco_persistent: 8 bytes of spill stores", done.stdout)
        self.assertIn("PTX oldest: ld.global.nc", done.stdout)
        self.assertEqual(compiled, ["compute_80", "sm_80"])


if __name__ == "__main__":
    unittest.main()

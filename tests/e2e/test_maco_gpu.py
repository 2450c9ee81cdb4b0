#!/usr/bin/python3
"""bench/maco_gpu.py on a stand-in for a GPU does what it does on a real one, and the library that
it builds needs only a compiler. A real GPU is not tested here."""
from __future__ import annotations

import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build")).absolute()
SCRIPT = ROOT / "bench" / "maco_gpu.py"


def run(*args, stub=False):
    env = dict(os.environ)
    if stub:
        env |= {
            "PYTHONPATH": str(ROOT / "tests/support/gpu_torch"),
            "CUDA_STUB_NEAR": "1",
            "CUDA_STUB_DELAY_US": "100",
            "GPU_TORCH_DRIVER": str(BUILD / "tests/libcuda_stub.so"),
            "CUDA_STUB_KERNELS": str(BUILD / "tests/libcuda_cpu_kernels.so"),
            "CUDA_STUB_MULTIPROCESSORS": "5",
        }
    return subprocess.run(
        [sys.executable, "-B", SCRIPT, *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def has(module):
    return (
        subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, check=False
        ).returncode
        == 0
    )


class Script(unittest.TestCase):
    def test_without_a_gpu_it_says_so(self):
        done = run()
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertIn("skipped: ", done.stdout)

    def test_an_unknown_section_is_refused(self):
        done = run("--only", "demo,dmeo")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no section dmeo", done.stderr)

    def test_sections_on_a_stand_in(self):
        lib = BUILD / "lib/libhelios.so"
        if not has("torch"):
            self.skipTest("python3-torch is not installed")
        library = ctypes.CDLL(str(lib))
        library.helios_last_error.restype = ctypes.c_char_p
        self.assertNotEqual(library.maco_cuda_available(b"no-driver.so"), 0)
        why = library.helios_last_error().decode()
        if "no GPU kernels" in why:
            self.skipTest(why)
        with tempfile.TemporaryDirectory() as out:
            done = run(
                "--quick",
                "--out",
                out,
                "--lib",
                lib,
                "--driver",
                BUILD / "tests/libcuda_stub.so",
                "--only",
                "graphs,demo,overlap,peers,processes",
                stub=True,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(
                len(re.findall("3 graphs, 2 runs each, [a-z]+: right", done.stdout)), 3
            )
            self.assertEqual(done.stdout.count("rounds in order, values right: True"), 3)
            found = json.loads((pathlib.Path(out) / "numbers.json").read_text())["numbers"]
            wrong = {n["section"]: n["value"] for n in found if n["name"] == "wrong"}
            self.assertEqual(
                wrong, {"graphs": 0, "demo": 0, "overlap": 0, "peers": 0, "processes": 0}
            )
            self.assertIn("all right", (pathlib.Path(out) / "report.txt").read_text())


class OnlyMaco(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = cls.enterClassContext(tempfile.TemporaryDirectory())

    def build(self, *options):
        env = dict(os.environ, PKG_CONFIG_LIBDIR="/nonexistent", PKG_CONFIG_PATH="")
        for command in (
            [
                "cmake",
                "-S",
                ROOT,
                "-B",
                self.out,
                "-G",
                "Ninja",
                "-DHELIOS_ONLY=maco",
                "-DCMAKE_BUILD_TYPE=Debug",
                "-DCMAKE_DISABLE_FIND_PACKAGE_CapnProto=ON",
                *options,
            ],
            ["ninja", "-C", self.out, "-j", "2"],
        ):
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=250, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return pathlib.Path(self.out) / "lib/libhelios.so"

    def why_no_gpu(self, path):
        ask = (
            "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); lib.helios_last_error.restype ="
            " ctypes.c_char_p\nprint(lib.maco_cuda_available(None),"
            " lib.helios_last_error().decode())"
        )
        return subprocess.run(
            [sys.executable, "-c", ask, path], capture_output=True, text=True, check=True
        ).stdout

    def test_it_builds_without_the_packages_of_the_rest(self):
        path = self.build("-DHELIOS_CUDA=OFF")
        needed = subprocess.run(
            ["readelf", "-d", path], capture_output=True, text=True, check=True
        ).stdout
        libraries = re.findall(r"NEEDED.*\[(.*?)\.so", needed)
        self.assertLessEqual(set(libraries), {"libc", "libm", "ld-linux-x86-64", "ld64"})
        lib, data, order = (
            ctypes.CDLL(str(path)),
            (ctypes.c_float * 8)(*range(8)),
            (ctypes.c_int32 * 4)(),
        )
        self.assertEqual(lib.maco_demo(data, ctypes.c_uint64(8), 2, 2, 1, 0, order), 0)
        self.assertEqual(sorted(order), [0, 1, 1000, 1001])
        self.assertAlmostEqual(data[7], 7 * 2.25 + 0.25, places=4)

    def test_without_kernels_it_says_why(self):
        for option, why in (
            ("-DHELIOS_CUDA=OFF", "it was built with HELIOS_CUDA=OFF"),
            ("-DHELIOS_CUDA=AUTO", "nvcc was not found when it was built"),
        ):
            said = self.why_no_gpu(self.build(option, "-DHL_NVCC="))
            self.assertIn(f"-15 this libhelios has no GPU kernels: {why}; the CPU's runtime", said)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
"""./run test-gpu: runs all that needs a CUDA device, and prints a summary.

Without a GPU it ends with 77 and says why. Each part is a process of its own with a deadline; what
it says is in DIR/PART.log. docs/testing.md says what each part is."""
from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build")).absolute()
DRIVER = "libcuda.so.1"


@dataclasses.dataclass
class Part:
    command: list
    limit: int  # seconds
    env: dict = dataclasses.field(default_factory=dict)
    beside: bool = False  # others of the same kind run at the same time


def unit(name: str, real: bool = True) -> Part:
    return Part([BUILD / "tests" / name], 180, {"HELIOS_TEST_CUDA": DRIVER} if real else {})


def script(path: str, *args: object, limit: int = 300, **options: object) -> Part:
    return Part([sys.executable, "-u", ROOT / path, *args], limit, **options)


def parts(args: argparse.Namespace) -> dict[str, Part]:
    """By name, in the order in which they run."""
    quick = args.quick
    out = {
        "device": unit("mem_test_device", real=False),
        "tier": unit("mem_test_tier_conformance"),
        "plank": unit("mem_test_plank"),
        "store-device": unit("integration_test_store_device"),
        "copies": Part(
            [BUILD / "bin" / "helios", "bench", "device", "--rounds", "1" if quick else "3"], 120
        ),
        "store": script("tests/gpu/store.py", "--mib", 256 if quick else 1024),
        "hybridps": script(
            "tests/gpu/hybridps_cuda.py", *(["--steps", 4] if quick else []), limit=400
        ),
        "step": script(
            "bench/hybridps_step.py",
            "--device",
            "cuda:0",
            "--width",
            1024 if quick else 2048,
            "--layers",
            6 if quick else 12,
            "--steps",
            10,
        ),
    }
    count = max(1, args.fuzz // args.at_once)
    for i in range(args.at_once if args.fuzz else 0):
        out[f"fuzz-{i}"] = script(
            "tests/support/hybridps_fuzz.py",
            count,
            "--seed",
            args.seed + i * count,
            "--cuda",
            "cuda:0",
            limit=500,
            beside=True,
        )
    maco = ["--lib", args.lib] if args.lib else []
    out["maco"] = script(
        "bench/maco_gpu.py",
        "--out",
        pathlib.Path(args.out) / "maco",
        *maco,
        *(["--quick"] if quick else []),
        *(["--only", args.maco] if args.maco else []),
        limit=580,
    )
    return out


class Running:
    def __init__(self, name: str, part: Part, out: pathlib.Path) -> None:
        self.name, self.part, self.log = name, part, out / f"{name}.log"
        self.began = time.monotonic()
        with self.log.open("w") as log:
            env = {
                **os.environ,
                "HELIOS_BUILD": str(BUILD),
                "HELIOS_LIBRARY": str(BUILD / "lib/libhelios.so.0"),
                **part.env,
            }
            self.process = subprocess.Popen(
                [str(c) for c in part.command], stdout=log, stderr=subprocess.STDOUT, env=env
            )

    def end(self) -> tuple[bool, str]:
        try:
            code = self.process.wait(max(1, self.part.limit - (time.monotonic() - self.began)))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
            code = None
        took = time.monotonic() - self.began
        said = self.log.read_text(errors="replace")
        what = {0: "ok", 77: "skipped", None: f"not done in {self.part.limit} s"}.get(
            code, f"status {code}"
        )
        good = code in (0, 77) and not re.search(r"skipped: .*hardware", said)
        return good, f"{self.name:14} {what:24} {took:6.1f} s  {last_line(said)}"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:180] if lines else ""


def refuse(why: str) -> None:
    print(f"skipped: {why}")
    sys.exit(77)


def card(probe: bool) -> str:
    """The GPU and its driver; ends the program where there is none.
    probe: prints its architecture, and ends it."""
    try:
        import torch
    except ImportError:
        refuse(f"no torch for {sys.executable}: set PYTHON to one that has it, built with CUDA")
    if not torch.cuda.is_available():
        refuse("torch sees no GPU")
    major, minor = torch.cuda.get_device_capability(0)
    if probe:
        print(f"{major}{minor}")
        sys.exit(0)
    return (
        f"{torch.cuda.get_device_name(0)} ({major}.{minor}), torch {torch.__version__},"
        f" {torch.cuda.device_count()} of them"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run test-gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu-report", help="directory for the output")
    parser.add_argument("--only", default="", help="parts, separated by commas (fuzz: all of them)")
    parser.add_argument(
        "--quick", action="store_true", help="small: whether it works, not how fast"
    )
    parser.add_argument("--fuzz", type=int, default=2000, help="random programs of HybridPS (2000)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--at-once", type=int, default=8, help="processes that run them (8)")
    parser.add_argument(
        "--lib", help="a libhelios with MACO's kernels for this GPU; without it one is built"
    )
    parser.add_argument("--maco", default="", help="sections of bench/maco_gpu.py; without it all")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = pathlib.Path(args.out).absolute()
    args.out = out
    there, wanted = parts(args), set(filter(None, args.only.split(",")))
    unknown = wanted - {called for n in there for called in (n, n.split("-")[0])}
    if unknown:
        parser.error(f"no part {min(unknown)}; there are {', '.join(there)}")
    chosen = {n: p for n, p in there.items() if not wanted or wanted & {n, n.split("-")[0]}}
    here = card(args.probe)
    out.mkdir(parents=True, exist_ok=True)
    print(here, flush=True)
    lines, failed, beside = [here], 0, []

    def ended(running: Running) -> None:
        nonlocal failed
        good, line = running.end()
        failed += not good
        lines.append(line + ("" if good else "  FAILED"))
        print(lines[-1], flush=True)

    for name, part in chosen.items():
        if not part.beside:
            while beside:
                ended(beside.pop(0))
        beside.append(Running(name, part, out))
        if not part.beside:
            ended(beside.pop(0))
    while beside:
        ended(beside.pop(0))
    lines.append(
        f"{failed} of {len(chosen)} parts failed" if failed else f"all {len(chosen)} parts right"
    )
    print(lines[-1])
    (out / "summary.txt").write_text("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Checks what the scheduling demo promises: the value of each element, each task once, \
round by round.

    ./run build && /usr/bin/python3 examples/maco/test_sm_scheduler.py [--device cuda]
"""
from __future__ import annotations

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402

from maco._sm import run_sm_scheduling_demo  # noqa: E402


def expected(data: torch.Tensor, tasks: int) -> torch.Tensor:
    """x * 1.5 + 0.1, so many times, in closed form."""
    return data.double() * 1.5**tasks + 0.2 * (1.5**tasks - 1)


def check(device: str, size: int, tasks: int, workers: int, policy: str) -> None:
    start = torch.rand(size, device=device)
    begun = time.perf_counter()
    result, order = run_sm_scheduling_demo(
        start.clone(), num_tasks_per_worker=tasks, num_workers=workers, policy=policy
    )
    took = time.perf_counter() - begun
    error = (
        (
            (result.double() - expected(start, tasks)).abs()
            / expected(start, tasks).abs().clamp(min=1)
        )
        .max()
        .item()
    )
    codes = order.tolist()
    assert error < 1e-5, f"values are {error:.1e} off"
    assert sorted(codes) == sorted(
        w * 1000 + t for w in range(workers) for t in range(tasks)
    ), "each task is done once"
    rounds = [code % 1000 for code in codes]
    assert rounds == sorted(rounds), "a round ends before the next begins"
    print(
        f"{policy:>10} {size:>8} elements, {workers} workers x {tasks:>3} tasks: "
        f"{took * 1e3:7.2f} ms with starting the workers, largest relative error {error:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    for policy in ("direct", "scheduler"):
        check(device, 1 << 20, 10, 8, policy)
        check(device, 1000, 100, 4, policy)
        check(device, 7, 3, 7, policy)
    print("all as promised")


if __name__ == "__main__":
    main()

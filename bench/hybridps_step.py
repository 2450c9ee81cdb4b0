#!/usr/bin/python3
"""What managed memory costs where it is not needed: a step on a device that holds everything.

    ./run bench step

Trains the GPT of examples/train_bigger_than_device.py plain and managed, one step of each in turn,
and prints both times and their ratio (bar: 1.05). CPU time is that of all threads: use it on a
machine that others use too. Managed steps use native Adam, plain ones torch's.
"""
from __future__ import annotations

import argparse
import pathlib
import resource
import statistics
import sys
import time
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import hybridps  # noqa: E402
from train_bigger_than_device import batch, make, step  # noqa: E402

WARM_UP = 4  # recording, planning, caches


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> Callable[[], float]:
    """Runs one step on the next batch and returns its loss.
    On CUDA it waits for the forward and all work before."""
    generator = torch.Generator().manual_seed(1)
    return lambda: step(model, optimizer, batch(generator).to(device)).item()


def make_on(device: str, args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = make(args)
    if device == "cpu":
        return model, optimizer
    model.to(device)
    return model, type(optimizer)(model.parameters(), lr=1e-3)


def timed(run: Callable[[], float]) -> tuple[float, float, int, float]:
    """Wall and CPU seconds, page faults, loss."""
    used, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    loss = run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    wall, now = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return wall, cpu, now.ru_minflt - used.ru_minflt, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: its default")
    parser.add_argument("--device", default="emu", help="emu, or cuda:N")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    there = args.device if args.device.startswith("cuda") else "cpu"
    plain, (model, optimizer) = make_on(there, args), make_on(there, args)
    capacity = 16 * sum(p.numel() for p in model.parameters())
    if there != "cpu":  # chunks of each kind are whole units of memory there
        capacity += capacity // 8 + (64 << 20)
    taken: dict[str, list] = {"plain": [], "managed": []}
    with hybridps.manage(model, optimizer, device=f"{args.device}:{capacity}"):
        steps = {"plain": stepper(*plain, there), "managed": stepper(model, optimizer, there)}
        for _ in range(WARM_UP + args.steps):
            for name, run in steps.items():
                taken[name].append(timed(run))
    pairs = list(zip(taken["plain"], taken["managed"]))
    equal = all(a[3] == b[3] for a, b in pairs)
    if not equal and (there == "cpu" or any(abs(a[3] - b[3]) > 1e-3 * abs(a[3]) for a, b in pairs)):
        sys.exit("the losses differ")
    middle = {}
    for name, rows in taken.items():
        columns = [statistics.median(c) for c in zip(*rows[WARM_UP:])]
        middle[name] = columns
        print(
            f"{name:8} wall {columns[0] * 1e3:7.1f} ms  cpu {columns[1] * 1e3:7.1f} ms  "
            f"{columns[2]:6.0f} page faults"
        )
    wall, cpu = (middle["managed"][i] / middle["plain"][i] for i in (0, 1))
    print(
        f"managed / plain: wall {wall:.3f}  cpu {cpu:.3f}   (medians of {args.steps} steps, "
        f"{torch.get_num_threads()} threads, losses {'bit-equal' if equal else 'within 0.1 %'})"
    )


if __name__ == "__main__":
    main()

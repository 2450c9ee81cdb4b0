#!/usr/bin/python3
"""A product whose result is summed over two ranks: how much of the communication is hidden.

    ./run build && /usr/bin/python3 examples/maco/benchmark_nccl_2gpu.py  # CPU, shared memory
    torchrun --nproc-per-node 2 examples/maco/benchmark_nccl_2gpu.py --device cuda  # NCCL, two GPUs

C: computing alone, X: communicating alone, S: one after the other, O: overlapped, all in the same
chunks; S0: in one piece. hidden = (C + X - O) / X, E = (C + X - O) / min(C, X), gain = S0 / O. With
n chunks E can't pass E* = (C + X - O*) / min(C, X), O* = c + (n - 1) max(c, x) + x. E is not
printed if it would be meaningless: one side is too small, S is not C + X (the two slow each other
down), or O varies. Expect that when both ranks run on the cores of one machine, because the cores
that compute also add. Results are compared bit by bit with the serial run of the same chunks.
"""
from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import time
from typing import Any, Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import hybridps  # noqa: E402
from maco import TaskGraph, overlap_comm  # noqa: E402

LEAST_PART, MOST_DISTURBED, MOST_SPREAD = 0.05, 0.05, 0.10
Variants = dict[str, Callable[[], Any]]


def cpu_variants(
    group: Any, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, chunks: int
) -> tuple[Variants, dict[str, Any]]:
    """Graphs, and the statistics of the overlapped one on the virtual clock."""
    rows = [slice(len(x) * i // chunks, len(x) * (i + 1) // chunks) for i in range(chunks)]

    def graph(compute: bool, comm: bool, serial: bool) -> TaskGraph:
        g, last = TaskGraph(1, group=group), None
        for part in rows:
            for task in (
                (g.linear, x[part], w) if compute else None,
                (g.allreduce, out[part]) if comm else None,
            ):
                if task is None:
                    continue
                made = task[0](*task[1:], out=out[part])
                if serial and last is not None:
                    g.add_dependency(made, last)
                last = made
        g.compile()
        return g

    whole, waves = TaskGraph(1, group=group), TaskGraph(1, group=group, trace=True)
    for g, n in ((whole, 1), (waves, chunks)):
        up = g.linear(x, w, out=out)
        g.overlap(up, g.allreduce(up, out=out)).with_waves(n)
        g.compile()
    return {
        "C": graph(True, False, False).execute,
        "X": graph(False, True, False).execute,
        "S": graph(True, True, True).execute,
        "O": waves.execute,
        "S0": whole.execute,
    }, waves.compile().simulate(1, link_bytes_per_s=10**9, link_latency_ns=0)


def cuda_variants(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, chunks: int) -> Variants:
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ w.t()

    def run(n: int, schedule: str) -> Callable[[], Any]:
        both = overlap_comm(comm_op="allreduce", chunks=n, grad="none", schedule=schedule)(product)
        return lambda: out.copy_(both(x))

    def sums() -> None:
        for part in out.chunk(chunks):
            dist.all_reduce(part)

    return {
        "C": lambda: [product(part) for part in x.chunk(chunks)],
        "X": sums,
        "S": run(chunks, "serial"),
        "O": run(chunks, "overlap"),
        "S0": run(1, "serial"),
    }


def measure(
    variants: Variants, repeats: int, meet: Callable[[], Any], sync: Callable[[], Any]
) -> torch.Tensor:
    """Seconds by (variant, repeat): the variants take turns, and all ranks begin together."""
    taken = torch.zeros(len(variants), repeats + 1, dtype=torch.float64)
    for r in range(repeats + 1):
        for i, run in enumerate(variants.values()):
            meet()
            begun = time.perf_counter()
            run()
            sync()
            taken[i, r] = time.perf_counter() - begun
    return taken[:, 1:]


def unmeasurable(c: float, x: float, s: float, overlapped: list[float]) -> str:
    """Why no efficiency can be given; "" if it can."""
    low, middle, high = statistics.quantiles(overlapped, n=4)
    if min(c, x) < LEAST_PART * max(c, x):
        return f"the smaller side is {min(c, x) / max(c, x):.1%} of the larger"
    if abs(c + x - s) > MOST_DISTURBED * s:
        return f"C + X is {(c + x) / s - 1:+.0%} of S: noise, or they disturb each other"
    if high - low > MOST_SPREAD * middle:
        return f"half of the overlapped runs lie {(high - low) / middle:.0%} apart"
    return ""


def report(taken: torch.Tensor, names: list[str], chunks: int) -> None:
    times = dict(zip(names, taken.tolist()))
    c, x, s, o, s0 = (statistics.median(times[n]) for n in ("C", "X", "S", "O", "S0"))
    print(
        "measured, slowest rank, medians: "
        + ", ".join(
            f"{n} {v * 1e3:.2f} ms" for n, v in zip(("C", "X", "S", "O", "S0"), (c, x, s, o, s0))
        )
    )
    print(f"  gain S0 / O = {s0 / o:.3f}")
    why = unmeasurable(c, x, s, times["O"])
    if why:
        print(f"  E: unmeasurable here ({why})")
        return
    best = (c + (chunks - 1) * max(c, x) + x) / chunks
    e, most = (c + x - o) / min(c, x), (c + x - best) / min(c, x)
    print(f"  hidden {(c + x - o) / x:.1%}, E {e:.1%} of at most E* {most:.1%}: {e / most:.1%}")


def run(rank: int, args: argparse.Namespace) -> None:
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    x = torch.randn(args.rows, args.inner, device=args.device)
    w = torch.randn(args.outer, args.inner, device=args.device)
    out = torch.empty(args.rows, args.outer, device=args.device)
    simulated = None
    if args.device == "cpu":
        group = hybridps.Group.shm(f"maco-benchmark-{os.getppid()}", rank, args.world)
        variants, simulated = cpu_variants(group, x, w, out, args.chunks)
        meet, sync = lambda: group.allreduce(torch.zeros(1)), lambda: None

        def gather(t: torch.Tensor) -> torch.Tensor:
            return torch.stack(group.allgather(t))

    else:
        torch.cuda.set_device(rank)
        variants, meet = cuda_variants(x, w, out, args.chunks), dist.barrier
        sync = torch.cuda.synchronize

        def gather(t: torch.Tensor) -> torch.Tensor:
            parts = [torch.empty_like(t, device=args.device) for _ in range(args.world)]
            dist.all_gather(parts, t.to(args.device))
            return torch.stack(parts).cpu()

    variants["S"]()
    serial = out.clone()
    variants["O"]()
    same = torch.equal(out, serial)
    variants["S0"]()
    error = ((out - serial).abs().max() / serial.abs().max()).item()
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    taken = gather(measure(variants, args.repeats, meet, sync)).amax(0)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = (
        gather(
            torch.tensor(
                [spent.ru_utime + spent.ru_stime - cpu.ru_utime - cpu.ru_stime], dtype=torch.float64
            )
        )
        .flatten()
        .tolist()
    )
    assert same, "overlapped and serial differ"
    assert error < 1e-4, f"chunks and the whole differ by {error:.1e}"
    if rank == 0:
        print(
            f"{args.rows} x {args.inner} x {args.outer}, {args.chunks} chunks, {args.world} ranks "
            f"on {args.device}: overlapped has the serial run's bits; the whole differs by "
            f"{error:.1e}"
        )
        report(taken, list(variants), args.chunks)
        print("  CPU time of each rank: " + ", ".join(f"{s:.2f} s" for s in seconds))
        if simulated is not None:
            print(
                "simulated, not measured (virtual clock, estimated costs, a link of 1 GB/s without"
                f" latency): {simulated['hidden']:.1%} of the communication hidden, at most"
                f" {1 - 1 / args.chunks:.1%} with {args.chunks} equal chunks"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--world", type=int, default=2, help="ranks on a CPU")
    for name, default in (
        ("rows", 512),
        ("inner", 256),
        ("outer", 512),
        ("chunks", 4),
        ("repeats", 20),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.repeats < 20:
        print("fewer than 20 repeats: read no times from this")
    if args.device == "cuda":
        dist.init_process_group("nccl")
        args.world = dist.get_world_size()
        run(dist.get_rank(), args)
        return
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(rank, args)) for rank in range(args.world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()

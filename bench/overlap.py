#!/usr/bin/python3
"""What MacoOptimizer gains where the network is slower than the processor: two ranks over gloo, \
in network namespaces, on a link that tc limits.

    ./run bench overlap

Measures a linear layer whose inner dimension is divided between the ranks, and the sum of its
result over the ranks: plain, and optimized by MacoOptimizer with chunks="auto", one call of each in
turn. The link uses no processor while it sends, so communication can be hidden even on a machine
with two cores. The inner dimension is chosen so that this host computes for as long as it
communicates, because then most can be hidden. Needs root.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "net"), str(ROOT / "bench")]

BAR = 1 / 1.15  # of the plain time
PORT = 29431
PROBE = 1024  # inner dimension of the layer that is measured first


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call, which the ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def balanced(rows: int, outer: int) -> int:
    """The inner dimension, a multiple of 64, whose product takes the slowest rank as long as the
    sum of its result; the ranks call it together."""
    import torch
    import torch.distributed as dist

    y, x, weight = torch.zeros(rows, outer), torch.randn(rows, PROBE), torch.randn(PROBE, outer)

    def seconds(call: Callable[[], object]) -> float:
        return statistics.median([timed(call) for _ in range(6)][1:])

    both = torch.tensor([seconds(lambda: x @ weight), seconds(lambda: dist.all_reduce(y))])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    compute, communicate = both.tolist()
    return min(max(round(PROBE * communicate / compute / 64), 1), 256) * 64


def rank(number: int, args: argparse.Namespace) -> None:
    """Its lines are JSON."""
    import torch
    import torch.distributed as dist
    from maco import MacoOptimizer

    class Layer(torch.nn.Module):
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(inner, args.outer, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            dist.all_reduce(y)
            return y

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "backbone"
    dist.init_process_group(
        "gloo", init_method=f"tcp://10.77.1.1:{PORT}", rank=number, world_size=2
    )
    torch.manual_seed(number)
    with torch.no_grad():
        inner = args.inner or balanced(args.rows, args.outer)
        plain, x = Layer(inner), torch.randn(args.rows, inner)
        optimizer = MacoOptimizer(plain, (x,))
        made = optimizer.optimize()
        taken: dict[str, list[float]] = {"plain": [], "made": []}
        for _ in range(args.calls + 1):
            for name, run in (("plain", plain), ("made", made)):
                taken[name].append(timed(lambda: run(x)))
        differs = float((plain(x) - made(x)).abs().max())
    report = optimizer.report()
    print(
        json.dumps(
            {
                "seconds": {name: statistics.median(t[1:]) for name, t in taken.items()},
                "inner": inner,
                "chunks": report[0].chunks,
                "report": str(report),
                "differs": differs,
            }
        ),
        flush=True,
    )
    dist.destroy_process_group()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both ranks on a link of args.rate; the slower one's times."""
    import hosts

    command = [
        sys.executable,
        __file__,
        *(f"--{k}={getattr(args, k)}" for k in ("rows", "inner", "outer", "calls")),
    ]
    with hosts.Lab() as lab:
        for host in lab.hosts:
            host.slow("backbone", f"tbf rate {args.rate} burst 64k latency 50ms")
        started = [
            host.start(*command, f"--rank={number}") for number, host in enumerate(lab.hosts)
        ]
        said = [process.line(60) for process in started]
    out = said[0]
    out["seconds"] = {name: max(s["seconds"][name] for s in said) for name in out["seconds"]}
    return out


def used() -> tuple[float, float]:
    """Seconds: of the wall clock; of processors, by programs that are not this one's
    and by the host."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = dict(zip(names, map(int, pathlib.Path("/proc/stat").read_text().split()[1:])))
    busy = sum(ticks[name] for name in ("user", "nice", "system", "steal")) / os.sysconf(
        "SC_CLK_TCK"
    )
    return time.monotonic(), busy - sum(os.times()[:4])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", default="400mbit", help="rate of the link, in tc's notation")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument(
        "--inner",
        type=int,
        default=0,
        help="inner dimension; 0: as long to compute as to communicate",
    )
    parser.add_argument("--outer", type=int, default=512)
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank(args.rank, args)
        return 0
    import hosts
    from bars import Bars

    why = hosts.missing() or hosts.lacks(f"tbf rate {args.rate} burst 64k latency 50ms")
    if why is not None:
        print(f"overlap: not run: {why}")
        return 0
    begun = used()
    said = run(args)
    seconds, others = (now - before for now, before in zip(used(), begun))
    print(said["report"])
    plain, made = said["seconds"]["plain"], said["seconds"]["made"]
    print(
        f"a link of {args.rate}, {args.rows} x {said['inner']} x {args.outer}: plain"
        f" {plain * 1e3:.1f} ms, optimized {made * 1e3:.1f} ms, {plain / made:.2f} x with"
        f" {said['chunks']} chunks; largest difference {said['differs']:g}"
    )
    busy = others / seconds
    bars = Bars()
    bars.judge(
        "optimized by plain",
        made / plain,
        BAR,
        lacks=f"others used {busy:.1f} processors meanwhile" if busy > 0.3 else "",
    )
    return bars.status()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""What one launch of many small tasks saves: the same tasks as calls of torch and as one graph.

    ./run build && /usr/bin/python3 examples/maco/persistent_kernel_demo.py [--device cuda]

On a GPU it also measures a CUDA graph of the calls, with which a persistent kernel competes. On a
CPU it compares calls of torch from Python with a graph of the same tasks, which mostly saves the
time of Python. Times are medians; the variants take turns.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from typing import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402

from maco import TaskGraph  # noqa: E402


def eager(data: list[torch.Tensor], depth: int) -> None:
    for _ in range(depth):
        for x in data:
            torch.mul(x, 0.5, out=x).add_(0.5)


def as_graph(data: list[torch.Tensor], depth: int, policy: str) -> TaskGraph:
    graph = TaskGraph(device=data[0].device, policy=policy)
    for _ in range(depth):
        for x in data:
            graph.elementwise("axpb", x, alpha=0.5, beta=0.5, out=x)  # waits for the one before
    graph.compile()
    return graph


def cuda_graph(data: list[torch.Tensor], depth: int) -> Callable[[], None]:
    eager(data, depth)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager(data, depth)
    return graph.replay


def medians(
    variants: dict[str, Callable[[], object]], device: str, repeats: int
) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats + 1):
        for name, run in variants.items():
            begun = time.perf_counter()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(t[1:]) for name, t in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for width, depth in ((4, 10), (40, 100)):
        data = [torch.ones(256, device=args.device) for _ in range(width)]
        graphs = {policy: as_graph(data, depth, policy) for policy in ("direct", "scheduler")}
        variants: dict[str, Callable[[], object]] = {
            "torch, call by call": lambda: eager(data, depth)
        }
        if args.device != "cpu":
            variants["CUDA graph"] = cuda_graph(data, depth)
        for policy, graph in graphs.items():
            variants[f"maco, {policy}"] = graph.execute
        found = medians(variants, args.device, args.repeats)
        assert all(torch.equal(x, torch.ones_like(x)) for x in data)
        print(f"{width * depth} tasks of 256 elements, {width} chains of {depth}:")
        for name, seconds in found.items():
            print(
                f"  {name:<22} {seconds * 1e6:9.1f} us  {seconds / (width * depth) * 1e9:8.1f} "
                "ns a task"
            )
        for graph in graphs.values():
            graph.close()


if __name__ == "__main__":
    main()

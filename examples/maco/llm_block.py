#!/usr/bin/python3
"""A transformer block of a language model as a graph of tasks.

    ./run build && /usr/bin/python3 examples/maco/llm_block.py

The block is plain torch; TaskGraph.from_module makes the graph. Prints the report of the graph, how
far its result is from torch's, and the times of both.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from maco import TaskGraph  # noqa: E402


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    """As in Llama, without rotary positions: RMSNorm, causal attention, gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        # torch 1.13; the fifth argument asks for the weights
        return F._scaled_dot_product_attention(q, k, v, None, 0.0, False, True)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def compare(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], repeats: int, **options: Any
) -> None:
    """The graph's result against torch's, and medians of both times, taken in turns."""
    begun = time.perf_counter()
    graph = TaskGraph.from_module(module, inputs, strict=True, **options)
    graph.compile()
    print(f"graph made in {(time.perf_counter() - begun) * 1e3:.0f} ms: {graph.report()}")
    taken: dict[str, list[float]] = {"torch": [], "graph": []}
    for _ in range(repeats + 1):
        fresh = tuple(torch.randn_like(x) for x in inputs)
        with torch.no_grad():
            begun = time.perf_counter()
            want = module(*fresh)
            taken["torch"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        got = graph(*fresh)
        taken["graph"].append(time.perf_counter() - begun)
        error = ((got - want).abs().max() / want.abs().max()).item()
        assert error < 1e-4, f"the graph's result is {error:.1e} off"
    times = {name: statistics.median(t[1:]) * 1e3 for name, t in taken.items()}
    plan = graph.compile().describe()
    print(
        f"largest relative difference to torch {error:.1e}; torch {times['torch']:.2f} ms with "
        f"{torch.get_num_threads()} threads, graph {times['graph']:.2f} ms with {graph.workers} "
        f"workers; {plan['levels']} levels"
    )
    graph.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    compare(
        Block(args.width, args.heads).eval(),
        (torch.randn(args.batch, args.tokens, args.width),),
        args.repeats,
    )


if __name__ == "__main__":
    main()

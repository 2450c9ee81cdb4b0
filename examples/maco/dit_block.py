#!/usr/bin/python3
"""A block of a diffusion transformer (DiT) as a graph of tasks.

    ./run build && /usr/bin/python3 examples/maco/dit_block.py

The condition (time step and class) shifts, scales and gates the block's results. Prints the report
of the graph, how far its result is from torch's, and the times of both.
"""
from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from llm_block import compare  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (
            nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2)
        )
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.modulation(condition).unsqueeze(1).chunk(6, -1)
        )
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--patches", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    compare(
        Block(args.width, args.heads).eval(),
        (torch.randn(args.batch, args.patches, args.width), torch.randn(args.batch, args.width)),
        args.repeats,
    )


if __name__ == "__main__":
    main()

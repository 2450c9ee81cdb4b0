"""Models on a few ranks: with numbers whose products and sums are exact, and with realistic
sums."""
from __future__ import annotations

import datetime
import tempfile
from typing import Any, Callable

import torch
import torch.distributed as dist

from ranks import ranks


def on_ranks(run: Callable[[int], Any], world: int = 2) -> list[Any]:
    """run(rank) with torch.distributed over gloo."""
    with tempfile.TemporaryDirectory() as folder:

        def child(rank: int) -> Any:
            torch.set_num_threads(1)
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(seconds=120),
            )
            dist.barrier()  # a rank that leaves early breaks the others' connections
            return run(rank)

        return ranks(child, world)


def fill(model: torch.nn.Module, rank: int) -> torch.nn.Module:
    """Small whole numbers, different on each rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-2, 3, p.shape, generator=generator))
    return model


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def in_place(y):
    dist.all_reduce(y)
    return y


class ReduceBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.contiguous().clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.contiguous().clone()
        dist.all_reduce(out)
        return out

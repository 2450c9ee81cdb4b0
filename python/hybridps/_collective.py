"""Collectives of the processes of torch.distributed; one process alone is a world of one."""
from __future__ import annotations

import torch
import torch.distributed as dist

from ._abi import HybridPSError


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def allreduce(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """A new tensor: the sum or mean of every rank's, added in the order of ranks, so that the bits
    do not depend on the backend's algorithm."""
    if op not in ("sum", "mean"):
        raise HybridPSError(f"allreduce: op is {op!r}, it may be 'sum' or 'mean'")
    mine = tensor.detach().contiguous()
    world = _world()
    if world == 1:
        return mine.clone()
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total.div_(world) if op == "mean" else total


def broadcast(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    """A new tensor with the values of rank src."""
    world = _world()
    if not 0 <= src < world:
        raise HybridPSError(f"broadcast: src is {src}, there are ranks 0 to {world - 1}")
    out = tensor.detach().contiguous().clone()
    if world > 1:
        dist.broadcast(out, src)
    return out

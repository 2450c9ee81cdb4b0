"""Process groups of a (pp, tp, dp) grid over gloo, and the tensor-parallel pieces of a transformer.

Megatron's rules: a column-parallel linear keeps rows of its weight [out, in], a row-parallel one
columns; each pair of them needs one all-reduce forward and one backward.
"""
from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from maco import overlap_comm

Group = Optional[Any]  # None: alone in its group, nothing to communicate


@dataclass(frozen=True)
class Grid:
    """This rank's neighbours and groups. ``before`` and ``after`` are global ranks, or None."""

    pp: int
    tp: int
    dp: int
    stages: int
    tensor: Group
    data: Group
    embedding: Group  # first and last stage, for tied embeddings
    before: int | None
    after: int | None
    reporter: int  # global rank that has the loss: last stage, tp 0, dp 0

    @property
    def first(self) -> bool:
        return self.before is None

    @property
    def last(self) -> bool:
        return self.after is None


def make_grid(rank: int, world: int, pp: int, tp: int, dp: int, timeout_s: float) -> Grid:
    """Join the gang (MASTER_ADDR, MASTER_PORT), unless helios.elastic has, and make every group.

    Ranks tell each other their place, so that any rank order works. All ranks make all groups, in
    the same order, as torch demands; a peer that dies fails the others within `timeout_s` seconds.
    """
    # Debian's torch 2.6 asks for libuv and is built without.
    os.environ.setdefault("USE_LIBUV", "0")
    limit = datetime.timedelta(seconds=timeout_s)
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=world, timeout=limit)
    mine = torch.tensor([pp, tp, dp])
    table = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(table, mine)
    places = [tuple(t.tolist()) for t in table]
    where = {place: r for r, place in enumerate(places)}
    last = max(places)[0]

    def group_by(key: Callable[[int, int, int], Any]) -> Group:
        """One group per distinct key; returns the one this rank is in."""
        own = None
        for value in sorted({key(*p) for p in places if key(*p) is not None}):
            members = [r for r in range(world) if key(*places[r]) == value]
            made = dist.new_group(members, timeout=limit) if len(members) > 1 else None
            own = made if rank in members else own
        return own

    return Grid(
        pp,
        tp,
        dp,
        last + 1,
        tensor=group_by(lambda p, t, d: (p, d)),
        data=group_by(lambda p, t, d: (p, t)),
        embedding=group_by(lambda p, t, d: (t, d) if p in (0, last) else None),
        before=where.get((pp - 1, tp, dp)),
        after=where.get((pp + 1, tp, dp)),
        reporter=where[(last, 0, 0)],
    )


def all_reduce(tensor: torch.Tensor, group: Group, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    """In place; returns its argument."""
    if group is not None:
        dist.all_reduce(tensor, op=op, group=group)
    return tensor


class _Copy(torch.autograd.Function):
    """Into the tensor-parallel region: identity forward, sum of gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_reduce(grad.contiguous().clone(), ctx.group), None


class _Reduce(torch.autograd.Function):
    """Out of the tensor-parallel region: sum forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return all_reduce(x.contiguous().clone(), group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def column_parallel(x: torch.Tensor, weight: torch.Tensor, group: Group) -> torch.Tensor:
    """This rank's share [..., out/T] of a linear layer; `weight` is [out/T, in]."""
    return F.linear(_Copy.apply(x, group), weight)


class ColumnParallelLinear(nn.Module):
    """weight [out/T, in]: this rank's share of the outputs."""

    def __init__(self, inputs: int, outputs: int, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return column_parallel(x, self.weight, self.group)


class RowParallelLinear(nn.Module):
    """weight [out, in/T]: this rank's share of the inputs; the partial sums are added up."""

    def __init__(self, inputs: int, outputs: int, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.overlapped: Optional[Callable] = None

    def overlap(self, chunks: int | str, schedule: str) -> None:
        """From now on tokens go in chunks: the sum of one goes on while the next is computed."""
        if self.group is not None:
            self.overlapped = overlap_comm(
                "allreduce", chunks, split_dim=1, group=self.group, schedule=schedule
            )(F.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.overlapped is not None:
            return self.overlapped(x, self.weight)
        return _Reduce.apply(F.linear(x, self.weight), self.group)


class VocabParallelEmbedding(nn.Module):
    """weight [V/T, hidden] of the padded vocabulary; `first` is the number of this rank's row 0."""

    def __init__(self, rows: int, hidden: int, first: int, group: Group) -> None:
        super().__init__()
        self.first, self.group = first, group
        self.weight = nn.Parameter(torch.empty(rows, hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        local = tokens - self.first
        outside = (local < 0) | (local >= len(self.weight))
        rows = F.embedding(local.masked_fill(outside, 0), self.weight)
        return _Reduce.apply(rows.masked_fill(outside[..., None], 0.0), self.group)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        first: int,
        vocabulary: int,
        group: Group,
    ) -> torch.Tensor:
        logits = logits.clone()
        # Padding rows exist only to make the vocabulary divisible: they have no probability.
        logits[:, max(0, vocabulary - first) :] = float("-inf")
        highest = all_reduce(logits.max(dim=1).values, group, dist.ReduceOp.MAX)
        exp = (logits - highest[:, None]).exp()
        total = all_reduce(exp.sum(dim=1), group)
        local = targets - first
        here = (local >= 0) & (local < logits.shape[1])
        index = local.masked_fill(~here, 0)[:, None]
        wanted = logits.gather(1, index)[:, 0].masked_fill(~here, 0.0)
        all_reduce(wanted, group)
        ctx.save_for_backward(exp.div_(total[:, None]), index, here)
        return (total.log() + highest - wanted).mean()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        probability, index, here = ctx.saved_tensors
        out = probability.scatter_add(1, index, -here[:, None].to(probability.dtype))
        return out.mul_(grad / len(index)), None, None, None, None


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, first: int, vocabulary: int, group: Group
) -> torch.Tensor:
    """Mean cross entropy in nats of logits [n, V/T] split over `group`, targets [n].

    `first`: vocabulary number of column 0 here. Columns at and beyond `vocabulary` (the true size)
    are padding and take no part in the softmax.
    """
    return _CrossEntropy.apply(logits, targets, first, vocabulary, group)

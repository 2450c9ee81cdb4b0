"""Collectives as functions with gradients, which MacoOptimizer recognises in a model.

They return a new tensor. Their gradients are those of @overlap_comm, of which they are the special
case of one chunk and no computation.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import fx

from . import _capture
from .decorators import Overlap, start


def same(x: torch.Tensor) -> torch.Tensor:
    """The identity: nothing to compute."""
    return x


def _run(x: Any, collective: _capture.Collective) -> Any:
    spec = Overlap(collective.kind, 1, 0, collective.dim, collective.op, collective.group,
                   collective.grad, name=collective.kind)

    def call(tensor: torch.Tensor) -> torch.Tensor:
        return start(spec, same, (tensor,), {}).wait()
    if isinstance(x, fx.Proxy):
        return _capture.emit(_capture.Site(call, collective.kind, collective), x)
    return call(x)


def all_reduce(x: torch.Tensor, op: str = "sum", group: Any = None,
               grad: str = "tp") -> torch.Tensor:
    """The reduction of all ranks' x by op. grad: "tp" = identity backward, "sum" = all-reduce."""
    return _run(x, _capture.Collective("allreduce", op, group, grad))


def all_gather(x: torch.Tensor, dim: int = 0, group: Any = None) -> torch.Tensor:
    """All ranks' x, concatenated along dim; backward is reduce_scatter."""
    return _run(x, _capture.Collective("allgather", "sum", group, dim=dim))


def reduce_scatter(x: torch.Tensor, dim: int = 0, op: str = "sum",
                   group: Any = None) -> torch.Tensor:
    """This rank's part, along dim, of the reduction of all ranks' x; backward is all_gather."""
    return _run(x, _capture.Collective("reduce_scatter", op, group, dim=dim))

"""torch.distributed while a module is turned into a graph: calls with a task type run and become
tasks, others are refused. All of them work in place, and the graph sees them so."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist

from ._capture import op_name
from ._comm import OPS
from .errors import UnsupportedError

NAMES = ("all_reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base",
         "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base", "broadcast",
         "all_to_all", "all_to_all_single", "reduce", "gather", "scatter", "send", "recv",
         "isend", "irecv", "barrier", "batch_isend_irecv", "all_gather_coalesced",
         "all_reduce_coalesced")


def _all_reduce(graph: Any, group: dict[str, Any], tensor: torch.Tensor,
                op: Any = dist.ReduceOp.SUM) -> None:
    graph.allreduce(tensor, op_name(op), out=tensor, **group)


def _gather(graph: Any, group: dict[str, Any], output_tensor: torch.Tensor,
            input_tensor: torch.Tensor) -> None:
    graph.allgather(input_tensor, out=output_tensor, **group)


def _gather_list(graph: Any, group: dict[str, Any], tensor_list: list[torch.Tensor],
                 tensor: torch.Tensor) -> None:
    whole = tensor.new_empty((len(tensor_list), *tensor.shape))
    graph.allgather(tensor, out=whole, **group)
    for part, mine in zip(whole, tensor_list):
        graph.copy(part, out=mine)


def _scatter(graph: Any, group: dict[str, Any], output: torch.Tensor, input: torch.Tensor,
             op: Any = dist.ReduceOp.SUM) -> None:
    graph.reduce_scatter(input, op_name(op), out=output, **group)


def _scatter_list(graph: Any, group: dict[str, Any], output: torch.Tensor,
                  input_list: list[torch.Tensor], op: Any = dist.ReduceOp.SUM) -> None:
    whole = output.new_empty((len(input_list), *output.shape))
    for mine, part in zip(whole, input_list):
        graph.copy(part, out=mine)
    graph.reduce_scatter(whole, op_name(op), out=output, **group)


def _broadcast(graph: Any, group: dict[str, Any], tensor: torch.Tensor, src: int) -> None:
    root = dist.get_group_rank(group["group"], src) if group else src
    graph.broadcast(tensor, root, out=tensor, **group)


KNOWN: dict[str, Callable[..., None]] = {
    "all_reduce": _all_reduce, "all_gather": _gather_list, "all_gather_into_tensor": _gather,
    "_all_gather_base": _gather, "reduce_scatter": _scatter_list,
    "reduce_scatter_tensor": _scatter, "_reduce_scatter_base": _scatter, "broadcast": _broadcast}


def watched(trace: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces a function of torch.distributed. The parts of a list go through the graph's own
    tensors, which ``trace`` keeps by the tasks that use them."""
    order = ("op", "group", "async_op") if "reduce" in name else \
        ("src", "group", "async_op") if name == "broadcast" else ("group", "async_op")
    tensors = 1 if name in ("all_reduce", "broadcast") else 2

    def refuse(why: str) -> None:
        raise UnsupportedError(f"torch.distributed.{name}() in "
                               f"{type(trace.graph.module).__name__}: {why}",
                               "these become tasks: " + ", ".join(sorted(KNOWN)))

    def collective(*args: Any, **kwargs: Any) -> Any:
        if trace.paused:
            return call(*args, **kwargs)
        if name not in KNOWN:
            refuse("it has no task type")
        given = {**dict(zip(order, args[tensors:])), **kwargs}
        if op_name(given.get("op", dist.ReduceOp.SUM)) not in OPS:
            refuse(f"unknown reduction {given['op']}")
        trace.paused = True
        try:
            work = call(*args, **kwargs)
        finally:
            trace.paused = False
        given.pop("async_op", None)
        group = given.pop("group", None)
        first = len(trace.graph.tasks)
        KNOWN[name](trace.graph, {} if group is None else {"group": group}, *args[:tensors],
                    **given)
        for task in trace.graph.tasks[first:]:
            task.name = f"{name} {task.index}"
        trace.wrote(trace.graph.tasks[first:])
        return work
    return collective

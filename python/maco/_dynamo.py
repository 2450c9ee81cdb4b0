"""torch.compile's graphs (torch 2): functional collectives become the nodes that _match.py knows.

    _c10d_functional.all_reduce(y, "sum", "0"); wait_tensor(...)(; y.copy_(...) where it was in place)

A backend of torch.compile for modules that torch.fx alone can't trace. Written from torch's sources
and run on graphs of that form only: no torch 2 was at hand. It serves calls without gradients;
with them the graph runs as it is, as those operators have none.
"""
from __future__ import annotations

import copy
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import fx

from ._capture import Collective, Site

NAMES = {"all_reduce": "allreduce", "all_gather_into_tensor": "allgather",
         "reduce_scatter_tensor": "reduce_scatter"}

PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "addmm", "bmm", "baddbmm"}


def _operator(node: fx.Node) -> str:
    """"all_reduce" of _c10d_functional.all_reduce.default; "" for what is none of them."""
    text = str(node.target)
    if node.op != "call_function" or "c10d_functional" not in text:
        return ""
    return text.split("c10d_functional", 1)[1].lstrip("_").split(".")[1]


def _group(name: str) -> Any:
    return dist.distributed_c10d._resolve_process_group(name)


def _collective(node: fx.Node, group_of: Callable[[str], Any]) -> Collective | None:
    """all_reduce(x, op, group), all_gather_into_tensor(x, size, group), reduce_scatter_tensor(x,
    op, size, group)."""
    kind = NAMES.get(_operator(node))
    if kind is None or node.kwargs or len(node.args) < 3 or not isinstance(node.args[-1], str):
        return None  # torch 2.0 and 2.1 end with (tag, ranks, size) and no group's name
    op = "sum" if kind == "allgather" else {"product": "prod"}.get(node.args[1], node.args[1])
    return Collective(kind, op, group_of(node.args[-1]), grad="none")


def adopt(graph: fx.Graph, group_of: Callable[[str], Any]) -> int:
    """Each collective and the wait after it become one node; how many there were."""
    count = 0
    for node in list(graph.nodes):
        known = _collective(node, group_of)
        waits = [u for u in node.users if _operator(u) == "wait_tensor"]
        if known is None or len(waits) != 1 or len(node.users) != 1:
            continue
        wait, = waits
        real, source, rest = node.target, node.args[0], node.args[1:]
        end = wait.target

        def call(x: torch.Tensor, real: Any = real, rest: tuple = rest, end: Any = end) -> Any:
            return end(real(x, *rest))
        with graph.inserting_before(wait):
            new = graph.call_function(Site(call, known.kind, known), (source,))
        wait.replace_all_uses_with(new)
        graph.erase_node(wait)
        graph.erase_node(node)
        _drop_copy(graph, new, source)
        count += 1
    return count


def _fresh(graph: fx.Graph, node: fx.Node) -> bool:
    """It makes a tensor that is no view of another one."""
    if node.op == "call_module":
        owner = graph.owning_module
        return owner is not None and isinstance(owner.get_submodule(node.target), torch.nn.Linear)
    return node.op in ("call_function", "call_method") and \
        getattr(node.target, "__name__", node.target) in PRODUCTS


def _drop_copy(graph: fx.Graph, new: fx.Node, source: Any) -> None:
    """x.copy_(sum of x): what was written in place; who uses x afterwards means the sum."""
    for user in list(new.users):
        if user.op == "call_method" and user.target == "copy_" and user.args == (source, new):
            if not _fresh(graph, source):
                continue  # the caller sees it, or another view of it is used
            order = {node: i for i, node in enumerate(graph.nodes)}
            if any(order[u] < order[user] and u is not new for u in source.users):
                continue  # as a view it would have changed, too
            for node in [u for u in source.users if u not in (user, new)]:
                node.replace_input_with(source, new)
            user.replace_all_uses_with(new)
            graph.erase_node(user)


def backend(build: Callable[[fx.GraphModule], Callable]) -> Callable:
    """For torch.compile(backend=...). build: a graph with collectives to what runs it."""
    def compile_graph(graph: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        plain = fx.GraphModule(graph, copy.deepcopy(graph.graph))
        if adopt(graph.graph, _group) == 0:
            return plain.forward
        cut = build(graph)

        def run(*args: Any) -> Any:
            return plain(*args) if torch.is_grad_enabled() else cut(*args)
        return run
    return compile_graph

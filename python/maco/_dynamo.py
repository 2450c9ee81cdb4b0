"""torch.compile's graphs (torch 2): turns their collectives into the nodes that _match.py knows.

    _c10d_functional.all_reduce(y, "sum", "0"); wait_tensor(...)(; y.copy_(...) if in place)
    autograd_function_apply(forward, backward, y), two graphs of the above

A backend of torch.compile for modules that torch.fx alone can't trace. Tested with torch 2.6.
"""
from __future__ import annotations

import copy
import logging
import pathlib
import re
import sys
import threading
import types
from dataclasses import replace
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch import fx

from . import _capture, _match
from ._capture import FRESH, OTHER, Collective, Site, site_of

NAMES = {"all_reduce": "allreduce", "all_gather_into_tensor": "allgather",
         "reduce_scatter_tensor": "reduce_scatter"}
BACK = {"allgather": "reduce_scatter", "reduce_scatter": "allgather"}  # of their gradients
PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "addmm", "bmm", "baddbmm"}
Groups = Callable[[str], Any]


def usable() -> bool:
    """Whether this torch can compile on this Python."""
    if not hasattr(torch, "compile"):
        return False
    from torch import _dynamo
    return not hasattr(_dynamo, "is_dynamo_supported") or _dynamo.is_dynamo_supported()


def _operator(node: Any) -> tuple[str, bool]:
    """("all_reduce", False) of _c10d_functional.all_reduce; True: it has a gradient. ("", False)
    for any other node."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return "", False
    found = re.match(r"_?c10d_functional(_autograd)?(?:\.|::)(\w+)", str(node.target))
    return (found[2], bool(found[1])) if found else ("", False)


def _group(name: str) -> Any:
    return dist.distributed_c10d._resolve_process_group(name)


def _collective(node: fx.Node, group_of: Groups) -> Collective | None:
    """all_reduce(x, op, group), all_gather_into_tensor(x, size, group), reduce_scatter_tensor(x,
    op, size, group)."""
    name, differentiable = _operator(node)
    kind = NAMES.get(name)
    if kind is None or node.kwargs or len(node.args) < 3 or not isinstance(node.args[-1], str):
        return None  # torch 2.0 and 2.1 end with (tag, ranks, size), without a group name
    op = "sum" if kind == "allgather" else {"product": "prod"}.get(node.args[1], node.args[1])
    # A sum without its own gradient passes one through by accident, as dist.all_reduce does.
    return Collective(kind, op, group_of(node.args[-1]),
                      stopped=kind != "allreduce" and not differentiable)


def adopt(graph: fx.GraphModule, group_of: Groups) -> int:
    """Merge each collective and its wait into one node; returns how many there were."""
    count = 0
    _drop_contiguous(graph.graph)
    for node in list(graph.graph.nodes):
        if node._erased:
            continue
        if getattr(node.target, "__name__", "") == "FunctionCtx" and not node.users:
            graph.graph.erase_node(node)
        elif _is_function(node):
            count += _adopt_function(graph, node, group_of)
        elif _operator(node)[0]:
            count += _adopt_operator(graph, node, group_of)
    return count


def _adopt_operator(graph: fx.GraphModule, node: fx.Node, group_of: Groups) -> bool:
    known, users = _collective(node, group_of), list(node.users)
    if known is None or len(users) != 1:
        return False
    wait, = users
    if not (_operator(wait)[0] == "wait_tensor" or
            _is_function(wait) and _communicates(graph, wait, group_of, waits=True) is not None):
        return False
    real, rest, end = node.target, node.args[1:], _caller(graph, wait)

    def call(x: torch.Tensor) -> Any:
        # Without gradients, because with them gloo's own code fails (torch 2.6).
        with torch.set_grad_enabled(torch.is_grad_enabled() and not known.stopped):
            return end(real(x, *rest))
    new = _put(graph, wait, Site(call, known.kind, known), node.args[0])
    graph.graph.erase_node(node)
    _tidy(graph, new)
    return True


def _put(graph: fx.GraphModule, old: fx.Node, site: Site, source: Any) -> fx.Node:
    with graph.graph.inserting_before(old):
        new = graph.graph.call_function(site, (source,))
    new.meta.update({k: v for k, v in old.meta.items() if k in ("example_value", "maco_path")})
    old.replace_all_uses_with(new)
    graph.graph.erase_node(old)
    return new


def _caller(graph: fx.GraphModule, node: fx.Node) -> Callable[[torch.Tensor], Any]:
    """A function that does what a wait, or an autograd function, does with its tensor."""
    target, kwargs = node.target, dict(node.kwargs)
    before = [getattr(graph, a.target) for a in node.args[:-1]]
    return lambda x: target(*before, x, **kwargs)


# ---- what was written in place ----

def _tidy(graph: fx.GraphModule, new: fx.Node) -> None:
    """Remove unnecessary copies before and after the node."""
    _drop_copies(graph.graph, new)
    _strip_clones(graph.graph, new)
    if site_of(new).kind == "allgather":
        _adopt_cat(graph.graph, new)


def _order(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: i for i, node in enumerate(graph.nodes)}


def _values(node: fx.Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("example_value")
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            yield item


def _storage(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _fresh(graph: fx.Graph, node: Any, writer: fx.Node) -> bool:
    """Whether the node makes a tensor that is not a view and has no view."""
    if not isinstance(node, fx.Node) or node.op in ("placeholder", "get_attr"):
        return False
    own = next(_values(node), None)
    if own is not None:
        return not any(_storage(t) == _storage(own) for other in graph.nodes
                       if other is not node and other is not writer for t in _values(other))
    order = _order(graph)
    if any(order[u] < order[writer] and u not in writer.all_input_nodes for u in node.users):
        return False
    if node.op == "call_module":
        owner = graph.owning_module
        return owner is not None and isinstance(owner.get_submodule(node.target), torch.nn.Linear)
    return node.target in _match.EMPTY or \
        getattr(node.target, "__name__", node.target) in PRODUCTS


def _alike(a: fx.Node, b: fx.Node) -> bool:
    one, other = next(_values(a), None), next(_values(b), None)
    return one is None or other is None or (one.shape == other.shape and one.dtype == other.dtype)


def _drop_contiguous(graph: fx.Graph) -> None:
    """Drop x.contiguous() calls that return x."""
    for node in list(graph.nodes):
        if node.op == "call_method" and node.target == "contiguous":
            source = node.args[0]
            here, there = next(_values(node), None), next(_values(source), None)
            if here is not None and there is not None and _storage(here) == _storage(there):
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def _drop_copies(graph: fx.Graph, new: fx.Node) -> None:
    """Drop x.copy_(sum of x) and out.copy_(gathered): afterwards x means the sum."""
    pieces = [u for u in new.users if u.op == "call_function" and
              getattr(u.target, "__name__", "") == "getitem"]
    for value in (new, *pieces):
        for user in list(value.users):
            if user.op != "call_method" or user.target != "copy_" or user.args[1:] != (value,):
                continue
            into = user.args[0]
            if not _fresh(graph, into, user) or not _alike(into, value):
                continue  # the caller sees it, or another view of it is used
            order = _order(graph)
            later = [u for u in into.users if order[u] > order[user]]
            for node in later:
                node.replace_input_with(into, value)
            user.replace_all_uses_with(value)
            graph.erase_node(user)
            if not into.users and into.target in _match.EMPTY:
                graph.erase_node(into)


def _strip_clones(graph: fx.Graph, new: fx.Node) -> None:
    """Drop a copy that only existed to be written to."""
    while True:
        source = new.args[0]
        if not (source.op == "call_method" and source.target in FRESH
                and set(source.users) == {new}):
            return
        order, inner = _order(graph), source.args[0]
        if any(order[source] < order[u] < order[new] and _match._changes(u, inner)
               for u in inner.users):
            return
        new.args = (inner,)
        graph.erase_node(source)


def _adopt_cat(graph: fx.Graph, new: fx.Node) -> None:
    """Merge cat(pieces of the gathered tensor), which gathers along another dimension."""
    makers = list(new.users)
    if len(makers) == 1 and makers[0].target is torch.chunk:
        makers = list(makers[0].users)
    cats = {u for piece in makers for u in piece.users}
    if len(cats) != 1 or not all(set(p.users) == cats for p in makers):
        return
    cat, = cats
    whole, parts = next(_values(new), None), list(makers)
    if cat.target is not torch.cat or list(cat.args[0]) != parts or whole is None:
        return
    rows = whole.shape[0] // len(parts)
    if not all(_is_part(p, i, rows) for i, p in enumerate(parts)):
        return
    site, known, count = new.target, site_of(new), len(parts)
    dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    if known.group is not None and count != _ranks(known.group):
        return

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(site(x).chunk(count), dim)
    with graph.inserting_before(new):
        made = graph.call_function(Site(call, known.kind, replace(known, dim=dim)), new.args)
    made.meta.update({k: v for k, v in cat.meta.items() if k == "example_value"})
    cat.replace_all_uses_with(made)
    for node in (cat, *parts):
        graph.erase_node(node)
    for node in list(new.users):
        graph.erase_node(node)
    graph.erase_node(new)


def _ranks(group: Any) -> int | None:
    return dist.get_world_size(group) if hasattr(group, "size") else None


def _is_part(piece: fx.Node, place: int, rows: int) -> bool:
    """Whether the piece is part number ``place`` of the whole, with ``rows`` rows."""
    mine = next(_values(piece), None)
    if getattr(piece.target, "__name__", "") != "getitem" or mine is None or mine.shape[0] != rows:
        return False
    source, index = piece.args
    if source.target is torch.chunk:
        return index == place and source.kwargs.get("dim", (*source.args, 0, 0)[2]) == 0
    start = index.start if isinstance(index, slice) and index.step is None else None
    if isinstance(start, fx.Node):  # dynamic shapes
        start = start.meta.get("example_value")
    return start is not None and bool(start == place * rows)


# ---- autograd functions ----

def _is_function(node: fx.Node) -> bool:
    return node.op == "call_function" and \
        getattr(node.target, "__name__", "") == "autograd_function_apply"


def _adopt_function(graph: fx.GraphModule, node: fx.Node, group_of: Groups) -> bool:
    known = _communicates(graph, node, group_of)
    if known is not None:
        _put(graph, node, Site(_caller(graph, node), known.kind, known), node.args[-1])
        return True
    body = getattr(graph, str(node.args[0].target), None)
    if not isinstance(body, fx.GraphModule) or \
            not any(_operator(n)[0] in NAMES for n in body.graph.nodes):
        return False
    node.target = Site(node.target, "function", OTHER)  # so that it is reported
    return True


def _communicates(graph: fx.GraphModule, node: fx.Node, group_of: Groups,
                  waits: bool = False) -> Collective | None:
    """The collective, if an autograd function does nothing else; waits: it only waits for one."""
    if len(node.args) != 3 or not all(isinstance(a, fx.Node) for a in node.args):
        return None
    forward, backward = (_only(getattr(graph, str(a.target), None), group_of, waits)
                         for a in node.args[:2])
    if waits:
        return Collective("wait") if forward == backward == [] else None
    if forward is None or backward is None or len(forward) != 1 or len(backward) > 1:
        return None
    first, = forward
    if first.kind == "allreduce":
        if backward and backward != [first]:
            return None
        return replace(first, grad="sum" if backward else "tp")
    if first.op != "sum" or backward != [replace(first, kind=BACK[first.kind])]:
        return None
    return replace(first, stopped=False)


def _only(module: Any, group_of: Groups, waits: bool) -> list[Collective] | None:
    """The collectives of a graph that does nothing else with its tensor, and returns it."""
    if not isinstance(module, fx.GraphModule):
        return None
    body = fx.GraphModule(module, copy.deepcopy(module.graph))
    with _capture.numbered():
        adopt(body, group_of)
    found: list[Collective] = []
    same: set[Any] = set()
    for node in body.graph.nodes:
        name = getattr(node.target, "__name__", node.target)
        args = node.args
        if node.op == "placeholder":
            same.add(node)
        elif node.op == "output":
            value = args[0]
            while isinstance(value, (tuple, list)) and value and not any(value[1:]):
                value = value[0]
            return found if value in same else None
        elif name == "_set_grad_enabled":
            continue
        elif not args or args[0] not in same:
            return None
        elif site_of(node) is not None:
            found.append(site_of(node))
            same.add(node)
        elif name in FRESH or name == "view_as" or (name == "copy_" and args[1] in same) or \
                (waits and _operator(node)[0] == "wait_tensor"):
            same.add(node)
        else:
            return None
    return None


# ---- the backend ----

def _name(graph: fx.Graph) -> None:
    """Label nodes with the path of their module."""
    for node in graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        if stack:
            path = re.sub(r"_modules\['(\w+)'\]", r"\1", str(stack[-1][0]))
            path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", path)
            node.meta["maco_path"] = ".".join(path.split(".")[2:])  # without L['self']


class Graphs:
    """For torch.compile(backend=...). build: rewrites a graph with collectives. ``stale``: rewrite
    graphs again on their next call."""

    def __init__(self, build: Callable[[fx.GraphModule], None]) -> None:
        self.build, self.version = build, 0

    def stale(self) -> None:
        self.version += 1

    def __call__(self, graph: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        plain = fx.GraphModule(graph, copy.deepcopy(graph.graph))
        _name(graph.graph)
        with _capture.numbered():
            count = adopt(graph, _group)
        if count == 0:
            return plain.forward
        made: list[tuple[int, Callable]] = []

        def run(*args: Any) -> Any:
            if not made or made[0][0] != self.version:
                cut = fx.GraphModule(graph, copy.deepcopy(graph.graph))
                self.build(cut)
                made[:] = [(self.version, cut.forward)]
            return made[0][1](*args)
        return run


class _Stumbles(logging.Filter):
    """Catches torch's log messages about code that it does not compile because of an internal
    error."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__()
        self.tell, self.thread = tell, threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        found = re.match(r"\s*WON'T CONVERT (\S+) (.*?)\s+line (\d+)", record.getMessage())
        if not found or not record.exc_info or threading.get_ident() != self.thread:
            return True
        error = record.exc_info[1]
        text = str(error).strip().split("\n", 1)[0]
        # The rest of a function after an uncompiled part is a separate function.
        rest = re.match(r"torch_dynamo_resume_in_(\w+)_at_(\d+)$", found[1])
        name, line = rest.groups() if rest else (found[1], found[3])
        self.tell(f"{name} ({pathlib.Path(found[2]).name}:{line})",
                  f"{type(error).__name__}: {text}")
        return False


def compiled(module: torch.nn.Module, graphs: Graphs, tell: Callable[[str, str], None]) -> Callable:
    """The forward of the module's class, compiled with a count of graphs of its own. tell: called
    with where torch failed, and why."""
    forward = type(module).forward
    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, forward.__name__,
                             forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    run = torch.compile(own.__get__(module), backend=graphs)
    config = sys.modules["torch._dynamo"].config
    log = logging.getLogger("torch._dynamo.convert_frame")

    def call(*args: Any, **kwargs: Any) -> Any:
        stumbles = _Stumbles(tell)
        log.addFilter(stumbles)
        try:
            with config.patch(suppress_errors=True):  # code that fails to compile runs unchanged
                return run(*args, **kwargs)
        finally:
            log.removeFilter(stumbles)
    return call

"""Finds what can be overlapped in a captured graph, and what can't, with the reason. Runs
nothing."""
from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import fx, nn

from ._capture import OTHER, Collective, site_of

PRODUCTS = (torch.matmul, torch.mm, operator.matmul)
LINEARS = (F.linear, torch._C._nn.linear)
# Calls that compute nothing.
VIEWS = ("view", "reshape", "transpose", "permute", "contiguous", "unsqueeze", "squeeze", "size",
         "expand", "flatten", "unflatten", "detach", "t", "dim", "numel")
WRITERS = (operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv)
SWITCHES = ("_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode",
            "_enter_autocast", "_exit_autocast")
EMPTY = (torch.empty, torch.empty_like, torch.zeros_like)


@dataclass
class Product:
    """A node that computes each row independently: function(x, *rest)."""

    node: fx.Node
    function: Callable
    x: fx.Node
    rest: tuple[Any, ...]  # nodes, names of parameters as ("attr", path), None


@dataclass
class Match:
    """A collective that can be overlapped, and with what.

    kind: "linear -> allreduce", "linear -> reduce_scatter", "allgather -> linear" or "independent".
    """

    kind: str
    where: str
    collective: Collective
    comm: fx.Node
    product: Product | None = None
    drop: list[fx.Node] = field(default_factory=list)  # nodes that become unnecessary


@dataclass
class Refusal:
    kind: str
    where: str
    reason: str


def find(graph: fx.GraphModule, root: nn.Module) -> list[Match | Refusal]:
    """All matches and refusals, in graph order."""
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    found: list[Match | Refusal] = []
    for node in graph.graph.nodes:
        collective = site_of(node)
        if collective is not None:
            found.append(_look(node, collective, root, order))
    return found


def _look(node: fx.Node, collective: Collective, root: nn.Module,
          order: dict[fx.Node, int]) -> Match | Refusal:
    kind = collective.kind
    where = f"{_name(_tensor(node))} -> {node.name}"
    if collective == OTHER:
        return Refusal(kind, where, "an autograd function that does more than to sum")
    if collective.asynchronous:
        return Refusal(kind, where, "the model waits for it itself")
    if kind in ("allreduce", "reduce_scatter") and collective.op in ("sum", "avg"):
        product = _product(_tensor(node), root)
        if product is not None:
            wrong = _not_alone(product, node, order)
            if wrong is None:
                return Match(f"linear -> {kind}", where, collective, node, product)
            return Refusal(kind, where, wrong)
    if kind == "allgather":
        match = _gathered(node, collective, root, order)
        if match is not None:
            return match
    return _independent(node, collective, where, order)


def _tensor(node: fx.Node) -> Any:
    """The communicated tensor: the last argument, because results come first."""
    return node.args[-1]


def _name(value: Any) -> str:
    if not isinstance(value, fx.Node):
        return "?"
    if value.op == "call_module":
        return str(value.target)
    path = value.meta.get("maco_path")
    return f"{path}.{value.name}" if path else value.name


# ---- products ----

def _product(node: Any, root: nn.Module) -> Product | None:
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module":
        return _linear_module(node, root)
    args = list(node.args)
    if node.op == "call_function" and node.target in LINEARS:
        rest = (*args[1:], *(node.kwargs[k] for k in ("weight", "bias") if k in node.kwargs))
        return Product(node, F.linear, args[0], rest)
    known = (node.op == "call_function" and node.target in PRODUCTS or
             node.op == "call_method" and node.target in ("matmul", "mm", "__matmul__"))
    if known and len(args) == 2 and not node.kwargs:
        return Product(node, torch.matmul, args[0], (args[1],))
    return None


def _linear_module(node: fx.Node, root: nn.Module) -> Product | None:
    module = root.get_submodule(node.target)
    changed = (module._forward_hooks or module._forward_pre_hooks or
               "forward" in module.__dict__)  # as a memory manager does, for example
    if type(module) is not nn.Linear or changed:
        return None
    bias = ("attr", f"{node.target}.bias") if module.bias is not None else None
    return Product(node, F.linear, node.args[0], (("attr", f"{node.target}.weight"), bias))


def _changes(node: fx.Node, value: fx.Node) -> bool:
    """Whether a node may write a tensor in place."""
    if value not in node.all_input_nodes:
        return False
    if site_of(node) is not None:
        return site_of(node).in_place
    if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
        return True
    return (node.target in WRITERS or bool(node.kwargs.get("inplace")) or "out" in node.kwargs)


def _not_alone(product: Product, comm: fx.Node, order: dict[fx.Node, int]) -> str | None:
    """Why the product can't be moved to its collective; None if it can."""
    made = product.node
    early = [u for u in made.users if u is not comm and order[u] < order[comm]]
    if early:
        return f"{early[0].name} uses it before it is communicated"
    collective = site_of(comm)
    replaced = collective.in_place and collective.kind == "allreduce"
    if not replaced and len(made.users) > 1:
        return "it is used without being communicated, too"
    if collective.in_place and not replaced and not _fresh(comm.args[0], comm, order):
        return "the memory for its result is used before"
    inputs = [product.x, *(n for n in product.rest if isinstance(n, fx.Node))]
    return _moves(made, comm, inputs, order)


def _moves(first: fx.Node, last: fx.Node, inputs: list[Any],
           order: dict[fx.Node, int]) -> str | None:
    """Why a computation from inputs at `first` can't be moved to `last`."""
    for node in first.graph.nodes:
        if order[first] < order[node] < order[last]:
            if _switches(node):
                return "gradients or autocast are switched between the two"
            if any(_changes(node, value) for value in inputs):
                return f"{node.name} changes what it is computed from"
    return None


def _switches(node: fx.Node) -> bool:
    """Whether nodes after it compute differently, or have no gradient."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") in SWITCHES


def _fresh(out: Any, comm: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether the tensor only exists to receive the result."""
    return (isinstance(out, fx.Node) and out.target in EMPTY and
            all(order[u] >= order[comm] for u in out.users))


# ---- gathers ----

def _gathered(node: fx.Node, collective: Collective, root: nn.Module,
              order: dict[fx.Node, int]) -> Match | None:
    """all_gather into a list, cat, linear; or into one tensor, linear; or maco's own gather,
    linear."""
    whole, dim, drop = node, collective.dim, [node]
    if collective.in_place:
        out = node.args[0]
        if isinstance(out, fx.Node):
            if not _fresh(out, node, order):
                return None
            whole = out
        else:
            cats = [u for u in out[0].users if u is not node] if out else []
            if len(cats) != 1 or cats[0].target is not torch.cat or cats[0].args[0] != out:
                return None
            if any(set(part.users) != {node, cats[0]} for part in out):
                return None
            whole = cats[0]
            drop = [whole, node]
            dim = whole.args[1] if len(whole.args) > 1 else whole.kwargs.get("dim", 0)
    users = [u for u in whole.users if u is not node]
    if len(users) != 1 or not isinstance(dim, int):
        return None
    product = _product(users[0], root)
    if product is None or product.x is not whole or _moves(node, users[0], [_tensor(node)], order):
        return None
    known = replace(collective, dim=dim)
    return Match("allgather -> linear", f"{node.name} -> {_name(product.node)}", known, node,
                 product, drop=drop)


# ---- independent ones ----

def _computes(node: fx.Node) -> bool:
    if node.op == "call_module":
        return True
    if node.op == "call_method":
        return node.target not in VIEWS
    return (node.op == "call_function" and site_of(node) is None and node.target not in EMPTY and
            node.target not in (getattr, operator.getitem))


def _independent(node: fx.Node, collective: Collective, where: str,
                 order: dict[fx.Node, int]) -> Match | Refusal:
    """Match if other nodes compute between the collective and the first use of its result."""
    kind, source = collective.kind, _tensor(node)
    if kind != "allreduce":
        return Refusal(kind, where, "nothing that computes rows is right before or after it")
    if not isinstance(source, fx.Node) or source.op in ("placeholder", "get_attr"):
        return Refusal(kind, where, "its argument is the caller's, which may use it meanwhile")
    if isinstance(source.target, str) and source.target in VIEWS:
        return Refusal(kind, where, "its argument is a view of what others may use meanwhile")
    users = set(node.users)
    if collective.in_place:
        users |= {u for u in source.users if u is not node}
        if any(order[u] < order[node] for u in users):
            return Refusal(kind, where, "its argument has been given to others before")
    if not users:
        return Refusal(kind, where, "its result is not used")
    first = min(users, key=order.__getitem__)
    between = [n for n in node.graph.nodes if order[node] < order[n] < order[first]]
    if any(map(_switches, between)):
        return Refusal(kind, where, "gradients or autocast are switched before it is needed")
    if not any(_computes(n) for n in between):
        return Refusal(kind, where, f"{first.name} needs it at once, and no product is before it")
    return Match("independent", f"{where} beside {next(n.name for n in between if _computes(n))}",
                 collective, node)

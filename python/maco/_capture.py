"""Captures a module's forward as a graph in which collectives are nodes.

torch.fx can't trace torch.distributed, whose functions are C++ and work in place. While a module is
traced they are replaced by functions that add a node. So is ``apply`` of autograd functions,
because Megatron wraps its collectives in them. What such a function does is found by tracing its
forward and backward separately.
"""
from __future__ import annotations

import contextlib
import dis
import inspect
import itertools
import threading
import types
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch import fx

from ._state import Guards, Kept, autocast, watched

# Functions of torch.distributed with one tensor, and with two.
IN_PLACE = ("all_reduce", "broadcast", "reduce")
OUT_FIRST = ("all_gather", "all_gather_into_tensor", "_all_gather_base", "reduce_scatter",
             "reduce_scatter_tensor", "_reduce_scatter_base", "all_to_all_single")
KINDS = {"all_reduce": "allreduce", "all_gather": "allgather", "_all_gather_base": "allgather",
         "all_gather_into_tensor": "allgather", "_reduce_scatter_base": "reduce_scatter",
         "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter": "reduce_scatter_list"}
FRESH = ("contiguous", "clone")  # methods that change no values
# Called on each run instead of once when tracing, because results are written to, or random.
MAKERS = ("empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "randperm")
_numbers = itertools.count()
_tracer: "_Tracer | None" = None  # while a module is traced


class Untraceable(Exception):
    """Says in a sentence why a module has no graph."""


@dataclass(frozen=True)
class Collective:
    """What a node does. kind: "allreduce", "allgather", "reduce_scatter", or the name of another
    collective, of which nothing more is known. in_place: its first argument becomes the result.
    stopped: it has no gradient.
    """

    kind: str
    op: str = "sum"
    group: Any = None
    grad: str = "tp"
    dim: int = 0
    in_place: bool = False
    asynchronous: bool = False
    stopped: bool = False

    @property
    def stops(self) -> bool:
        """torch.distributed's functions have no gradient; an in-place sum passes one by
        accident."""
        return self.stopped or self.in_place and self.kind != "allreduce"


OTHER = Collective("function")  # an autograd function that communicates but is not a collective


class Site:
    """A function that a node calls: the original call with its non-tensor arguments."""

    def __init__(self, call: Callable, label: str, collective: Collective | None) -> None:
        self.call, self.collective = call, collective
        # fx uses this name in the code it generates.
        self.__name__ = self.__qualname__ = f"{label}_{next(_numbers)}"
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


@contextlib.contextmanager
def numbered() -> Iterator[None]:
    """Count sites from 0, so that the same code gives the same names on all ranks."""
    global _numbers
    outer, _numbers = _numbers, itertools.count()
    try:
        yield
    finally:
        _numbers = outer


def site_of(node: fx.Node) -> Collective | None:
    target = node.target
    return target.collective if isinstance(target, Site) else None


def _proxies(value: Any) -> Iterator[fx.Proxy]:
    if isinstance(value, fx.Proxy):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _proxies(item)


def emit(site: Site, *tensors: Any) -> fx.Proxy:
    """Add a node that calls the site; at least one argument is traced."""
    proxy = next(_proxies(tensors))
    return proxy.tracer.create_proxy("call_function", site, tensors, {})


_OP_NAMES = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}


def op_name(op: Any) -> str:
    """Overlap's name for the operation, or a name that Overlap refuses."""
    for name, known in _OP_NAMES.items():
        if op == getattr(dist.ReduceOp, name, None):
            return known
    return str(op)


def _node_maker(name: str, real: Callable) -> Callable:
    """Replaces a function of torch.distributed while a module is traced."""
    def record(*args: Any, **kwargs: Any) -> Any:
        tensors = 1 if name in IN_PLACE else 2
        if not any(True for _ in _proxies(args)):
            return real(*args, **kwargs)
        rest = args[tensors:]
        names = ("op", "group", "async_op") if "reduce" in name else ("group", "async_op")
        given = {**dict(zip(names, rest)), **kwargs}
        known = Collective(KINDS.get(name, name), op_name(given.get("op", dist.ReduceOp.SUM)),
                           given.get("group"), in_place=True,
                           asynchronous=bool(given.get("async_op")))

        def call(*values: Any) -> Any:
            work = real(*values, *rest, **kwargs)
            return work if known.asynchronous else values[0]
        out = emit(Site(call, name, known), *args[:tensors])
        return out if known.asynchronous else None
    return record


def _maker(real: Callable) -> Callable:
    """Replaces a function that makes a tensor while a module is traced in this thread."""
    def record(*args: Any, **kwargs: Any) -> Any:
        if _tracer is None or _tracer.thread != threading.get_ident():
            return real(*args, **kwargs)
        return _tracer.create_proxy("call_function", real, args, kwargs)
    return record


def _items(proxy: fx.Proxy) -> Iterator[fx.Proxy]:
    """The items of ``a, b = proxy``, which torch 1.13 can't trace on Python 3.11, and of a
    chunk()."""
    frame = inspect.currentframe().f_back  # type: ignore[union-attr]
    for instruction in dis.get_instructions(frame.f_code):  # type: ignore[union-attr]
        if instruction.offset == frame.f_lasti and \
                instruction.opname == "UNPACK_SEQUENCE":  # type: ignore[union-attr]
            return (proxy[i] for i in range(instruction.argval))
    node = proxy.node
    count = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
    if node.target in ("chunk", torch.chunk) and isinstance(count, int):
        return (proxy[i] for i in range(count))
    return proxy.tracer.iter(proxy)


# ---- autograd functions ----

class _Context(types.SimpleNamespace):
    """Stands in for the context of forward and backward while they are analysed."""

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *_: Any) -> None:
        pass

    mark_non_differentiable = set_materialize_grads = mark_dirty


def _alone(run: Callable[[fx.Proxy], Any]) -> fx.Graph | None:
    """A graph of what run does with one tensor; None if that can't be traced."""
    tracer = _Tracer()
    tracer.graph = fx.Graph(tracer_cls=_Tracer)
    tracer.root = torch.nn.Module()
    try:
        value = run(tracer.create_proxy("placeholder", "x", (), {}))
        tracer.create_node("output", "output", (tracer.create_arg(value),), {})
    except Exception:  # from arbitrary user code
        return None
    return tracer.graph


def _only(graph: fx.Graph | None) -> list[Collective] | None:
    """The collectives of a graph that does nothing else with its tensor and returns it."""
    if graph is None:
        return None
    found: list[Collective] = []
    same: set[fx.Node] = set()
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if node.op == "placeholder":
            same.add(node)
        elif node.op == "output":
            return found if first in same else None
        elif site_of(node) is not None and first in same:
            found.append(site_of(node))
            same.add(node)
        elif node.op == "call_method" and first in same and (node.target in FRESH or
                                                             node.target == "view_as"):
            same.add(node)
        else:
            return None
    return None


def analyse(cls: type, args: tuple) -> Collective | None:
    """Recognise an autograd function that only all-reduces its argument, the only traced one; OTHER
    if it does more."""
    if sum(1 for _ in _proxies(args)) != 1 or not isinstance(args[0], fx.Proxy):
        return None
    context = _Context()
    real = getattr(cls.forward, "real", cls.forward)
    forward = _only(_alone(lambda x: real(context, x, *args[1:])))

    def back(gradient: fx.Proxy) -> Any:
        out = cls.backward(context, gradient)
        return out[0] if isinstance(out, tuple) else out
    backward = _only(_alone(back))
    return _summing(forward, backward) or (OTHER if _names(real) & set(KINDS) else None)


def _names(function: Any, depth: int = 4) -> set[str]:
    """Names used by its code, and by functions that it calls by global name."""
    code, found = getattr(function, "__code__", None), set()
    if code is not None and depth:
        found = set(code.co_names)
        for name in code.co_names:
            found |= _names(function.__globals__.get(name), depth - 1)
    return found


def _summing(forward: list[Collective] | None, backward: list[Collective] | None) -> \
        Collective | None:
    if forward is None or backward is None or len(forward) != 1 or len(backward) > 1:
        return None
    first = forward[0]
    if any(c.kind != "allreduce" or c.asynchronous for c in forward + backward):
        return None
    if backward and (backward[0].op, backward[0].group) != (first.op, first.group):
        return None
    return Collective("allreduce", first.op, first.group, "sum" if backward else "tp")


def _apply_maker(real: Callable) -> classmethod:
    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        traced = [i for i, a in enumerate(args) if isinstance(a, fx.Proxy)]
        if not traced:
            return real.__get__(None, cls)(*args, **kwargs)
        known = analyse(cls, args)

        def call(*tensors: Any) -> Any:
            full = list(args)
            for i, tensor in zip(traced, tensors):
                full[i] = tensor
            return cls.apply(*full)
        return emit(Site(call, cls.__name__, known), *(args[i] for i in traced))
    return classmethod(apply)


def _guard(cls: type) -> Callable:
    """Catches an apply that was looked up before tracing: it would run forward directly, and the
    graph would have no backward."""
    real = cls.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if any(True for _ in _proxies(args)):
            raise Untraceable(f"{cls.__name__}.apply was taken before it is called, so that its "
                              "backward can't be seen")
        return real(*args, **kwargs)
    forward.real = real
    return forward


def _subclasses(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


# ---- tracing ----

def _mode() -> tuple[bool, ...]:
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast())


class _Tracer(fx.Tracer):
    """fixed: arguments, by name, that are not inputs of the graph."""

    proxy_buffer_attributes = True  # in-place changes to buffers happen on each call

    def __init__(self, fixed: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.fixed, self.mode, self.thread = fixed or {}, _mode(), threading.get_ident()
        self.path = ""  # of the running module

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _mode() != self.mode:
            raise Untraceable("it switches gradients off, or autocast, for a part of it, which a "
                              "graph would not")
        node = super().create_node(*args, **kwargs)
        node.meta["maco_path"] = self.path
        return node

    def call_module(self, m: torch.nn.Module, *rest: Any, **more: Any) -> Any:
        outer, self.path = self.path, self.path_of_module(m)
        try:
            return super().call_module(m, *rest, **more)
        finally:
            self.path = outer

    def create_args_for_root(self, root_fn: Callable, is_module: bool,
                             concrete_args: Any = None) -> tuple[Callable, list[Any]]:
        """Put required inputs first; the graph gets all inputs by name."""
        given: dict[str, Any] = {}
        signature = inspect.signature(root_fn)
        me, *parameters = signature.parameters.values()
        for p in sorted(parameters, key=lambda p: p.default is not p.empty):
            various = p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            if various and p.name not in self.fixed:
                raise Untraceable(f"it is called with {p}, whose number a graph does not know")
            if not various:
                default = () if p.default is p.empty else (p.default,)
                given[p.name] = self.create_proxy("placeholder", p.name, default, {})
        bound = inspect.BoundArguments(signature, {  # type: ignore[arg-type]
            me.name: self.root, **{p.name: self.fixed.get(p.name, given.get(p.name))
                                  for p in parameters}})
        return lambda *_: root_fn(*bound.args, **bound.kwargs), list(given.values())

    def seen(self, module: torch.nn.Module, name: str, value: Any) -> Any:
        """An attribute that forward reads: the graph reads a tensor again on each call."""
        path = self.submodule_paths.get(module) if isinstance(value, torch.Tensor) else None
        if path is None:
            return value
        return self.create_proxy("get_attr", f"{path}.{name}" if path else name, (), {})

    def is_leaf_module(self, module: torch.nn.Module, name: str) -> bool:
        return hasattr(module, "_maco_mark") or super().is_leaf_module(module, name)


def _globals(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """The globals of every file whose forward may run."""
    seen = set()
    for child in module.modules():
        function = getattr(child.forward, "__func__", child.forward)
        found = getattr(function, "__globals__", None)
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found


@contextlib.contextmanager
def _recording(module: torch.nn.Module) -> Iterator[None]:
    """Turn collectives into nodes, even where a file has imported them by name."""
    makers = {}
    for name in (*IN_PLACE, *OUT_FIRST):
        real = getattr(dist, name, None)
        if real is not None:
            makers[real] = (name, _node_maker(name, real))
    undo: list[Callable[[], None]] = []
    try:
        for real, (name, maker) in makers.items():
            setattr(dist, name, maker)
            undo.append(lambda n=name, r=real: setattr(dist, n, r))
        for names in _globals(module):
            for key, value in list(names.items()):
                if isinstance(value, types.FunctionType) and value in makers:
                    names[key] = makers[value][1]
                    undo.append(lambda d=names, k=key, v=value: d.__setitem__(k, v))
        iterate = fx.Proxy.__iter__
        fx.Proxy.__iter__ = _items
        undo.append(lambda: setattr(fx.Proxy, "__iter__", iterate))
        for name in MAKERS:
            real = getattr(torch, name)
            setattr(torch, name, _maker(real))
            undo.append(lambda n=name, r=real: setattr(torch, n, r))
        function = torch.autograd.Function
        for cls in set(_subclasses(function)):
            if "forward" in cls.__dict__:
                kept = cls.__dict__["forward"]
                cls.forward = staticmethod(_guard(cls))
                undo.append(lambda c=cls, k=kept: setattr(c, "forward", k))
        had = function.__dict__.get("apply")
        function.apply = _apply_maker(function.__dict__.get("apply") or
                                      torch._C._FunctionBase.__dict__["apply"])
        undo.append((lambda: setattr(function, "apply", had)) if had is not None else
                    (lambda: delattr(function, "apply")))
        yield
    finally:
        for step in reversed(undo):
            step()


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Refuse autocast inside forward: the graph would lose it."""
    real = torch.autocast.__enter__

    def enter(_: Any) -> None:
        raise Untraceable("it switches autocast for a part of it, which a graph would not")
    torch.autocast.__enter__ = enter
    try:
        yield
    finally:
        torch.autocast.__enter__ = real


def capture(module: torch.nn.Module, fixed: dict[str, Any] | None = None,
            guards: Guards | None = None) -> fx.GraphModule:
    """Raises Untraceable. fixed: arguments, by name, that are not inputs of the graph. guards:
    record what forward reads; the graph is valid while they hold. The same module gives the same
    names."""
    global _tracer
    kept = Kept(module)
    with numbered(), _recording(module), torch.inference_mode(
        False), torch.enable_grad(), _no_autocast():
        tracer = _tracer = _Tracer(fixed)

        def seen(owner: torch.nn.Module, name: str, value: Any) -> Any:
            if guards is not None and not isinstance(value, torch.Tensor):
                guards.read(owner, name, value)
            return tracer.seen(owner, name, value)
        inner = [m for name, m in module.named_modules()
                 if not name or not tracer.is_leaf_module(m, name)]
        try:
            with watched(inner, seen):
                graph = tracer.trace(module)
        except Untraceable:
            kept.restore()
            raise
        except Exception as error:  # anything a model's code raises without real tensors
            kept.restore()
            text = str(error).split("\n", 1)[0]
            raise Untraceable(f"{type(module).__name__} can't be traced: {text}") from error
        finally:
            _tracer = None
    changed = kept.restore()
    if changed:
        raise Untraceable(f"forward changes {changed[0]}, which its graph would not do")
    return fx.GraphModule(module, graph)

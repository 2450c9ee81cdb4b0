"""Turns a module into a graph of tasks.

The module runs once, with the example inputs, while every function of torch that it calls is
watched. Functions with a task type become tasks on the very tensors of that run, views stay views,
results that depend on no input and no parameter stay constant, and anything else becomes a task
that calls the function again. So Python's control flow is followed, and control flow that depends
on values is refused.

Intermediate results keep their memory as long as the graph lives.
"""
from __future__ import annotations

import collections
import contextlib
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from hybridps._tensors import tensors_of

from . import _module_comm
from ._state import Guards, Kept, autocast, version_of
from ._lowering import LOWERINGS, Lowered, rms_norm_of
from .errors import (DTypeError, LayoutError, MacoError, NullInputError, ShapeMismatchError,
                     UnsupportedError)

# The results, or their shapes, depend on values.
BY_VALUE = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__",
            "__complex__", "__contains__", "nonzero", "argwhere", "masked_select", "unique",
            "unique_consecutive", "equal", "allclose", "is_nonzero", "bincount", "__array__"}
RANDOM = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson",
          "rand_like", "randn_like", "randint_like", "dropout", "alpha_dropout", "feature_dropout",
          "feature_alpha_dropout", "dropout_", "normal_", "uniform_", "bernoulli_", "rrelu",
          "random_", "exponential_"}
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}  # no values
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr() if hasattr(t, "untyped_storage") else \
        t.storage().data_ptr()


class _NoGradient(torch.autograd.Function):
    """Attached to outputs, so that requesting a gradient raises an error."""

    @staticmethod
    def forward(ctx: Any, name: str, output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        return output

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        raise UnsupportedError(f"a gradient through the graph of {ctx.name}, which autograd does "
                               "not see",
                               "train with the module itself; run graphs under torch.no_grad()")


class ModuleCalls:
    """A base of ModuleGraph, which is a TaskGraph. Call it like the module; it has no gradient, and
    backward says so. Each call runs the graph and returns new tensors."""

    tasks: list[Any]
    execute: Callable[..., Any]

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        super().__init__(**options)
        self.module = module
        self.held: list[Any] = []  # results of the traced run
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.in_spec: Any = None
        self.out_spec: Any = None
        self.calls: list[dict[str, Any]] = []  # functions without a task type
        self.random = False
        self.written: set[int] = set()  # inputs that the module changes
        tensors = [*module.named_parameters(), *module.named_buffers()]
        for name, t in tensors:
            if isinstance(t, torch.nn.parameter.UninitializedTensorMixin):
                raise UnsupportedError(f"{name} has no values yet", "call the module once before")
        self._homes = [(name, t, t.data_ptr()) for name, t in tensors]
        self._parameters = [(f"{path}.{name}" if path else name, m._parameters, name, p)
                            for path, m in module.named_modules()
                            for name, p in m._parameters.items() if p is not None]
        self._modes = [(path, m, m.training) for path, m in module.named_modules()]
        self._guards = Guards(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._same_module()
        self._fill(args, kwargs)
        self.execute()
        given = _pytree.tree_flatten((args, kwargs))[0]
        with torch.no_grad():
            for i, new in enumerate(given):
                if i in self.written:
                    new.copy_(self.inputs[i])
        wanted = self._wanted(given)
        return _pytree.tree_unflatten([self._result(t, wanted) if isinstance(t, torch.Tensor) else t
                                       for t in self.outputs], self.out_spec)

    def _same_module(self) -> None:
        """Check that the module has not changed since the graph was made."""
        again = "make the graph again"
        for name, t, home in self._homes:
            if t.data_ptr() != home:
                raise MacoError(f"the memory of {name} has moved since the graph was made",
                                f"change parameters in place, or {again}")
        for name, owner, key, p in self._parameters:
            if owner.get(key) is not p:
                raise MacoError(f"{name} was replaced since the graph was made",
                                f"change parameters in place, or {again}")
        for name, m, mode in self._modes:
            if m.training != mode:
                raise MacoError(f"{name or type(m).__name__}.{'eval' if mode else 'train'}() was "
                                "called since the graph was made", again)
        changed = self._guards.changed()
        if changed:
            raise MacoError(f"{changed}: changed since the graph was made", again)

    def _wanted(self, given: list[Any]) -> torch.Tensor | None:
        """A tensor for which a gradient may be requested; None if there is none."""
        if not torch.is_grad_enabled():
            return None
        both = (*(t for t in given if isinstance(t, torch.Tensor)),
                *(p for *_, p in self._parameters))
        return next((t for t in both if t.requires_grad), None)

    def _result(self, output: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
        mine = output.clone()
        if wanted is None or not (mine.is_floating_point() or mine.is_complex()):
            return mine
        return _NoGradient.apply(type(self.module).__name__, mine, wanted)

    def _fill(self, args: Any, kwargs: Any) -> None:
        given, spec = _pytree.tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise ShapeMismatchError("other arguments than the example's",
                                     "the same number, order and names")
        for i, (new, mine) in enumerate(zip(given, self.inputs)):
            if not isinstance(mine, torch.Tensor):
                if new is not mine and new != mine:
                    raise UnsupportedError(f"argument {i} is {new!r}, the example's was {mine!r}",
                                           "make a graph for each value")
                continue
            if not isinstance(new, torch.Tensor):
                raise NullInputError(f"argument {i} is a {type(new).__name__}", "give a tensor")
            if new.shape != mine.shape:
                raise ShapeMismatchError(
                    f"argument {i} has shape {tuple(new.shape)}, the example had "
                    f"{tuple(mine.shape)}", "shapes are fixed: make a graph for each, or pad")
            if new.dtype != mine.dtype:
                raise DTypeError(f"argument {i} is of {new.dtype}, the example of {mine.dtype}",
                                 "dtypes are fixed, too")
        with torch.no_grad():
            for new, mine in zip(given, self.inputs):
                if isinstance(mine, torch.Tensor):
                    mine.copy_(new)

    def report(self) -> dict[str, Any]:
        """``tasks`` by type, and ``calls``: the functions of torch that remain, how often, and
        why."""
        calls = collections.Counter((c["function"], c["reason"]) for c in self.calls)
        return {"module": type(self.module).__name__, "tasks": len(self.tasks),
                "types": dict(collections.Counter(t.type.name for t in self.tasks)),
                "calls": [{"function": f, "count": n, "reason": why}
                          for (f, why), n in calls.items()]}


class Trace(TorchFunctionMode):
    """Watches one run."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph
        self.constants: dict[int, torch.Tensor] = {}  # by storage
        self.held: list[Any] = []
        self.paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **kwargs) if self.paused else self.call(func, args, kwargs)

    def is_constant(self, t: torch.Tensor) -> bool:
        return storage(t) in self.constants

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", str(func))
        used = list(tensors_of((args, kwargs)))
        live = [t for t in used if not self.is_constant(t)]
        if any(autocast()):
            raise UnsupportedError(f"{name}() under autocast in {type(self.graph.module).__name__}",
                                   "a graph's types are its tensors': .bfloat16(), without "
                                   "autocast")
        if live and (name in BY_VALUE or _indexes_by_mask(name, args)):
            raise UnsupportedError(
                f"{name}() of a tensor in {type(self.graph.module).__name__}: what follows would "
                "depend on values", "shapes and control flow of a graph are fixed; take that part "
                "out of the module, or use torch.where")
        before = [version_of(t) for t in used]
        self.paused, paused = True, self.paused
        try:
            result = func(*args, **kwargs)
        finally:
            self.paused = paused
        changed = [t for t, v in zip(used, before) if version_of(t) != v]
        homes = {storage(t) for t in used}
        made = [t for t in tensors_of(result) if t.numel() and storage(t) not in homes]
        self.held += made
        random = name in RANDOM and bool(made or changed)
        self.graph.random |= random
        if not made and not changed:
            return result
        if (not live or name in EMPTY) and not random:
            self.constants.update((storage(t), t) for t in made)
            return result
        self.add(func, name, args, kwargs, result, made, changed)
        return result

    def add(self, func: Any, name: str, args: Any, kwargs: Any, result: Any,
            made: list[torch.Tensor], changed: list[torch.Tensor]) -> None:
        for t in changed:  # no longer constant
            self.constants.pop(storage(t), None)
        homes = {storage(t) for t in changed}
        self.graph.written |= {i for i, t in enumerate(self.graph.inputs)
                               if isinstance(t, torch.Tensor) and storage(t) in homes}
        why = self.lower(name, args, kwargs, result, made, changed)
        if why is None:
            return
        self.graph.calls.append({"function": name, "reason": why})
        places = [i for i, t in enumerate(tensors_of(result)) if any(t is m for m in made)]

        def again(_inputs: Any, _outputs: Any) -> None:
            fresh = list(tensors_of(func(*args, **kwargs)))
            for place, mine in zip(places, made):
                mine.copy_(fresh[place])
        inputs = [t.detach() for t in tensors_of((args, kwargs)) if t.numel()]
        outputs = [t.detach() for t in (*made, *changed)]
        self.graph.custom(again, inputs, outputs, name=f"{name} {len(self.graph.tasks)}")

    def wrote(self, tasks: list[Any]) -> None:
        """Record tasks that were not added through a function of torch."""
        written = [t for task in tasks for t in task.outputs]
        self.held += written
        for t in written:
            self.constants.pop(storage(t), None)

    def lower(self, name: str, args: Any, kwargs: Any, result: Any, made: list[torch.Tensor],
              changed: list[torch.Tensor]) -> str | None:
        """Add tasks for the function, or return the reason why that is impossible."""
        inplace = bool(changed)
        plain = name[:-1] if inplace and name.endswith("_") and not name.endswith("__") else name
        lowering = LOWERINGS.get(plain.strip("_"))
        if lowering is None:
            return "it has no task type"
        if inplace and (made or len(changed) != 1 or not args or changed[0] is not args[0]):
            return "it changes more than its first argument"
        first = len(self.graph.tasks)
        try:
            lowering(Lowered(self.graph, name, changed[0] if inplace else result), *args, **kwargs)
            return None
        except (MacoError, TypeError) as error:
            del self.graph.tasks[first:]
            return str(error).split("\n")[0]

    def norm(self, module: torch.nn.Module, call: Callable[..., Any], args: Any,
             kwargs: Any) -> Any:
        """A module that is named like an RMS norm, and computes one, becomes one task."""
        found = rms_norm_of(module, args, kwargs)
        if self.paused or found is None:
            return call(module, *args, **kwargs)
        x, weight, eps = found
        self.paused = True
        try:
            result = call(module, *args, **kwargs)
            wide = x.float()
            want = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
            fits = result.shape == want.shape and \
                torch.allclose(result.float(), want, rtol=TOLERANCE.get(result.dtype, 1e-4),
                               atol=1e-5)
        finally:
            self.paused = False
        if fits and storage(result) != storage(x):
            first = len(self.graph.tasks)
            try:
                self.graph.rmsnorm(x, weight, eps=eps, out=result,
                                   name=f"{type(module).__name__} {first}")
                self.held.append(result)
                return result
            except MacoError:
                del self.graph.tasks[first:]
        return call(module, *args, **kwargs)


def _indexes_by_mask(name: str, args: Any) -> bool:
    """The size of x[mask] depends on the mask's values."""
    return name == "__getitem__" and any(t.dtype in (torch.bool, torch.uint8)
                                         for t in tensors_of(args[1]))


@contextlib.contextmanager
def _watched(trace: Trace) -> Iterator[None]:
    """Watch torch, looking through functions of torch.nn.functional to what they call."""
    off = {"has_torch_function": lambda _: False, "has_torch_function_unary": lambda _: False,
           "has_torch_function_variadic": lambda *_: False}
    patched = [(functional, k, v) for k, v in off.items() if hasattr(functional, k)]
    call = torch.nn.Module.__call__
    patched.append((torch.nn.Module, "__call__",
                    lambda module, *args, **kwargs: trace.norm(module, call, args, kwargs)))
    getitem = torch.Tensor.__getitem__  # not seen by torch 1.13's modes
    patched.append((torch.Tensor, "__getitem__", lambda t, index: getitem(t, index) if trace.paused
                    else trace.call(getitem, (t, index), {})))
    if dist.is_available():
        patched += [(dist, name, _module_comm.watched(trace, name, getattr(dist, name)))
                    for name in _module_comm.NAMES if hasattr(dist, name)]
    old = [(owner, name, vars(owner).get(name)) for owner, name, _ in patched]
    for owner, name, value in patched:
        setattr(owner, name, value)
    try:
        with torch.no_grad(), trace:
            yield
    finally:
        for owner, name, value in old:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _example(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.device.type == "meta":
        raise LayoutError(f"an example input has no memory of its own ({value.layout}, "
                          f"{value.device})", "give dense tensors")
    return value.detach().clone()


def from_module(kind: Callable[..., Any], module: torch.nn.Module, example_inputs: Any,
                strict: bool, options: dict[str, Any]) -> Any:
    """kind: ModuleGraph. example_inputs: a tensor, a tuple of arguments or a dict of named ones.
    strict: raise UnsupportedError for calls into torch. Compares the graph's result with the
    module's."""
    if not isinstance(module, torch.nn.Module):
        raise NullInputError(f"from_module of a {type(module).__name__}", "give a torch.nn.Module")
    args, kwargs = ((), example_inputs) if isinstance(example_inputs, dict) else \
        (tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else
         (example_inputs,), {})
    graph = kind(module, **options)
    given, graph.in_spec = _pytree.tree_flatten((args, kwargs))
    graph.inputs = [_example(v) for v in given]
    own_args, own_kwargs = _pytree.tree_unflatten(graph.inputs, graph.in_spec)
    trace, kept = Trace(graph), Kept(module)
    try:
        with _watched(trace), graph._guards.reading():
            result = module(*own_args, **own_kwargs)
    finally:
        kept.restore(attributes=False)
    graph.outputs, graph.out_spec = _pytree.tree_flatten(result)
    for value in graph.outputs:
        if not isinstance(value, (torch.Tensor, int, float, bool, str, type(None))):
            raise UnsupportedError(f"the module returns a {type(value).__name__}",
                                   "tensors in tuples, lists and dicts")
    graph.held = trace.held
    if "parts" not in options and graph.infer:
        graph.parts = graph.workers
    if strict and graph.calls:
        calls = "; ".join(f"{c['function']} ({c['count']} times): {c['reason']}"
                          for c in graph.report()["calls"])
        raise UnsupportedError(f"{type(module).__name__} needs calls into torch: {calls}",
                               "strict=False runs them as tasks")
    if not graph.tasks:
        raise UnsupportedError(f"{type(module).__name__} computes nothing that torch's functions "
                               "show", "call it as it is")
    if not graph.random:
        _check(graph, args, kwargs, kept)
        graph._guards.forget_set()
    return graph


def _turned(value: Any) -> Any:
    """Different numbers of the same kind. A tensor with infinite numbers is a mask and stays
    unchanged, so that claims about it, such as being causal, remain true."""
    if not isinstance(value, torch.Tensor):
        return value
    own = value.detach().clone()
    if own.is_floating_point() and bool(own.isinf().any()):
        return own
    return own.flatten().flip(0).view(own.shape) if own.is_floating_point() else own


def _numbers(value: Any) -> Any:
    return torch.view_as_real(value) if isinstance(value, torch.Tensor) and value.is_complex() \
        else value


def _check(graph: Any, args: Any, kwargs: Any, kept: Kept) -> None:
    """Compare with the module, from the same state, on values other than the traced ones."""
    values, spec = _pytree.tree_flatten((args, kwargs))
    results = []
    for run in (graph, graph.module):
        own_args, own_kwargs = _pytree.tree_unflatten([_turned(v) for v in values], spec)
        try:
            with torch.no_grad():
                flat, _ = _pytree.tree_flatten(run(*own_args, **own_kwargs))
            results.append([v.clone() if isinstance(v, torch.Tensor) else v for v in flat])
        finally:
            kept.restore(attributes=False)
    # Half-precision results do not get more accurate by a cast.
    rough = [TOLERANCE[t.dtype] for t in graph.held if t.dtype in (torch.float16, torch.bfloat16)]
    for i, (mine, theirs) in enumerate(zip(*(map(_numbers, r) for r in results))):
        if not isinstance(theirs, torch.Tensor):
            continue
        bound = max([TOLERANCE.get(theirs.dtype, 1e-6), *rough])
        most = theirs.double().abs().nan_to_num(0, 0, 0).max().item()
        if mine.shape != theirs.shape or not torch.allclose(
                mine.double(), theirs.double(), rtol=bound, atol=bound * most + 1e-30,
                equal_nan=True):
            raise UnsupportedError(
                f"output {i} of the graph is not that of {type(graph.module).__name__}",
                "does it depend on something that torch does not compute, or on attributes that it "
                "changes?")

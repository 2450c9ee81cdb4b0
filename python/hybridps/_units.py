"""Units: modules whose parameters are accessed together, and the hooks that do it.

A unit's forward is wrapped on the instance, so keyword arguments and exceptions are seen on torch
1.13, too. In backward, a hook on each output's gradient accesses the parameters before the unit's
own graph runs. They are released when the gradient of an input is done (autograd runs first-made
nodes last, so all of the unit's graph has then run), or those of all its parameters are, at the
latest when backward ends. These are hooks instead of identity functions, because an identity's
output may not be changed in place (nn.ReLU(inplace=True) after a layer), but a hooked tensor may.

While a unit runs that also has its children's parameters, the children access nothing: the unit
holds everything of theirs, and in backward keeps it until the graph of its forward has run. But a
loss on a value that a hook took from the middle may reach a child's output and not the unit's.

Code may take a parameter of a module that is not running (functional.linear(x, self.layer.weight),
a pre-forward hook that computes the weight). That is accessed, too: the running unit learns that it
uses the parameter.
"""
from __future__ import annotations

import sys
import types
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Container, Iterator

import torch

from . import _abi
from ._params import raw_data
from ._tensors import tensors_of, uncompiled

if TYPE_CHECKING:
    from ._passes import Passes
    from ._slots import Slot
    from ._state import State

# Modules that use the parameters of their children without calling them.
WHOLE = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
_MODULE_PY = torch.nn.Module.__call__.__code__.co_filename
LISTS = (torch.nn.ParameterList, torch.nn.ParameterDict)
# Names that are put into a module's __dict__.
_OURS = ("_hybridps_unit", "forward", "state_dict", "load_state_dict", "__getstate__")


def holders(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules whose parameters it uses itself: itself, and lists, which are not called."""
    yield module
    for child in module.children():
        if isinstance(child, LISTS):
            yield from holders(child)


def _plain(module: torch.nn.Module) -> OrderedDict:
    return OrderedDict(OrderedDict.items(module._parameters))


class _Parameters(OrderedDict):
    """A module's parameters by name, which notify the client when they are read."""

    unit: "Unit"

    def __getitem__(self, name: str) -> Any:
        param = OrderedDict.__getitem__(self, name)
        unit = self.unit
        if not unit.running and param is not None and unit.passes.state.inside:
            unit.passes.phases.taken(param)
        return param

    def __setitem__(self, name: str, param: Any) -> None:
        """A new parameter made from a managed one's data, as in weight_norm, gets separate
        memory."""
        if param is not None and hasattr(self, "unit"):
            self.unit.passes.phases.welcome(param)
        OrderedDict.__setitem__(self, name, param)

    def __reduce__(self) -> Any:
        """A copy is a plain OrderedDict."""
        return OrderedDict, (), None, None, iter(OrderedDict.items(self))

    @uncompiled
    def items(self) -> Any:
        self.unit.passes.phases.listed(self.unit.slots)
        return OrderedDict.items(self)


class Unit:
    """A module and the parameters it uses itself; its children's belong to their units."""

    def __init__(self, passes: "Passes", module: torch.nn.Module, name: str,
                 slots: list["Slot"]) -> None:
        self.passes = passes
        self.module = weakref.ref(module)
        self.name = name.encode()
        self.bundle = _abi.Bundle([s.tensor for s in slots], _abi.DEVICE)
        self.back: _abi.Bundle | None = None
        self.slots = slots
        self.calls: list[Call] = []  # calls pinned in the running backward
        self.cover: Unit | None = None  # a unit that also has its parameters
        self.running = 0  # number of running forwards
        self.own = {name: module.__dict__[name] for name in _OURS if name in module.__dict__}
        module.__dict__["_hybridps_unit"] = self
        self._put("forward", _forward)
        self._put("__getstate__", _getstate)
        self.holders = [weakref.ref(m) for m in holders(module)]
        for holder in holders(module):
            watched = holder.__dict__["_parameters"] = _Parameters(holder._parameters)
            watched.unit = self

    def _put(self, name: str, function: Any) -> None:
        module = self.module()
        module.__dict__[name] = types.MethodType(function, module)

    def unwrap(self) -> None:
        for holder in filter(None, (h() for h in self.holders)):
            holder.__dict__["_parameters"] = _plain(holder)
        module = self.module()
        if module is not None:
            for name in _OURS:
                module.__dict__.pop(name, None)
            module.__dict__.update(self.own)

    def wrap_state_dict(self) -> None:
        """state_dict() and load_state_dict() of a registered module work on the host's values."""
        self._put("state_dict", _state_dict)
        self._put("load_state_dict", _load_state_dict)

    def plain(self, module: torch.nn.Module) -> Any:
        return self.own.get("forward") or types.MethodType(type(module).forward, module)

    def learn(self, slot: "Slot") -> None:
        """The module uses another one's parameter: from now on access it along with its own."""
        grads = [slot.grad] if slot.grad >= 0 and not slot.away else []
        runs, calls = self.passes.state.running.count(self), len(self.calls)
        self.passes.state.pool.access(_abi.Bundle([slot.tensor] * (runs + calls), _abi.DEVICE,
                                                  False, grads * calls))
        self.slots.append(slot)
        slot.units.append(self)
        self.bundle = _abi.Bundle([s.tensor for s in self.slots], _abi.DEVICE)
        self.back = None

    def pin(self, stage: bytes) -> None:
        if self.bundle.count:
            passes = self.passes
            if passes.state.gradients == "reuse":
                passes.state.is_needed(self.slots)
            passes.state.pool.moment(stage, self.name, passes.state.reserved_bytes())
            passes.state.pool.access(self.bundle)

    def pin_backward(self) -> None:
        """Access parameters and gradients, in one call, because a plan treats a moment as a
        whole."""
        passes = self.passes
        if passes.state.gradients == "reuse":
            passes.state.is_needed(self.slots)
        passes.state.pool.moment(b"BWD", self.name, passes.state.reserved_bytes())
        grads = [s.grad for s in self.slots if s.grad >= 0 and not s.away]
        if self.back is None or self.back.count != self.bundle.count + len(grads):
            self.back = _abi.Bundle(self.bundle.ids, _abi.DEVICE, False, grads)
        try:
            passes.state.pool.access(self.back)
        except _abi.HybridPSError:
            if not passes.state.alone() or not any(unit.calls for unit in passes.state.units):
                raise
            passes.state.unpin_calls()  # what their graphs still need is read by faults
            passes.state.pool.access(self.back)

    def unpin_backward(self) -> None:
        """Release; gradients that did not arrive have no content."""
        pool = self.passes.state.pool
        none = [s.grad for s in self.slots if s.grad >= 0 and not (s.has_grad or s.left or s.away)]
        if not none:
            pool.release(self.back, _abi.AFTER_BWD)
            return
        here = [s.grad for s in self.slots if s.grad >= 0 and (s.has_grad or s.left) and not s.away]
        pool.release(_abi.Bundle(self.bundle.ids, _abi.DEVICE, False, here), _abi.AFTER_BWD)
        pool.release(_abi.Bundle(none, _abi.DEVICE, False), _abi.FREE)

    def unpin(self, state: int) -> None:
        if self.bundle.count:
            self.passes.state.pool.release(self.bundle, state)

    def accumulated(self, slot: "Slot") -> None:
        """The gradient of one of its parameters is complete."""
        for call in list(self.calls):
            call.seen.add(slot.tensor)
            if len(call.seen) == self.bundle.count:
                call.after()


class Call:
    """One forward of a unit that backward will return to."""

    __slots__ = ("unit", "pinned", "seen")

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.pinned = False
        self.seen: set[int] = set()

    @uncompiled
    def before(self, gradient: Any = None) -> None:
        """Its graph is about to run: access the parameters."""
        unit = self.unit
        if not self.pinned and not (unit.cover is not None and unit.cover.calls):
            if unit.passes.begin_backward():
                try:
                    if torch.is_grad_enabled():
                        unit.passes.state.keep_all()
                    unit.pin_backward()
                except BaseException:
                    unit.passes.phases.leave()  # an exception in backward ends it
                    raise
                self.pinned = True
                self.seen.clear()
                unit.calls.append(self)

    @uncompiled
    def after(self, gradient: Any = None) -> None:
        """Its graph has run."""
        if self.pinned:
            self.pinned = False
            self.unit.calls.remove(self)
            self.unit.unpin_backward()


def _caller(module: torch.nn.Module) -> torch.nn.Module:
    """The module whose forward torch calls. An object with a copy of a managed module's __dict__,
    as MAML makes, also has the copied bound forward, but is a different module."""
    frame = sys._getframe(2)
    for _ in range(6):  # frames of uncompiled lie in between
        if frame is None:
            break
        if frame.f_code.co_filename == _MODULE_PY:
            found = frame.f_locals.get("self")
            return found if isinstance(found, torch.nn.Module) else module
        frame = frame.f_back
    return module


@uncompiled
def _forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    unit, called = _unit(module), _caller(module)
    if called is not module and \
            getattr(called.__dict__.get("forward"), "__self__", None) is module:
        return type(called).forward(called, *args, **kwargs)
    if unit is None:
        return type(module).forward(module, *args, **kwargs)
    with unit.passes.state.turn:
        if unit.cover is None or not unit.cover.running:
            return _run(unit, module, args, kwargs)
        out = unit.plain(module)(*args, **kwargs)
        if torch.is_grad_enabled():
            _hook_outputs(Call(unit), [t for t in tensors_of(out) if t.requires_grad], ())
        return out


def _run(unit: Unit, module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
    passes = unit.passes
    outer = passes.begin_forward()
    passes.state.depth += 1
    unit.running += 1
    pinned = False
    try:
        unit.pin(b"FWD")
        pinned = True
        passes.state.running.append(unit)
        out = unit.plain(module)(*args, **kwargs)
        if torch.is_grad_enabled():
            _hook(unit, (args, kwargs), out, outer)
    except BaseException:
        passes.state.depth -= 1
        unit.running -= 1
        if pinned:
            passes.state.running.pop()
            unit.unpin(_abi.HOLD)
        if outer:
            passes.phases.leave()
        raise
    passes.state.depth -= 1
    passes.state.running.pop()
    unit.running -= 1
    unit.unpin(_abi.AFTER_FWD)
    if outer:
        passes.end_forward(out)
    return out


def _getstate(module: torch.nn.Module) -> Any:
    """What a copy is made from; it is a plain module."""
    unit = _unit(module)
    own = getattr(type(module), "__getstate__", None)  # since Python 3.11 all objects have it
    state = own(module) if own is not None else module.__dict__
    if unit is None or not isinstance(state, dict):
        return state
    state = {k: v for k, v in state.items() if k not in _OURS}
    state["_parameters"] = _plain(module)
    return {**state, **unit.own}


def _unit(module: torch.nn.Module) -> Unit | None:
    """None for a copy of a managed module."""
    unit = module.__dict__.get("_hybridps_unit")
    return unit if unit is not None and unit.module() is module else None


def _copies(state: "State", values: dict[str, Any]) -> dict[str, Any]:
    """Lasting copies of a state_dict's values taken in a forward or a backward."""
    out = values.__class__(values)
    addresses = {raw_data(s.param).data_ptr(): s for s in state.slots}
    for key, value in values.items():
        slot = addresses.get(value.data_ptr()) if isinstance(value, torch.Tensor) else None
        if slot is None:
            continue
        state.is_needed([slot])
        if state.cuda:
            state.pool.access(slot.bundle)
        out[key] = value.clone()
        if state.cuda:
            state.pool.release(slot.bundle)
    return out


def _state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Like torch's: the values themselves; copies in a forward, and where CUDA moves them."""
    unit = _unit(module)
    if unit is None or _abi.forked(unit.passes.state.pid):
        return type(module).state_dict(module, *args, **kwargs)
    if unit.passes.phases.runs():
        return _copies(unit.passes.state, type(module).state_dict(module, *args, **kwargs))
    with unit.passes.phases.all_shown():
        out = type(module).state_dict(module, *args, **kwargs)
    if unit.passes.state.mode == "move" and unit.passes.state.cuda:
        for key, value in out.items():
            if isinstance(value, torch.Tensor):
                out[key] = value.clone()
    return out


def _load_state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    unit = _unit(module)
    if unit is not None:
        if unit.passes.phases.runs():
            raise _abi.HybridPSError("load_state_dict in a forward or a backward, whose parameters "
                                     "are in use: call it before or after" +
                                     unit.passes.state.facts())
        unit.passes.phases.leave()
        unit.passes.phases.zero_gone()
    return type(module).load_state_dict(module, *args, **kwargs)


def _hook(unit: Unit, given: Any, out: Any, outer: bool) -> None:
    outs = [t for t in tensors_of(out) if t.requires_grad and not t.is_leaf]
    if outer:
        for t in outs:
            t.register_hook(unit.passes.outer_backward)
    if not unit.bundle.count or not outs:
        return
    call = Call(unit)
    seen = set()
    for t in tensors_of(given):
        # A leaf's gradient may be done before the unit's whole graph has run.
        if t.requires_grad and not t.is_leaf and id(t) not in seen:
            t.register_hook(call.after)
        seen.update((id(t), id(t._base)))
    _hook_outputs(call, outs, seen)


def _hook_outputs(call: Call, outs: list[torch.Tensor], given: Container[int]) -> None:
    """given: ids of its inputs, whose hooks belong to other units."""
    for t in outs:
        t.register_hook(call.before)
        # Changing a view in place takes its node, and the hook, out of the graph.
        base = t._base
        if base is not None and not base.is_leaf and id(base) not in given:
            base.register_hook(call.before)

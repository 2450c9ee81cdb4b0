"""Units: modules whose parameters are accessed together, and the hooks that do it.

A unit's forward is wrapped on the instance, so keyword arguments and exceptions are seen on torch
1.13 too. Backward: a hook on each output's gradient accesses the parameters before the unit's own
graph runs; they are released when the gradient of an input (autograd runs last what was made first:
then all of the unit's graph has run), or of all its parameters, is done, at the latest when backward
ends. Hooks and not identity functions: an identity's output may not be changed in place
(nn.ReLU(inplace=True) after a layer), a hooked tensor may.

While a unit runs that has its children's parameters too, the children access nothing: it has all that
is theirs, and in backward has it until what its forward made has run. But a child's output may be
reached when the unit's is not, in a loss of what a hook took from the middle.
"""
from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any, Container

import torch

from . import _abi
from ._tensors import tensors_of

if TYPE_CHECKING:
    from .client import Client, Slot

# Modules that use the parameters of their children without calling them.
WHOLE = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)


class Unit:
    """A module and the parameters it uses itself (those of its children are their units')."""

    def __init__(self, client: "Client", module: torch.nn.Module, name: str,
                 slots: list["Slot"]) -> None:
        self.client = client
        self.module = weakref.ref(module)
        self.name = name.encode()
        self.bundle = _abi.Bundle([s.tensor for s in slots], _abi.DEVICE)
        self.back: _abi.Bundle | None = None
        self.slots = slots
        self.calls: list[Call] = []  # pinned in the running backward
        self.cover: Unit | None = None  # that has its parameters too
        self.running = 0  # forwards that are under way
        self.own_forward = module.__dict__.get("forward")
        module.__dict__["_hybridps_unit"] = self
        module.__dict__["forward"] = types.MethodType(_forward, module)

    def __deepcopy__(self, memo: dict) -> None:
        return None  # a copy of the module is a plain one

    def __reduce__(self) -> tuple:
        return (type(None), ())

    def unwrap(self) -> None:
        module = self.module()
        if module is not None:
            for name in ("_hybridps_unit", "forward", "state_dict", "load_state_dict"):
                module.__dict__.pop(name, None)
            if self.own_forward is not None:
                module.__dict__["forward"] = self.own_forward

    def wrap_state_dict(self) -> None:
        """state_dict() and load_state_dict() of a registered module work on the host's values."""
        module = self.module()
        module.__dict__["state_dict"] = types.MethodType(_state_dict, module)
        module.__dict__["load_state_dict"] = types.MethodType(_load_state_dict, module)

    def plain(self, module: torch.nn.Module) -> Any:
        return self.own_forward or types.MethodType(type(module).forward, module)

    def pin(self, stage: bytes) -> None:
        if self.bundle.count:
            client = self.client
            if client.gradients == "reuse":
                client.is_needed(self.slots)
            client.pool.moment(stage, self.name, client.tide())
            client.pool.access(self.bundle)

    def pin_backward(self) -> None:
        """The parameters and their gradients. In one access: a plan takes a moment as a whole."""
        client = self.client
        if client.gradients == "reuse":
            client.is_needed(self.slots)
        client.pool.moment(b"BWD", self.name, client.tide())
        grads = [s.grad for s in self.slots if s.grad >= 0]
        if self.back is None or self.back.count != self.bundle.count + len(grads):
            self.back = _abi.Bundle(self.bundle.ids, _abi.DEVICE, False, grads)
        client.pool.access(self.back)

    def unpin_backward(self) -> None:
        """Gradients that didn't come have no content."""
        pool = self.client.pool
        none = [s.grad for s in self.slots if s.grad >= 0 and not s.has_grad]
        if not none:
            pool.release(self.back, _abi.AFTER_BWD)
            return
        here = [s.grad for s in self.slots if s.grad >= 0 and s.has_grad]
        pool.release(_abi.Bundle(self.bundle.ids, _abi.DEVICE, False, here), _abi.AFTER_BWD)
        pool.release(_abi.Bundle(none, _abi.DEVICE, False), _abi.FREE)

    def unpin(self, state: int) -> None:
        if self.bundle.count:
            self.client.pool.release(self.bundle, state)

    def accumulated(self, slot: "Slot") -> None:
        """The gradient of one of its parameters is complete."""
        for call in list(self.calls):
            call.seen.add(slot.tensor)
            if len(call.seen) == self.bundle.count:
                call.after()


class Call:
    """One forward of a unit that backward will come back to."""

    __slots__ = ("unit", "pinned", "seen")

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.pinned = False
        self.seen: set[int] = set()

    def before(self, gradient: Any = None) -> None:
        """Its graph is about to run: the parameters are accessed."""
        unit = self.unit
        if not self.pinned and not (unit.cover is not None and unit.cover.calls):
            if unit.client.begin_backward():
                try:
                    unit.pin_backward()
                except BaseException:
                    unit.client.leave()  # an exception in backward ends it
                    raise
                self.pinned = True
                self.seen.clear()
                unit.calls.append(self)

    def after(self, gradient: Any = None) -> None:
        """Its graph has run."""
        if self.pinned:
            self.pinned = False
            self.unit.calls.remove(self)
            self.unit.unpin_backward()


def _forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    unit = _unit(module)
    if unit is None:
        return type(module).forward(module, *args, **kwargs)
    if unit.cover is not None and unit.cover.running:
        out = unit.plain(module)(*args, **kwargs)
        if torch.is_grad_enabled():
            _hook_outputs(Call(unit), [t for t in tensors_of(out) if t.requires_grad], ())
        return out
    client = unit.client
    outer = client.begin_forward()
    client.depth += 1
    unit.running += 1
    pinned = False
    try:
        unit.pin(b"FWD")
        pinned = True
        out = unit.plain(module)(*args, **kwargs)
        if torch.is_grad_enabled():
            _hook(unit, (args, kwargs), out, outer)
    except BaseException:
        client.depth -= 1
        unit.running -= 1
        if pinned:
            unit.unpin(_abi.HOLD)
        if outer:
            client.leave()
        raise
    client.depth -= 1
    unit.running -= 1
    unit.unpin(_abi.AFTER_FWD)
    if outer:
        client.end_forward(out)
    return out


def _unit(module: torch.nn.Module) -> Unit | None:
    """None for a copy of a managed module."""
    unit = module.__dict__.get("_hybridps_unit")
    return unit if unit is not None and unit.module() is module else None


def _state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """As torch's: the values themselves where the host always has them, else copies of them."""
    unit = _unit(module)
    if unit is None:
        return type(module).state_dict(module, *args, **kwargs)
    with unit.client.all_shown():
        out = type(module).state_dict(module, *args, **kwargs)
    if unit.client.mode == "move":
        for key, value in out.items():
            if isinstance(value, torch.Tensor):
                out[key] = value.clone()
    return out


def _load_state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    unit = _unit(module)
    if unit is not None:
        unit.client.leave()
        unit.client.zero_gone()
    return type(module).load_state_dict(module, *args, **kwargs)


def _hook(unit: Unit, given: Any, out: Any, outer: bool) -> None:
    outs = [t for t in tensors_of(out) if t.requires_grad and not t.is_leaf]
    if outer:
        for t in outs:
            t.register_hook(unit.client.outer_backward)
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
    """given: ids of what it was given, whose hooks are others'."""
    for t in outs:
        t.register_hook(call.before)
        # Changing a view in place takes its node, and the hook, out of the graph.
        base = t._base
        if base is not None and not base.is_leaf and id(base) not in given:
            base.register_hook(call.before)

"""Managed parameters: torch's own, with ``data`` and ``grad`` that tell the client of their uses.

torch counts writes in place to a parameter, but not those through ``p.data``: so code that
takes ``p.data`` between forwards is taken to write it. Assigning ``p.data = values`` copies the values
into managed memory. ``p.grad`` may be on the device after backward, and comes when it is read; who
reads it may write it through ``p.grad.data``.
"""
from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._slots import Slot

_DATA, _GRAD = torch._C._TensorBase.data, torch._C._TensorBase.grad
raw_data, set_data = _DATA.__get__, _DATA.__set__
raw_grad, set_grad = _GRAD.__get__, _GRAD.__set__


def is_apart(slot: "Slot") -> bool:
    """Its gradient is torch's, in a pass too: a sparse one, or one of a parameter that is not trained."""
    own = raw_grad(slot.param)
    return slot.gradient < 0 or own is not None and own.is_sparse


def move_back(slot: "Slot", value: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Both have memory of their own, where the parameter came from. A gradient of the user's stays it."""
    kept = grad is not None and grad is not slot.grad_host
    if grad is not None:
        grad = grad.to(slot.came, copy=not kept)
    set_grad(slot.param, None)  # else of another device than the values for a moment
    set_data(slot.param, value.to(slot.came, slot.host.dtype, copy=True))
    set_grad(slot.param, grad)


_slots: dict[int, "Slot"] = {}  # by id(parameter), which the slot keeps alive


def _fetch(param: Any) -> None:
    slot = _slots.get(id(param))
    if slot is not None:
        slot.phases.fetch(slot)


# Each of these makes an attribute of a class of parameters of the one it had. A parameter that is not managed has that.

def _data(before: Any) -> Any:
    def get(self: Any) -> torch.Tensor:
        slot = _slots.get(id(self))
        if slot is None:
            return before.__get__(self, type(self))
        slot.phases.look(slot)
        return raw_data(self)

    def put(self: Any, value: torch.Tensor) -> None:
        slot = _slots.get(id(self))
        if slot is None:
            before.__set__(self, value)
        else:
            slot.phases.assign(slot, value)

    return property(get, put)


def _grad(before: Any) -> Any:
    def get(self: Any) -> torch.Tensor | None:
        slot = _slots.get(id(self))
        return before.__get__(self, type(self)) if slot is None else slot.phases.grad_of(slot)

    def put(self: Any, value: torch.Tensor | None) -> None:
        slot = _slots.get(id(self))
        if slot is None or not slot.phases.assign_grad(slot, value):
            before.__set__(self, value)

    def end(self: Any) -> None:
        put(self, None)

    return property(get, put, end)


def _fetching(before: Any) -> Any:
    @functools.wraps(before)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _fetch(self)
        return before(self, *args, **kwargs)
    return method


def _accumulate_hook(before: Any) -> Any:
    @functools.wraps(before)
    def method(self: Any, hook: Any) -> Any:
        slot = _slots.get(id(self))
        if slot is not None:
            slot.phases.state.refuse_grad_hook(slot.name)
        return before(self, hook)
    return method


def _repr(before: Any) -> Any:
    @functools.wraps(before)
    def method(self: Any) -> str:
        slot = _slots.get(id(self))
        if slot is None:
            return before(self)
        slot.phases.taken(self)
        return before(type(self)(raw_data(self), self.requires_grad))
    return method


def _deepcopy(before: Any) -> Any:
    @functools.wraps(before)
    def method(self: Any, memo: dict) -> Any:
        if id(self) not in _slots:
            return before(self, memo)
        copy = type(self)(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
        memo[id(self)] = copy
        return copy
    return method


_OF_MANAGED = {"data": _data, "grad": _grad, "detach": _fetching, "numpy": _fetching, "__array__": _fetching,
               "register_post_accumulate_grad_hook": _accumulate_hook, "__repr__": _repr, "__deepcopy__": _deepcopy}


class _Class:
    """A class of parameters, of which some are managed: its attributes are those above as long as one is. A parameter
    keeps its type, for code that asks ``type(p) is nn.Parameter``."""

    def __init__(self, kind: type) -> None:
        self._kind, self.managed = kind, 0
        self._own = {name: vars(kind)[name] for name in _OF_MANAGED if name in vars(kind)}
        for name, made in _OF_MANAGED.items():
            before = next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), None)
            if before is not None:  # else of a later torch
                setattr(kind, name, made(before))

    def restore(self) -> None:
        for name in _OF_MANAGED:
            if name in self._own:
                setattr(self._kind, name, self._own[name])
            elif name in vars(self._kind):
                delattr(self._kind, name)


_classes: dict[type, _Class] = {}
_changing = threading.Lock()  # clients of several threads


def adopt(slot: "Slot") -> None:
    kind = type(slot.param)
    with _changing:
        if kind not in _classes:
            _classes[kind] = _Class(kind)
        _classes[kind].managed += 1
        _slots[id(slot.param)] = slot


def give_back(slot: "Slot") -> None:
    kind = type(slot.param)
    with _changing:
        if _slots.pop(id(slot.param), None) is None:
            return
        _classes[kind].managed -= 1
        if _classes[kind].managed == 0:
            _classes.pop(kind).restore()

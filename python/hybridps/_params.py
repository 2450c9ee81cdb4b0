"""Managed parameters: torch's own, with ``data`` and ``grad`` that report their uses to the client.

torch counts in-place writes to a parameter, but not those through ``p.data``. So code that takes
``p.data`` between forwards is assumed to write it. Assigning ``p.data = values`` copies the values
into managed memory. ``p.grad`` may be on the device after backward, and is fetched when read; the
reader may write it through ``p.grad.data``.
"""
from __future__ import annotations

import collections
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ._abi import HOST
from ._tensors import forgotten

if TYPE_CHECKING:
    from ._slots import Slot

_DATA, _GRAD = torch._C._TensorBase.data, torch._C._TensorBase.grad
raw_data, set_data = _DATA.__get__, _DATA.__set__
raw_grad, set_grad = _GRAD.__get__, _GRAD.__set__


def is_apart(slot: "Slot") -> bool:
    """Whether its gradient is torch's even in a pass: a sparse one, or that of an untrained
    parameter."""
    own = raw_grad(slot.param)
    return slot.gradient < 0 or own is not None and own.is_sparse


def count_write(slot: "Slot") -> None:
    """Have torch count a write to the parameter that it did not see: a backward through a graph
    from before the write is an error, as on plain torch."""
    if slot.writes is None:
        with torch._C.DisableTorchFunction():
            slot.writes = torch._C._TensorBase.detach(slot.param)
        set_data(slot.writes, torch.empty(0, dtype=slot.param.dtype, device=slot.param.device))
    known = slot.version == slot.param._version
    slot.writes.zero_()
    if known:
        slot.version = slot.param._version


def is_kept(slot: "Slot") -> bool:
    """Outside: whether a user's tensor shows the parameter's memory. Our own views are made anew,
    while other threads may read the parameter."""
    with forgotten(slot.home, slot.address(slot.tensor)) as kept:
        slot.device = None
        slot.host = slot.view(slot.tensor, HOST)
        set_data(slot.param, slot.host)
    if kept:
        slot.host = slot.view(slot.tensor, HOST)
        set_data(slot.param, slot.host)
    return bool(kept)


def move_back(slot: "Slot", value: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Move both to separate memory where the parameter came from. A user's own gradient stays as it
    is."""
    kept = grad is not None and grad is not slot.grad_host
    if grad is not None:
        grad = grad.to(slot.came, copy=not kept)
    set_grad(slot.param, None)  # or it would briefly be on another device than the values
    set_data(slot.param, value.to(slot.came, slot.host.dtype, copy=True))
    set_grad(slot.param, grad)


class _Known(weakref.ref):
    """A managed parameter's slot, and the parameter's class then and those above, top first."""

    __slots__ = ("key", "kinds")


# By id(parameter), which the slot keeps alive. The slot belongs to its client, which is freed with
# its model and optimizer, even if it was not closed.
_known: dict[int, _Known] = {}
_dropped: collections.deque[_Known] = collections.deque()  # of slots that were freed


def slot_of(param: Any) -> "Slot | None":
    known = _known.get(id(param))
    return None if known is None else known()


def _fetch(param: Any) -> None:
    slot = slot_of(param)
    if slot is not None:
        slot.phases.fetch(slot)


# Each of these makes an attribute of a class of parameters from the one it had. An unmanaged
# parameter keeps using that one, and so does one whose class overrides it (not top), which reaches
# torch's through the top class.

def _data(before: Any, top: bool) -> Any:
    def get(self: Any) -> torch.Tensor:
        slot = slot_of(self)
        if slot is not None:
            slot.phases.look(slot)
            if top:
                return raw_data(self)
        return before.__get__(self, type(self))

    def put(self: Any, value: torch.Tensor) -> None:
        slot = slot_of(self) if top else None
        if slot is None:
            before.__set__(self, value)
        else:
            slot.phases.assign(slot, value)

    return property(get, put)


def _grad(before: Any, top: bool) -> Any:
    def get(self: Any) -> torch.Tensor | None:
        slot = slot_of(self)
        if slot is not None:
            found = slot.phases.grad_of(slot)
            if top:
                return found
        return before.__get__(self, type(self))

    def put(self: Any, value: torch.Tensor | None) -> None:
        slot = slot_of(self) if top else None
        if slot is None or not slot.phases.assign_grad(slot, value):
            before.__set__(self, value)

    def end(self: Any) -> None:
        put(self, None)

    return property(get, put, end)


def _fetching(before: Any, _: bool) -> Any:
    @functools.wraps(before)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _fetch(self)
        return before(self, *args, **kwargs)
    return method


def _accumulate_hook(before: Any, _: bool) -> Any:
    @functools.wraps(before)
    def method(self: Any, hook: Any) -> Any:
        slot = slot_of(self)
        if slot is not None:
            slot.phases.state.refuse_grad_hook(slot.name)
        return before(self, hook)
    return method


def _repr(before: Any, _: bool) -> Any:
    @functools.wraps(before)
    def method(self: Any, **kwargs: Any) -> str:
        slot = slot_of(self)
        if slot is not None:
            slot.phases.taken(self)
        return before(self, **kwargs)
    return method


_OF_MANAGED = {"data": _data, "grad": _grad, "detach": _fetching, "numpy": _fetching,
               "__array__": _fetching,
               "register_post_accumulate_grad_hook": _accumulate_hook, "__repr__": _repr}


class _Class:
    """A class of parameters, some of which are managed: it has the attributes above as long as one
    is. A parameter keeps its type, for code that checks ``type(p) is nn.Parameter``."""

    def __init__(self, kind: type, top: bool) -> None:
        self._kind, self.managed = kind, 0
        self._own, self._ours = {}, {}
        for name, made in _OF_MANAGED.items():
            before = next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), None)
            if name in vars(kind):
                self._own[name] = before
            elif before is None or not top:  # a later torch's; or the class above has it
                continue
            self._ours[name] = made(before, top)
            setattr(kind, name, self._ours[name])

    def restore(self) -> None:
        for name, ours in self._ours.items():
            if vars(self._kind).get(name) is not ours:
                continue  # replaced by others since
            if name in self._own:
                setattr(self._kind, name, self._own[name])
            else:
                delattr(self._kind, name)


_classes: dict[type, _Class] = {}
_changing = threading.Lock()  # guards against clients in several threads


def _kinds(param: torch.Tensor) -> list[type]:
    kinds = [k for k in type(param).__mro__ if torch.nn.Parameter in k.__mro__]
    return kinds[::-1] or [type(param)]  # a tensor of another type that torch takes for a parameter


def adopt(slot: "Slot") -> None:
    with _changing:
        while _dropped:
            _forget(_dropped.popleft())
        known = _Known(slot, _dropped.append)
        known.key, known.kinds = id(slot.param), _kinds(slot.param)
        for kind in known.kinds:
            if kind not in _classes:
                _classes[kind] = _Class(kind, kind is known.kinds[0])
            _classes[kind].managed += 1
        _known[known.key] = known


def give_back(slot: "Slot") -> None:
    with _changing:
        known = _known.get(id(slot.param))
        if known is not None:
            _forget(known)


def _forget(known: _Known) -> None:
    if _known.get(known.key) is known:
        del _known[known.key]
    for kind in known.kinds[::-1]:
        _classes[kind].managed -= 1
        if _classes[kind].managed == 0:
            _classes.pop(kind).restore()

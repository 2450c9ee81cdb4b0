"""Managed parameters: torch's own, with ``data`` and ``grad`` that tell the client of their uses.

torch counts writes in place to a parameter, but not those through ``p.data``: so code that
takes ``p.data`` between forwards is taken to write it. Assigning ``p.data = values`` copies the values
into managed memory. ``p.grad`` may be on the device after backward, and comes when it is read; who
reads it may write it through ``p.grad.data``.
"""
from __future__ import annotations

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
_classes: dict[type, type] = {}


def _fetch(param: Any) -> None:
    slot = _slots.get(id(param))
    if slot is not None:
        slot.phases.fetch(slot)


class _Managed:
    @property
    def data(self) -> torch.Tensor:
        slot = _slots.get(id(self))
        if slot is not None:
            slot.phases.look(slot)
        return raw_data(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        slot = _slots.get(id(self))
        if slot is None:
            set_data(self, value)
        else:
            slot.phases.assign(slot, value)

    @property
    def grad(self) -> torch.Tensor | None:
        slot = _slots.get(id(self))
        return raw_grad(self) if slot is None else slot.phases.grad_of(slot)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        slot = _slots.get(id(self))
        if slot is not None:
            if slot.phases.assign_grad(slot, value):
                return
        set_grad(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def detach(self) -> torch.Tensor:
        _fetch(self)
        return super().detach()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        _fetch(self)
        return super().numpy(*args, **kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        _fetch(self)
        return super().__array__(*args, **kwargs)

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        slot = _slots.get(id(self))
        if slot is not None:
            slot.phases.state.refuse_grad_hook(slot.name)
        return super().register_post_accumulate_grad_hook(hook)

    def __repr__(self) -> str:
        slot = _slots.get(id(self))
        if slot is not None:
            slot.phases.taken(self)
        return repr(type(self).__mro__[2](raw_data(self), self.requires_grad))

    def __deepcopy__(self, memo: dict) -> Any:
        plain = type(self).__mro__[2]
        copy = plain(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
        memo[id(self)] = copy
        return copy


def adopt(slot: "Slot") -> None:
    param = slot.param
    plain = type(param)
    if plain not in _classes:
        _classes[plain] = type(plain.__name__, (_Managed, plain),
                               {"__module__": plain.__module__, "__qualname__": plain.__qualname__})
    _slots[id(param)] = slot
    param.__class__ = _classes[plain]


def give_back(slot: "Slot") -> None:
    if _slots.pop(id(slot.param), None) is not None:
        slot.param.__class__ = type(slot.param).__mro__[2]

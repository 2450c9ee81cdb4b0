"""Hooks through which autograd reports a completed gradient."""
from __future__ import annotations

import weakref
from typing import Any

import torch

from ._params import is_apart, raw_grad
from ._slots import Slot
from ._state import State


def add(slot: Slot) -> Any:
    """Have state.on_gradient called whenever a gradient of the slot is complete. The hook does not
    keep the client alive."""
    param, ref = slot.param, weakref.ref(slot)

    def complete(*_: Any) -> None:
        slot = ref()
        if slot is not None:
            slot.phases.state.on_gradient(slot)

    if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):  # torch 2.1
        return torch.Tensor.register_post_accumulate_grad_hook(param, complete)
    with torch.enable_grad():
        node = param.expand_as(param).grad_fn.next_functions[0][0]
    handle = node.register_hook(complete)
    handle.node = node  # alive as long as the hook
    return handle


def bring_moved(state: State) -> None:
    """Bring home gradients that users gave other memory in the pass (p.grad.data = values)."""
    for slot in state.slots:
        value = slot.grad_device
        if value is None or slot.cuda or value.data_ptr() == slot.address(slot.gradient):
            continue
        slot.grad_device = None
        if slot.has_grad:
            with state.pool.on_host(slot.gradient, write=True), torch.no_grad():
                slot.grad_host.copy_(value)


def take_unseen(state: State) -> None:
    """Take gradients that no hook reported: p.set_() gives a parameter a new AccumulateGrad
    node."""
    for slot in state.slots:
        if raw_grad(slot.param) is not None and slot.hook is not None and not is_apart(slot):
            slot.hook.remove()
            slot.hook = add(slot)
            state.on_gradient(slot)

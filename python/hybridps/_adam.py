"""Adam beside its steps in libhelios: the norm of gradients, which a scaler of losses asks for, and a
step by torch's operations, on CUDA."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._abi import DEVICE, HOLD
from ._group import TYPES
from ._params import raw_grad

if TYPE_CHECKING:
    from ._slots import Slot


def norm_of(stepper: Any, scale: float) -> tuple[float, bool]:
    """Sum of the squares of all gradients of a Stepper's times scale, and whether all are finite."""
    state = stepper.phases.state
    stepper.phases.leave()
    slots = list(stepper.slots())
    total, finite = 0.0, True
    if state.grads_away:
        found = _device_norms(state, slots, scale)
        on_host = [s for s in slots if s.given is not None and not s.has_grad]
    else:
        found, on_host = [], [s for s in slots if raw_grad(s.param) is not None]
    found += [_norm(state, s, stepper.host_address(s), scale) for s in on_host]
    for squares, good in found:
        total += squares
        finite = finite and good
    return total, finite


def _device_norms(state: Any, slots: list["Slot"], scale: float) -> list[tuple[float, bool]]:
    found = []
    for slot in [s for s in slots if s.has_grad]:
        state.pool.moment(b"ADAM", b"norm", state.reserved_bytes())
        bundle = state.bundle([slot.gradient], DEVICE)
        state.pool.access(bundle)
        try:
            if slot.cuda:
                g = slot.view(slot.gradient, DEVICE).double().mul(scale)
                found.append((float(g.square().sum()), bool(g.isfinite().all())))
            else:
                found.append(_norm(state, slot, slot.address, scale))
        finally:
            state.pool.release(bundle, HOLD)
    return found


def _norm(state: Any, slot: "Slot", at: Any, scale: float) -> tuple[float, bool]:
    grad = raw_grad(slot.param)
    if grad is not slot.grad_host:
        grad = torch.empty_like(slot.host).copy_(grad)
        address = grad.data_ptr()
    else:
        address = at(slot.gradient)
    return state.pool.norm(address, TYPES[slot.param.dtype], slot.param.numel(), scale,
                           torch.get_num_threads())


def adam_by_torch(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int,
                  group: dict, adamw: bool) -> None:
    """One step in the operations of this torch's single-tensor Adam."""
    b1, b2 = group["betas"]
    if adamw:
        p.mul_(1 - group["lr"] * group["weight_decay"])
    elif group["weight_decay"]:
        g = g.add(p, alpha=group["weight_decay"])
    if int(torch.__version__.split(".")[0]) >= 2:
        m.lerp_(g, 1 - b1)
    else:
        m.mul_(b1).add_(g, alpha=1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    denominator = (v.sqrt() / (1 - b2 ** step) ** 0.5).add_(group["eps"])
    p.addcdiv_(m, denominator, value=-(group["lr"] / (1 - b1 ** step)))

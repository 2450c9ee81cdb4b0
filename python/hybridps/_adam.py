"""The parts of Adam outside libhelios: the gradients' norm, which a loss scaler needs, and steps
with torch's operations, on CUDA."""
from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, Collection

import torch

from ._abi import DEVICE, HOLD, HybridPSError
from ._group import TYPES
from ._params import raw_grad, set_grad
from ._tensors import is_at

if TYPE_CHECKING:
    from ._slots import Slot

_ALONE_BY_DEFAULT = int(torch.__version__.split(".")[0]) < 2  # torch 1 steps parameters one by one
STATES = ("exp_avg", "exp_avg_sq", "master")  # what native Adam keeps, all in float32


def is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether libhelios can take its steps: not if its step() was replaced, which would be left
    out."""
    step = optimizer.__dict__.get("step", type(optimizer).step)
    step = getattr(step, "__func__", step)
    while getattr(step, "__globals__", None) is vars(torch.optim.lr_scheduler):
        step = step.__wrapped__  # a scheduler of torch counts the calls
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and \
        step is type(optimizer).step


def norm_of(stepper: Any, scale: float) -> tuple[float, bool]:
    """The sum of squares of a Stepper's gradients times scale, and whether all are finite."""
    state = stepper.phases.state
    stepper.phases.leave()
    slots = list(stepper.slots())
    total, finite = 0.0, True
    if state.grads_away:
        found = _device_norms(state, slots, scale)
        on_host = [s for s in slots if s.given is not None and not s.has_grad]
    else:
        found, on_host = [], [s for s in slots if raw_grad(s.param) is not None and s.gradient >= 0]
    found += [_norm(state, s, stepper.host_address(s), scale) for s in on_host]
    found += [_torch_norm(grad, scale) for p in stepper.all_params() if stepper.slot_of(p) is None
              for grad in [raw_grad(p)] if grad is not None]
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
            if slot.cuda or slot.param.dtype not in TYPES:
                found.append(_torch_norm(slot.view(slot.gradient, DEVICE), scale))
            else:
                found.append(_norm(state, slot, slot.address, scale))
        finally:
            state.pool.release(bundle, HOLD)
    return found


def _torch_norm(grad: torch.Tensor, scale: float) -> tuple[float, bool]:
    g = torch.view_as_real(grad.detach()) if grad.is_complex() else grad.detach()
    g = g.double().mul(scale)
    return float(g.square().sum()), bool(g.isfinite().all())


def _norm(state: Any, slot: "Slot", at: Any, scale: float) -> tuple[float, bool]:
    grad = raw_grad(slot.param)
    if slot.param.dtype not in TYPES:
        return _torch_norm(grad, scale)
    if not slot.shows_grad(grad):
        grad = torch.empty_like(slot.host).copy_(grad)
        address = grad.data_ptr()
    else:
        address = at(slot.gradient)
    return state.pool.norm(address, TYPES[slot.param.dtype], slot.param.numel(), scale,
                           torch.get_num_threads())


def step_by_torch(stepper: Any, params: Collection[torch.nn.Parameter]) -> None:
    """Step these by torch's own step, which sees their gradients times the stepper's factor and no
    others. Hooks have run."""
    optimizer, step = stepper.optimizer, type(stepper.optimizer).step
    seen, own = {id(p) for p in params}, [(p, raw_grad(p)) for p in stepper.all_params()]
    try:
        for p, grad in own:
            if id(p) not in seen:
                set_grad(p, None)
            elif grad is not None and stepper.factor != 1.0:
                set_grad(p, grad.detach() * stepper.factor)
        getattr(step, "__wrapped__", step)(optimizer)
    finally:
        for p, grad in own:
            set_grad(p, grad)


def step_hooks(optimizer: torch.optim.Optimizer, when: str) -> list:
    """The step hooks of torch 2, which its own step calls."""
    torchs = sys.modules[torch.optim.Optimizer.__module__]
    everywhere = getattr(torchs, f"_global_optimizer_{when}_hooks", {})
    own = getattr(optimizer, f"_optimizer_step_{when}_hooks", {})
    return [*everywhere.values(), *own.values()]


def check_held(slot: "Slot", own: dict[str, tuple[int, torch.Tensor]],
               state: dict[str, Any]) -> None:
    """Check that native Adam can use what was put into optimizer.state; what is manageable is
    managed."""
    for key in ("exp_avg", "exp_avg_sq"):
        host = own[key][1]
        if key in state and not is_at(state[key], host):
            raise HybridPSError(f"optimizer.state of {slot.name} has a {key} that is not "
                                f"{host.dtype} of shape {tuple(host.shape)}: put one of its type "
                                "and shape there, or register with native=False" +
                                slot.phases.state.facts())


def as_native(slot: "Slot", key: str, value: torch.Tensor) -> torch.Tensor:
    """State that an optimizer had before, such as torch's own of 16 bits, for libhelios."""
    if key == "master" and value.dtype != torch.float32:
        raise HybridPSError(f"optimizer.state of {slot.name} has a master of {value.dtype}: torch's"
                            " load_state_dict has rounded its float32 values. Call it after "
                            "manage(), which keeps them, or remove \"master\" from the state" +
                            slot.phases.state.facts())
    return value.float() if key in STATES and slot.param.dtype in TYPES else value


def unround(slot: "Slot", state: dict[str, Any], given: dict[str, Any]) -> None:
    """Restore what torch's load_state_dict has rounded to the parameter's 16 bits."""
    for key in STATES:
        if key in state and key in given:
            state[key] = as_native(slot, key, given[key]).clone()


def refresh_master(slot: "Slot", own: dict[str, tuple[int, torch.Tensor]]) -> None:
    """Copy what others wrote to a 16-bit parameter to its master."""
    master = own.get("master")
    changed = slot.suspect or slot.param._version != slot.version
    if master is not None and changed and not slot.gone:
        _copy_written(slot, slot.host, master[1])


def keep_written(slot: "Slot") -> None:
    """The same for a parameter on the device, before its gradient takes its place."""
    if slot.suspect and slot.master is not None:
        tensor, host = slot.master
        with slot.phases.state.pool.on_host(tensor, write=True):
            _copy_written(slot, slot.view(slot.tensor, DEVICE).to(host.device), host)


def _copy_written(slot: "Slot", values: torch.Tensor, master: torch.Tensor) -> None:
    with torch.no_grad():
        differs = values != master.to(values.dtype)
        master[differs] = values[differs].float()
    slot.suspect = False


def grad_apart(slot: "Slot") -> torch.Tensor | None:
    """The gradient in the parameter's form, if it is not in its place."""
    own = raw_grad(slot.param)
    if slot.shows_grad(own):
        return None
    if own.stride() != slot.param.stride() or own.dtype != slot.param.dtype:
        own = torch.empty_like(slot.host).copy_(own)
    return own


def adams_by_torch(tensors: list[tuple[torch.Tensor, ...]], steps: list[int], group: dict,
                   adamw: bool) -> None:
    """Step several parameters (p, g, m, v) with the operations of torch's foreach Adam, its default
    on CUDA."""
    p, g, m, v = (list(column) for column in zip(*tensors))
    b1, b2 = group["betas"]
    if group["weight_decay"]:
        if adamw:
            torch._foreach_mul_(p, 1 - group["lr"] * group["weight_decay"])
        else:
            g = list(torch._foreach_add(g, p, alpha=group["weight_decay"]))
    torch._foreach_lerp_(m, g, 1 - b1)
    torch._foreach_mul_(v, b2)
    torch._foreach_addcmul_(v, g, g, 1 - b2)
    rates = [(group["lr"] / (1 - b1 ** step)) * -1 for step in steps]
    root = torch._foreach_sqrt(v)
    torch._foreach_div_(root, [(1 - b2 ** step) ** 0.5 for step in steps])
    torch._foreach_add_(root, group["eps"])
    torch._foreach_addcdiv_(p, m, root, rates)


def adam_by_torch(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int,
                  group: dict, adamw: bool) -> None:
    """One step with the operations of this torch's single-tensor Adam."""
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


def adams_on_cuda(stepper: Any, groups: dict[int, dict], slots: list["Slot"]) -> None:
    """Step on views of device memory: a whole group at once, as torch's own does on CUDA."""
    for _, same in itertools.groupby(slots, lambda s: id(groups[id(s.param)])):
        batch = list(same)
        group, steps = groups[id(batch[0].param)], [stepper.next_step(s) for s in batch]
        tensors, adamw = [_on_cuda(stepper, s) for s in batch], stepper.decouples(group)
        with torch.no_grad():
            if group.get("foreach") is False or _ALONE_BY_DEFAULT:
                for (p, g, m, v), step in zip(tensors, steps):
                    adam_by_torch(p, g, m, v, step, group, adamw)
            else:
                adams_by_torch(tensors, steps, group, adamw)
            for slot, (p, *_), step in zip(batch, tensors, steps):
                if slot.param.dtype != torch.float32:
                    _there(slot, slot.tensor).copy_(p)
                stepper.count_step(slot, step)


def _on_cuda(stepper: Any, slot: "Slot") -> tuple[torch.Tensor, ...]:
    """What is stepped (the parameter, or its float32 values), its gradient, and Adam's state."""
    own = stepper.of(slot)
    p = _there(slot, own["master"][0] if "master" in own else slot.tensor, torch.float32)
    g = _there(slot, slot.gradient).float()
    return (p, g.mul(stepper.factor) if stepper.factor != 1.0 else g,
            *(_there(slot, own[key][0], torch.float32) for key in ("exp_avg", "exp_avg_sq")))


def _there(slot: "Slot", tensor: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    found = slot.there.get(tensor)
    if found is None:
        found = slot.there[tensor] = slot.view(tensor, DEVICE, dtype)
    return found


def is_half(slot: "Slot") -> bool:
    return slot.param.dtype in (torch.float16, torch.bfloat16)

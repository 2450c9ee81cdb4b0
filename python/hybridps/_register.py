"""How modules and optimizers come under management and leave it: what is refused, and where
parameters are placed."""
from __future__ import annotations

import contextlib

import torch

from . import _abi, _optim, _params, _wrappers
from ._abi import DEVICE, HOST, Bundle, HybridPSError
from ._adam import is_half
from ._params import raw_data, set_data
from ._passes import Passes
from ._phases import Phases
from ._slots import Slot
from ._state import State
from ._tensors import in_same_memory, is_dense
from ._units import LISTS, WHOLE, Unit, holders


def register_module(passes: Passes, module: torch.nn.Module, name: str,
                    whole: tuple[type, ...]) -> None:
    """See Client."""
    state = passes.state
    state.usable()
    if not isinstance(module, torch.nn.Module):
        raise HybridPSError(f"module is {module!r:.40}: it must be a torch.nn.Module")
    _abi.check_text("name", name, "encoder")
    if not (isinstance(whole, (tuple, list)) and
            all(isinstance(kind, type) and issubclass(kind, torch.nn.Module) for kind in whole)):
        raise HybridPSError(f"whole is {whole!r}: it must be a tuple of module types")
    if any(module is m for m in state.modules) or "_hybridps_unit" in module.__dict__:
        raise HybridPSError(f"module {name or type(module).__name__} is registered already" +
                            state.facts())
    check_module(state, module)
    new = new_slots(passes, module, name)
    passes.phases.leave()
    begin_alike(state, module, new)
    place(passes, new)
    state.modules.append(module)
    add_units(passes, module, name, (*WHOLE, *whole))


def register_optimizer(passes: Passes, optimizer: torch.optim.Optimizer, native: bool) -> None:
    """See Client."""
    state = passes.state
    state.usable()
    _abi.check_flag("native", native)
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
        raise HybridPSError(f"optimizer is {optimizer!r:.40}: it must be a torch.optim.Optimizer")
    if any(optimizer is s.optimizer for s in state.optimizers):
        raise HybridPSError(f"optimizer {type(optimizer).__name__} is registered already" +
                            state.facts())
    check_optimizer(state, optimizer)
    passes.phases.leave()
    passes.phases.fetch_grads()
    state.optimizers.append(_optim.Stepper(passes.phases, optimizer, native))
    state.lazy = any(s.on_device for s in state.optimizers)
    state.rests = state.cuda is None and all(s.on_device for s in state.optimizers)
    state.hold(state.held_outside(True))


def close(phases: Phases) -> None:
    """See Client."""
    state = phases.state
    with state.turn:  # no other thread is in a pass
        _close(phases, state)


def _close(phases: Phases, state: State) -> None:
    if state.closed:
        return
    wrong = phases.end()
    for slot in state.slots:
        _params.give_back(slot)
    for unit in state.units:
        unit.unwrap()
    state.closed = True
    if not state.cuda and not _abi.forked(state.pid):
        state.homes.keep()  # on failure the pool stays open, because it is in use
    state.pool.close()
    if state.one is not None:
        state.one.close()
    if wrong is not None:
        raise wrong


def check_room(state: State) -> None:
    """Refuse a lack of room at once, not in the middle of a forward. Counts what a module's pass
    has on the device, together with the modules around it. Only what a module uses of others is not
    counted; that shows when it runs."""
    stepped = {id(p) for s in state.optimizers for p in s.all_params()}
    granule, capacity = state.pool.stats()["granule"], state.pool.stats()["capacity"]
    most, which = 0, ""
    found = state.chunk_bytes({i for s in state.slots for i in (s.tensor, s.grad) if i >= 0})
    for unit in state.units:
        name = unit.name.decode()
        around = [u for u in state.units
                  if u is unit or name.startswith(u.name.decode() + ".") or u.module() in
                  state.modules and unit.module() in set(u.module().modules())]
        ids = {i for u in around for s in u.slots
               for i in (s.tensor, s.grad if id(s.param) in stepped else -1) if i >= 0}
        need = sum({found[i][0]: found[i][1] for i in ids}.values())
        if need > most:
            most, which = need, name
    if most <= capacity:
        return
    most = (most + granule - 1) // granule * granule
    remedy = f"Use at least emu:{most // 1024}KiB" if not state.cuda else \
        "Use a device with more memory"
    raise HybridPSError(f"module {which} needs {_in_units(most)} of device memory at once; device "
                        f"{state.device} has {_in_units(capacity)}. {remedy}" + state.facts())


def _in_units(count: int) -> str:
    """Bytes in a readable unit."""
    power = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**power:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def add_units(passes: Passes, module: torch.nn.Module, name: str, whole: tuple[type, ...]) -> None:
    state = passes.state
    cover, inside = None, ""  # the last unit that also has its children's parameters
    for path, child in module.named_modules():
        if isinstance(child, LISTS) and child is not module:
            continue
        params = (child.parameters() if isinstance(child, whole) else
                  (p for m in holders(child) for p in m.parameters(recurse=False)))
        slots = list({id(p): state.by_param[id(p)] for p in params if id(p) in state.by_param}
                     .values())
        if slots or child is module:
            full = ".".join(n for n in (name, path) if n) or type(child).__name__
            unit = Unit(passes, child, full, slots)
            state.units.append(unit)
            if cover is not None and path.startswith(inside):
                unit.cover = cover
            elif isinstance(child, whole):
                cover, inside = unit, f"{path}." if path else ""
            if child is module:
                unit.wrap_state_dict()
            for slot in slots:
                slot.units.append(unit)


def check_module(state: State, module: torch.nn.Module) -> None:
    for path, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise HybridPSError(f"module {path or type(child).__name__} is compiled by torch.jit"
                                ", which calls no hooks: manage the model that was compiled" +
                                state.facts())
        for wrapper in _wrappers.around(child):
            raise HybridPSError(wrapper + _wrappers.WHY + state.facts())


def check_optimizer(state: State, optimizer: torch.optim.Optimizer) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if not state.slots or not params or any(id(p) in state.by_param for p in params):
        return
    raise HybridPSError(f"optimizer {type(optimizer).__name__} has none of the {len(state.slots)} "
                        f"managed parameters, but {len(params)} others, the first of shape "
                        f"{tuple(params[0].shape)}: make it of model.parameters() of the model "
                        "that is managed" + state.facts())


def new_slots(passes: Passes, module: torch.nn.Module, prefix: str) -> list[Slot]:
    state = passes.state
    slots = []
    devices: dict[torch.device, str] = {}
    for path, param in module.named_parameters():
        name = f"{prefix}.{path}" if prefix else path
        if torch.nn.parameter.is_lazy(param):
            raise HybridPSError(f"parameter {name} of a lazy module has no shape yet: call the "
                                "model with a batch before it is managed" + state.facts())
        if id(param) in state.by_param or param.numel() == 0:
            continue
        other = _params.slot_of(param)
        if other is not None:
            raise HybridPSError(f"parameter {name} is registered already, with the client of "
                                f"{other.phases.state.device}" + state.facts())
        if getattr(param, "_post_accumulate_grad_hooks", None):
            state.refuse_grad_hook(name)
        if type(raw_data(param)).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise HybridPSError(f"parameter {name} is a {type(raw_data(param)).__name__}: only "
                                "plain tensors can be managed" + state.facts())
        devices.setdefault(param.device, name)
        if not is_dense(param):
            raise HybridPSError(f"parameter {name} has holes in memory (strides "
                                f"{param.stride()}): make it contiguous" + state.facts())
        slots.append(Slot(passes.phases, param, name))
    if len(devices) > 1:
        raise HybridPSError("parameters on mixed devices: " +
                            ", ".join(f"{n} on {d}" for d, n in devices.items()) +
                            state.facts())
    if slots and slots[0].param.is_meta:
        raise HybridPSError(f"parameter {slots[0].name} is on the meta device and has no values: "
                            "model.to_empty(device=\"cpu\") and fill them before it is managed" +
                            state.facts())
    tied = in_same_memory([raw_data(slot.param) for slot in slots])
    if tied:  # each gets separate memory: writes to one would no longer reach the other
        raise HybridPSError("parameters {} and {} share the same memory: make them one "
                            "(module.weight = other.weight), or give each its own (.clone())"
                            .format(*(slots[i].name for i in tied)) + state.facts())
    return slots


def begin_alike(state: State, module: torch.nn.Module, slots: list[Slot]) -> None:
    """Make every rank begin with rank 0's values."""
    if state.group is not None:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(state.group.broadcast(buffer, 0, name))
            for slot in slots:
                slot.param.copy_(state.group.broadcast(slot.param, 0, slot.name))


def place(passes: Passes, slots: list[Slot]) -> None:
    state = passes.state
    with state.one or contextlib.nullcontext():
        _place(passes, slots)
    if state.one is not None:
        state.one.begin(slots)


def _place(passes: Passes, slots: list[Slot]) -> None:
    state = passes.state
    ids = state.add_filled([(s.name, _abi.PARAM, raw_data(s.param), s.param) for s in slots])
    for slot, tensor in zip(slots, ids):
        slot.tensor = tensor
        slot.bundle = Bundle([tensor], DEVICE)
        slot.host = slot.view(tensor, HOST)
        slot.home = slot.host.data_ptr()
        slot.write = Bundle([tensor], HOST, True)
        slot.reuse = state.gradients == "reuse" and is_half(slot)
    passes.phases.add_grads(s for s in slots if s.param.requires_grad)
    state.hold(ids)
    for slot in slots:
        set_data(slot.param, slot.host)
        slot.version = slot.param._version
        state.slots.append(slot)
        state.by_param[id(slot.param)] = slot
        _params.adopt(slot)

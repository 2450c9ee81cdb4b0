"""Optimizers over managed state: torch's own as they are, Adam and AdamW also in libhelios.

Steps on the host have all state there outside a pass (see _phases.py), as torch expects. Steps on
the device go chunk by chunk: parameters, gradients and state in the same chunks are accessed
together. The state stays there, and ``optimizer.state`` has it only in ``state_dict()``.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import types
from typing import TYPE_CHECKING, Any, Iterator

import torch

from . import _abi
from ._abi import DEVICE, HOLD, HOST, HybridPSError
from ._adam import (STATES, adams_on_cuda, as_native, check_held, grad_apart, is_adam, is_half,
                    refresh_master, step_by_torch, step_hooks, unround)
from ._group import TYPES
from ._home import Shown
from ._params import count_write, raw_data, raw_grad, set_grad
from ._tensors import is_at, kind_of_state, moved, uncompiled
from ._turn import step_in_turn as in_turn

if TYPE_CHECKING:
    from ._phases import Phases
    from ._slots import Slot

_OTHER_ADAMS = ("amsgrad", "maximize", "capturable", "differentiable", "fused")
_NONE_BY_DEFAULT = int(torch.__version__.split(".")[0]) >= 2  # zero_grad's set_to_none


# One moment of a step.
_Batch = tuple[bytes, list[tuple["Slot", "_abi.Adam | None"]], "_abi.Bundle"]


class Stepper:
    """Wraps step() of one optimizer and moves its state into the pool."""

    def __init__(self, phases: "Phases", optimizer: torch.optim.Optimizer, native: bool) -> None:
        self.phases, self.optimizer = phases, optimizer
        self.factor = 1.0  # for the gradients, in the next step
        self.layouts = -1
        self.batches: list[_Batch] = []
        own = ("step", "state_dict", "load_state_dict", "zero_grad", "__getstate__")
        self.originals = {k: optimizer.__dict__.get(k) for k in own}
        self.native = native and is_adam(optimizer)
        self.on_device = self._choose_device()
        # Not accessed outside: it stays on the device, or the host has no room for all of it.
        self.apart = self.on_device or (self.native and phases.state.limited)
        # Nor can faults make optimizer.state readable.
        self.hidden = self.apart and phases.state.cuda is not None
        self.begun: set[int] = set()  # ids of parameters that it has stepped
        if phases.state.shard and phases.state.one is None:
            phases.state.deal_out(self.slots())
        self.adopt()
        if self.native:
            newer = int(torch.__version__.split(".")[0]) >= 2
            phases.state.pool.lib.hybridps_adam_set_rounding(0 if newer else 1)
            self._prepare()
        self._wrap()

    # ---- coming and going ----

    def _choose_device(self) -> bool:
        phases = self.phases
        requested = phases.state.optimizer_device
        managed = self._plain_adam() and self._all_managed()
        if requested == "host" or phases.state.one is not None or not managed:
            if requested == "device":
                raise HybridPSError("optimizer_device=\"device\" is for torch.optim.Adam and AdamW "
                                    "with native=True and none of " + ", ".join(_OTHER_ADAMS) +
                                    ", of managed parameters of 16 or 32 bits" +
                                    phases.state.facts())
            return False
        stats = phases.state.pool.stats()
        counts = [(s.param.numel(), s.param.element_size(), is_half(s)) for s in phases.state.slots]
        kinds = [sum(n * size for n, size, _ in counts)] * 2
        kinds += [sum(4 * n for n, _, _ in counts)] * 2
        kinds.append(sum(4 * n * half for n, _, half in counts))
        data = sum(-(-kind // stats["granule"]) * stats["granule"] for kind in kinds)
        return requested == "device" or data <= stats["capacity"]

    def _wrap(self) -> None:
        optimizer, stepper = self.optimizer, self
        step = self.originals["step"] or types.MethodType(type(optimizer).step, optimizer)

        @functools.wraps(step)
        def wrapped(_: Any, *args: Any, **kwargs: Any) -> Any:
            return stepper.step(step, args, kwargs)

        wrapped.__dict__.update(getattr(step, "__dict__", {}))
        # A bound method, because torch's schedulers use step.__func__.
        optimizer.__dict__["step"] = types.MethodType(wrapped, optimizer)
        optimizer.__dict__["_hybridps_stepper"] = self
        if self.native or self.phases.state.shard:
            optimizer.__dict__["state_dict"] = self.state_dict
        optimizer.__dict__["load_state_dict"] = self.load_state_dict
        optimizer.__dict__["zero_grad"] = self.zero_grad
        if self.apart:
            optimizer.__dict__["__getstate__"] = self.getstate

    def close(self) -> None:
        """Make the state plain tensors again, and restore the optimizer's own step()."""
        self.optimizer.__dict__.pop("_hybridps_stepper", None)
        for name, own in self.originals.items():
            self.optimizer.__dict__.pop(name, None)
            if own is not None:
                self.optimizer.__dict__[name] = own
        if self.hidden:
            self._show(drop=True)
        elif self.phases.state.cuda:
            for slot, state in self._states():
                for key, value in list(state.items()):
                    held = self.of(slot).get(key)
                    if held is not None and is_at(value, held[1]):
                        state[key] = value.to(slot.came, copy=True)
        self.batches = []

    def slots(self) -> Iterator["Slot"]:
        """In the order of the optimizer's groups."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                slot = self.phases.state.by_param.get(id(p))
                if slot is not None:
                    yield slot

    def of(self, slot: "Slot") -> dict[str, tuple[int, torch.Tensor]]:
        """This optimizer's state of a parameter, by key."""
        held = slot.states.get(self)
        if held is None:
            held = slot.states[self] = {}
        return held

    def on_host(self) -> list[int]:
        """The state that is accessed outside."""
        if self.apart:
            return []
        return [i for slot in self.slots() for i, _ in self.of(slot).values()]

    def _mine(self, slot: "Slot") -> bool:
        return not self.phases.state.shard or slot.owner == self.phases.state.group.rank

    # ---- steps ----

    @uncompiled
    @in_turn
    def step(self, step: Any, args: tuple, kwargs: dict) -> Any:
        phases = self.phases
        phases.state.usable()
        phases.leave()
        phases.state.pool.moment(b"ADAM", b"step", phases.state.reserved_bytes())
        self.adopt()
        native = self._is_native(args[0] if args else kwargs.get("closure"), self._wants_native())
        if native:
            phases.note_kept()
            args, kwargs = self._before_step(args, kwargs)
            out = self._native_step(*args, **kwargs)
        else:
            with self._others_hidden():
                out = step(*args, **kwargs)
            self._fused_wrote()
        phases.leave()  # a closure may have run a forward
        self.adopt()
        self._share(native)
        if native:
            self._tell_schedulers()
            for hook in step_hooks(self.optimizer, "post"):
                hook(self.optimizer, (self.optimizer, *args), kwargs)
        self.factor = 1.0
        phases.state.fresh = True
        return out

    def _is_native(self, closure: Any, wanted: bool = True) -> bool:
        """Whether libhelios takes a step by the gradients that exist now."""
        state = self.phases.state
        state.check_reduced(self.slots())
        if wanted and self.native and self._can_native():
            return True
        if self.apart or self.factor != 1.0 or any(s.gone for s in self.slots()):
            raise HybridPSError("this step needs all state on the host at once, but it is on the "
                                "device, or host memory has a limit, or gradients are in the place "
                                "of parameters, or have a loss's scale: only native Adam's own "
                                "steps work (16 and 32 bits, no sparse gradients, none of " +
                                ", ".join(_OTHER_ADAMS) + ")" + state.facts())
        if state.shard and closure is not None:
            raise HybridPSError("a step with a closure, of an optimizer whose state ranks share: "
                                "manage with shard=False" + state.facts())
        return False

    def _wants_native(self) -> bool:
        """Where torch has to step some parameters, it steps all, if it can: it knows no masters."""
        return (self.apart or self.factor != 1.0 or not self._for_torch() or
                any("master" in slot.states.get(self, ()) for slot in self.slots()))

    def _for_torch(self) -> list[torch.nn.Parameter]:
        """Those that torch steps beside native Adam: of other types than its own, and unmanaged
        ones, such as a new head's."""
        slots = ((p, self.slot_of(p)) for p in self.all_params() if raw_grad(p) is not None)
        return [p for p, s in slots if s is None or p.dtype not in TYPES and self._mine(s)]

    def slot_of(self, p: torch.nn.Parameter) -> "Slot | None":
        """None: it is unmanaged, or frozen with a gradient that was assigned by hand."""
        slot = self.phases.state.by_param.get(id(p))
        return slot if slot is not None and slot.gradient >= 0 else None

    def _tell_schedulers(self) -> None:
        """A scheduler made before the optimizer was managed counts steps, for its own warnings."""
        if hasattr(self.optimizer, "_step_count"):
            self.optimizer._step_count += 1
        elif hasattr(self.originals["step"], "_wrapped_by_lr_sched"):  # torch 2.5
            self.optimizer._opt_called = True

    def _before_step(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Call the hooks, which may replace the arguments."""
        for hook in step_hooks(self.optimizer, "pre"):
            found = hook(self.optimizer, (self.optimizer, *args), kwargs)
            if found is not None:
                (_, *args), kwargs = found
        return args, kwargs

    def _fused_wrote(self) -> None:
        """Count the writes of fused steps, which torch does not count."""
        for p in itertools.chain.from_iterable(
                g["params"] for g in self.optimizer.param_groups if g.get("fused")):
            slot = self.phases.state.by_param.get(id(p))
            if slot is not None and raw_grad(p) is not None:
                slot.written = slot.suspect = True

    @contextlib.contextmanager
    def _others_hidden(self) -> Iterator[None]:
        """Hide all gradients but those of this rank's share."""
        hidden = [(p, raw_grad(p)) for p in self.all_params() if not self._mine_or_plain(p)]
        for p, _ in hidden:
            set_grad(p, None)
        try:
            yield
        finally:
            for p, grad in hidden:
                set_grad(p, grad)

    def all_params(self) -> Iterator[torch.nn.Parameter]:
        return itertools.chain.from_iterable(g["params"] for g in self.optimizer.param_groups)

    def _mine_or_plain(self, p: torch.nn.Parameter) -> bool:
        slot = self.phases.state.by_param.get(id(p))
        return slot is None or self._mine(slot)

    def _share(self, native: bool) -> None:
        """Send the values that the owners computed to every rank."""
        phases = self.phases
        if not phases.state.shard:
            return
        phases.state.hold(s.tensor for s in self.slots())
        stepped = [s for s in self.slots() if s.reuse or raw_grad(s.param) is not None and
                   (s.gradient >= 0 or phases.state.one is None)]  # else each rank's own
        for slot in stepped:
            phases.open([slot.tensor])  # the transport may write it by a system call
        if phases.state.one is not None:
            phases.state.one.stepped(stepped, native)
        for slot in stepped:
            if phases.state.one is None:
                phases.state.group.broadcast_(slot.host, slot.owner, slot.name)
            if slot.owner != phases.state.group.rank:
                slot.written = True
                count_write(slot)
            self._taken(slot)

    def _taken(self, slot: "Slot") -> None:
        """If the gradient was in the parameter's place, the new value now is."""
        if slot.gone:
            slot.has_grad = False
            set_grad(slot.param, None)
            self.phases.show(slot)

    @uncompiled
    @in_turn
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Like the optimizer's own, which would read each p.grad first: a dropped one need not be
        fetched."""
        original = self.originals["zero_grad"] or types.MethodType(
            type(self.optimizer).zero_grad, self.optimizer)
        if args[0] if args else kwargs.get("set_to_none", _NONE_BY_DEFAULT):
            self.phases.drop_grads(self.slots())
            for slot in self.slots():
                slot.note_assigned(False)
            for p in self.all_params():
                set_grad(p, None)
        original(*args, **kwargs)

    # ---- state ----

    def _states(self) -> list[tuple["Slot", dict]]:
        slots = self.phases.state.by_param
        found = ((slots.get(id(p)), s) for p, s in self.optimizer.state.items())
        return [(slot, state) for slot, state in found if slot is not None]

    def adopt(self) -> None:
        """Move state tensors of a parameter's shape that are not in the pool yet there."""
        new = []
        for slot, state in self._states():
            if self.hidden and slot.gradient < 0:
                continue  # torch's own step takes it, by a gradient assigned by hand
            own = self.of(slot)
            if "step" in state:
                self.begun.add(id(slot))
            for key, value in list(state.items()):
                if not isinstance(value, torch.Tensor) or value.shape != slot.param.shape:
                    continue
                held = own.get(key)
                grad = raw_grad(slot.param)
                if held is not None and is_at(value, held[1]) or slot.shows(value) or \
                        grad is not None and not grad.is_sparse and \
                        grad.data_ptr() == value.data_ptr():
                    continue  # p.grad itself stays as it is
                if held is not None and held[1].dtype == value.dtype:
                    del held
                    self._put(slot, {key: value})
                    if self.hidden:
                        state.pop(key)
                    else:
                        state[key] = moved(value, own[key][1])
                elif held is None and value.numel() > 0 and \
                        (value.dim() > 0 or self.native and key in STATES):
                    slot.suspect = slot.suspect or key == "master"
                    kept = as_native(slot, key, value) if self._plain_adam() else value
                    new.append((slot, state, key, kept))
        self._manage(new)

    def _put(self, slot: "Slot", values: dict[str, torch.Tensor]) -> None:
        """Replace the content of some of its state. Old content that users kept stays theirs."""
        state, own = self.phases.state, self.of(slot)
        ids = [own[key][0] for key in values]
        if not state.cuda:
            old = [(f"{slot.name}.{key}", own[key][0], Shown(own.pop(key)[1].data_ptr()))
                   for key in values]
            ids = state.replace(old)
        for (key, value), tensor in zip(values.items(), ids):
            host = slot.view(tensor, HOST, value.dtype)
            with state.pool.on_host(tensor, write=True):
                host.copy_(value)
            own[key] = (tensor, host)
        if not self.apart:
            state.hold(ids)

    def _manage(self, new: list[tuple["Slot", dict, str, torch.Tensor]]) -> None:
        if not new:
            return
        phases = self.phases
        ids = phases.state.add_filled([(f"{slot.name}.{key}", self._kind(key), value, slot.param)
                                 for slot, _, key, value in new])
        for (slot, state, key, value), tensor in zip(new, ids):
            host = slot.view(tensor, HOST, value.dtype)
            self.of(slot)[key] = (tensor, host)
            if self.hidden:
                state.pop(key, None)  # a read would find no memory there
            else:
                state[key] = moved(value, host) if key in state else host.detach()
        if not self.apart:
            phases.state.hold(ids)

    @staticmethod
    def _kind(key: str) -> int:
        return _abi.P32 if key == "master" else kind_of_state(key)

    def _show(self, drop: bool = False) -> None:
        """Show separately kept state as plain copies in the optimizer."""
        pool = self.phases.state.pool
        for slot, state in self._states():
            for key, (tensor, host) in self.of(slot).items() if "step" in state else ():
                with pool.on_host(tensor):
                    state[key] = host.to(slot.came if drop else host.device, copy=True)
                if drop:
                    pool.drop([tensor])

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        state, clones = self.phases.state, False
        before = {id(slot): dict(held) for slot, held in self._states()}
        if self.apart and (self.hidden or state.limited):
            clones = True
            self._show()
        elif self.apart:  # system calls may use it, for which no fault is served
            state.hold(i for slot in self.slots() for i, _ in self.of(slot).values())
        try:
            yield
        finally:
            for slot, state in self._states() if clones else ():
                for key, (_, host) in self.of(slot).items():
                    if self.hidden:
                        state.pop(key, None)
                    elif "step" in state:
                        state[key] = before.get(id(slot), {}).get(key, host.detach())

    def getstate(self) -> dict:
        """What a copy of the optimizer is made from, all state included."""
        self.phases.leave()
        with self._shown():
            out = type(self.optimizer).__getstate__(self.optimizer)
            copies = {p: dict(state) for p, state in out["state"].items()}
        return {**out, "state": type(out["state"])(dict, copies)}

    @in_turn
    def state_dict(self, *args: Any, **kwargs: Any) -> dict:
        """Like the optimizer's own. If ranks share the state, all of them must call it together,
        and each gets all of it."""
        phases = self.phases
        phases.leave()
        original = self.originals["state_dict"] or types.MethodType(
            type(self.optimizer).state_dict, self.optimizer)
        with self._shown():
            out = original(*args, **kwargs)
            if self.hidden or phases.state.limited or phases.state.shard:
                out["state"] = {k: dict(state) for k, state in out["state"].items()}
        if phases.state.shard:
            for rank in range(phases.state.group.world):
                mine = out["state"] if rank == phases.state.group.rank else None
                out["state"].update(phases.state.group.share(mine, rank, "state_dict"))
            out["state"] = dict(sorted(out["state"].items()))
        return out

    @in_turn
    def load_state_dict(self, state_dict: dict) -> Any:
        """Like the optimizer's own, in place; float32 state of 16-bit parameters stays float32."""
        phases = self.phases
        phases.leave()
        original = self.originals["load_state_dict"] or types.MethodType(
            type(self.optimizer).load_state_dict, self.optimizer)
        numbers = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        given = {id(p): state_dict["state"].get(n, {}) for n, p in zip(numbers, self.all_params())}
        for slot in self.slots():
            for key, value in given.get(id(slot.param), {}).items():
                if key in self.of(slot) and value.shape != slot.param.shape:
                    raise HybridPSError(
                        f"load_state_dict: {key} of {slot.name} is {tuple(value.shape)}, the "
                        f"parameter {tuple(slot.param.shape)}: the state belongs to another model" +
                        phases.state.facts())
        original(state_dict)
        for p in self.all_params():
            if not self._mine_or_plain(p):
                self.optimizer.state.pop(p, None)
        with torch.no_grad():
            for slot in self.slots():
                if self.of(slot) and (self.native or phases.state.shard):
                    self._load(slot, given[id(slot.param)])
                elif self._plain_adam():
                    unround(slot, self.optimizer.state.get(slot.param, {}), given[id(slot.param)])
        self.adopt()

    def _load(self, slot: "Slot", given: dict) -> None:
        state = self.optimizer.state.get(slot.param)
        values = {}
        for key, (_, host) in self.of(slot).items():
            if key in given:
                values[key] = given[key].to(host.dtype)
            elif key == "master":
                values[key] = slot.host.to(host.dtype)
            elif not state:
                values[key] = torch.zeros_like(host)
            del host
        self._put(slot, values)
        slot.suspect = slot.suspect or "master" in given
        for key, (_, host) in self.of(slot).items() if state else ():
            if self.hidden:
                state.pop(key, None)
            elif key in values:
                state[key] = host.detach()

    # ---- Adam in libhelios ----

    def _all_managed(self) -> bool:
        return all(id(p) in self.phases.state.by_param and p.dtype in TYPES
                   for p in self.all_params() if p.requires_grad
                   and p.numel() > 0)  # empty ones have no chunk

    def _plain_adam(self) -> bool:
        groups = self.optimizer.param_groups
        return self.native and not (
            any(g.get(key) for g in groups for key in _OTHER_ADAMS) or
            any(isinstance(v, torch.Tensor) for g in groups for v in (g["lr"], *g["betas"])))

    def _can_native(self) -> bool:
        if not self._plain_adam():
            return False
        for p in self.all_params():
            grad, slot = raw_grad(p), self.slot_of(p)
            if grad is None or slot is None or not self._mine(slot):
                continue
            if grad.is_sparse:
                return False
            if p.dtype not in TYPES:
                if self.apart:  # its state isn't where torch could step
                    return False
                continue
            if "exp_avg" not in self.of(slot):
                self._prepare()  # for a group that was added, or frozen until now
            if any(host.dtype != torch.float32 for k, (_, host) in self.of(slot).items()
                   if k in STATES):
                return False
        return True

    def _prepare(self) -> None:
        """Make Adam's state before the first step: its chunks are laid out once, in order."""
        if not self._plain_adam():
            return
        zero = torch.zeros(())
        new = []
        for slot in self.slots():
            p = slot.param
            if not p.requires_grad or p.dtype not in TYPES or not self._mine(slot):
                continue
            for key in ("exp_avg", "exp_avg_sq"):
                if key not in self.of(slot):
                    new.append((slot, {}, key, zero.expand(p.shape)))
            if is_half(slot) and "master" not in self.of(slot):
                if slot.master is not None:
                    raise HybridPSError(f"{slot.name} of 16 bits is stepped by two optimizers, and "
                                        "each would keep float32 values of it: register the second "
                                        "one with native=False" + self.phases.state.facts())
                new.append((slot, {}, "master", raw_data(p).detach().float()))
        # The same order for tensors that are used together.
        new.sort(key=lambda n: STATES.index(n[2]))
        self._manage(new)

    def _native_step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self.phases.leave()
            if not self._is_native(closure):  # by the gradients that it computed
                step_by_torch(self, list(self.all_params()))
                return loss
        self._begin_anew()
        groups = {id(p): g for g in self.optimizer.param_groups for p in g["params"]}
        if self.on_device:
            self._device_step(groups)
        else:
            one = self.phases.state.one
            if one is not None:
                one.meet("step")
            for slot in self._native_slots():
                with self._states_of(slot):
                    refresh_master(slot, self.of(slot))
                    self._adam(groups[id(slot.param)], slot)
                if one is not None:
                    self.phases.state.pool.publish([slot.tensor])
                slot.written = True
                self._taken(slot)
        rest = self._for_torch()
        if rest:
            step_by_torch(self, rest)
            if self.phases.state.one is not None:
                self.phases.state.pool.publish([s.tensor for s in map(self.slot_of, rest) if s])
        return loss

    def _native_slots(self) -> Iterator["Slot"]:
        """This rank's share of what libhelios steps."""
        return (s for s in self.slots() if raw_grad(s.param) is not None and self._mine(s)
                and s.gradient >= 0 and s.param.dtype in TYPES)

    def _begin_anew(self) -> None:
        """Zero state that was cleared since the last step, as torch's own would be."""
        for slot in self._native_slots():
            if id(slot) not in self.begun:
                continue
            state = self.optimizer.state.get(slot.param) or {}
            keys = ("exp_avg", "exp_avg_sq")
            lost = [key for key in keys if key not in state]
            if "step" in state and not self.hidden:
                check_held(slot, self.of(slot), state)
            if "step" not in state:
                self._put(slot, {key: torch.zeros_like(self.of(slot)[key][1]) for key in keys})
            elif lost and not self.hidden:
                raise HybridPSError(f"optimizer.state of {slot.name} has no {lost[0]}, but a step: "
                                    "clear all of it or nothing" + self.phases.state.facts())

    def _states_of(self, slot: "Slot") -> Any:
        if not self.apart:
            return contextlib.nullcontext()
        return self.phases.state.pool.on_host(*(i for i, _ in self.of(slot).values()), write=True)

    def _adam(self, group: dict, slot: "Slot", constant: _abi.Adam | None = None) -> None:
        """constant: _constant() of its device memory; None: it steps on the host."""
        step = self.next_step(slot)
        call = constant or self._constant(slot, self.host_address(slot), grad_apart(slot))
        call.step, call.adamw, call.lr = step, self.decouples(group), group["lr"]
        call.b1, call.b2 = group["betas"]
        call.eps, call.wd, call.grad_scale = group["eps"], group["weight_decay"], self.factor
        call.nthreads = torch.get_num_threads()
        self.phases.state.pool.adam(call)
        self.count_step(slot, step)

    def decouples(self, group: dict) -> bool:
        return (isinstance(self.optimizer, torch.optim.AdamW) or
                bool(group.get("decoupled_weight_decay")))

    def next_step(self, slot: "Slot") -> int:
        """The number of its next step, from 1."""
        state = self.optimizer.state[slot.param]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            if not self.hidden:
                state.update({key: host.detach() for key, (_, host) in self.of(slot).items()})
        elif not self.hidden and "master" in self.of(slot):  # not in state of torch's own Adam
            state.setdefault("master", self.of(slot)["master"][1].detach())
        self.begun.add(id(slot))
        step = float(state["step"]) + 1
        if not step.is_integer():
            raise HybridPSError(f"optimizer.state of {slot.name} has step {step - 1}: native Adam "
                                "counts whole ones; register with native=False" +
                                self.phases.state.facts())
        return int(step)

    def count_step(self, slot: "Slot", step: int) -> None:
        state = self.optimizer.state[slot.param]
        if isinstance(state["step"], torch.Tensor):
            state["step"].fill_(step)
        else:
            state["step"] = torch.tensor(float(step))  # from an older torch's checkpoint
        count_write(slot)

    def _constant(self, slot: "Slot", at: Any, grad: torch.Tensor | None = None) -> _abi.Adam:
        """What is constant across steps. grad: the gradient, if it is not in its place."""
        half, kind, own = is_half(slot), TYPES[slot.param.dtype], self.of(slot)
        out = _abi.Adam(
            p=at(own["master"][0]) if half else at(slot.tensor),
            m=at(own["exp_avg"][0]), v=at(own["exp_avg_sq"][0]),
            g=at(slot.gradient) if grad is None else grad.data_ptr(), grad_type=kind,
            p16=at(slot.tensor) if half else None, p16_type=kind if half else _abi.BF16,
            n=slot.param.numel())
        out.keep = grad  # keeps it alive while its address is used
        return out

    def _tensors(self, slot: "Slot") -> list[int]:
        """All tensors that its step uses."""
        grad, own = [] if slot.reuse else [slot.grad], self.of(slot)
        return [slot.tensor, *grad, *(own[k][0] for k in STATES if k in own)]

    def host_address(self, slot: "Slot") -> Any:
        hosts = {slot.tensor: slot.host, slot.gradient: slot.grad_host}
        hosts.update({i: host for i, host in self.of(slot).values()})
        return lambda tensor: hosts[tensor].data_ptr()

    # ---- on the device ----

    def _device_batches(self) -> list["_Batch"]:
        """Runs of slots whose parameters, gradients and state lie in the same chunks."""
        pool = self.phases.state.pool
        stepped = [s for s in self.slots() if s.has_grad and self._mine(s)]
        key = (self.phases.state.layouts, tuple(id(s) for s in stepped))
        if key == self.layouts:
            return self.batches
        self.layouts, self.batches = key, []

        def chunks(slot: "Slot") -> tuple:
            return tuple(pool.chunk(i)[0] for i in self._tensors(slot))
        for _, slots in itertools.groupby(stepped, chunks):
            batch = list(slots)
            written = [i for s in batch for i in self._tensors(s) if i != s.grad]
            read = [s.grad for s in batch if not s.reuse]
            constant = [None if s.cuda else self._constant(s, s.address) for s in batch]
            self.batches.append((batch[0].name.encode(), list(zip(batch, constant)),
                                 _abi.Bundle(read, DEVICE, False, written)))
        return self.batches

    def _device_step(self, groups: dict[int, dict]) -> None:
        phases = self.phases
        suspects = [s for s in self.slots() if "master" in self.of(s) and not s.gone and
                    (s.suspect or s.param._version != s.version)]
        for slot in suspects:
            with phases.state.pool.on_host(self.of(slot)["master"][0], write=True):
                refresh_master(slot, self.of(slot))
        phases.let_go()
        for slot in self.slots():
            if slot.given is not None and not slot.has_grad:
                phases.take_given(slot)
        try:
            for name, slots, bundle in self._device_batches():
                phases.state.pool.moment(b"ADAM", name, phases.state.reserved_bytes())
                phases.state.pool.access(bundle)
                try:
                    if phases.state.cuda:
                        adams_on_cuda(self, groups, [slot for slot, _ in slots])
                    else:
                        for slot, constant in slots:
                            self._adam(groups[id(slot.param)], slot, constant)
                finally:
                    phases.state.pool.release(bundle, HOLD)
                for slot, _ in slots:
                    self._taken(slot)
        finally:
            phases.state.pool.moment(b"ADAM", b"end", phases.state.reserved_bytes())
            phases.state.hold(phases.state.held_outside(True))
            phases.state.grads_away = any(s.has_grad for s in phases.state.slots)

"""Optimizers over managed state: torch's own as they are, Adam and AdamW also in libhelios."""
from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from . import _abi
from ._abi import HOST, Group, HybridPSError
from ._tensors import kind_of_state

if TYPE_CHECKING:
    from .client import Client, Slot

_TYPES = {torch.float32: _abi.F32, torch.float16: _abi.F16, torch.bfloat16: _abi.BF16}
_OTHER_ADAMS = ("amsgrad", "maximize", "capturable", "differentiable", "fused")


class Stepper:
    """Wraps step() of one optimizer, and moves its state into the pool."""

    def __init__(self, client: "Client", optimizer: torch.optim.Optimizer, native: bool) -> None:
        self.client, self.optimizer = client, optimizer
        self.own_step = optimizer.__dict__.get("step")
        step = self.own_step or types.MethodType(type(optimizer).step, optimizer)
        stepper = self

        @functools.wraps(step)
        def wrapped(_: Any, *args: Any, **kwargs: Any) -> Any:
            return stepper.step(step, args, kwargs)

        wrapped.__dict__.update(getattr(step, "__dict__", {}))
        self.native = native and self._is_adam()
        self.apart = self.native and client.limited
        self.own_state_dict = optimizer.__dict__.get("state_dict")
        self.adopt()
        if self.native:
            newer = int(torch.__version__.split(".")[0]) >= 2
            client.pool.lib.hybridps_adam_set_rounding(0 if newer else 1)
            self._prepare()
        # A bound method, as torch's schedulers take step.__func__.
        optimizer.__dict__["step"] = types.MethodType(wrapped, optimizer)
        if self.apart:
            optimizer.__dict__["state_dict"] = self._state_dict

    def close(self) -> None:
        """The state is plain tensors again, and step() the optimizer's own."""
        self.optimizer.__dict__.pop("step", None)
        if self.own_step is not None:
            self.optimizer.__dict__["step"] = self.own_step
        if self.apart:
            self.optimizer.__dict__.pop("state_dict", None)
            self._show(_abi.FREE)
            return
        for slot, state in self._states():
            for key, value in state.items():
                held = slot.states.get(key)
                if held is not None and held[1] is value:
                    state[key] = value.clone()

    def step(self, step: Any, args: tuple, kwargs: dict) -> Any:
        client = self.client
        client.leave()
        client.pool.moment(b"ADAM", b"step", client.tide())
        self.adopt()
        if self.native and self._can_native():
            out = self._native_step(*args, **kwargs)
        elif self.apart:
            raise HybridPSError("this step needs all of the optimizer's state on the host at once: "
                                "with a limit of host memory only native Adam's own steps work (no "
                                "amsgrad, no sparse gradients)")
        else:
            out = step(*args, **kwargs)
        client.leave()  # a closure may have run a forward
        self.adopt()
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                slot = client.by_param.get(id(p))
                if slot is not None and p.grad is not None:
                    slot.version = -1  # written, in whatever way
        client.fresh = True
        return out

    def _states(self) -> list[tuple["Slot", dict]]:
        found = ((self.client.by_param.get(id(p)), s) for p, s in self.optimizer.state.items())
        return [(slot, state) for slot, state in found if slot is not None]

    def adopt(self) -> None:
        """State tensors of a parameter's shape that are not in the pool yet move there."""
        new = []
        for slot, state in self._states():
            for key, value in list(state.items()):
                if not isinstance(value, torch.Tensor) or value.shape != slot.param.shape:
                    continue
                held = slot.states.get(key)
                if held is not None and held[1] is value:
                    continue
                if held is not None and held[1].dtype == value.dtype:
                    with self.client.pool.on_host(held[0], write=True):
                        held[1].copy_(value)  # load_state_dict of the optimizer
                    self._keep(slot, state, key, *held)
                elif value.dim() > 0 and value.numel() > 0:
                    new.append((slot, state, key, value))
        self._manage(new)

    def _manage(self, new: list[tuple["Slot", dict, str, torch.Tensor]]) -> None:
        pool = self.client.pool
        ids = self.client.add_filled([(f"{slot.name}.{key}", self._kind(key), value, slot.param)
                                      for slot, _, key, value in new])
        if not self.apart:
            pool.access(Group(ids, HOST, False))
        for (slot, state, key, value), tensor in zip(new, ids):
            self._keep(slot, state, key, tensor, slot.view(pool, tensor, HOST, value.dtype))

    def _keep(self, slot: "Slot", state: dict, key: str, tensor: int, host: torch.Tensor) -> None:
        slot.states[key] = (tensor, host)
        slot.apart = self.apart
        if self.apart:
            state.pop(key, None)  # whoever read it would find no memory there
        else:
            state[key] = host

    def _show(self, then: int) -> None:
        """State that is apart, as plain copies in the optimizer."""
        pool = self.client.pool
        for slot, state in self._states():
            for key, (tensor, host) in slot.states.items() if "step" in state else ():
                group = Group([tensor], HOST, False)
                pool.access(group)
                state[key] = host.clone()
                pool.release(group, then)

    def _state_dict(self) -> dict:
        """torch's own; of state that is apart it has copies."""
        self._show(_abi.HOLD)
        plain = self.own_state_dict or types.MethodType(type(self.optimizer).state_dict,
                                                        self.optimizer)
        out = plain()
        out["state"] = {key: dict(state) for key, state in out["state"].items()}
        for slot, state in self._states():
            for key in slot.states:
                state.pop(key, None)
        return out

    @staticmethod
    def _kind(key: str) -> int:
        return _abi.P32 if key == "master" else kind_of_state(key)

    # ---- Adam in libhelios ----

    def _is_adam(self) -> bool:
        return type(self.optimizer) in (torch.optim.Adam, torch.optim.AdamW)

    def _can_native(self) -> bool:
        for group in self.optimizer.param_groups:
            if any(group.get(key) for key in _OTHER_ADAMS):
                return False
            if isinstance(group["lr"], torch.Tensor):
                return False
            for p in group["params"]:
                slot = self.client.by_param.get(id(p))
                if p.grad is not None and (slot is None or p.grad.is_sparse or
                                           p.dtype not in _TYPES or "exp_avg" not in slot.states):
                    return False
        return True

    def _prepare(self) -> None:
        """Adam's state, before the first step: its chunks are laid out once, in one order."""
        if any(any(g.get(key) for key in _OTHER_ADAMS) for g in self.optimizer.param_groups):
            return
        zero = torch.zeros(())
        new = []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                slot = self.client.by_param.get(id(p))
                if slot is None or not p.requires_grad or p.dtype not in _TYPES:
                    continue
                for key in ("exp_avg", "exp_avg_sq"):
                    if key not in slot.states:
                        new.append((slot, {}, key, zero.expand(p.shape)))
                if p.dtype != torch.float32 and "master" not in slot.states:
                    new.append((slot, {}, "master", p.detach().float()))
        self._manage(new)

    def _native_step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self.client.leave()
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                slot = self.client.by_param[id(p)]
                if not self.apart:
                    self._adam(group, p, slot)
                    continue
                with self.client.pool.on_host(*(t for t, _ in slot.states.values()), write=True):
                    self._adam(group, p, slot)
        return loss

    def _adam(self, group: dict, p: torch.nn.Parameter, slot: "Slot") -> None:
        state = self.optimizer.state[p]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            for key, (_, host) in slot.states.items() if not self.apart else ():
                state[key] = host
        step = int(state["step"]) + 1
        grad = p.grad
        if grad.stride() != p.stride():
            grad = torch.empty_like(p).copy_(grad)
        half = p.dtype != torch.float32
        master = slot.states["master"][1] if half else p
        kind = _TYPES[p.dtype]
        self.client.pool.adam(_abi.Adam(
            p=master.data_ptr(), m=slot.states["exp_avg"][1].data_ptr(),
            v=slot.states["exp_avg_sq"][1].data_ptr(), g=grad.data_ptr(), grad_type=kind,
            p16=p.data_ptr() if half else None, p16_type=kind if half else _abi.BF16,
            n=p.numel(), step=step, lr=group["lr"], b1=group["betas"][0], b2=group["betas"][1],
            eps=group["eps"], wd=group["weight_decay"], grad_scale=1.0,
            adamw=int(isinstance(self.optimizer, torch.optim.AdamW) or
                      bool(group.get("decoupled_weight_decay"))),
            nthreads=torch.get_num_threads()))
        state["step"] = torch.tensor(float(step))

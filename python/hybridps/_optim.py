"""Optimizers over managed state: torch's own as they are, Adam and AdamW also in libhelios."""
from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from . import _abi
from ._abi import HOST, Group
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
        self.adopt()
        if self.native:
            newer = int(torch.__version__.split(".")[0]) >= 2
            client.pool.lib.hybridps_adam_set_rounding(0 if newer else 1)
            self._prepare()
        # A bound method, as torch's schedulers take step.__func__.
        optimizer.__dict__["step"] = types.MethodType(wrapped, optimizer)

    def close(self) -> None:
        """The state is plain tensors again, and step() the optimizer's own."""
        self.optimizer.__dict__.pop("step", None)
        if self.own_step is not None:
            self.optimizer.__dict__["step"] = self.own_step
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
            for key, value in state.items():
                if not isinstance(value, torch.Tensor) or value.shape != slot.param.shape:
                    continue
                held = slot.states.get(key)
                if held is not None and held[1] is value:
                    continue
                if held is not None and held[1].dtype == value.dtype:
                    held[1].copy_(value)  # load_state_dict of the optimizer
                    state[key] = held[1]
                elif value.dim() > 0 and value.numel() > 0:
                    new.append((slot, state, key, value))
        self._manage(new)

    def _manage(self, new: list[tuple["Slot", dict, str, torch.Tensor]]) -> None:
        pool = self.client.pool
        ids = self.client.add_filled([(f"{slot.name}.{key}", self._kind(key), value, slot.param)
                                      for slot, _, key, value in new])
        pool.access(Group(ids, HOST, False))
        for (slot, state, key, value), tensor in zip(new, ids):
            host = slot.view(pool, tensor, HOST, value.dtype)
            slot.states[key] = (tensor, host)
            state[key] = host

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
                if p.grad is not None:
                    self._adam(group, p, self.client.by_param[id(p)])
        return loss

    def _adam(self, group: dict, p: torch.nn.Parameter, slot: "Slot") -> None:
        state = self.optimizer.state[p]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            for key, (_, host) in slot.states.items():
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

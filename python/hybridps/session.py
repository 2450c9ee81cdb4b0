"""Two ways to use a client with an unchanged training loop: manage and initialize."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Sequence

import torch

from . import _abi, _register
from ._abi import HybridPSError
from ._group import Group
from .client import Client


def manage(model: Any, optimizer: Any = None, device: str = "emu:256MiB",
           native: bool = True, whole: tuple[type, ...] = (), *,
           policy: str | None = "opt", mode: str | None = "copy",
           chunk_bytes: int = 0, host_bytes: int = 0, manager: str | None = None,
           prefetch: int = -1, reserved_bytes: Callable[[], int] | None = None,
           gradients: str = "separate", optimizer_device: str = "auto",
           group: Group | None = None, shard: bool = True, spill: str | None = None,
           keep_heap: bool = True, seed: int = 0, plan_ahead: int = 0,
           heat: Sequence[float] | None = None, spill_pause_ms: int = 0,
           one_copy: bool = False) -> Client:
    """Put a model (or several) and its optimizer (or several, or None) into managed memory.

    Use it in ``with``: at its end the model and the optimizer own their memory again, with the same
    values. device, policy, mode, gradients, optimizer_device, group and more: see Client. native,
    whole: see Client.register_optim and register_module. Raises HybridPSError and then leaves model
    and optimizer unchanged.
    """
    models = _several(model, torch.nn.Module)
    optimizers = _several(optimizer, torch.optim.Optimizer)
    if not models:
        raise HybridPSError(f"model is {model!r}: there is nothing to manage without a "
                            "torch.nn.Module")
    _abi.check_flag("native", native)
    client = Client(device, policy=policy, mode=mode, chunk_bytes=chunk_bytes,
                    host_bytes=host_bytes,
                    manager=manager, prefetch=prefetch, reserved_bytes=reserved_bytes,
                    gradients=gradients,
                    optimizer_device=optimizer_device, group=group, shard=shard, spill=spill,
                    keep_heap=keep_heap, seed=seed, plan_ahead=plan_ahead, heat=heat,
                    spill_pause_ms=spill_pause_ms, one_copy=one_copy)
    try:
        for number, module in enumerate(models):
            client.register_module(module, f"model{number}" if number else "", whole)
        for one in optimizers:
            client.register_optim(one, native)
        _register.check_room(client.state)
    except BaseException:
        client.close()
        raise
    return client


def _several(value: Any, kind: type) -> list[Any]:
    """A list of one value, or several, or None."""
    if value is None or isinstance(value, kind):
        return [] if value is None else [value]
    many = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    values = list(value) if many else [value]
    for one in values:
        if not (isinstance(one, kind) or hasattr(one, "param_groups")
                and kind is torch.optim.Optimizer):
            name = "torch.nn.Module" if kind is torch.nn.Module else "torch.optim.Optimizer"
            raise HybridPSError(f"{one!r:.40} is given where a {name} belongs, or several: "
                                "manage(model, optimizer, device=...)")
    return values


class Engine:
    """A model with its optimizer and client: ``engine(x)``, ``engine.backward(loss)``,
    ``engine.step()``. All other attributes are the model's."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None,
                 client: Client) -> None:
        self.module, self.optimizer, self.client = model, optimizer, client

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        """Take the optimizer's step, then drop the gradients."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def helios_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.client.helios_state()

    def close(self) -> None:
        self.client.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)


def initialize(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
               device: str = "emu:256MiB", native: bool = True, whole: tuple[type, ...] = (), *,
               policy: str | None = "opt", mode: str | None = "copy",
               chunk_bytes: int = 0, host_bytes: int = 0, manager: str | None = None,
               prefetch: int = -1, reserved_bytes: Callable[[], int] | None = None,
               gradients: str = "separate", optimizer_device: str = "auto",
               group: Group | None = None, shard: bool = True, spill: str | None = None,
               keep_heap: bool = True, seed: int = 0, plan_ahead: int = 0,
               heat: Sequence[float] | None = None, spill_pause_ms: int = 0,
               one_copy: bool = False) -> tuple[Engine, torch.optim.Optimizer | None]:
    """``manage`` without a ``with``: returns an engine and the optimizer. Takes manage's
    options."""
    client = manage(model, optimizer, device, native, whole, policy=policy, mode=mode,
                    chunk_bytes=chunk_bytes, host_bytes=host_bytes, manager=manager,
                    prefetch=prefetch, reserved_bytes=reserved_bytes, gradients=gradients,
                    optimizer_device=optimizer_device, group=group, shard=shard, spill=spill,
                    keep_heap=keep_heap, seed=seed, plan_ahead=plan_ahead, heat=heat,
                    spill_pause_ms=spill_pause_ms, one_copy=one_copy)
    return Engine(model, optimizer, client), optimizer

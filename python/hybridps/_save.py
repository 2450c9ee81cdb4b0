"""Managed state as a checkpoint: what helios.save_state_dict() writes straight from the chunks, and
how an optimizer is refilled from helios.load_state_dict(kind="optim")."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Mapping

import torch

from . import _abi
from ._abi import HybridPSError
from ._tensors import is_at

if TYPE_CHECKING:
    from ._optim import Stepper
    from ._phases import Phases
    from ._slots import Slot


class Source:
    """A tensor in chunks that helios reads when it is its turn: it is on the host only during one
    copy."""

    def __init__(self, pool: _abi.Pool, tensor: int, host: torch.Tensor,
                 dtype: torch.dtype | None = None) -> None:
        """dtype: the type it is converted to."""
        self._pool, self._tensor, self._host = pool, tensor, host
        self.shape, self.dtype = host.shape, dtype or host.dtype

    def read_into(self, address: int, size: int) -> None:
        memory = (ctypes.c_char * size).from_address(address)
        out = torch.frombuffer(memory, dtype=self.dtype).view(self.shape)
        with self._pool.on_host(self._tensor):
            out.copy_(self._host)


def state_of(phases: "Phases") -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers under their names in the model, and the optimizers' state as
    ``exp_avg.NAME``, ``step.NAME`` and so on."""
    phases.leave()
    client = phases.state
    state: dict[str, Any] = {}
    names: dict[int, str] = {}
    for module in client.modules:
        for name, value in type(module).state_dict(module, keep_vars=True).items():
            if name in state:
                raise HybridPSError(
                    f"two managed models have a tensor {name}: save them one by one")
            slot = client.by_param.get(id(value))
            state[name] = value if slot is None else _values(client.pool, slot)
            names.setdefault(id(value), name)  # an optimizer may have unmanaged parameters, too
    optim: dict[str, Any] = {}
    for stepper in client.optimizers:
        if client.shard:
            optim.update(_of_ranks(stepper, names))
            continue
        for param, held in stepper.optimizer.state.items():
            slot, name = client.by_param.get(id(param)), names.get(id(param))
            if name is not None:
                managed = {} if slot is None else slot.states.get(stepper, {})
                optim.update(_of_param(client.pool, managed, name, held))
    return state, optim


def _values(pool: _abi.Pool, slot: "Slot") -> Source:
    """The parameter's values: its master's while a gradient is in its place."""
    if slot.gone and slot.master is not None:
        return Source(pool, *slot.master, slot.param.dtype)
    return Source(pool, slot.tensor, slot.host)


def _of_ranks(stepper: "Stepper", names: dict[int, str]) -> dict[str, Any]:
    """All ranks' shares, as copies."""
    state = stepper.state_dict()["state"]
    out = {}
    for number, p in enumerate(stepper.all_params()):
        if id(p) in names:
            out.update(_plain(names[id(p)], state.get(number, {})))
    return out


def _plain(name: str, held: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A parameter's state that is not in chunks, as tensors. A state that lacked some of it would
    be loaded without a word."""
    out = {}
    for key, value in held.items():
        if value is None:
            continue
        if not isinstance(value, (torch.Tensor, int, float)):
            raise HybridPSError(f"optimizer.state of {name} has \"{key}\", a "
                                f"{type(value).__name__}: a checkpoint has tensors and numbers; "
                                "keep it elsewhere, or save optimizer.state_dict() by torch.save")
        dtype = torch.float64 if isinstance(value,
                                            float) else None  # as_tensor would round it to 32 bits
        out[f"{key}.{name}"] = torch.as_tensor(value, dtype=dtype)
    return out


def _of_param(pool: _abi.Pool, managed: Mapping[str, tuple[int, torch.Tensor]], name: str,
              held: Mapping[str, Any]) -> dict[str, Any]:
    """Where torch stepped a 16-bit parameter, its own state counts, not what native Adam has."""
    used = {key: (tensor, host) for key, (tensor, host) in managed.items()
            if key not in held or is_at(held[key], host)}
    out: dict[str, Any] = {f"{key}.{name}": Source(pool, tensor, host)
                           for key, (tensor, host) in used.items()}
    return out | _plain(name, {key: value for key, value in held.items() if key not in used})


def restore_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module,
                      tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill the state of an optimizer that is not managed (yet) from helios.load_state_dict(
    kind="optim"), by copying. Raises HybridPSError for a tensor that belongs to no parameter of the
    model."""
    params = dict(model.named_parameters())
    for full, value in tensors.items():
        key, _, name = full.partition(".")
        if name not in params:
            raise HybridPSError(f"the checkpoint has {full}, but the model has no parameter {name}")
        if not isinstance(value, torch.Tensor):
            raise HybridPSError(f"{full} is a {type(value).__name__}: it must be a tensor")
        optimizer.state[params[name]][key] = value.clone()

"""The client: what users call. Parameters, gradients and optimizer state of torch in the chunks of
one pool.

It delegates: the accounts are _state.py, the two phases _phases.py, forward and backward _passes.py,
what comes under management _register.py.
"""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Sequence

import torch

from . import _abi, _heap, _register, _save, _state
from ._group import Group
from ._managed import Managed
from ._one_copy import OneCopy
from ._passes import Passes
from ._phases import Phases

# What users call.
_API = {"register_module", "register_optim", "access", "release", "allreduce", "broadcast",
        "changed", "no_sync", "helios_state", "stats", "device_by_kind", "trace", "close"}


class Client:
    """One process's share of the memory of one device.

    device: "emu:256MiB" (emulated, in host memory) or "cuda:0[:BYTES]". policy: "opt",
    "lru", "fifo", "heat", "random". mode: "copy" keeps a host copy of what is only read on the
    device, "move" does not. chunk_bytes: 0 = chosen. host_bytes: limit of host memory, 0 = none
    but the node's (helios-agent --chunk-memory); with one, native Adam's state is on the host only
    while it steps, a parameter after the other, so that the rest can be spilled: parameters and
    gradients must fit. spill: the socket of a pool that takes what has no room ("none": nowhere;
    None: L3's or the node's, as an Agent tells ranks).
    manager: the node's table shared with other processes. prefetch: chunks ahead, 0 = none, -1 =
    2. reserved_bytes: a function that says how many bytes of the device others use now.

    gradients: "separate", or "reuse": the gradient of a 16-bit parameter takes the parameter's
    place until the step, 14 bytes a parameter instead of 16; for one backward per step, native
    Adam, and parameters that are not needed in backward after their gradient.
    optimizer_device: where native Adam steps: "host", "device" (chunk by chunk), or "auto": the
    device when all model data fits it. group: ranks that train together (see Group): parameters
    begin as rank 0's, gradients are the mean of all ranks'. shard: each rank keeps the optimizer's
    state of its share of the parameters only, and sends their new values to the others.
    one_copy: the group's ranks, all on this host, hold parameters and gradients once (see _one_copy.py).
    seed: of "random". plan_ahead: iterations that a plan of "opt" is made of, 3 or more; 0 = 6.
    heat: alpha, beta, window, tau of "heat", which keeps what has the highest alpha * uses in the
    last window moments / window + beta * exp(-moments since the last / tau), a weight of 0 is 0;
    None = 0.7, 0.3, 300, 60.
    keep_heap: what the process frees stays in its heap for the next step (glibc; see _heap.py), as
    activations on the host are freed and taken in every step; False leaves malloc as it is.
    Raises HybridPSError, from any method, with nothing changed.
    """

    def __init__(self, device: str, policy: str | None = "opt", mode: str | None = "copy",
                 chunk_bytes: int = 0, host_bytes: int = 0, manager: str | None = None,
                 prefetch: int = -1, reserved_bytes: Callable[[], int] | None = None,
                 gradients: str = "separate", optimizer_device: str = "auto",
                 group: Group | None = None, shard: bool = True,
                 spill: str | None = None, keep_heap: bool = True, seed: int = 0,
                 plan_ahead: int = 0, heat: Sequence[float] | None = None,
                 spill_pause_ms: int = 0, one_copy: bool = False) -> None:
        _state.check_options(gradients, optimizer_device, group, reserved_bytes)
        if one_copy:
            _state.check_one_copy(device, mode, gradients, optimizer_device, group, shard)
        pool = _abi.Pool(device, policy, mode, chunk_bytes, host_bytes, manager, prefetch, seed,
                         spill, plan_ahead, heat, spill_pause_ms)
        if not device.startswith("cuda"):
            pool.serve_faults()
            if keep_heap:
                _heap.keep_freed()
        self.state = _state.State(pool, device, mode or "copy", gradients, optimizer_device, group,
                                  shard, reserved_bytes)
        if one_copy and self.state.group is not None:
            self.state.one = OneCopy(pool, self.state.group)
        self.phases = Phases(self.state)
        self.passes = Passes(self.phases)

    def __dir__(self) -> list[str]:
        return sorted(_API)

    def register_module(self, module: torch.nn.Module, name: str = "",
                        whole: tuple[type, ...] = ()) -> None:
        """Parameters (and their gradients) of the module live in the pool from now on.

        name: prefix for messages. whole: further types of modules that use the parameters of
        their children without calling them. Tied parameters are one; frozen ones have no gradient.
        """
        _register.register_module(self.passes, module, name, whole)

    def register_optim(self, optimizer: torch.optim.Optimizer, native: bool = True) -> None:
        """The optimizer's state lives in the pool from now on, also what it makes later.

        native: the steps of torch.optim.Adam and AdamW are taken by libhelios, bit-equal for
        float32; for 16-bit parameters it keeps float32 masters. Any other optimizer runs as it is.
        """
        _register.register_optimizer(self.passes, optimizer, native)

    def access(self, param: torch.nn.Parameter, write: bool = False) -> torch.Tensor:
        """The parameter's values on the device, there until as many releases."""
        return self.phases.access(param, write)

    def release(self, param: torch.nn.Parameter) -> None:
        """The parameter may leave the device again."""
        self.phases.release(param)

    def allreduce(self, tensor: torch.Tensor, op: str = "sum") -> Managed:
        """Sum (in the order of ranks) or "mean" of every rank's tensor, managed."""
        self.state.usable()
        return Managed(self.state, "allreduce",
                       self.state.collective().allreduce(tensor, op, "allreduce"))

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> Managed:
        """The tensor of rank src, managed."""
        self.state.usable()
        return Managed(self.state, "broadcast",
                       self.state.collective().broadcast(tensor, src, "broadcast"))

    def changed(self) -> None:
        """On CUDA: say so after writing parameters in a way that is not seen, through a tensor of
        ``p.data`` or an array of numpy that was taken before the last step."""
        self.phases.changed()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards in it add up this rank's own gradients, as DistributedDataParallel's no_sync has
        it: the first backward after it makes the mean of the sums. Without a group it does nothing.
        A step in between is refused: each rank would step by its own gradients."""
        self.state.usable()
        before, self.state.defers = self.state.defers, True
        try:
            yield
        finally:
            self.state.defers = before

    def helios_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For helios.save_state_dict(client, step): parameters and optimizer state, not copied.
        Where ranks share the optimizer's state, all of them call it together."""
        self.state.usable()
        return _save.state_of(self.phases)

    def stats(self) -> dict[str, Any]:
        """Bytes each way, peaks, bytes by kind, of hybridps_stats."""
        return self.state.pool.stats()

    def device_by_kind(self) -> tuple[int, dict[str, int]]:
        """The number of the running iteration, and the bytes of each kind on the device now: for
        a ``reserved_bytes`` that looks at every moment."""
        return self.state.pool.device_by_kind()

    def trace(self, phase: str | None = None) -> str:
        """The recorded iteration as JSON, for ``helios mem replay``."""
        return self.state.pool.trace(phase)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Model and optimizer own their memory again. What was taken before stays good (not on
        CUDA), and nothing is copied for it."""
        _register.close(self.phases)

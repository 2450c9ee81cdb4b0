"""The client that users call: it keeps torch's parameters, gradients and optimizer state in the
chunks of one pool.

It delegates: bookkeeping to _state.py, the two phases to _phases.py, forward and backward to
_passes.py, registration to _register.py.
"""
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Sequence

import torch

from . import _abi, _heap, _register, _save, _state
from ._group import Group, check_tensor
from ._managed import Managed
from ._one_copy import OneCopy
from ._passes import Passes
from ._phases import Phases

# What users call.
_API = {"register_module", "register_optim", "access", "release", "allreduce", "broadcast",
        "changed", "no_sync", "helios_state", "stats", "device_by_kind", "trace", "close"}


class Client:
    """One process's share of the memory of one device.

    device: "emu:256MiB" (emulated, in host memory) or "cuda:0[:BYTES]". policy: "opt", "lru",
    "fifo", "heat", "random". mode: "copy" keeps a host copy of what is only read on the device,
    "move" does not. chunk_bytes: 0 = chosen automatically. host_bytes: limit of host memory, 0 =
    only the node's (helios-agent --chunk-memory). With a limit, native Adam's state is on the host
    only while it steps, one parameter after the other, so that the rest can be spilled; parameters
    and gradients must fit. spill: the socket of a pool that takes what has no room ("none": no
    spilling; None: L3's or the node's, as set by the Agent). manager: name of the node's table,
    shared with other processes. prefetch: number of chunks fetched ahead, 0 = none, -1 = 2.
    reserved_bytes: a function that returns how many bytes of the device others use now.

    gradients: "separate", or "reuse": the gradient of a 16-bit parameter takes the parameter's
    place until the step, which needs 14 bytes per parameter instead of 16. "reuse" requires one
    backward per step, native Adam, and parameters that backward does not need after their gradient.
    optimizer_device: where native Adam steps: "host", "device" (chunk by chunk), or "auto": the
    device if all model data fits on it. group: ranks that train together (see Group): parameters
    begin as rank 0's, gradients are the mean over all ranks. shard: each rank keeps the optimizer's
    state only for its share of the parameters, and sends their new values to the others. one_copy:
    the group's ranks, all on this host, share one copy of parameters and gradients (see
    _one_copy.py). seed: of "random". plan_ahead: number of iterations that a plan of "opt" is made
    of, 3 or more; 0 = 6. heat: alpha, beta, window, tau of "heat", which keeps chunks with the
    highest alpha * uses in the last window moments / window + beta * exp(-moments since the last /
    tau), a weight of 0 is 0; None = 0.7, 0.3, 300, 60. keep_heap: keep memory that the process
    frees in its heap for the next step (glibc; see _heap.py), because host activations are freed
    and allocated in every step; False leaves malloc unchanged. Raises HybridPSError, from any
    method, with nothing changed.
    """

    def __init__(self, device: str, policy: str | None = "opt", mode: str | None = "copy",
                 chunk_bytes: int = 0, host_bytes: int = 0, manager: str | None = None,
                 prefetch: int = -1, reserved_bytes: Callable[[], int] | None = None,
                 gradients: str = "separate", optimizer_device: str = "auto",
                 group: Group | None = None, shard: bool = True,
                 spill: str | None = None, keep_heap: bool = True, seed: int = 0,
                 plan_ahead: int = 0, heat: Sequence[float] | None = None,
                 spill_pause_ms: int = 0, one_copy: bool = False) -> None:
        _state.check_options(gradients, optimizer_device, group, reserved_bytes, shard=shard,
                             keep_heap=keep_heap, one_copy=one_copy)
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

    def __reduce_ex__(self, _: Any) -> Any:
        raise _abi.HybridPSError("a client can be neither copied nor pickled: manage the copy of "
                                 "the model with another one")

    def register_module(self, module: torch.nn.Module, name: str = "",
                        whole: tuple[type, ...] = ()) -> None:
        """Keep the module's parameters and gradients in the pool from now on.

        name: prefix for messages. whole: further module types that use their children's parameters
        without calling the children. Tied parameters count as one; frozen ones have no gradient.
        """
        _register.register_module(self.passes, module, name, whole)

    def register_optim(self, optimizer: torch.optim.Optimizer, native: bool = True) -> None:
        """Keep the optimizer's state in the pool from now on, including state it creates later.

        native: libhelios takes the steps of torch.optim.Adam and AdamW, bit-identical for float32;
        for 16-bit parameters it keeps float32 masters. Any other optimizer runs unchanged.
        """
        _register.register_optimizer(self.passes, optimizer, native)

    def access(self, param: torch.nn.Parameter, write: bool = False) -> torch.Tensor:
        """The parameter's values on the device, which stay there until released as many times."""
        return self.phases.access(param, write)

    def release(self, param: torch.nn.Parameter) -> None:
        """The parameter may leave the device again."""
        self.phases.release(param)

    def allreduce(self, tensor: torch.Tensor, op: str = "sum") -> Managed:
        """The sum (in rank order) or "mean" of all ranks' tensors, as a managed tensor."""
        self.state.usable()
        check_tensor("allreduce", tensor)
        return Managed(self.state, "allreduce",
                       self.state.collective().allreduce(tensor, op, "allreduce"))

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> Managed:
        """Rank src's tensor, as a managed tensor."""
        self.state.usable()
        check_tensor("broadcast", tensor)
        return Managed(self.state, "broadcast",
                       self.state.collective().broadcast(tensor, src, "broadcast"))

    def changed(self) -> None:
        """On CUDA: call after writing parameters in an undetectable way, through a tensor from
        ``p.data`` or a numpy array that was taken before the last step."""
        self.phases.changed()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within the block sum this rank's own gradients, as in DistributedDataParallel's
        no_sync: the first backward after it averages the sums. Without a group it does nothing. A
        step in between is refused, because each rank would step with its own gradients."""
        self.state.usable()
        before, self.state.defers = self.state.defers, True
        try:
            yield
        finally:
            self.state.defers = before

    def helios_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and optimizer state, uncopied, for helios.save_state_dict(client, step). If
        ranks share the optimizer's state, all of them must call it together."""
        self.state.usable()
        return _save.state_of(self.phases)

    def stats(self) -> dict[str, Any]:
        """Bytes in each direction, peaks and bytes by kind, from hybridps_stats."""
        return self.state.pool.stats()

    def device_by_kind(self) -> tuple[int, dict[str, int]]:
        """The number of the running iteration, and the bytes of each kind on the device now: for a
        ``reserved_bytes`` that checks at every moment."""
        return self.state.pool.device_by_kind()

    def trace(self, phase: str | None = None) -> str:
        """The recorded iteration as JSON, for ``helios mem replay``."""
        if phase is not None:
            _abi.check_text("phase", phase, "train")
        return self.state.pool.trace(phase)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give model and optimizer their own memory again. Tensors taken before stay valid (not on
        CUDA), and nothing is copied for that."""
        _register.close(self.phases)

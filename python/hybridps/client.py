"""The client: parameters, gradients and optimizer state of torch in the chunks of one pool.

At any time the client is in one of two phases.

Outside (before the first forward, after backward, around an optimizer's step): everything is
accessed on the host. ``p.data`` and ``p.grad`` are host memory that anybody may read and write in
place: clipping, optimizers, schedulers, averaging, ``state_dict``.

Inside (from the first forward to the end of backward): nothing is accessed but by units (see
_units.py), on the device. ``p.data`` is the parameter's device memory; where the chunk is not
there, reading it faults. ``p.grad`` is None; finished gradients are added up in managed memory.
"""
from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Iterable, Iterator

import torch

from . import _abi, _optim, _save
from ._abi import DEVICE, FREE, HOLD, HOST, Group, HybridPSError
from ._collective import allreduce, broadcast
from ._tensors import backward_runs, is_dense, tensors_of, view
from ._units import WHOLE, Unit


class Managed:
    """A tensor of its own in managed memory, such as the result of a collective."""

    def __init__(self, client: "Client", name: str, value: torch.Tensor) -> None:
        self._client = client
        self._id = client.add_filled([(name, _abi.OTHER, value, value)])[0]
        self.shape, self.stride, self.dtype = value.shape, value.stride(), value.dtype
        self._held: list[Group] = []

    def access(self, write: bool = False, host: bool = False) -> torch.Tensor:
        """The tensor on the device (or the host), there until as many releases."""
        group = Group([self._id], HOST if host else DEVICE, write)
        self._client.pool.access(group)
        self._held.append(group)
        return view(group.uses[0].address, self.shape, self.stride, self.dtype,
                    None if host else self._client.cuda)

    def release(self) -> None:
        if not self._held:
            raise HybridPSError("release of a managed tensor that is not accessed")
        self._client.pool.release(self._held[-1], HOLD)
        self._held.pop()


class Slot:
    """A parameter, its gradient and its optimizer state."""

    __slots__ = ("param", "name", "tensor", "host", "device", "grad", "grad_host", "grad_group",
                 "has_grad", "version", "grad_version", "states", "units", "hook", "cuda",
                 "grad_device", "held", "group", "apart")

    def __init__(self, param: torch.nn.Parameter, name: str, cuda: str | None) -> None:
        self.param, self.name, self.cuda = param, name, cuda
        self.tensor = self.grad = -1
        self.host = self.device = self.grad_host = self.grad_device = None
        self.grad_group: Group | None = None
        self.has_grad = False
        self.version = self.grad_version = 0
        self.states: dict[str, tuple[int, torch.Tensor]] = {}
        self.units: list[Unit] = []
        self.hook: Any = None
        self.held = 0
        self.apart = False  # its states are accessed only while the optimizer steps
        self.group: Group | None = None

    def view(self, pool: _abi.Pool, tensor: int, where: int,
             dtype: torch.dtype | None = None) -> torch.Tensor:
        return view(pool.address(tensor, where), self.param.size(), self.param.stride(),
                    dtype or self.param.dtype, self.cuda if where == DEVICE else None)


class Client:
    """One process's share of the memory of one device.

    device: "emu:256MiB" (emulated, in host memory) or "cuda:0" (not run yet). policy: "opt",
    "lru", "fifo", "heat", "random". mode: "copy" keeps a host copy of what is only read on the
    device, "move" does not. chunk_bytes: 0 = chosen. host_bytes: limit of host memory, 0 = none;
    with one, native Adam's state is on the host only while it steps, a parameter after the other,
    so that the rest can be spilled: parameters and gradients must fit. spill: the socket of a pool
    that takes what has no room ("none": nowhere; None: L3's or the node's, as an Agent tells ranks).
    manager: the node's table shared with other processes. prefetch: chunks ahead, 0 = none, -1 =
    2. tide: a function that says how many bytes of the device others use now.
    Raises HybridPSError, from any method, with nothing changed.
    """

    def __init__(self, device: str, policy: str | None = "opt", mode: str | None = "copy",
                 chunk_bytes: int = 0, host_bytes: int = 0, manager: str | None = None,
                 prefetch: int = -1, tide: Callable[[], int] | None = None,
                 spill: str | None = None) -> None:
        self.pool = _abi.Pool(device, policy, mode, chunk_bytes, host_bytes, manager, prefetch,
                              spill=spill)
        self.limited = host_bytes > 0
        self.cuda = ":".join(device.split(":")[:2]) if device.startswith("cuda") else None
        self.device, self.mode = device, mode or "copy"
        self.tide = tide or (self._reserved if self.cuda else _none)
        self.pid = os.getpid()
        self.slots: list[Slot] = []
        self.by_param: dict[int, Slot] = {}
        self.units: list[Unit] = []
        self.modules: list[torch.nn.Module] = []
        self.optimizers: list[_optim.Stepper] = []
        self.inside = False
        self.in_backward = False
        self.depth = 0
        self.fresh = True  # the next training forward begins an iteration
        self.closed = False

    def _reserved(self) -> int:
        return torch.cuda.memory_reserved(self.cuda)

    # ---- what users call ----

    def register_module(self, module: torch.nn.Module, name: str = "",
                        whole: tuple[type, ...] = ()) -> None:
        """Parameters (and their gradients) of the module live in the pool from now on.

        name: prefix for messages. whole: further types of modules that use the parameters of
        their children without calling them. Tied parameters are one; frozen ones have no gradient.
        """
        self._usable()
        if any(module is m for m in self.modules) or "_hybridps_unit" in module.__dict__:
            raise HybridPSError(f"module {name or type(module).__name__} is registered already")
        new = self._new_slots(module, name)
        self.leave()
        self._place(new)
        self.modules.append(module)
        for path, child in module.named_modules():
            params = child.parameters(recurse=isinstance(child, WHOLE + whole))
            slots = list({id(p): self.by_param[id(p)] for p in params if id(p) in self.by_param}
                         .values())
            if slots or child is module:
                full = ".".join(n for n in (name, path) if n) or type(child).__name__
                unit = Unit(self, child, full, slots)
                self.units.append(unit)
                if child is module:
                    unit.wrap_state_dict()
                for slot in slots:
                    slot.units.append(unit)

    def register_optim(self, optimizer: torch.optim.Optimizer, native: bool = True) -> None:
        """The optimizer's state lives in the pool from now on, also what it makes later.

        native: the steps of torch.optim.Adam and AdamW are taken by libhelios, bit-equal for
        float32; for 16-bit parameters it keeps float32 masters. Any other optimizer runs as it is.
        """
        self._usable()
        if any(optimizer is s.optimizer for s in self.optimizers):
            raise HybridPSError(f"optimizer {type(optimizer).__name__} is registered already")
        self.leave()
        self.optimizers.append(_optim.Stepper(self, optimizer, native))

    def access(self, param: torch.nn.Parameter, write: bool = False) -> torch.Tensor:
        """The parameter's values on the device, there until as many releases."""
        slot = self._slot(param)
        self.enter()
        self.pool.access(Group([slot.tensor], DEVICE, True) if write else slot.group)
        slot.held += 1
        return slot.device

    def release(self, param: torch.nn.Parameter) -> None:
        """The parameter may leave the device again."""
        slot = self._slot(param)
        if not slot.held:
            raise HybridPSError(f"release of {slot.name} on {self.device}: it is not accessed")
        self.pool.release(slot.group, HOLD)
        slot.held -= 1

    def allreduce(self, tensor: torch.Tensor, op: str = "sum") -> Managed:
        """Sum (in the order of ranks) or "mean" of every process's tensor, managed."""
        return Managed(self, "allreduce", allreduce(tensor, op))

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> Managed:
        """The tensor of rank src, managed."""
        return Managed(self, "broadcast", broadcast(tensor, src))

    def changed(self) -> None:
        """Say so after writing parameters by ``p.data`` outside of an optimizer's step; writes in
        place to the parameter itself are seen."""
        self.leave()
        for slot in self.slots:
            slot.version = -1

    def helios_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For helios.save_state_dict(client, step): parameters and optimizer state, not copied."""
        self._usable()
        return _save.state_of(self)

    def stats(self) -> dict[str, Any]:
        """Bytes each way, peaks, bytes by kind, of hybridps_stats."""
        return self.pool.stats()

    def trace(self, phase: str | None = None) -> str:
        """The recorded iteration as JSON, for ``helios mem replay``."""
        return self.pool.trace(phase)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Model and optimizer own their memory again; views taken before are void."""
        if self.closed:
            return
        if os.getpid() == self.pid:
            self.leave()
            for slot in self.slots:
                if slot.hook is not None:
                    slot.hook.remove()
                had = slot.param.grad
                slot.param.data = slot.host.clone()
                if had is not None and had is slot.grad_host:
                    slot.param.grad = had.clone()
            for stepper in self.optimizers:
                stepper.close()
        for unit in self.units:
            unit.unwrap()
        self.closed = True
        self.pool.close()

    # ---- registration ----

    def _usable(self) -> None:
        if self.closed:
            raise HybridPSError("this client is closed")
        if os.getpid() != self.pid:
            raise HybridPSError(f"the client of process {self.pid} is used after a fork: open "
                                "another one in the child")

    def _slot(self, param: torch.Tensor) -> Slot:
        self._usable()
        slot = self.by_param.get(id(param))
        if slot is None or slot.param is not param:
            raise HybridPSError(f"a tensor of shape {tuple(param.shape)} is not registered with "
                                f"the client of {self.device}: register its module first")
        return slot

    def _new_slots(self, module: torch.nn.Module, prefix: str) -> list[Slot]:
        slots = []
        devices: dict[torch.device, str] = {}
        for path, param in module.named_parameters():
            name = f"{prefix}.{path}" if prefix else path
            if id(param) in self.by_param or param.numel() == 0:
                continue
            devices.setdefault(param.device, name)
            if not is_dense(param):
                raise HybridPSError(f"parameter {name} has holes in memory (strides "
                                    f"{param.stride()}): make it contiguous")
            slots.append(Slot(param, name, self.cuda))
        if len(devices) > 1:
            raise HybridPSError("parameters on mixed devices: " +
                                ", ".join(f"{n} on {d}" for d, n in devices.items()))
        return slots

    def _place(self, slots: list[Slot]) -> None:
        ids = self.add_filled([(s.name, _abi.PARAM, s.param.data, s.param) for s in slots])
        trainable = [s for s in slots if s.param.requires_grad]
        for slot, tensor in zip(slots, ids):
            slot.tensor = tensor
            slot.group = Group([tensor], DEVICE, False)
            slot.host = slot.view(self.pool, tensor, HOST)
        self._add_grads(trainable)
        self.pool.access(Group(ids, HOST, False))
        for slot in slots:
            slot.param.data = slot.host
            slot.version = slot.param._version
            self.slots.append(slot)
            self.by_param[id(slot.param)] = slot

    def _add_grads(self, slots: Iterable[Slot]) -> None:
        slots = list(slots)
        for slot in slots:
            size = slot.param.numel() * slot.param.element_size()
            slot.grad = self.pool.add(slot.name + ".grad", _abi.GRAD, size)
        if slots:
            self._layout()
        for slot in slots:
            slot.grad_host = slot.view(self.pool, slot.grad, HOST)
            slot.grad_group = Group([slot.grad], DEVICE, True)
            slot.hook = self._hook(slot)

    def _hook(self, slot: Slot) -> Any:
        """Have _accumulated called whenever autograd has completed a gradient of it."""
        param = slot.param
        if hasattr(param, "register_post_accumulate_grad_hook"):  # torch 2.1
            return param.register_post_accumulate_grad_hook(lambda _: self._accumulated(slot))
        with torch.enable_grad():
            node = param.expand_as(param).grad_fn.next_functions[0][0]
        handle = node.register_hook(lambda *_: self._accumulated(slot))
        handle.node = node  # alive as long as the hook
        return handle

    def _layout(self) -> None:
        """New chunks do not belong to the running iteration: it ends here, the next forward
        begins one."""
        self.pool.iteration(None)
        self.fresh = True
        self.pool.layout()

    def add_filled(self, what: list[tuple[str, int, torch.Tensor, torch.Tensor]]) -> list[int]:
        """New tensors (name, kind, value, like whom they lie in memory) with their values; they
        are not accessed."""
        ids = [self.pool.add(n, k, v.numel() * v.element_size()) for n, k, v, _ in what]
        if not ids:
            return ids
        self._layout()
        for tensor, (_, _, value, like) in zip(ids, what):
            with self.pool.on_host(tensor, write=True):
                view(self.pool.address(tensor, HOST), like.size(), like.stride(),
                     value.dtype).copy_(value.detach())
        return ids

    # ---- phases ----

    def _device(self, slot: Slot) -> torch.Tensor:
        if slot.device is None:
            slot.device = slot.view(self.pool, slot.tensor, DEVICE)
        return slot.device

    def _outside_ids(self) -> list[int]:
        ids = [s.tensor for s in self.slots]
        ids += [s.grad for s in self.slots if s.has_grad]
        ids += [i for s in self.slots if not s.apart for i, _ in s.states.values()]
        return ids

    def enter(self) -> None:
        """Outside to inside; nothing happens when inside."""
        if self.inside:
            return
        late = [s for s in self.slots if s.param.requires_grad and s.grad < 0]
        self._add_grads(late)  # a parameter that was thawed
        held = self._outside_ids()
        written, dropped = self._changes()
        self.pool.access(written)
        self.pool.release(written, HOLD)
        gone = set(dropped)
        self.pool.release(Group([i for i in held if i not in gone], HOST, False), HOLD)
        self.pool.release(Group(dropped, HOST, False), FREE)
        for slot in self.slots:
            param = slot.param
            if param.grad is not None and not param.grad.is_sparse:
                param.grad = None
            param.data = self._device(slot)
        self.inside = True

    def _changes(self) -> tuple[Group, list[int]]:
        """What was written on the host since leave, and gradients that were dropped."""
        written, dropped, foreign = [], [], []
        for slot in self.slots:
            if slot.param._version != slot.version:
                written.append(slot.tensor)
            grad = slot.param.grad
            if grad is None or grad.is_sparse:
                if slot.has_grad:
                    dropped.append(slot.grad)
                slot.has_grad = False
            elif grad is not slot.grad_host:
                foreign.append(slot)
            elif grad._version != slot.grad_version:
                written.append(slot.grad)
        group = Group([s.grad for s in foreign], HOST, True)
        self.pool.access(group)
        for slot in foreign:
            slot.grad_host.copy_(slot.param.grad)
            slot.has_grad = True
        self.pool.release(group, HOLD)
        return Group(written, HOST, True), dropped

    def leave(self) -> None:
        """Inside to outside; nothing happens when outside."""
        if not self.inside:
            return
        self._unpin_calls()
        self.in_backward = False
        self.pool.access(Group(self._outside_ids(), HOST, False))
        for slot in self.slots:
            param = slot.param
            param.data = slot.host
            slot.version = param._version
            if slot.has_grad:
                param.grad = slot.grad_host
                slot.grad_version = slot.grad_host._version
        self.inside = False

    # ---- forward and backward ----

    def begin_forward(self) -> bool:
        """Whether this is an outermost forward (and not one that backward runs again)."""
        if self.depth or (self.in_backward and backward_runs()):
            return False
        self._usable()
        if self.in_backward:
            self.leave()  # the last backward ended in an exception
        train = torch.is_grad_enabled()
        if not self.inside:
            if not train or self.fresh:
                self.pool.iteration("train" if train else "eval")
            self.fresh = self.fresh and not train
            self.enter()
        return True

    def end_forward(self, out: Any) -> None:
        """An outermost forward has ended."""
        if not any(t.requires_grad for t in tensors_of(out)):
            self.leave()

    def outer_backward(self, gradient: Any = None) -> None:
        """Backward reached the output of an outermost forward."""
        self.begin_backward()

    def begin_backward(self) -> bool:
        """False where this backward is not one of parameters in the pool any more."""
        if self.closed:
            return False
        if not self.in_backward:
            self.enter()
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        return True

    def _end_backward(self) -> None:
        if self.in_backward and not self.closed:
            self.in_backward = False
            self._unpin_calls()
            if self.depth == 0:
                self.leave()

    @contextlib.contextmanager
    def or_leave(self) -> Iterator[None]:
        """An exception in backward ends it: all that it accessed is released."""
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def _unpin_calls(self) -> None:
        for unit in self.units:
            for call in list(unit.calls):
                call.after()

    def _accumulated(self, slot: Slot) -> None:
        grad = slot.param.grad
        if grad is None or not self.inside or self.closed:
            return
        if not grad.is_sparse:
            slot.param.grad = None
            held = any(unit.calls for unit in slot.units)
            if not held:
                with self.or_leave():
                    self.pool.access(slot.grad_group)
            if slot.grad_device is None:
                slot.grad_device = slot.view(self.pool, slot.grad, DEVICE)
            with torch.no_grad():
                if slot.has_grad:
                    slot.grad_device.add_(grad)
                else:
                    slot.grad_device.copy_(grad)
            slot.has_grad = True
            if not held:
                self.pool.release(slot.grad_group, _abi.AFTER_BWD)
        for unit in slot.units:
            unit.accumulated(slot)


def _none() -> int:
    return 0

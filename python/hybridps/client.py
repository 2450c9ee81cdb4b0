"""The client: parameters, gradients and optimizer state of torch in the chunks of one pool.

At any time the client is in one of two phases.

Outside (before the first forward, after backward, around an optimizer's step): ``p.data`` and
``p.grad`` are host memory that anybody may read and write in place: clipping, optimizers,
schedulers, averaging, ``state_dict``. What steps on the device leaves gradients where they are
until somebody reads ``p.grad``.

Inside (from the first forward to the end of backward): nothing is accessed but by units (see
_units.py), on the device. ``p.data`` is the parameter's device memory; where the chunk is not
there, the library serves the fault of whoever touches it (hybridps_serve_faults): it is read and
written all the same. On CUDA there are no such faults: what is not accessed is kept by access until
the end of backward, or refused. ``p.grad`` is None; finished gradients are added up in managed memory.
"""
from __future__ import annotations

import collections
import contextlib
import os
import threading
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _abi, _heap, _optim, _params, _save, _wrappers
from ._abi import DEVICE, FREE, HOLD, HOST, Bundle, HybridPSError
from ._group import Group
from ._params import raw_data, raw_grad, set_data, set_grad
from ._slots import Managed, Slot
from ._tensors import backward_runs, in_same_memory, is_dense, tensors_of, uncompiled, view
from ._units import LISTS, WHOLE, Unit, holders

# What users call; the rest is for the other files of this package.
_API = {"register_module", "register_optim", "access", "release", "allreduce", "broadcast", "changed",
        "helios_state", "stats", "device_by_kind", "trace", "close"}
STATES = ("FREE", "HOLD", "COMPUTE", "AFTER_FWD", "AFTER_BWD")  # as hybridps.h counts them


class Client:
    """One process's share of the memory of one device.

    device: "emu:256MiB" (emulated, in host memory) or "cuda:0" (not run yet). policy: "opt",
    "lru", "fifo", "heat", "random". mode: "copy" keeps a host copy of what is only read on the
    device, "move" does not. chunk_bytes: 0 = chosen. host_bytes: limit of host memory, 0 = none
    but the node's (helios-agent --chunk-memory); with one, native Adam's state is on the host only while it steps, a parameter after the other,
    so that the rest can be spilled: parameters and gradients must fit. spill: the socket of a pool
    that takes what has no room ("none": nowhere; None: L3's or the node's, as an Agent tells ranks).
    manager: the node's table shared with other processes. prefetch: chunks ahead, 0 = none, -1 =
    2. tide: a function that says how many bytes of the device others use now.

    gradients: "separate", or "reuse": the gradient of a 16-bit parameter takes the parameter's
    place until the step, 14 bytes a parameter instead of 16; for one backward per step, native
    Adam, and parameters that are not needed in backward after their gradient.
    optimizer_device: where native Adam steps: "host", "device" (chunk by chunk), or "auto": the
    device when all model data fits it. group: ranks that train together (see Group): parameters
    begin as rank 0's, gradients are the mean of all ranks'. shard: each rank keeps the optimizer's
    state of its share of the parameters only, and sends their new values to the others.
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
                 prefetch: int = -1, tide: Callable[[], int] | None = None,
                 gradients: str = "separate", optimizer_device: str = "auto",
                 group: Group | None = None, shard: bool = True,
                 spill: str | None = None, keep_heap: bool = True, seed: int = 0,
                 plan_ahead: int = 0, heat: Sequence[float] | None = None) -> None:
        if gradients not in ("separate", "reuse"):
            raise HybridPSError(f"gradients is {gradients!r}, it may be 'separate' or 'reuse'")
        if optimizer_device not in ("auto", "host", "device"):
            raise HybridPSError(f"optimizer_device is {optimizer_device!r}, it may be 'auto', "
                                "'host' or 'device'")
        self.pool = _abi.Pool(device, policy, mode, chunk_bytes, host_bytes, manager, prefetch,
                              seed, spill, plan_ahead, heat)
        self.limited = self.pool.stats()["host_limit"] > 0
        if not device.startswith("cuda"):
            self.pool.serve_faults()
        self.cuda = ":".join(device.split(":")[:2]) if device.startswith("cuda") else None
        self.device, self.mode = device, mode or "copy"
        self.tide = tide or (self._reserved if self.cuda else _none)
        if keep_heap and not self.cuda:
            _heap.keep_freed()
        self.gradients, self.optimizer_device = gradients, optimizer_device
        self.group = group if group is not None and group.world > 1 else None
        self.shard = shard and self.group is not None
        self.pid = os.getpid()
        self.slots: list[Slot] = []
        self.by_param: dict[int, Slot] = {}
        self.units: list[Unit] = []
        self.modules: list[torch.nn.Module] = []
        self.optimizers: list[_optim.Stepper] = []
        self.lazy = False  # gradients stay where they are after backward
        self.inside = False
        self.grads_away = False
        self.grads_seen = False  # outside, by somebody who may have written them
        self.in_backward = False
        self.depth = 0
        self.running: list[Unit] = []  # whose forward has begun, the innermost last
        self.loose: list[Bundle] = []  # accessed on the device for no unit, until leave
        self.graph_grows = False  # the running backward makes a graph of its own
        self.graph_waits = False  # for the backward that goes through it
        self.by_hand = False  # somebody calls access and release, and knows where parameters are
        self.turn = threading.RLock()  # of threads that call forward
        self.fresh = True  # the next training forward begins an iteration
        self.closed = False
        self.layouts = 0
        self.held: list[int] = []  # accessed on the host, outside
        self._bundles: dict[tuple, Bundle] = {}
        self._spare: dict[int, list[int]] = {}

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
            raise HybridPSError(f"module {name or type(module).__name__} is registered already" +
                                self.facts())
        self._check_wrappable(module)
        new = self._new_slots(module, name)
        self.leave()
        self._begin_alike(module, new)
        self._place(new)
        self.modules.append(module)
        self._add_units(module, name, WHOLE + whole)

    def _add_units(self, module: torch.nn.Module, name: str, whole: tuple[type, ...]) -> None:
        cover, inside = None, ""  # the last unit that has its children's parameters too
        for path, child in module.named_modules():
            if isinstance(child, LISTS) and child is not module:
                continue
            params = (child.parameters() if isinstance(child, whole) else
                      (p for m in holders(child) for p in m.parameters(recurse=False)))
            slots = list({id(p): self.by_param[id(p)] for p in params if id(p) in self.by_param}
                         .values())
            if slots or child is module:
                full = ".".join(n for n in (name, path) if n) or type(child).__name__
                unit = Unit(self, child, full, slots)
                self.units.append(unit)
                if cover is not None and path.startswith(inside):
                    unit.cover = cover
                elif isinstance(child, whole):
                    cover, inside = unit, f"{path}." if path else ""
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
            raise HybridPSError(f"optimizer {type(optimizer).__name__} is registered already" +
                                self.facts())
        self._check_optimizer(optimizer)
        self.leave()
        self.fetch_grads()
        self.optimizers.append(_optim.Stepper(self, optimizer, native))
        self.lazy = any(s.on_device for s in self.optimizers)

    def _check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if not self.slots or not params or any(id(p) in self.by_param for p in params):
            return
        raise HybridPSError(f"optimizer {type(optimizer).__name__} has none of the {len(self.slots)} "
                            f"managed parameters, but {len(params)} others, the first of shape "
                            f"{tuple(params[0].shape)}: make it of model.parameters() of the model "
                            "that is managed" + self.facts())

    def __dir__(self) -> list[str]:
        return sorted(_API)

    def access(self, param: torch.nn.Parameter, write: bool = False) -> torch.Tensor:
        """The parameter's values on the device, there until as many releases."""
        slot = self.by_param.get(id(param))
        if slot is None or self.closed or self.pid != _abi._process[0]:
            slot = self._slot(param)
        if not self.inside:
            self.enter()
        if slot.gone:
            raise HybridPSError(f"access of {slot.name}: its gradient has taken its place until "
                                "the optimizer's step (gradients=\"reuse\")" + self.facts())
        self.pool.access(Bundle([slot.tensor], DEVICE, True) if write else slot.bundle)
        self.by_hand = True
        slot.held += 1
        return slot.device

    def release(self, param: torch.nn.Parameter) -> None:
        """The parameter may leave the device again."""
        slot = self.by_param.get(id(param))
        if slot is None or not slot.held or self.pid != _abi._process[0]:
            slot = self._slot(param)
            if not slot.held:
                raise HybridPSError(f"release of {slot.name}: it is not accessed" + self.facts())
        self.pool.release(slot.bundle, HOLD)
        slot.held -= 1

    def allreduce(self, tensor: torch.Tensor, op: str = "sum") -> Managed:
        """Sum (in the order of ranks) or "mean" of every rank's tensor, managed."""
        self._usable()
        return Managed(self, "allreduce", self._collective().allreduce(tensor, op, "allreduce"))

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> Managed:
        """The tensor of rank src, managed."""
        self._usable()
        return Managed(self, "broadcast", self._collective().broadcast(tensor, src, "broadcast"))

    def changed(self) -> None:
        """Say so after writing parameters in a way that is not seen: through a tensor of
        ``p.data`` or an array of numpy that was taken before the last step."""
        self.leave()
        for slot in self.slots:
            slot.written = slot.suspect = True

    def helios_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For helios.save_state_dict(client, step): parameters and optimizer state, not copied.
        Where ranks share the optimizer's state, all of them call it together."""
        self._usable()
        return _save.state_of(self)

    def stats(self) -> dict[str, Any]:
        """Bytes each way, peaks, bytes by kind, of hybridps_stats."""
        return self.pool.stats()

    def device_by_kind(self) -> tuple[int, dict[str, int]]:
        """The number of the running iteration, and the bytes of each kind on the device now: for
        a ``tide`` that looks at every moment."""
        return self.pool.device_by_kind()

    def trace(self, phase: str | None = None) -> str:
        """The recorded iteration as JSON, for ``helios mem replay``."""
        return self.pool.trace(phase)

    def facts(self) -> str:
        """For messages: what is where."""
        if self.closed or _abi.forked(self.pid):
            return ""
        s = self.pool.stats()

        states = self._states()

        def kinds(by_kind: dict[str, int], where: str) -> str:
            return ", ".join(f"{kind} {size}{states[where, kind]}"
                             for kind, size in by_kind.items() if size) or "nothing"
        pinned = [s.name for s in self.slots if s.held or any(u.calls for u in s.units)][:5]
        return (f" [device {self.device}: {s['capacity']} bytes, {s['avail']} for chunks in moment "
                f"{s['moments']}; on it {kinds(s['device_by_kind'], 'on_device')}; on the host "
                f"{kinds(s['host_by_kind'], 'on_host')}; {s['pinned']} bytes pinned"
                f"{' by ' + ', '.join(pinned) if pinned else ''}; {len(self.slots)} parameters of "
                f"{len(self.modules)} modules]")

    def _states(self) -> dict[tuple[str, str], str]:
        """Bytes of tensors by place, kind and state, as text."""
        found: dict[tuple[str, str], collections.Counter] = collections.defaultdict(
            collections.Counter)
        for slot in self.slots:
            for tensor in (slot.tensor, slot.grad, *(i for i, _ in slot.states.values())):
                info = self.pool.tensor(tensor) if tensor >= 0 else {}
                for where in ("on_device", "on_host"):
                    if info.get(where):
                        found[where, _abi.KINDS[info["kind"]]][STATES[info["state"]]] += info["bytes"]
        texts: dict[tuple[str, str], str] = collections.defaultdict(str)
        for key, states in found.items():
            texts[key] = f" ({', '.join(f'{state} {size}' for state, size in states.items())})"
        return texts

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Model and optimizer own their memory again; views taken before are void."""
        if self.closed:
            return
        for slot in self.slots:
            if slot.hook is not None:
                slot.hook.remove()
        wrong = None
        if not _abi.forked(self.pid):
            try:
                self.leave()
            except HybridPSError as error:  # of what was done before; all is given back first
                wrong = error
            self._give_back()
        for slot in self.slots:
            _params.give_back(slot)
        for unit in self.units:
            unit.unwrap()
        self.closed = True
        self.pool.close()
        if wrong is not None:
            raise wrong

    def _give_back(self) -> None:
        self.fetch_grads()
        self._restore([s for s in self.slots if s.gone and raw_grad(s.param) is None])
        for slot in self.slots:
            had = raw_grad(slot.param)
            if slot.gone:
                grad = slot.host.clone()
                with self.pool.on_host(slot.states["master"][0]):
                    set_data(slot.param, slot.states["master"][1].to(grad.dtype))
                set_grad(slot.param, grad)
                continue
            set_data(slot.param, slot.host.clone())
            if had is not None and had is slot.grad_host:
                set_grad(slot.param, had.clone())
        for stepper in self.optimizers:
            stepper.close()

    # ---- registration ----

    def _collective(self) -> Any:
        if self.group is not None:
            return self.group
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Group.torch()
        return _Alone()

    def _usable(self) -> None:
        if self.closed:
            raise HybridPSError("this client is closed")
        if _abi.forked(self.pid):
            raise HybridPSError(f"the client of process {self.pid} (device {self.device}, "
                                f"{len(self.slots)} parameters) is used after a fork, in process "
                                f"{os.getpid()}: open another one in the child")

    def _check_wrappable(self, module: torch.nn.Module) -> None:
        for path, child in module.named_modules():
            if isinstance(child, torch.jit.ScriptModule):
                raise HybridPSError(f"module {path or type(child).__name__} is compiled by torch.jit"
                                    ", which calls no hooks: manage the model that was compiled" +
                                    self.facts())
            for wrapper in _wrappers.around(child):
                raise HybridPSError(wrapper + _wrappers.WHY + self.facts())

    def _slot(self, param: torch.Tensor) -> Slot:
        self._usable()
        slot = self.by_param.get(id(param))
        if slot is None or slot.param is not param:
            raise HybridPSError(f"a tensor of shape {tuple(param.shape)} is not registered with "
                                "this client: register its module first" + self.facts())
        return slot

    def _new_slots(self, module: torch.nn.Module, prefix: str) -> list[Slot]:
        slots = []
        devices: dict[torch.device, str] = {}
        for path, param in module.named_parameters():
            name = f"{prefix}.{path}" if prefix else path
            if id(param) in self.by_param or param.numel() == 0:
                continue
            if id(param) in _params._slots:
                raise HybridPSError(f"parameter {name} is registered already, with the client of "
                                    f"{_params._slots[id(param)].client.device}" + self.facts())
            if getattr(param, "_post_accumulate_grad_hooks", None):
                self.refuse_grad_hook(name)
            if type(raw_data(param)).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                raise HybridPSError(f"parameter {name} is a {type(raw_data(param)).__name__}: only "
                                    "plain tensors can be managed" + self.facts())
            devices.setdefault(param.device, name)
            if not is_dense(param):
                raise HybridPSError(f"parameter {name} has holes in memory (strides "
                                    f"{param.stride()}): make it contiguous" + self.facts())
            slots.append(Slot(self, param, name))
        if len(devices) > 1:
            raise HybridPSError("parameters on mixed devices: " +
                                ", ".join(f"{n} on {d}" for d, n in devices.items()) +
                                self.facts())
        tied = in_same_memory([raw_data(slot.param) for slot in slots])
        if tied:  # each gets memory of its own: writes to one would not be the other's any more
            raise HybridPSError("parameters {} and {} are two in the same memory: make them one "
                                "(module.weight = other.weight), or give each its own (.clone())"
                                .format(*(slots[i].name for i in tied)) + self.facts())
        return slots

    def _begin_alike(self, module: torch.nn.Module, slots: list[Slot]) -> None:
        """Every rank begins with rank 0's values."""
        if self.group is not None:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    buffer.copy_(self.group.broadcast(buffer, 0, name))
                for slot in slots:
                    slot.param.copy_(self.group.broadcast(slot.param, 0, slot.name))

    def _place(self, slots: list[Slot]) -> None:
        ids = self.add_filled([(s.name, _abi.PARAM, s.param.data, s.param) for s in slots])
        for slot, tensor in zip(slots, ids):
            slot.tensor = tensor
            slot.bundle = Bundle([tensor], DEVICE)
            slot.host = slot.view(tensor, HOST)
            slot.home = slot.host.data_ptr()
            slot.reuse = self.gradients == "reuse" and slot.param.dtype != torch.float32
        self._add_grads(s for s in slots if s.param.requires_grad)
        self.hold(ids)
        for slot in slots:
            set_data(slot.param, slot.host)
            slot.version = slot.param._version
            self.slots.append(slot)
            self.by_param[id(slot.param)] = slot
            _params.adopt(slot)

    def _add_grads(self, slots: Iterable[Slot]) -> None:
        slots = list(slots)
        separate = [s for s in slots if not s.reuse]
        for slot in separate:
            size = slot.param.numel() * slot.param.element_size()
            slot.grad = self.pool.add(slot.name + ".grad", _abi.GRAD, size)
        if separate:
            self._layout()
        for slot in slots:
            slot.grad_host = slot.host if slot.reuse else slot.view(slot.grad, HOST)
            slot.grad_bundle = Bundle([slot.gradient], DEVICE, True)
            slot.hook = self._hook(slot)

    def _hook(self, slot: Slot) -> Any:
        """Have _accumulated called whenever autograd has completed a gradient of it."""
        param = slot.param
        if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):  # torch 2.1
            return torch.Tensor.register_post_accumulate_grad_hook(
                param, lambda _: self._accumulated(slot))
        with torch.enable_grad():
            node = param.expand_as(param).grad_fn.next_functions[0][0]
        handle = node.register_hook(lambda *_: self._accumulated(slot))
        handle.node = node  # alive as long as the hook
        return handle

    def refuse_grad_hook(self, name: str) -> None:
        raise HybridPSError(f"{name}: no hooks after accumulation on managed parameters, whose "
                            "gradient has gone to the device by then: register_hook sees it while "
                            "backward runs, p.grad has it afterwards" + self.facts())

    def _layout(self) -> None:
        """New chunks do not belong to the running iteration: it ends here, the next forward
        begins one."""
        self.pool.iteration(None)
        self.fresh = True
        self.layouts += 1
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

    def take_spare(self, name: str, size: int) -> int:
        """A tensor of that size without content, that nobody has."""
        if self._spare.get(size):
            return self._spare[size].pop()
        tensor = self.pool.add(name, _abi.OTHER, size)
        self._layout()
        return tensor

    def give_spare(self, tensor: int, size: int) -> None:
        self.pool.drop([tensor])
        self._spare.setdefault(size, []).append(tensor)

    # ---- phases ----

    def bundle(self, ids: Sequence[int], where: int, write: bool = False) -> Bundle:
        """The same one for the same arguments, as phases repeat."""
        key = (where, write, *ids)
        found = self._bundles.get(key)
        if found is None:
            if len(self._bundles) >= 256:
                self._bundles.clear()
            found = self._bundles[key] = Bundle(ids, where, write)
        return found

    def hold(self, ids: list[int]) -> None:
        """On the host from now on, until the next forward."""
        self.pool.access(self.bundle(ids, HOST))
        self.held += ids

    def _held_outside(self, lazy: bool) -> list[int]:
        ids = [s.tensor for s in self.slots if not (lazy and s.gone)]
        if not lazy:
            ids += [s.grad for s in self.slots if s.has_grad and not s.reuse]
        for stepper in self.optimizers:
            ids += stepper.on_host()
        return ids

    def enter(self) -> None:
        """Outside to inside; nothing happens when inside."""
        if self.inside:
            return
        self._check_reuse()
        self.pool.settle()
        self._add_grads([s for s in self.slots if s.param.requires_grad and s.hook is None])
        self.let_go()
        for slot in self.slots:
            param = slot.param
            grad = raw_grad(param)
            if grad is not None and not grad.is_sparse:
                set_grad(param, None)
            set_data(param, slot.device if slot.device is not None else self._device(slot))
            slot.version = param._version
        self.grads_away = False
        self.inside = True

    def _device(self, slot: Slot) -> torch.Tensor:
        slot.device = slot.view(slot.tensor, DEVICE)
        return slot.device

    def let_go(self) -> None:
        """Nothing is accessed on the host any more; what was written there counts as written, and
        gradients that were dropped have no content."""
        written, dropped = self._changes()
        if written:
            bundle = self.bundle(written, HOST, True)
            self.pool.access(bundle)
            self.pool.release(bundle, HOLD)
        gone = set(dropped)
        self.pool.release(self.bundle([i for i in self.held if i not in gone], HOST), HOLD)
        if self.grads_away:
            self.pool.drop(dropped)
        else:
            self.pool.release(self.bundle(dropped, HOST), FREE)
        self.held = []

    def _changes(self) -> tuple[list[int], list[int]]:
        """What was written on the host since leave, and gradients that were dropped."""
        written, dropped = [], []
        for slot in self.slots:
            if slot.gone:
                continue
            if slot.param.data_ptr() != slot.home:
                self._moved_away(slot)
            if slot.written or slot.param._version != slot.version:
                slot.suspect = slot.suspect or slot.param._version != slot.version
                slot.written = False
                slot.version = slot.param._version
                written.append(slot.tensor)
            grad = raw_grad(slot.param)
            if grad is None or grad.is_sparse:
                if slot.has_grad:
                    dropped.append(slot.grad)
                slot.has_grad = False
            elif slot.reuse or slot.grad < 0:
                continue
            elif grad is not slot.grad_host:
                self._take(slot, grad)
            elif not self.grads_away and (self.grads_seen or
                                          grad._version != slot.grad_version):
                written.append(slot.grad)
                slot.grad_version = grad._version
        self.grads_seen = False
        return written, dropped

    def _moved_away(self, slot: Slot) -> None:
        """Somebody gave the parameter other memory (set_, share_memory_, a queue to another process):
        its values are taken home."""
        value = raw_data(slot.param)
        slot.host = slot.view(slot.tensor, HOST)
        if slot.grad >= 0:  # its own too, perhaps
            slot.grad_host = slot.view(slot.grad, HOST)
        self.assign(slot, value)
        set_data(slot.param, slot.host)

    def _take(self, slot: Slot, grad: torch.Tensor) -> None:
        """A gradient that somebody assigned."""
        bundle = self.bundle([slot.grad], HOST, True)
        self.pool.access(bundle)
        slot.grad_host.copy_(grad)
        self.pool.release(bundle, HOLD)
        slot.has_grad = True

    def leave(self) -> None:
        """Inside to outside; nothing happens when outside."""
        if not self.inside:
            return
        self._unpin_calls()
        for bundle in self.loose:
            self.pool.release(bundle)
        self.loose.clear()
        lost = self._settle()
        self.in_backward = self.graph_grows = self.graph_waits = self.by_hand = False
        self.hold(self._held_outside(self.lazy))
        wrong = []
        for slot in self.slots:
            param = slot.param
            if param._version != slot.version:
                wrong.append(slot.name)
            self._show(slot)
            if slot.has_grad:
                set_grad(param, slot.grad_host)
                slot.grad_version = slot.grad_host._version
        self.grads_away = self.lazy and any(s.has_grad for s in self.slots)
        self.inside = False
        if wrong:
            raise HybridPSError(f"{', '.join(wrong[:5])} written in place between forward and the "
                                "end of backward, where the device has a copy that is only read: "
                                "write before or after, or to access(p, write=True)" +
                                self.facts())
        if lost is not None:
            raise lost

    def _settle(self) -> HybridPSError | None:
        """Writes to tensors that were not there become content. What could not be read is raised
        when the phase has ended."""
        try:
            self.pool.settle()
        except HybridPSError as error:
            return error
        return None

    def _show(self, slot: Slot) -> None:
        """p.data outside. While a gradient is in its place nobody takes it for the parameter."""
        if slot.gone:
            nan = torch.full((), float("nan"), dtype=slot.param.dtype)
            set_data(slot.param, nan.expand(slot.param.shape))
        else:
            set_data(slot.param, slot.host)
        slot.version = slot.param._version

    def fetch_grads(self) -> None:
        """Gradients that stayed on the device come to the host."""
        if not self.grads_away:
            return
        self.hold([s.gradient for s in self.slots if s.has_grad])
        self.grads_away = False
        for slot in self.slots:
            if slot.has_grad:
                slot.grad_version = slot.grad_host._version

    def drop_grads(self, slots: Iterable[Slot]) -> None:
        """p.grad = None for each. Where they are not on the host, they need not come for that."""
        if not self.inside and not self.grads_away:
            return
        if self.closed or _abi.forked(self.pid) or self._works():
            return
        there = [s for s in slots if s.has_grad and not s.reuse]
        self.pool.drop([s.grad for s in there])
        for slot in there:
            slot.has_grad = False
        if self.grads_away and not any(s.has_grad for s in self.slots[:1] + self.slots[-1:]):
            self.grads_away = any(s.has_grad for s in self.slots)

    def look_at_grad(self, slot: Slot) -> None:
        """Somebody takes p.grad: between forward and backward it is what backward will add to."""
        if self.closed or _abi.forked(self.pid):
            return
        if self.inside:
            if not slot.has_grad or self._works():
                return
            self._ask_to_leave(slot.name + ".grad")
        self.fetch_grads()
        self.grads_seen = True

    @uncompiled
    def taken(self, param: torch.nn.Parameter) -> None:
        """Somebody takes a parameter of a module that does not run."""
        slot = self.by_param.get(id(param))
        if slot is None or not self.inside:
            return
        if self.running:
            if not any(unit in slot.units for unit in self.running):
                try:
                    self.running[-1].learn(slot)
                except HybridPSError:
                    if self.cuda:
                        raise
        elif self._works():  # a hook in backward
            if self.cuda:
                self._keep([slot.tensor])
        else:
            self.listed()

    def _keep(self, tensors: list[int]) -> None:
        bundle = Bundle(tensors, DEVICE)
        self.pool.access(bundle)
        self.loose.append(bundle)

    def keep_all(self) -> None:
        """Backward makes a graph (create_graph=True): whoever goes through it needs the parameters
        in an order nobody tells. They stay until backward has ended that makes none."""
        if not self.graph_grows:
            self._keep([s.tensor for s in self.slots])
            self.graph_grows = self.graph_waits = True

    def _ask_to_leave(self, what: str) -> None:
        if self.graph_waits:
            raise HybridPSError(f"{what} is asked for between a backward with create_graph=True and "
                                "the one that goes through its graph, which keeps all parameters on "
                                "the device: ask (or call zero_grad) before the first of them, or "
                                "after the second" + self.facts())
        self.leave()

    def welcome(self, param: torch.nn.Parameter) -> None:
        """A parameter is put into a managed module."""
        data = raw_data(param)
        if id(param) not in self.by_param and any(data.data_ptr() == s.host.data_ptr() for s in self.slots):
            set_data(param, data.clone())

    def listed(self, slots: Sequence[Slot] = ()) -> None:
        """Somebody takes the parameters of a module, perhaps to look at them."""
        if not self.inside or self.closed or _abi.forked(self.pid):
            return
        if self.graph_waits or self.by_hand:
            return  # they are there
        if not self._works():
            self.leave()
        elif slots and self.cuda:
            with contextlib.suppress(HybridPSError):  # who wants the shapes needs no room
                self._keep([s.tensor for s in slots])

    def runs(self) -> bool:
        """Whether a forward or a backward of the managed modules is under way in this process."""
        return not self.closed and not _abi.forked(self.pid) and self.inside and self._works()

    def _works(self) -> bool:
        """Inside a forward or a backward, whose course nobody may change."""
        return self.depth > 0 or (self.in_backward and backward_runs())

    def look(self, slot: Slot) -> None:
        """Somebody takes p.data."""
        if self.closed or _abi.forked(self.pid):
            return
        if self.inside:
            if self._works():
                self._may_write(slot)
                return
            self._ask_to_leave(slot.name + ".data")
        slot.written = slot.suspect = True

    def _may_write(self, slot: Slot) -> None:
        """Somebody takes p.data in a forward or a backward, perhaps to write it."""
        where = self.pool.tensor(slot.tensor)
        if self.cuda or (where["on_device"] and where["on_host"]):  # else the fault tells
            bundle = Bundle([slot.tensor], DEVICE, True)
            self.pool.access(bundle)  # the host's copy is void
            if self.cuda:
                self.loose.append(bundle)
            else:
                self.pool.release(bundle)
        slot.suspect = True

    def copies(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a state_dict in a forward or a backward, for keeps."""
        out = values.__class__(values)
        addresses = {raw_data(s.param).data_ptr(): s for s in self.slots}
        for key, value in values.items():
            slot = addresses.get(value.data_ptr()) if isinstance(value, torch.Tensor) else None
            if slot is None:
                continue
            self.is_needed([slot])
            if self.cuda:
                self.pool.access(slot.bundle)
            out[key] = value.clone()
            if self.cuda:
                self.pool.release(slot.bundle)
        return out

    def assign(self, slot: Slot, value: torch.Tensor) -> None:
        """Somebody says p.data = value."""
        param = slot.param
        same = (value.shape == param.shape and value.dtype == param.dtype and
                value.device == slot.host.device)
        if not same or slot.gone:
            raise HybridPSError(
                f"{slot.name}.data = a tensor of {tuple(value.shape)}, {value.dtype}, on "
                f"{value.device}: the parameter is managed as {tuple(param.shape)}, {param.dtype}"
                f"{', and its gradient is in its place' if slot.gone else ''}; close the client "
                "first" +
                self.facts())
        self._usable()
        self.look(slot)
        with torch.no_grad():
            (raw_data(param) if self.inside else slot.host).copy_(value)

    # ---- gradients in the place of parameters ----

    def _check_reuse(self) -> None:
        """Before a forward all parameters must be there."""
        gone = [s for s in self.slots if s.gone]
        if not gone:
            return
        kept = [s.name for s in gone if raw_grad(s.param) is not None]
        if kept:
            raise HybridPSError(f"the gradient of {kept[0]} (and {len(kept) - 1} more) is in the "
                                "place of the parameter, which is needed now: with gradients="
                                "\"reuse\" a step or zero_grad comes first, and accumulation needs "
                                "gradients=\"separate\"" + self.facts())
        self._restore(gone)

    def _restore(self, slots: list[Slot]) -> None:
        """Their gradients were dropped: the values are those of the masters."""
        if not slots:
            return
        missing = [s.tensor for s in slots if s.tensor not in set(self.held)]
        if missing:
            self.hold(missing)
        for slot in slots:
            if "master" in slot.states:
                tensor, master = slot.states["master"]
                with self.pool.on_host(tensor), torch.no_grad():
                    slot.host.copy_(master)
            if self.shard:
                self.group.broadcast_(slot.host, slot.owner, slot.name)
            slot.has_grad = False
            slot.written = True
            self._show(slot)

    @contextlib.contextmanager
    def all_shown(self) -> Iterator[None]:
        """Outside, with every parameter's values in p.data."""
        self.leave()
        gone = [s for s in self.slots if s.gone]
        for slot in gone:
            if "master" in slot.states:
                tensor, master = slot.states["master"]
                with self.pool.on_host(tensor):
                    set_data(slot.param, master.to(slot.param.dtype))
        try:
            yield
        finally:
            for slot in gone:
                self._show(slot)

    def zero_gone(self) -> None:
        """Gradients that are in the place of parameters are dropped."""
        gone = [s for s in self.slots if s.gone]
        for slot in gone:
            set_grad(slot.param, None)
        self._restore(gone)

    def is_needed(self, slots: list[Slot]) -> None:
        """A unit is about to use them."""
        for slot in slots:
            if slot.gone:
                raise HybridPSError(f"{slot.name} is needed after its gradient has taken its place:"
                                    " a parameter that is used again in backward (tied, or two "
                                    "losses) needs gradients=\"separate\"" + self.facts())

    # ---- forward and backward ----

    def begin_forward(self) -> bool:
        """Whether this is an outermost forward (and not one that backward runs again)."""
        if self._works():
            return False
        self._usable()
        if self.in_backward:
            self.leave()  # the last backward ended in an exception
        train = torch.is_grad_enabled()
        if train and DistributedDataParallel._active_ddp_module is not None:
            raise HybridPSError("DistributedDataParallel" + _wrappers.WHY + self.facts())
        for made in _wrappers.made_of(m for root in self.modules for m in root.modules()) if train else ():
            raise HybridPSError(made + _wrappers.WHY + self.facts())
        if not self.inside:
            self.enter()  # belongs to what went before, so that all iterations are alike
            if not train or self.fresh:
                self.pool.iteration("train" if train else "eval")
            self.fresh = self.fresh and not train
        return True

    def end_forward(self, out: Any) -> None:
        """An outermost forward has ended."""
        if not any(t.requires_grad for t in tensors_of(out)):
            self.leave()

    @uncompiled
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
            if self.depth == 0 and not self.graph_grows:
                self.leave()
            self.graph_grows = False

    def _unpin_calls(self) -> None:
        for unit in self.units:
            for call in list(unit.calls):
                call.after()

    @uncompiled
    def _accumulated(self, slot: Slot) -> None:
        grad = raw_grad(slot.param)
        if grad is None or not self.inside or self.closed:
            return
        if not grad.is_sparse:
            set_grad(slot.param, None)
            try:
                if self.group is not None:
                    grad = self.group.allreduce(grad, "mean", slot.name)
                self._add_up(slot, grad)
            except BaseException:
                self.leave()  # an exception in backward ends it
                raise
        elif self.group is not None:
            raise HybridPSError(f"{slot.name} has a sparse gradient, which ranks can't sum up: "
                                "use sparse=False" + self.facts())
        for unit in slot.units:
            if unit.calls:
                unit.accumulated(slot)

    def _add_up(self, slot: Slot, grad: torch.Tensor) -> None:
        if slot.reuse:
            self.is_needed([slot])
        held = not slot.reuse and any([unit.calls for unit in slot.units])
        if not held:
            self.pool.access(slot.grad_bundle)
        if slot.grad_device is None:
            slot.grad_device = slot.view(slot.gradient, DEVICE)
        there = slot.grad_device
        if not (slot.has_grad or slot.cuda) and grad.stride() == there.stride() and \
                grad.dtype == there.dtype:
            self.pool.grad_put(slot.address(slot.gradient), grad.data_ptr(),
                               grad.numel() * grad.element_size())
        else:
            with torch.no_grad():
                there.add_(grad) if slot.has_grad else there.copy_(grad)
        slot.has_grad = True
        if not held:
            self.pool.release(slot.grad_bundle, _abi.AFTER_BWD)


class _Alone:
    """The collectives of one process."""

    @staticmethod
    def allreduce(tensor: torch.Tensor, op: str = "sum", name: str = "") -> torch.Tensor:
        if op not in ("sum", "mean"):
            raise HybridPSError(f"{name}: op is {op!r}, it may be 'sum' or 'mean'")
        return tensor.detach()

    @staticmethod
    def broadcast(tensor: torch.Tensor, src: int = 0, name: str = "") -> torch.Tensor:
        if src != 0:
            raise HybridPSError(f"{name}: src is {src}, there are ranks 0 to 0")
        return tensor.detach()


def _none() -> int:
    return 0

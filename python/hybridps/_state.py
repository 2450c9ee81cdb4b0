"""What one process has in managed memory: the pool, parameters by slot, units, and the current
phase.

This is the bookkeeping with small operations on it; _phases.py moves between phases. Nothing here
knows about modules: other files fill and use ``modules``, ``units`` and ``optimizers``.
"""
from __future__ import annotations

import collections
import os
import time
import weakref
from typing import Any, Callable, Iterable, Sequence

import torch

from . import _abi
from ._abi import DEVICE, HOLD, HOST, Bundle, HybridPSError, check_flag, check_whole
from ._group import Group
from ._home import Homes, Shown
from ._one_copy import OneCopy
from ._params import raw_grad
from ._slots import Slot
from ._tensors import view
from ._turn import BackwardTurn, Turn

STATES = ("FREE", "HOLD", "COMPUTE", "AFTER_FWD", "AFTER_BWD")  # as hybridps.h counts them


def check_options(gradients: str, optimizer_device: str, group: Any, reserved_bytes: Any,
                  **flags: Any) -> None:
    """Before there is a pool."""
    for name, value in flags.items():
        check_flag(name, value)
    if group is not None and not isinstance(group, Group):
        raise HybridPSError(f"group is {group!r}: it must be a hybridps.Group, such as "
                            "hybridps.Group.torch()")
    if reserved_bytes is not None and not callable(reserved_bytes):
        raise HybridPSError(f"reserved_bytes is {reserved_bytes!r}: it must be a function that "
                            "returns the current number")
    if gradients not in ("separate", "reuse"):
        raise HybridPSError(f"gradients is {gradients!r}, it must be 'separate' or 'reuse'")
    if optimizer_device not in ("auto", "host", "device"):
        raise HybridPSError(f"optimizer_device is {optimizer_device!r}, it must be 'auto', 'host' "
                            "or 'device'")


def _checked(reserved_bytes: Callable[[], int]) -> Callable[[], int]:
    return lambda: check_whole("the result of reserved_bytes", reserved_bytes())


def check_one_copy(device: str, mode: str | None, gradients: str, optimizer_device: str,
                   group: Group | None, shard: bool) -> None:
    """Before there is a pool."""
    wants = {"a group": group is not None, "shard=True": shard,
             "an emu device": not device.startswith("cuda"),
             "mode=\"copy\"": mode in (None, "copy"),
             "gradients=\"separate\"": gradients == "separate",
             "steps on the host": optimizer_device != "device"}
    missing = [what for what, there in wants.items() if not there]
    if missing:
        raise HybridPSError(f"one_copy=True requires {', '.join(missing)}")


class State:
    """The bookkeeping of one client. The options are Client's."""

    def __init__(self, pool: _abi.Pool, device: str, mode: str, gradients: str,
                 optimizer_device: str, group: Group | None, shard: bool,
                 reserved_bytes: Callable[[], int] | None) -> None:
        self.pool = pool
        self.homes = Homes(pool)
        self.limited = pool.stats()["host_limit"] > 0
        self.cuda = ":".join(device.split(":")[:2]) if device.startswith("cuda") else None
        self.device, self.mode = device, mode
        whole = self.cuda == device  # the driver did not count what torch holds as free
        self.reserved_bytes = (_checked(reserved_bytes) if reserved_bytes is not None else
                               self._reserved if whole else _none)
        self._reserved_before = torch.cuda.memory_reserved(self.cuda) if whole else 0
        self.gradients, self.optimizer_device = gradients, optimizer_device
        self.group = group if group is not None and group.world > 1 else None
        self.shard = shard and self.group is not None
        self.one: OneCopy | None = None  # the ranks of this host share parameters and gradients
        self.defers = False  # no_sync: gradients are not reduced now
        self.pid = os.getpid()
        self.on_gradient: Callable[[Slot], None] = _ignore  # called when autograd has completed one
        self.slots: list[Slot] = []
        self.by_param: dict[int, Slot] = {}
        self.units: list[Any] = []
        self.modules: list[Any] = []
        self.optimizers: list[Any] = []
        self.lazy = False  # gradients stay where they are after backward
        self.rests = False  # and so do parameters, until they are read
        self.inside = False
        self.grads_away = False
        self.grads_seen = False  # outside, by code that may have written them
        self.in_backward = False
        self.backward: weakref.ref[BackwardTurn] = lambda: None  # type: ignore  # the running one
        self.depth = 0
        self.running: list[Any] = []  # units whose forward is running, the innermost last
        self.loose: list[Bundle] = []  # accessed on the device outside units, until leave
        self.graph_grows = False  # the running backward creates a graph
        self.graph_waits = False  # that graph waits for its backward
        self.by_hand = False  # the caller uses access and release and knows where parameters are
        self.turn = Turn()
        self.fresh = True  # the next training forward begins an iteration
        self.closed = False
        self.layouts = 0
        self.held: dict[int, None] = {}  # tensors accessed on the host outside a pass
        self._bundles: dict[tuple, Bundle] = {}
        self._spare: dict[int, list[int]] = {}
        # By kind and bytes: replaced tensors that users still show, and those that no user shows
        # any more.
        self.left: dict[tuple[int, int], list[tuple[int, Shown]]] = {}
        self._free: dict[tuple[int, int], list[int]] = {}

    def _reserved(self) -> int:
        return max(torch.cuda.memory_reserved(self.cuda) - self._reserved_before, 0)

    def facts(self) -> str:
        """A text for messages: what is where."""
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
            for tensor in (slot.tensor, slot.grad, *(i for held in slot.states.values()
                                                     for i, _ in held.values())):
                info = self.pool.tensor(tensor) if tensor >= 0 else {}
                for where in ("on_device", "on_host"):
                    if info.get(where):
                        kind, state = _abi.KINDS[info["kind"]], STATES[info["state"]]
                        found[where, kind][state] += info["bytes"]
        texts: dict[tuple[str, str], str] = collections.defaultdict(str)
        for key, states in found.items():
            texts[key] = f" ({', '.join(f'{state} {size}' for state, size in states.items())})"
        return texts

    def usable(self) -> None:
        if self.closed:
            raise HybridPSError("this client is closed")
        if _abi.forked(self.pid):
            raise HybridPSError(f"the client of process {self.pid} (device {self.device}, "
                                f"{len(self.slots)} parameters) is used after a fork, in process "
                                f"{os.getpid()}: open another one in the child")

    def slot(self, param: torch.Tensor) -> Slot:
        self.usable()
        slot = self.by_param.get(id(param))
        if not isinstance(param, torch.Tensor):
            raise HybridPSError(f"{param!r:.40} is given where a parameter belongs")
        if slot is None or slot.param is not param:
            raise HybridPSError(f"a tensor of shape {tuple(param.shape)} is not registered with "
                                "this client: register its module first" + self.facts())
        return slot

    def collective(self) -> Any:
        if self.group is not None:
            return self.group
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Group.torch()
        return _Alone()

    def chunk_bytes(self, tensors: Iterable[int]) -> dict[int, tuple[int, int]]:
        """For each tensor, its chunk and the chunk's bytes."""
        return {tensor: self.pool.chunk(tensor) for tensor in tensors}

    def fit(self, tensors: Iterable[int]) -> bool:
        """Whether the device has room for all their chunks at once."""
        return sum(dict(self.chunk_bytes(tensors).values()).values()) <= self.pool.stats()["avail"]

    def layout(self) -> None:
        """New chunks do not belong to the running iteration, so it ends here; the next forward
        begins one."""
        self.pool.iteration(None)
        self.fresh = True
        self.layouts += 1
        self.pool.layout()

    def view(self, tensor: int, where: int, like: torch.Tensor,
             dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor's memory in that place, with the shape and strides of ``like``."""
        cuda = self.cuda if where == DEVICE else None
        return view(self.pool.address(tensor, where), like.size(), like.stride(),
                    dtype or like.dtype, cuda, None if cuda else self.homes.of(tensor, where))

    def add_filled(self, what: list[tuple[str, int, torch.Tensor, torch.Tensor]]) -> list[int]:
        """Add tensors (name, kind, value, tensor whose memory layout they get) with their values;
        they are not accessed afterwards."""
        ids = [self.pool.add(n, k, v.numel() * v.element_size()) for n, k, v, _ in what]
        if not ids:
            return ids
        self.layout()
        for tensor, (_, _, value, like) in zip(ids, what):
            with self.pool.on_host(tensor, write=True):
                view(self.pool.address(tensor, HOST), like.size(), like.stride(),
                     value.dtype).copy_(value.detach())
        return ids

    def take_spare(self, name: str, size: int) -> int:
        """A tensor of that size without content or owner, reused if possible."""
        if self._spare.get(size):
            return self._spare[size].pop()
        tensor = self.pool.add(name, _abi.OTHER, size)
        self.layout()
        return tensor

    def give_spare(self, tensor: int, size: int) -> None:
        self.pool.drop([tensor])
        self._spare.setdefault(size, []).append(tensor)

    def replace(self, tensors: list[tuple[str, int, Shown]]) -> list[int]:
        """For each (name, tensor, its views), after our views were dropped: a tensor like it for
        new content. It is the same tensor, or another one if a user still shows it."""
        self.sweep()
        out, added = [], False
        for name, tensor, shown in tensors:
            if not shown():
                out.append(tensor)
                continue
            key = self.leave_to_users(tensor, shown)
            if self._free.get(key):
                out.append(self._free[key].pop())
            else:
                out.append(self.pool.add(name, key[0], key[1]))
                added = True
            self.layouts += 1
        if added:
            self.layout()
        return out

    def leave_to_users(self, tensor: int, shown: Shown) -> tuple[int, int]:
        """Leave a tensor to users until they no longer show it. Returns its kind and bytes."""
        info = self.pool.tensor(tensor)
        key = (info["kind"], info["bytes"])
        self.left.setdefault(key, []).append((tensor, shown))
        if tensor in self.held:
            self.pool.release(self.bundle([tensor], HOST), HOLD)
            del self.held[tensor]
        self.layouts += 1
        return key

    def take_back(self, value: torch.Tensor) -> int | None:
        """The tensor left to users that this value's memory belongs to."""
        for pairs in self.left.values():
            for pair in pairs:
                if self.pool.address(pair[0], HOST) == value.data_ptr():
                    pairs.remove(pair)
                    return pair[0]
        return None

    def sweep(self) -> None:
        """Discard tensors that users have stopped showing."""
        for key, pairs in self.left.items():
            gone = [tensor for tensor, shown in pairs if not shown()]
            if gone:
                self.pool.drop(gone)
                self._free.setdefault(key, []).extend(gone)
                pairs[:] = [pair for pair in pairs if pair[0] not in gone]

    def bundle(self, ids: Sequence[int], where: int, write: bool = False) -> Bundle:
        """A bundle, cached by its arguments because phases repeat."""
        key = (where, write, *ids)
        found = self._bundles.get(key)
        if found is None:
            if len(self._bundles) >= 256:
                self._bundles.clear()
            found = self._bundles[key] = Bundle(ids, where, write)
        return found

    def hold(self, ids: Iterable[int]) -> None:
        """Access these on the host from now on, until the next forward."""
        ids = [i for i in ids if i not in self.held]
        self.pool.access(self.bundle(ids, HOST))
        self.held.update(dict.fromkeys(ids))

    def held_outside(self, lazy: bool) -> list[int]:
        ids = [] if self.rests else [s.tensor for s in self.slots if not (lazy and s.gone)]
        if not lazy:
            ids += [s.grad for s in self.slots if s.has_grad and not s.reuse]
        for stepper in self.optimizers:
            ids += stepper.on_host()
        return ids

    def is_needed(self, slots: list[Slot]) -> None:
        """Check slots that a unit is about to use."""
        for slot in slots:
            if slot.gone:
                raise HybridPSError(f"{slot.name} is needed after its gradient has taken its place:"
                                    " a parameter that is used again in backward (tied, or two "
                                    "losses) needs gradients=\"separate\"" + self.facts())

    def check_master(self, slot: Slot) -> None:
        """Check that the parameter's values survive a gradient in its place."""
        elsewhere = self.shard and slot.owner != self.group.rank
        if slot.master is None and not elsewhere:
            raise HybridPSError(f"the gradient of {slot.name} would replace its values, of which "
                                "no optimizer has a float32 copy: gradients=\"reuse\" is for "
                                "parameters that native Adam steps; freeze it, or use "
                                "gradients=\"separate\"" + self.facts())

    def refuse_grad_hook(self, name: str) -> None:
        raise HybridPSError(f"{name}: no hooks after accumulation on managed parameters, whose "
                            "gradient has gone to the device by then: register_hook sees it while "
                            "backward runs, p.grad has it afterwards" + self.facts())

    def deal_out(self, slots: Iterable[Slot]) -> None:
        """Assign each parameter to the rank that has least, the longest first; the same on all
        ranks."""
        load = [0] * self.group.world
        for slot in sorted(slots, key=lambda s: -s.param.numel()):
            slot.owner = load.index(min(load))
            load[slot.owner] += slot.param.numel()

    def check_reduced(self, slots: Iterable[Slot]) -> None:
        """Check before a step that gradients were reduced."""
        for slot in slots:
            if slot.unreduced and raw_grad(slot.param) is not None:
                raise HybridPSError(f"step by the gradient of {slot.name}, which is this rank's "
                                    "alone (no_sync): the last backward before a step is outside "
                                    "of no_sync" + self.facts())

    def works(self) -> bool:
        """Whether a forward or a backward is running, whose order must not change."""
        if self.depth > 0 or not self.in_backward:
            return self.depth > 0
        if self.cuda and not self.turn.mine():
            self._await_autograd()
        return self.backward() is not None

    def _await_autograd(self) -> None:
        """On CUDA a backward runs in an autograd thread, which drops a failed one shortly after its
        caller gets the exception."""
        until = time.monotonic() + 0.1
        while self.backward() is not None and time.monotonic() < until:
            time.sleep(0.0005)

    def keep_all(self) -> None:
        """Backward creates a graph (create_graph=True), and a pass through that needs the
        parameters in an unknown order. They stay until a backward without a graph has ended. If
        there is no room for them and the gradients, absent ones are read by faults."""
        if self.graph_grows:
            return
        if self.cuda or self.fit([i for s in self.slots for i in (s.tensor, s.grad) if i >= 0]):
            self.keep_loose([s.tensor for s in self.slots])
        self.graph_grows = self.graph_waits = True

    def alone(self) -> bool:
        """Whether torch itself may add to a gradient on the host."""
        return not self.cuda and self.group is None and self.gradients == "separate"

    def unpin_calls(self) -> None:
        for unit in self.units:
            for call in list(unit.calls):
                call.after()

    def keep_loose(self, tensors: list[int]) -> None:
        bundle = Bundle(tensors, DEVICE)
        self.pool.access(bundle)
        self.loose.append(bundle)

    def let_loose(self, bundle: Bundle) -> None:
        """Stop keeping it on the device."""
        while bundle in self.loose:
            self.loose.remove(bundle)
            self.pool.release(bundle)


class _Alone:
    """The collectives of one process."""

    @staticmethod
    def allreduce(tensor: torch.Tensor, op: str = "sum", name: str = "") -> torch.Tensor:
        if op not in ("sum", "mean"):
            raise HybridPSError(f"{name}: op is {op!r}, it must be 'sum' or 'mean'")
        return tensor.detach()

    @staticmethod
    def broadcast(tensor: torch.Tensor, src: int = 0, name: str = "") -> torch.Tensor:
        if src != 0:
            raise HybridPSError(f"{name}: src is {src}, there are ranks 0 to 0")
        return tensor.detach()


def _none() -> int:
    return 0


def _ignore(slot: Slot) -> None:
    pass

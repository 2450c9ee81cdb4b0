"""The two phases of a client, and the transitions between them.

At any time the client is in one of two phases.

Outside (before the first forward, after backward, around an optimizer's step): ``p.data`` and
``p.grad`` are host memory that any code may read and write in place: clipping, optimizers,
schedulers, averaging, ``state_dict``. Optimizers that step on the device leave gradients where they
are until ``p.grad`` is read.

Inside (from the first forward to the end of backward): only units access anything (see _units.py),
on the device. ``p.data`` is the parameter's device memory. If its chunk is absent, the library
serves the fault of code that touches it (hybridps_serve_faults), so it can still be read and
written. On CUDA there are no such faults: a tensor that is used without access is accessed and kept
until the end of backward, or the use is refused. ``p.grad`` is None; finished gradients are summed
in managed memory.
"""
from __future__ import annotations

import contextlib
import os
import weakref
from typing import Iterable, Iterator, Sequence

import torch

from . import _abi, _hooks
from ._abi import DEVICE, FREE, HOLD, HOST, Bundle, HybridPSError
from ._home import Shown
from ._params import is_apart, is_kept, move_back, raw_data, raw_grad, set_data, set_grad
from ._slots import Slot
from ._state import State
from ._tensors import uncompiled
from ._turn import read_in_turn as in_turn


_open: weakref.WeakSet[Phases] = weakref.WeakSet()
os.register_at_fork(before=lambda: [phases.before_fork() for phases in list(_open)])


class Phases:
    """Moves a State between its phases, and handles reads of a parameter, p.data or p.grad, and
    accesses by hand."""

    def __init__(self, state: State) -> None:
        self.state = state
        _open.add(self)

    def enter(self) -> None:
        """Go from outside to inside; does nothing when inside."""
        if self.state.inside:
            return
        self._check_reuse()
        self.note_kept()
        self.state.pool.settle()
        self.add_grads([s for s in self.state.slots if s.param.requires_grad and s.hook is None])
        self.let_go()
        for slot in self.state.slots:
            param = slot.param
            grad = raw_grad(param)
            if grad is not None and not grad.is_sparse and slot.gradient >= 0:
                set_grad(param, None)
            set_data(param, slot.device if slot.device is not None else self._device(slot))
            slot.version = param._version
        self.state.grads_away = False
        self.state.inside = True

    def leave(self) -> None:
        """Go from inside to outside; does nothing when outside."""
        if not self.state.inside:
            return
        self.state.unpin_calls()
        _hooks.take_unseen(self.state)
        for bundle in self.state.loose:
            self.state.pool.release(bundle)
        self.state.loose.clear()
        self.state.sweep()
        lost = None
        try:
            self.state.pool.settle()  # writes to absent tensors become content
        except HybridPSError as error:  # about unreadable content: raised when the phase has ended
            lost = error
        state = self.state
        # After a failed pass users wrote, by faults, as if it were still running.
        failed = state.in_backward and not state.cuda and not state.works()
        _hooks.bring_moved(state)
        state.in_backward = state.graph_grows = state.graph_waits = state.by_hand = False
        left = [s for s in state.slots if s.left]
        for slot in left:
            slot.has_grad = True  # until now, for users
        self._end_grads(left)
        for slot in self.state.slots:
            if slot.has_grad or slot.given is not None:
                self._show_grad(slot)
        self.state.hold(self.state.held_outside(self.state.lazy))
        wrong = []
        for slot in self.state.slots:
            if slot.param._version != slot.version:
                slot.written = slot.suspect = True
                if not failed:
                    wrong.append(slot.name)
            self.show(slot)
        self.state.grads_away = self.state.lazy and any(s.has_grad for s in self.state.slots)
        self.state.inside = False
        if wrong:
            raise HybridPSError(f"{', '.join(wrong[:5])} written in place between forward and the "
                                "end of backward, where the device has a copy that is only read: "
                                "write before or after, or to access(p, write=True)" +
                                self.state.facts())
        if lost is not None:
            raise lost

    def let_go(self) -> None:
        """Release everything accessed on the host. What was written there counts as written, and
        dropped gradients have no content."""
        written, dropped = self._changes()
        if written:
            bundle = self.state.bundle(written, HOST, True)
            self.state.pool.access(bundle)
            self.state.pool.release(bundle, HOLD)
        gone = set(dropped)
        kept = [i for i in self.state.held if i not in gone]
        self.state.pool.release(self.state.bundle(kept, HOST), HOLD)
        if self.state.grads_away:
            self.state.pool.drop(dropped)
        else:
            self.state.pool.release(self.state.bundle(dropped, HOST), FREE)
        self.state.held = {}

    @in_turn
    def changed(self) -> None:
        """Parameters were written in an undetectable way."""
        self.leave()
        for slot in self.state.slots:
            slot.written = slot.suspect = True

    def access(self, param: torch.nn.Parameter, write: bool) -> torch.Tensor:
        """By hand; see Client."""
        state = self.state
        slot = state.by_param.get(id(param))
        if slot is None or state.closed or state.pid != _abi._process[0]:
            slot = state.slot(param)
        if not state.inside:
            self.enter()
        if slot.gone:
            raise HybridPSError(f"access of {slot.name}: its gradient has taken its place until "
                                "the optimizer's step (gradients=\"reuse\")" + state.facts())
        state.pool.access(Bundle([slot.tensor], DEVICE, True) if write else slot.bundle)
        state.by_hand, slot.suspect = True, slot.suspect or write
        slot.held += 1
        return slot.device

    def release(self, param: torch.nn.Parameter) -> None:
        """By hand; see Client."""
        state = self.state
        slot = state.by_param.get(id(param))
        if slot is None or not slot.held or state.pid != _abi._process[0]:
            slot = state.slot(param)
            if not slot.held:
                raise HybridPSError(f"release of {slot.name}: it is not accessed" + state.facts())
        state.pool.release(slot.bundle, HOLD)
        slot.held -= 1

    def _device(self, slot: Slot) -> torch.Tensor:
        slot.device = slot.view(slot.tensor, DEVICE)
        return slot.device

    def _show_grad(self, slot: Slot) -> None:
        """p.grad outside."""
        if slot.cuda:  # torch wants both on one device, and show() comes later
            set_data(slot.param, slot.host)
            slot.given = None if slot.given is None else slot.given.to(slot.host.device)
        if slot.given is None:
            set_grad(slot.param, slot.grad_host)
            slot.grad_version = slot.grad_host._version
            return
        if slot.has_grad:
            with self.state.pool.on_host(slot.grad), torch.no_grad():
                slot.given.copy_(slot.grad_host)
            self.state.pool.drop([slot.grad])
            slot.has_grad = False
        set_grad(slot.param, slot.given)

    def _leave_to_users(self, slots: list[Slot]) -> list[Slot]:
        """These gradients end. Those that users still show keep their memory, and the slots get a
        new place; returns the others."""
        shown = [s for s in slots if s.grad_shown and not s.reuse and not s.cuda]
        old = []
        for slot in shown:
            if raw_grad(slot.param) is slot.grad_host:
                set_grad(slot.param, None)
            old.append((slot.name + ".grad", slot.grad,
                        slot.left or Shown(slot.grad_home, slot.address(slot.grad))))
            slot.hide_grad()
        for slot in slots:
            slot.show_moved()
        if self.state.one is not None:
            return self.state.one.ended(slots, shown, [kept for _, _, kept in old])
        for slot, (_, before, _), tensor in zip(shown, old, self.state.replace(old)):
            slot.grad = tensor
            slot.show_grad_host()
            if tensor != before:
                slot.has_grad = False
                slot.grad_bundle = Bundle([tensor], DEVICE, True)
                for unit in slot.units:
                    unit.back = None
        return [s for s in slots if s.has_grad]

    def _end_grads(self, slots: list[Slot]) -> None:
        self.state.pool.drop([s.grad for s in self._leave_to_users(slots)])
        for slot in slots:
            slot.has_grad = False

    def note_kept(self) -> None:
        """Suspect values of 16 bits that code may have written through an earlier p.data."""
        for slot in self.state.slots:
            if slot.kept and slot.master is not None and slot.param.data_ptr() == slot.home:
                slot.kept = not slot.cuda and is_kept(slot)
                slot.suspect = slot.suspect or slot.kept

    def _changes(self) -> tuple[list[int], list[int]]:
        """Tensors written on the host since leave, and dropped gradients."""
        written, ending = [], []
        for slot in self.state.slots:
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
                slot.given = None
                if slot.has_grad:
                    ending.append(slot)
            elif slot.reuse or slot.grad < 0:
                slot.refuse_moved()
            elif not slot.shows_grad(grad):
                if grad is slot.grad_host:
                    slot.show_grad_host()
                slot.given = grad
                if slot.has_grad:
                    ending.append(slot)
            elif not self.state.grads_away and (self.state.grads_seen
                                                or grad._version != slot.grad_version):
                written.append(slot.grad)
                slot.grad_version = grad._version
        self.state.grads_seen = False
        dropped = [slot.grad for slot in self._leave_to_users(ending)]
        for slot in ending:
            slot.has_grad = False
        return written, dropped

    def _moved_away(self, slot: Slot) -> None:
        """The parameter got other memory (set_, share_memory_, a queue to another process): copy
        its values home."""
        value = raw_data(slot.param)
        slot.host = slot.view(slot.tensor, HOST)
        if slot.grad >= 0 and slot.grad_host.data_ptr() != self.state.pool.address(slot.grad, HOST):
            slot.show_grad_host()  # its own moved too
        self.assign(slot, value)
        set_data(slot.param, slot.host)

    def take_given(self, slot: Slot) -> None:
        """Copy a gradient that was assigned by hand to its place, for code that adds to it there or
        steps with it. It also stays the user's tensor."""
        with self.state.pool.on_host(slot.grad, write=True), torch.no_grad():
            slot.grad_host.copy_(slot.given)
        slot.has_grad = True

    def show(self, slot: Slot) -> None:
        """Show p.data outside. A gradient in its place is not taken for the parameter."""
        if slot.gone:
            nan = torch.full((), float("nan"), dtype=slot.param.dtype)
            set_data(slot.param, nan.expand(slot.param.shape))
        else:
            set_data(slot.param, slot.host)
        slot.version = slot.param._version

    def fetch_grads(self) -> None:
        """Fetch gradients that stayed on the device to the host."""
        if not self.state.grads_away:
            return
        self.state.hold([s.gradient for s in self.state.slots if s.has_grad])
        self.state.grads_away = False
        for slot in self.state.slots:
            if slot.has_grad:
                slot.grad_version = slot.grad_host._version

    @in_turn
    def drop_grads(self, slots: Iterable[Slot]) -> None:
        """Set p.grad = None for each, without fetching those that are not on the host."""
        if self.state.in_backward and not self.state.works():
            self.leave()  # the last backward ended in an exception
        if not self.state.inside and not self.state.grads_away:
            return
        if self.state.closed or _abi.forked(self.state.pid) or self.state.works():
            return
        slots = list(slots)
        for slot in slots:
            if slot.given is not None:
                self._end_given(slot)
        there = [s for s in slots if s.has_grad and not s.reuse]
        for slot in there:
            set_grad(slot.param, None)
        self._end_grads(there)
        slots = self.state.slots
        if self.state.grads_away and not any(s.has_grad for s in slots[:1] + slots[-1:]):
            self.state.grads_away = any(s.has_grad for s in slots)

    def grad_of(self, slot: Slot) -> torch.Tensor | None:
        """p.grad is read."""
        state = self.state
        if state.grads_seen and slot.grad_shown and not state.inside:
            return raw_grad(slot.param)  # unchanged since the last read
        return self._grad_of(slot)

    @in_turn
    def _grad_of(self, slot: Slot) -> torch.Tensor | None:
        state = self.state
        if state.inside and is_apart(slot):
            return raw_grad(slot.param)
        if state.inside and not state.closed and _abi.forked(state.pid):
            return slot.grad_host if slot.has_grad else slot.given  # a fault shows its old value
        if state.inside and not state.closed and state.works():
            if slot.away:
                state.one.refuse(f"{slot.name}.grad is another rank's until the backward has ended")
            self._take_new(slot)
            return self.grad_in_pass(slot) if slot.has_grad else slot.given
        self.look_at_grad(slot)
        return raw_grad(slot.param)

    @in_turn
    def assign_grad(self, slot: Slot, value: torch.Tensor | None) -> bool:
        """p.grad = value. Returns whether that is all there is to do."""
        state = self.state
        slot.note_assigned(value is not None)
        lives = not (state.closed or _abi.forked(state.pid))
        if state.inside and lives and (state.works() or not slot.reuse):
            return self._assign_in_pass(slot, value)
        if value is None:
            self.drop_grads([slot])
        else:
            self.look_at_grad(slot)
        return False

    def _assign_in_pass(self, slot: Slot, value: torch.Tensor | None) -> bool:
        """Within or between forward and backward: backward adds to the assigned gradient."""
        if is_apart(slot):
            set_grad(slot.param, None)
            if slot.gradient < 0:
                return False
        if not self.state.works():
            self.drop_grads([slot])
        else:
            self._take_new(slot)
            self._end_given(slot)
            if slot.has_grad:
                slot.give_up_grad()
                if slot.left and self.state.one is not None:
                    self.state.one.refuse_kept(slot)
                slot.has_grad = False  # a unit that has it accessed ends it when done
                self.state.let_loose(slot.grad_bundle)
                if not slot.left and not any(unit.calls for unit in slot.units):
                    self.state.pool.drop([slot.gradient])
        if not self.state.inside or value is not None and value.is_sparse:
            return False
        slot.given = value
        return True

    def _take_new(self, slot: Slot) -> None:
        """Called for a hook of the AccumulateGrad node that is older than ours: the new gradient is
        still where autograd put it."""
        if raw_grad(slot.param) is not None and not is_apart(slot):
            self.state.on_gradient(slot)

    def _end_given(self, slot: Slot) -> None:
        """p.grad is no longer the tensor that was assigned to it. As in torch, that tensor contains
        what backward has added so far."""
        if slot.given is not None and slot.has_grad and self.state.inside:
            with torch.no_grad():
                slot.given.copy_(self.grad_in_pass(slot))
        slot.given = None

    def grad_in_pass(self, slot: Slot) -> torch.Tensor:
        """The gradient within forward or backward, for hooks of AccumulateGrad nodes. They may
        write it, so the host's copy is invalid."""
        try:
            self.state.pool.access(slot.grad_bundle)
        except HybridPSError:
            if slot.cuda:
                raise  # else faults on it are served
        else:
            if slot.cuda:
                self.state.loose.append(slot.grad_bundle)
            else:
                self.state.pool.release(slot.grad_bundle, _abi.AFTER_BWD)
        if slot.grad_device is None:
            slot.grad_device = slot.view(slot.gradient, DEVICE)
        slot.grad_shown = True
        return slot.grad_device

    def look_at_grad(self, slot: Slot) -> None:
        """p.grad is read: between forward and backward, what backward will add to."""
        if self.state.closed or _abi.forked(self.state.pid):
            return
        if self.state.inside:
            if not slot.has_grad and slot.given is None or self.state.works():
                return
            self._ask_to_leave(slot.name + ".grad")
        self.fetch_grads()
        slot.grad_shown = True
        if not self.state.grads_seen:
            self.state.grads_seen = True
            self.open([s.grad for s in self.state.slots if s.has_grad and not s.reuse])

    @uncompiled
    @in_turn
    def taken(self, param: torch.nn.Parameter) -> None:
        """A parameter of a module that is not running is read."""
        slot = self.state.by_param.get(id(param))
        if slot is None or not self.state.inside:
            return
        if self.state.running:
            if not any(unit in slot.units for unit in self.state.running):
                try:
                    self.state.running[-1].learn(slot)
                except HybridPSError:
                    if self.state.cuda:
                        raise
        elif self.state.works():  # a hook in backward
            if self.state.cuda:
                self.state.keep_loose([slot.tensor])
        else:
            self.listed()

    def _ask_to_leave(self, what: str) -> None:
        if self.state.graph_waits and not self.state.alone():
            raise HybridPSError(f"{what} is requested between a backward with create_graph=True "
                                "and the one that goes through its graph, which keeps all "
                                "parameters on the device: ask (or call zero_grad) before the "
                                "first of them, or after the second" + self.state.facts())
        self.leave()

    def welcome(self, param: torch.nn.Parameter) -> None:
        """A parameter is assigned to a managed module."""
        if not isinstance(param, torch.nn.Parameter):
            return  # temporarily, by functional_call; perhaps torch.func's, without memory
        data, state = raw_data(param), self.state
        if id(param) not in state.by_param and any(data.data_ptr() == s.host.data_ptr()
                                                   for s in state.slots):
            set_data(param, data.clone())

    @in_turn
    def listed(self, slots: Sequence[Slot] = ()) -> None:
        """A module's parameters are read, perhaps only inspected."""
        if not self.state.inside or self.state.closed or _abi.forked(self.state.pid):
            return
        if self.state.graph_waits or self.state.by_hand:
            return  # they are there
        if not self.state.works():
            self.leave()
        elif slots and self.state.cuda:
            with contextlib.suppress(HybridPSError):  # their shapes need no memory
                self.state.keep_loose([s.tensor for s in slots])

    def runs(self) -> bool:
        """Whether a forward or a backward of the managed modules is running in this process."""
        state = self.state
        return not state.closed and not _abi.forked(state.pid) and state.inside and state.works()

    def fetch(self, slot: Slot) -> None:
        """Code takes the parameter's memory to read it, perhaps by a system call, which serves no
        fault. Before the backward of a gradient graph it stays on the host, like p.data."""
        if self.state.graph_waits and self.state.alone() and not self.state.works():
            self._look(slot)
        elif self.state.rests and slot.tensor not in self.state.held:
            self._fetch(slot)

    @in_turn
    def _fetch(self, *slots: Slot) -> None:
        state = self.state
        if not (state.inside or state.closed or _abi.forked(state.pid)):
            state.hold(s.tensor for s in slots if not s.gone)

    def before_fork(self) -> None:
        """DataLoader workers install their own SIGSEGV handler, so no faults are served there. A
        pass that has failed, or waits for its backward, is left: the child sees later writes."""
        if not self.state.cuda:
            with contextlib.suppress(HybridPSError):
                self.listed()
        if self.state.rests:
            with contextlib.suppress(HybridPSError):
                self._fetch(*self.state.slots)

    def look(self, slot: Slot) -> None:
        """p.data is read."""
        slot.kept = True
        if self.state.inside or not (slot.written and slot.suspect):
            self._look(slot)

    @in_turn
    def _look(self, slot: Slot) -> None:
        if self.state.closed or _abi.forked(self.state.pid):
            return
        if self.state.inside:
            if self.state.works():
                if self.state.turn.mine():  # a pin would block the thread that has the turn
                    self._may_write(slot)
                return
            self._ask_to_leave(slot.name + ".data")
        if not slot.written and not slot.gone:
            self.open([slot.tensor])
        slot.written = slot.suspect = True

    def open(self, tensors: list[int]) -> None:
        """Readers of p.data or p.grad may write there, perhaps by a system call, for which no fault
        is served. So nothing of them stays on the device."""
        if not self.state.cuda:
            bundle = self.state.bundle(tensors, HOST, True)
            with contextlib.suppress(HybridPSError):  # accessed by hand: a fault is served
                self.state.pool.access(bundle)
                self.state.pool.release(bundle, HOLD)

    def _may_write(self, slot: Slot) -> None:
        """p.data is read in a forward or a backward, perhaps to write it."""
        where = self.state.pool.tensor(slot.tensor)
        if self.state.cuda or (where["on_device"] and where["on_host"]):  # else a fault reports it
            bundle = Bundle([slot.tensor], DEVICE, True)
            self.state.pool.access(bundle)  # invalidates the host's copy
            if self.state.cuda:
                self.state.loose.append(bundle)
            else:
                self.state.pool.release(bundle)
        slot.suspect = True

    @in_turn
    def assign(self, slot: Slot, value: torch.Tensor) -> None:
        """p.data = value."""
        param = slot.param
        same = (value.shape == param.shape and value.dtype == param.dtype and
                value.device in (slot.host.device, raw_data(param).device))
        if not same or slot.gone:
            raise HybridPSError(
                f"{slot.name}.data = a tensor of {tuple(value.shape)}, {value.dtype}, on "
                f"{value.device}: the parameter is managed as {tuple(param.shape)}, {param.dtype}"
                f"{', and its gradient is in its place' if slot.gone else ''}; close the client "
                "first" + self.state.facts())
        self.state.usable()
        for other in self.state.slots:
            if other is not slot and other.shows(value):
                raise HybridPSError(
                    f"{slot.name}.data = memory of {other.name}: two parameters in the same memory "
                    "can't be managed; copy_() the values, or assign a clone()" +
                    self.state.facts())
        if slot.shows(value):
            self.look(slot)
            return
        self.look(slot)
        if not (self.state.inside or slot.reuse or slot.cuda):
            self._leave_data_to_users(slot, value)
        if slot.shows(value):
            return
        with torch.no_grad():
            (raw_data(param) if self.state.inside else slot.host).copy_(value)

    def _leave_data_to_users(self, slot: Slot, value: torch.Tensor) -> None:
        """New values arrive. If a user, or a graph, still shows the old ones (backup = p.data),
        these stay, and the parameter gets a new place, or an old one that has the values."""
        state, before = self.state, slot.tensor
        if state.one is not None:
            return state.one.refuse_shown(slot)
        shown = Shown(slot.home, slot.address(slot.tensor))
        back = state.take_back(value) if value.stride() == slot.host.stride() else None
        slot.host = slot.device = None
        set_data(slot.param, torch.empty_strided(slot.param.size(), slot.param.stride(),
                                                 dtype=slot.param.dtype))
        if back is not None:
            state.leave_to_users(before, shown)
            slot.tensor = back
        else:
            slot.tensor, = state.replace([(slot.name, before, shown)])
        slot.host = slot.view(slot.tensor, HOST)
        slot.home = slot.host.data_ptr()
        if slot.tensor != before:
            slot.bundle = Bundle([slot.tensor], DEVICE)
            slot.write = Bundle([slot.tensor], HOST, True)
            for unit in slot.units:
                unit.bundle = Bundle([s.tensor for s in unit.slots], DEVICE)
                unit.back = None
            with state.pool.on_host(slot.tensor, write=back is None):
                pass
            state.hold([slot.tensor])
        set_data(slot.param, slot.host)

    def _check_reuse(self) -> None:
        """Check before a forward that all parameters are there."""
        gone = [s for s in self.state.slots if s.gone]
        if not gone:
            return
        kept = [s.name for s in gone if raw_grad(s.param) is not None]
        if kept:
            raise HybridPSError(f"the gradient of {kept[0]} (and {len(kept) - 1} more) is in the "
                                "place of the parameter, which is needed now: with gradients="
                                "\"reuse\" a step or zero_grad comes first, and accumulation needs "
                                "gradients=\"separate\"" + self.state.facts())
        self.restore(gone)

    def restore(self, slots: list[Slot]) -> None:
        """Their gradients were dropped: restore the values from the masters."""
        if not slots:
            return
        self.state.hold(s.tensor for s in slots)
        for slot in slots:
            if slot.master is not None:
                tensor, master = slot.master
                with self.state.pool.on_host(tensor), torch.no_grad():
                    slot.host.copy_(master)
            if self.state.shard:
                self.open([slot.tensor])
                self.state.group.broadcast_(slot.host, slot.owner, slot.name)
            slot.has_grad = False
            slot.written = True
            self.show(slot)

    @contextlib.contextmanager
    def all_shown(self) -> Iterator[None]:
        """Outside, with every parameter's values in p.data."""
        self.leave()
        self.state.hold(s.tensor for s in self.state.slots if not s.gone)
        gone = [s for s in self.state.slots if s.gone]
        for slot in gone:
            if slot.master is not None:
                tensor, master = slot.master
                with self.state.pool.on_host(tensor):
                    set_data(slot.param, master.to(slot.param.dtype))
        try:
            yield
        finally:
            for slot in gone:
                self.show(slot)

    def zero_gone(self) -> None:
        """Drop gradients that are in the place of parameters."""
        gone = [s for s in self.state.slots if s.gone]
        for slot in gone:
            set_grad(slot.param, None)
        self.restore(gone)

    def add_grads(self, slots: Iterable[Slot]) -> None:
        slots = list(slots)
        if slots and self.state.one is not None and not self.state.one.begins:
            self.state.one.refuse(f"{slots[0].name} was frozen when it came under management: thaw "
                                  "it before")
        separate = [s for s in slots if not s.reuse]
        for slot in separate:
            size = slot.param.numel() * slot.param.element_size()
            slot.grad = self.state.pool.add(slot.name + ".grad", _abi.GRAD, size)
        if separate:
            self.state.layout()
        for slot in slots:
            slot.show_grad_host()
            slot.grad_bundle = Bundle([slot.gradient], DEVICE, True)
            slot.hook = _hooks.add(slot)

    def end(self) -> HybridPSError | None:
        """Give parameters and gradients separate memory again. Returns an earlier error."""
        for slot in self.state.slots:
            if slot.hook is not None:
                slot.hook.remove()
        if _abi.forked(self.state.pid):
            return None
        wrong = None
        try:
            self.leave()
        except HybridPSError as error:  # of an earlier operation; everything is given back first
            wrong = error
        self.give_back()
        return wrong

    def give_back(self) -> None:
        """What is shown on the host stays where it is (see _home.py); on CUDA it is copied."""
        state = self.state
        if state.cuda or state.gradients == "reuse":
            self.fetch_grads()
        self.restore([s for s in state.slots if s.gone and raw_grad(s.param) is None])
        for slot in state.slots:
            if slot.gone and slot.master is not None:
                with state.pool.on_host(slot.master[0]):
                    move_back(slot, slot.master[1], slot.host)
            elif state.cuda:
                move_back(slot, slot.host, raw_grad(slot.param))
        for stepper in state.optimizers:
            stepper.close()
        for slot in state.slots:
            slot.host = slot.device = slot.grad_host = slot.grad_device = None
            slot.states.clear()
            slot.there.clear()

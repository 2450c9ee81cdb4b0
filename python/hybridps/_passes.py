"""Forward and backward of managed modules: where an iteration begins and ends, and what happens to
finished gradients."""
from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _abi, _hooks, _wrappers
from ._abi import DEVICE, HybridPSError
from ._adam import keep_written
from ._params import raw_grad, set_grad
from ._phases import Phases
from ._slots import Slot
from ._tensors import tensors_of, uncompiled
from ._turn import BackwardTurn


class Passes:
    """What units and autograd's hooks call."""

    def __init__(self, phases: Phases) -> None:
        self.phases, self.state = phases, phases.state
        self.state.on_gradient = self.accumulated

    def begin_forward(self) -> bool:
        """Whether this is an outermost forward, not one that backward recomputes."""
        if self.state.works():
            return False
        self.state.usable()
        if self.state.in_backward:
            if self.state.one is not None:
                self.state.one.forget()
            self.phases.leave()  # the last backward ended in an exception
        train = torch.is_grad_enabled()
        if train and DistributedDataParallel._active_ddp_module is not None:
            raise HybridPSError("DistributedDataParallel" + _wrappers.WHY + self.state.facts())
        roots = self.state.modules if train else ()
        for made in _wrappers.made_of(m for root in roots for m in root.modules()):
            raise HybridPSError(made + _wrappers.WHY + self.state.facts())
        if not self.state.inside:
            self.phases.enter()  # part of the previous iteration, so that all are alike
            if not train or self.state.fresh:
                self.state.pool.iteration("train" if train else "eval")
            self.state.fresh = self.state.fresh and not train
        return True

    def end_forward(self, out: Any) -> None:
        """An outermost forward has ended."""
        if not any(t.requires_grad for t in tensors_of(out)):
            self.phases.leave()

    @uncompiled
    def outer_backward(self, gradient: Any = None) -> None:
        """Backward has reached the output of an outermost forward."""
        self.begin_backward()

    def begin_backward(self) -> bool:
        """False if this backward is no longer one of parameters in the pool."""
        if self.state.closed:
            return False
        state = self.state
        if state.in_backward and state.turn.mine() and state.backward() is not None:
            return True
        backward = BackwardTurn(state.turn, self._end_backward)
        if state.in_backward:
            self.phases.leave()  # the last one ended in an exception
        self.phases.enter()
        state.in_backward, state.backward = True, weakref.ref(backward)
        torch.autograd.Variable._execution_engine.queue_callback(backward)
        return True

    def _end_backward(self) -> None:
        if self.state.in_backward and not self.state.closed:
            self.state.in_backward = False
            self.state.unpin_calls()
            if self.state.one is not None:
                _hooks.take_unseen(self.state)
            if not self.state.defers:
                for slot in self.state.slots:  # not reached by this backward
                    if slot.waits:
                        self._reduce(slot)
            if self.state.depth == 0 and not self.state.graph_grows:
                if self.state.one is not None:
                    self.state.one.publish_gradients()
                self.phases.leave()
            self.state.graph_grows = False

    @uncompiled
    def accumulated(self, slot: Slot) -> None:
        grad = raw_grad(slot.param)
        if grad is None or self.state.closed:
            return
        if not self.state.inside:
            if self.state.group is not None and not _abi.forked(self.state.pid):
                self._arrived_outside(slot, grad)
            return
        if not grad.is_sparse:
            set_grad(slot.param, None)
            try:
                self._arrived(slot, grad)
            except BaseException:
                if self.state.one is not None:
                    self.state.one.forget()
                self.phases.leave()  # an exception in backward ends the pass
                raise
        elif self.state.group is not None:
            self._refuse_sparse(slot)
        for unit in slot.units:
            if unit.calls:
                unit.accumulated(slot)

    def _arrived_outside(self, slot: Slot, grad: torch.Tensor) -> None:
        """Of a loss that no module's forward has computed: torch has summed it where p.grad is."""
        if grad.is_sparse:
            self._refuse_sparse(slot)
        slot.unreduced = self.state.defers
        if not self.state.defers:
            with torch.no_grad():
                grad.copy_(self.state.group.mean_of(grad, slot.name))

    def _refuse_sparse(self, slot: Slot) -> None:
        raise HybridPSError(f"{slot.name} has a sparse gradient, which ranks can't sum up: use "
                            "sparse=False" + self.state.facts())

    def _arrived(self, slot: Slot, grad: torch.Tensor) -> None:
        """Each gradient becomes the mean over all ranks. Within no_sync it stays this rank's own,
        until the first backward after it."""
        state = self.state
        slot.unreduced = slot.waits
        if state.one is not None and not state.defers:
            state.one.arrived(slot)
        if grad.requires_grad and state.alone():
            self._add_with_graph(slot, grad)
        elif state.group is None:
            self._add_up(slot, grad)
        elif state.defers:
            self._add_up(slot, grad)
            slot.unreduced = True
        elif slot.unreduced:
            self._add_up(slot, grad)
            self._reduce(slot)
        else:
            grad = state.group.mean_of(grad, slot.name)
            if not slot.away:
                self._add_up(slot, grad)
                if state.one is not None:
                    state.one.summed(slot)

    def _reduce(self, slot: Slot) -> None:
        """Replace this rank's sum by the mean over all ranks."""
        slot.unreduced = False
        if not slot.has_grad:  # it was assigned by hand
            with torch.no_grad():
                slot.given.copy_(self.state.group.mean_of(slot.given, slot.name))
            return
        self.state.pool.access(slot.grad_bundle)
        try:
            with torch.no_grad():
                slot.grad_device.copy_(self.state.group.mean_of(slot.grad_device, slot.name))
        finally:
            self.state.pool.release(slot.grad_bundle, _abi.AFTER_BWD)
        if self.state.one is not None:
            self.state.one.arrived(slot)

    def _begin_with(self, slot: Slot) -> None:
        """Begin the sum with a gradient that was assigned by hand."""
        if slot.grad_device is None:
            slot.grad_device = slot.view(slot.gradient, DEVICE)
        with torch.no_grad():
            slot.grad_device.copy_(slot.given)
        slot.has_grad = True

    def _add_apart(self, slot: Slot, grad: torch.Tensor) -> None:
        """Add in torch's memory. Either the sum begins with a user's tensor, which the user may
        read or write at any time, as after a failed backward; or its place belongs to a user until
        the pass has ended."""
        if self.state.defers:
            raise HybridPSError(f"your code still has {slot.name}.grad, whose memory the next "
                                "gradient needs within no_sync: keep a clone()" +
                                self.state.facts())
        if slot.given is None:
            slot.given = grad
        else:
            with torch.no_grad():
                slot.given.add_(grad)

    def _add_with_graph(self, slot: Slot, grad: torch.Tensor) -> None:
        """For backward(create_graph=True): p.grad is a new tensor with a graph, as in torch."""
        before = self.phases.grad_in_pass(slot).clone() if slot.has_grad else slot.given
        self.phases.assign_grad(slot, grad if before is None else before + grad)

    def _add_up(self, slot: Slot, grad: torch.Tensor) -> None:
        alone = not (slot.reuse or slot.cuda or self.state.group)
        if slot.left or alone and slot.given is not None and not slot.has_grad:
            self._add_apart(slot, grad)
            return
        if slot.reuse:
            self.state.is_needed([slot])
            self.state.check_master(slot)
        held = not (slot.reuse or slot.away) and any([unit.calls for unit in slot.units])
        if not held:
            self.state.pool.access(slot.grad_bundle)
        if slot.reuse:
            keep_written(slot)
        if slot.given is not None and not slot.has_grad:
            self._begin_with(slot)
        if slot.grad_device is None:
            slot.grad_device = slot.view(slot.gradient, DEVICE)
        there = slot.grad_device
        if slot.cuda:  # a penalty computed before the forward gives it on the host
            grad = grad.to(there.device)
        if not (slot.has_grad or slot.cuda) and grad.stride() == there.stride() and \
                grad.dtype == there.dtype:
            self.state.pool.grad_put(slot.address(slot.gradient), grad.data_ptr(),
                               grad.numel() * grad.element_size())
        else:
            with torch.no_grad():
                there.add_(grad) if slot.has_grad else there.copy_(grad)
        slot.has_grad = True
        if not held:
            self.state.pool.release(slot.grad_bundle, _abi.AFTER_BWD)

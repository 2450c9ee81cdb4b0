"""Parameters by slot."""
from __future__ import annotations

from typing import Any

import torch

from ._abi import DEVICE, HOST, Bundle, HybridPSError
from ._home import Shown


class Slot:
    """A parameter, its gradient and its optimizer state."""

    __slots__ = ("phases", "param", "name", "tensor", "host", "device", "grad", "grad_host",
                 "grad_device", "grad_bundle", "has_grad", "version", "grad_version", "written",
                 "suspect", "states", "units", "hook", "cuda", "held", "bundle", "reuse", "owner",
                 "addresses", "home", "grad_home", "grad_shown", "given", "write", "unreduced",
                 "away", "came", "there", "left")

    def __init__(self, phases: Any, param: torch.nn.Parameter, name: str) -> None:
        self.phases, self.param, self.name = phases, param, name
        self.cuda = phases.state.cuda
        self.came = param.device  # where the parameter was, and on CUDA is again at the end
        self.tensor = self.grad = -1
        # What shows them in each place, and what accesses them there: Any, as all but a new slot has it.
        self.host: Any = None
        self.device: Any = None
        self.grad_host: Any = None
        self.grad_device: Any = None
        self.bundle: Any = None
        self.grad_bundle: Any = None
        self.has_grad = False
        self.unreduced = False  # the gradient is this rank's alone, by no_sync
        self.version = self.grad_version = 0  # of what torch counts, when we looked last
        self.written = False  # on the host, since it was on the device
        self.suspect = False  # code other than the optimizer may have written it
        # Of each optimizer that steps it, by its key there: the tensor, and the host's view of it.
        self.states: dict[Any, dict[str, tuple[int, torch.Tensor]]] = {}
        self.units: list[Any] = []  # of _units.py
        self.hook: Any = None
        self.held = 0
        self.reuse = False  # its gradient takes its place
        self.owner = 0  # the rank whose optimizer steps it
        self.away = False  # its gradient is added up by another rank alone (_one_copy.py)
        self.addresses: dict[int, int] = {}  # on the device
        self.there: dict[int, torch.Tensor] = {}  # views of CUDA's memory, which stay right
        self.home = self.grad_home = 0  # addresses on the host
        self.write: Bundle | None = None  # of the parameter, on the host
        self.grad_shown = False  # p.grad was read, and somebody may keep it
        self.left: Shown | None = None  # its gradient has ended in this pass, and is a user's by these
        self.given: torch.Tensor | None = None  # that was assigned to p.grad: it shows the gradient

    def view(self, tensor: int, where: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        like = self.param if self.host is None else self.host  # the parameter may show something else
        return self.phases.state.view(tensor, where, like, dtype)

    def address(self, tensor: int) -> int:
        found = self.addresses.get(tensor)
        if found is None:
            found = self.addresses[tensor] = self.phases.state.pool.address(tensor, DEVICE)
        return found

    def give_up_grad(self) -> None:
        """Its gradient ends in a pass. What users still show of it is left to them."""
        if not self.grad_shown or self.reuse or self.cuda:
            return
        shown = Shown(self.grad_home, self.address(self.grad))
        self.grad_host = self.grad_device = None
        self.left = shown if shown() else None
        self.show_grad_host()
        self.grad_shown = self.left is not None

    def show_grad_host(self) -> None:
        """Its place on the host anew. Users have that very tensor: p.grad.data = values moves it away."""
        self.grad_host = self.view(self.gradient, HOST)
        self.grad_home = self.grad_host.data_ptr()

    def hide_grad(self) -> None:
        """Its place is its users' alone."""
        self.grad_host = self.grad_device = self.left = None
        self.grad_shown = False

    def shows_grad(self, grad: torch.Tensor) -> bool:
        """Whether p.grad is its place on the host."""
        return grad is self.grad_host and grad.data_ptr() == self.grad_home

    def show_moved(self) -> None:
        """After p.grad.data = values, what users have is no view of its place any more: another one is."""
        if self.grad_host is not None and self.grad_host.data_ptr() != self.grad_home:
            self.show_grad_host()

    def refuse_moved(self) -> None:
        """In the place of the parameter it can't have other memory."""
        if self.gone and self.grad_host.data_ptr() != self.grad_home:
            self.show_grad_host()
            raise HybridPSError(f"{self.name}.grad.data = other memory: with gradients=\"reuse\" its "
                                "memory is the parameter's: write to p.grad in place")

    def note_assigned(self, there: bool) -> None:
        """p.grad was assigned. What takes the place of a rank's own sum, or is assigned within no_sync, is
        a rank's own too."""
        state = self.phases.state
        self.unreduced = there and state.group is not None and (self.waits or state.defers)

    @property
    def waits(self) -> bool:
        """For a backward outside of no_sync, which reduces its gradient."""
        return self.unreduced and (self.has_grad or self.given is not None)

    @property
    def gradient(self) -> int:
        """The tensor in which its gradient lies; -1: it was never trained."""
        return self.tensor if self.reuse else self.grad

    @property
    def master(self) -> tuple[int, torch.Tensor] | None:
        """Its float32 values, which at most one optimizer keeps."""
        for held in self.states.values():
            if "master" in held:
                return held["master"]
        return None

    def shows(self, value: torch.Tensor) -> bool:
        """Whether it is the parameter's or its gradient's own memory."""
        own = (self.host, self.grad_host, self.device, self.grad_device)
        return any(view is not None and value.data_ptr() == view.data_ptr() for view in own)

    @property
    def gone(self) -> bool:
        """Its gradient has taken its place."""
        return self.reuse and self.has_grad

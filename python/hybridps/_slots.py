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
                 "away", "came", "there", "left", "writes", "kept", "__weakref__")

    def __init__(self, phases: Any, param: torch.nn.Parameter, name: str) -> None:
        self.phases, self.param, self.name = phases, param, name
        self.cuda = phases.state.cuda
        self.came = param.device  # where the parameter was, and returns to at the end on CUDA
        self.tensor = self.grad = -1
        # The views in each place, and what accesses them there: Any, because only a new slot lacks
        # them.
        self.host: Any = None
        self.device: Any = None
        self.grad_host: Any = None
        self.grad_device: Any = None
        self.bundle: Any = None
        self.grad_bundle: Any = None
        self.has_grad = False
        self.unreduced = False  # the gradient is this rank's own, because of no_sync
        self.version = self.grad_version = 0  # torch's write counts at the last check
        self.writes: torch.Tensor | None = None  # empty; shares the parameter's write count
        self.written = False  # on the host since it was last on the device
        self.suspect = False  # code other than the optimizer may have written it
        self.kept = False  # p.data was read, so it may be kept and written later
        # Per optimizer that steps it, by key: the state's tensor and its host view.
        self.states: dict[Any, dict[str, tuple[int, torch.Tensor]]] = {}
        self.units: list[Any] = []  # its units (_units.py)
        self.hook: Any = None
        self.held = 0
        self.reuse = False  # its gradient takes its place
        self.owner = 0  # the rank whose optimizer steps it
        self.away = False  # another rank sums its gradient (_one_copy.py)
        self.addresses: dict[int, int] = {}  # on the device
        self.there: dict[int, torch.Tensor] = {}  # views of CUDA memory, which stay valid
        self.home = self.grad_home = 0  # host addresses of value and gradient
        self.write: Bundle | None = None  # host write access to the parameter
        self.grad_shown = False  # p.grad was read, so it may be kept
        self.left: Shown | None = None  # gradient that ended in this pass, still shown
        self.given: torch.Tensor | None = None  # tensor assigned to p.grad; it shows the gradient

    def view(self, tensor: int, where: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        like = self.param if self.host is None else self.host  # the parameter may show other memory
        return self.phases.state.view(tensor, where, like, dtype)

    def address(self, tensor: int) -> int:
        found = self.addresses.get(tensor)
        if found is None:
            found = self.addresses[tensor] = self.phases.state.pool.address(tensor, DEVICE)
        return found

    def give_up_grad(self) -> None:
        """Its gradient ends in a pass. Memory that users still show is left to them."""
        if not self.grad_shown or self.reuse or self.cuda:
            return
        shown = Shown(self.grad_home, self.address(self.grad))
        self.grad_host = self.grad_device = None
        self.left = shown if shown() else None
        self.show_grad_host()
        self.grad_shown = self.left is not None

    def show_grad_host(self) -> None:
        """Make a new view of its place on the host. Users get this very tensor: p.grad.data =
        values moves it."""
        self.grad_host = self.view(self.gradient, HOST)
        self.grad_home = self.grad_host.data_ptr()

    def hide_grad(self) -> None:
        """Leave its place to its users."""
        self.grad_host = self.grad_device = self.left = None
        self.grad_shown = False

    def shows_grad(self, grad: torch.Tensor) -> bool:
        """Whether p.grad shows its place on the host."""
        return grad is self.grad_host and grad.data_ptr() == self.grad_home

    def show_moved(self) -> None:
        """After p.grad.data = values the users' tensor no longer shows its place: make a new
        view."""
        if self.grad_host is not None and self.grad_host.data_ptr() != self.grad_home:
            self.show_grad_host()

    def refuse_moved(self) -> None:
        """Refuse other memory for a gradient that is in the parameter's place."""
        if self.gone and self.grad_host.data_ptr() != self.grad_home:
            self.show_grad_host()
            raise HybridPSError(f"{self.name}.grad.data = other memory: with gradients=\"reuse\" "
                                "its memory is the parameter's: write to p.grad in place")

    def note_assigned(self, there: bool) -> None:
        """p.grad was assigned. What replaces a rank's own sum, or is assigned within no_sync, is
        also the rank's own."""
        state = self.phases.state
        self.unreduced = there and state.group is not None and (self.waits or state.defers)

    @property
    def waits(self) -> bool:
        """Whether its gradient waits for a backward outside no_sync, which reduces it."""
        return self.unreduced and (self.has_grad or self.given is not None)

    @property
    def gradient(self) -> int:
        """The tensor that holds its gradient; -1: it was never trained."""
        return self.tensor if self.reuse else self.grad

    @property
    def master(self) -> tuple[int, torch.Tensor] | None:
        """Its float32 master values, which at most one optimizer keeps."""
        for held in self.states.values():
            if "master" in held:
                return held["master"]
        return None

    def shows(self, value: torch.Tensor) -> bool:
        """Whether the value is the parameter's or its gradient's own memory."""
        own = (self.host, self.grad_host, self.device, self.grad_device)
        return any(view is not None and value.data_ptr() == view.data_ptr() for view in own)

    @property
    def gone(self) -> bool:
        """Its gradient has taken its place."""
        return self.reuse and self.has_grad

"""Parameters by slot."""
from __future__ import annotations

from typing import Any

import torch

from ._abi import DEVICE, Bundle
from ._tensors import view


class Slot:
    """A parameter, its gradient and its optimizer state."""

    __slots__ = ("phases", "param", "name", "tensor", "host", "device", "grad", "grad_host",
                 "grad_device", "grad_bundle", "has_grad", "version", "grad_version", "written",
                 "suspect", "states", "units", "hook", "cuda", "held", "bundle", "reuse", "owner",
                 "addresses", "home")

    def __init__(self, phases: Any, param: torch.nn.Parameter, name: str) -> None:
        self.phases, self.param, self.name = phases, param, name
        self.cuda = phases.state.cuda
        self.tensor = self.grad = -1
        self.host = self.device = self.grad_host = self.grad_device = None
        self.bundle: Bundle | None = None
        self.grad_bundle: Bundle | None = None
        self.has_grad = False
        self.version = self.grad_version = 0  # of what torch counts, when we looked last
        self.written = False  # on the host, since it was on the device
        self.suspect = False  # code other than the optimizer may have written it
        self.states: dict[str, tuple[int, torch.Tensor]] = {}
        self.units: list[Any] = []  # of _units.py
        self.hook: Any = None
        self.held = 0
        self.reuse = False  # its gradient takes its place
        self.owner = 0  # the rank whose optimizer steps it
        self.addresses: dict[int, int] = {}  # on the device
        self.home = 0  # address on the host

    def view(self, tensor: int, where: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return view(self.phases.state.pool.address(tensor, where), self.param.size(),
                    self.param.stride(), dtype or self.param.dtype,
                    self.cuda if where == DEVICE else None)

    def address(self, tensor: int) -> int:
        found = self.addresses.get(tensor)
        if found is None:
            found = self.addresses[tensor] = self.phases.state.pool.address(tensor, DEVICE)
        return found

    @property
    def gradient(self) -> int:
        """The tensor in which its gradient lies."""
        return self.tensor if self.reuse else self.grad

    @property
    def gone(self) -> bool:
        """Its gradient has taken its place."""
        return self.reuse and self.has_grad

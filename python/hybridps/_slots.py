"""Parameters by slot, and tensors of their own in managed memory."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _abi
from ._abi import DEVICE, HOLD, HOST, Bundle, HybridPSError
from ._tensors import view

if TYPE_CHECKING:
    from ._units import Unit
    from .client import Client


class Slot:
    """A parameter, its gradient and its optimizer state."""

    __slots__ = ("client", "param", "name", "tensor", "host", "device", "grad", "grad_host",
                 "grad_device", "grad_bundle", "has_grad", "version", "grad_version", "written",
                 "suspect", "states", "units", "hook", "cuda", "held", "bundle", "reuse", "owner",
                 "addresses", "home")

    def __init__(self, client: "Client", param: torch.nn.Parameter, name: str) -> None:
        self.client, self.param, self.name, self.cuda = client, param, name, client.cuda
        self.tensor = self.grad = -1
        self.host = self.device = self.grad_host = self.grad_device = None
        self.bundle: Bundle | None = None
        self.grad_bundle: Bundle | None = None
        self.has_grad = False
        self.version = self.grad_version = 0  # of what torch counts, when we looked last
        self.written = False  # on the host, since it was on the device
        self.suspect = False  # somebody may have written it who is no optimizer
        self.states: dict[str, tuple[int, torch.Tensor]] = {}
        self.units: list["Unit"] = []
        self.hook: Any = None
        self.held = 0
        self.reuse = False  # its gradient takes its place
        self.owner = 0  # the rank whose optimizer steps it
        self.addresses: dict[int, int] = {}  # on the device
        self.home = 0  # address on the host

    def view(self, tensor: int, where: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return view(self.client.pool.address(tensor, where), self.param.size(),
                    self.param.stride(), dtype or self.param.dtype,
                    self.cuda if where == DEVICE else None)

    def address(self, tensor: int) -> int:
        found = self.addresses.get(tensor)
        if found is None:
            found = self.addresses[tensor] = self.client.pool.address(tensor, DEVICE)
        return found

    @property
    def gradient(self) -> int:
        """The tensor in which its gradient lies."""
        return self.tensor if self.reuse else self.grad

    @property
    def gone(self) -> bool:
        """Its gradient has taken its place."""
        return self.reuse and self.has_grad


class Managed:
    """A tensor of its own in managed memory, such as the result of a collective."""

    def __init__(self, client: "Client", name: str, value: torch.Tensor) -> None:
        self._client = client
        self.shape, self.dtype = value.shape, value.dtype
        self._stride = torch.empty(value.shape, device="meta").stride()
        self._size = value.numel() * value.element_size()
        self._held: list[Bundle] = []
        self._id = client.take_spare(name, self._size)
        self._fill(value)

    def _fill(self, value: torch.Tensor) -> None:
        pool = self._client.pool
        place = Bundle([self._id], HOST, True)
        pool.access(place)
        view(place.uses[0].address, self.shape, self._stride, self.dtype).copy_(value)
        pool.release(place, HOLD)

    def access(self, write: bool = False, host: bool = False) -> torch.Tensor:
        """The tensor on the device (or the host), there until as many releases."""
        bundle = Bundle([self._id], HOST if host else DEVICE, write)
        self._client.pool.access(bundle)
        self._held.append(bundle)
        return view(bundle.uses[0].address, self.shape, self._stride, self.dtype,
                    None if host else self._client.cuda)

    def release(self) -> None:
        if not self._held:
            raise HybridPSError("release of a managed tensor that is not accessed" +
                                self._client.facts())
        self._client.pool.release(self._held[-1], HOLD)
        self._held.pop()

    def __del__(self) -> None:
        """Its memory is free, and its place is taken by the next one of its size."""
        held = getattr(self, "_held", None)
        if held is not None and not self._client.closed and not _abi.forked(self._client.pid):
            while held:
                self.release()
            self._client.give_spare(self._id, self._size)

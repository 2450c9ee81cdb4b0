"""Separate tensors in managed memory."""
from __future__ import annotations

import torch

from . import _abi
from ._abi import DEVICE, HOLD, HOST, Bundle, HybridPSError
from ._state import State
from ._tensors import view


class Managed:
    """A separate tensor in managed memory, such as the result of a collective."""

    def __init__(self, state: State, name: str, value: torch.Tensor) -> None:
        self._state = state
        self.shape, self.dtype = value.shape, value.dtype
        self._stride = torch.empty(value.shape, device="meta").stride()
        self._size = value.numel() * value.element_size()
        self._held: list[Bundle] = []
        self._id = state.take_spare(name, self._size)
        self._fill(value)

    def _fill(self, value: torch.Tensor) -> None:
        pool = self._state.pool
        place = Bundle([self._id], HOST, True)
        pool.access(place)
        self._view(place, HOST).copy_(value)
        pool.release(place, HOLD)

    def access(self, write: bool = False, host: bool = False) -> torch.Tensor:
        """The tensor on the device (or the host), which stays there until released as many
        times."""
        bundle = Bundle([self._id], HOST if host else DEVICE, write)
        self._state.pool.access(bundle)
        self._held.append(bundle)
        return self._view(bundle, HOST if host else DEVICE)

    def _view(self, bundle: Bundle, where: int) -> torch.Tensor:
        cuda = self._state.cuda if where == DEVICE else None
        return view(bundle.uses[0].address, self.shape, self._stride, self.dtype, cuda,
                    None if cuda else self._state.homes.of(self._id, where))

    def release(self) -> None:
        if not self._held:
            raise HybridPSError("release of a managed tensor that is not accessed" +
                                self._state.facts())
        self._state.pool.release(self._held[-1], HOLD)
        self._held.pop()

    def __del__(self) -> None:
        """Free the memory; the next one of its size takes its place."""
        held = getattr(self, "_held", None)
        if held is not None and not self._state.closed and not _abi.forked(self._state.pid):
            while held:
                self.release()
            self._state.give_spare(self._id, self._size)

"""Who owns the memory of a tensor over a pool.

Every view holds the Home of its chunk in that place. When the client is closed, memory that a
user's tensor or array still shows passes to its Home, which frees it with the last of them. So
nothing is copied, and everything that is still visible stays readable. Without a close, a Home
keeps the whole pool.

Before a tensor's content is replaced, Shown tells whether a user still shows it. If so the memory
stays with the user unchanged, and the new content gets another tensor.
"""
from __future__ import annotations

import weakref
from typing import Any

from . import _abi
from ._tensors import memory_at


class Home:
    """The memory of a chunk in one place."""

    __slots__ = ("pool", "tensor", "kept", "__weakref__")

    def __init__(self, pool: _abi.Pool, tensor: int) -> None:
        self.pool = pool
        self.tensor = tensor  # a tensor of the chunk
        self.kept: tuple[Any, int, int] | None = None  # function, address, bytes

    def __del__(self) -> None:
        if self.kept is not None:
            free, address, size = self.kept
            free(address, size)


class Homes:
    """The Homes of one pool."""

    def __init__(self, pool: _abi.Pool) -> None:
        self._pool = pool
        self._all: dict[tuple[int, int], Home] = {}  # by chunk and place
        self._of_tensor: dict[tuple[int, int], Home] = {}

    def of(self, tensor: int, where: int) -> Home:
        home = self._of_tensor.get((tensor, where))
        if home is None:
            key = (self._pool.chunk(tensor)[0], where)
            home = self._all.setdefault(key, Home(self._pool, tensor))
            self._of_tensor[tensor, where] = home
        return home

    def keep(self) -> None:
        """Let memory that is still shown outlive the pool, which can only be closed after this."""
        found = [(where, weakref.ref(home)) for (_, where), home in self._all.items()]
        self._all.clear()
        self._of_tensor.clear()
        for where, ref in sorted(found, key=lambda f: f[0]):  # the host first
            home = ref()
            if home is not None:
                home.kept = self._pool.keep(home.tensor, where)


class Shown:
    """Tells, after all of our own views were dropped, whether a user's tensor or array still shows
    the memory at these addresses, on the host or an emulated device."""

    __slots__ = ("_memory",)

    def __init__(self, *addresses: int) -> None:
        self._memory = [memory_at(address) for address in addresses]

    def __call__(self) -> bool:
        return any(memory() is not None for memory in self._memory)

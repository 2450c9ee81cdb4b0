"""The groups of a graph's collectives, ordered by their numbers in its tasks."""
from __future__ import annotations

import contextlib
import itertools
import os
import threading
from typing import Any, Iterator

import torch.distributed as dist

import hybridps
from hybridps._abi import HybridPSError

from ._comm import initialized, unknown_group
from .errors import CollectiveFailedError, MacoError, OrderMismatchError, TimeoutError

_count = itertools.count()
_known: dict[int, tuple[int, Any, hybridps.Group]] = {}  # by process group, with the process id


def _of_torch(process_group: Any) -> hybridps.Group:
    """One per process group, cached because creating it is a collective."""
    if process_group is None:
        process_group = dist.distributed_c10d._get_default_group()
    key = id(process_group)
    known = _known.get(key)
    if known is None or known[0] != os.getpid():
        known = _known[key] = (os.getpid(), process_group, hybridps.Group.torch(process_group))
    return known[2]


def _group(group: Any) -> hybridps.Group:
    if isinstance(group, hybridps.Group):
        return group
    if group is not None and not initialized():
        raise unknown_group(group)
    try:
        if initialized():
            return _of_torch(group)
        return hybridps.Group.shm(f"maco-{os.getpid()}-{next(_count)}", 0, 1)
    except HybridPSError as error:
        raise CollectiveFailedError(f"the group can't be made: {error}",
                                    "all ranks must make it together") from error


class Groups:
    """``default``: the group of tasks that name none."""

    def __init__(self, default: Any) -> None:
        if default is not None and not isinstance(default, hybridps.Group) and not initialized():
            raise unknown_group(default)
        self.default = default
        self.list: list[hybridps.Group] = []
        self._number: dict[int, int] = {}
        self._asked: list[Any] = []  # keeps them alive, so that their ids stay unique

    def index(self, group: Any) -> tuple[int, int]:
        """Number and size of a group, which is created on first use."""
        asked = self.default if group is None else group
        if id(asked) not in self._number:
            group = _group(asked)  # None and the group of all ranks are the same
            if group not in self.list:
                self.list.append(group)
            self._number[id(asked)] = self.list.index(group)
            self._asked.append(asked)
        number = self._number[id(asked)]
        return number, self.list[number].world

    @property
    def rank(self) -> int:
        return self.list[0].rank if self.list else 0

    @contextlib.contextmanager
    def mine(self) -> Iterator[None]:
        """Keep other collectives off the groups within the block."""
        with contextlib.ExitStack() as stack:
            for group in self.list:
                lock = group.__dict__.setdefault("_maco_lock", threading.Lock())
                if not lock.acquire(blocking=False):
                    raise MacoError("another graph is running over this group",
                                    "wait for its Result, or give each graph a group of its own")
                stack.callback(lock.release)
                self._catch_up(group)
            yield

    @staticmethod
    def _catch_up(group: hybridps.Group) -> None:
        try:
            group.catch_up()
        except HybridPSError as error:
            raise CollectiveFailedError(f"after a failed run of this rank: {error}",
                                        "see what the other ranks say; then make a new group"
                                        ) from error

    def handles(self) -> list[Any]:
        if any(g._h is None for g in self.list):
            raise CollectiveFailedError("a group of this graph is closed", "make another one")
        return [g._h for g in self.list]

    def failed(self, error: BaseException) -> None:
        """A group is lost after its first failure; the next graph creates another one."""
        if not isinstance(error, (CollectiveFailedError, TimeoutError, OrderMismatchError)):
            return
        for key in [k for k, (_, _, g) in _known.items() if g in self.list]:
            del _known[key]
        if isinstance(error, MacoError):
            for group in self.list:
                cause = getattr(group._carrier, "cause", None)
                if cause is not None and error.__cause__ is None:
                    error.__cause__ = cause

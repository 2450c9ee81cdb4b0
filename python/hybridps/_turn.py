"""Threads take turns with a model: a forward, a backward or a step each use it exclusively."""
from __future__ import annotations

import functools
import os
import threading
from typing import Any, Callable

from . import _abi
from ._abi import HybridPSError

WAIT = 300  # seconds


class Turn:
    """A reentrant lock that any thread may release, because autograd chooses the thread in which a
    backward ends."""

    def __init__(self) -> None:
        self._free = threading.Condition(threading.Lock())
        self._depth = self._owner = 0
        self._pid = os.getpid()

    def mine(self) -> bool:
        return self._owner == threading.get_ident()

    def take(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return
        if _abi.forked(self._pid):
            return  # no other thread was forked along, and what needs the turn is refused
        with self._free:
            if not self._free.wait_for(lambda: self._depth == 0, WAIT):
                raise HybridPSError("another thread has been in a forward, a backward or a step "
                                    f"of this model for {WAIT} s: let threads take turns")
            self._owner, self._depth = me, 1

    def give(self) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        if _abi.forked(self._pid):
            return
        with self._free:
            self._owner = self._depth = 0
            self._free.notify()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: Any) -> None:
        self.give()


class BackwardTurn:
    """A callback for autograd at the end of its pass; a failed pass only drops it."""

    def __init__(self, turn: Turn, ended: Callable[[], None]) -> None:
        self._turn, self._ended, self._has = turn, ended, True
        turn.take()

    def __call__(self) -> None:
        try:
            self._ended()
        finally:
            self._give()

    def _give(self) -> None:
        if self._has:
            self._has = False
            self._turn.give()

    def __del__(self) -> None:
        self._give()


def step_in_turn(method: Callable) -> Callable:
    """For methods of a Stepper: run while no other thread is in a forward, a backward or a step."""
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.phases.state.turn:
            return method(self, *args, **kwargs)
    return call


def read_in_turn(method: Callable) -> Callable:
    """For methods of Phases: keep other threads from beginning a pass meanwhile. Does not wait for
    a thread in a pass, which may wait for this one; reads here are then served as within it."""
    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        turn = self.state.turn
        if self.state.works() and not turn.mine():
            return method(self, *args)
        with turn:
            return method(self, *args)
    return call

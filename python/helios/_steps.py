"""What a rank tells of its training, in a page of memory that its node reads."""
from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from typing import Any, Callable, Iterator

from . import _abi, _arguments, errors

ACTIVITIES = ("joining", "loading", "training", "saving")

_report: Callable[..., int] | None = None  # of the library; found with the first step
_highest = -1  # step that was reported by this process
_last = -1  # and since its gang came together
_waited_ns = 0  # for other ranks, since the last report


def _is_read() -> bool:
    """The node has given this rank a page. A parked process has none yet."""
    return bool(os.environ.get("HELIOS_STEPS"))


def _number(name: str, value: Any) -> float:
    """Whatever float() takes but a text: a tensor of one element, an int."""
    try:
        if isinstance(value, (bool, str, bytes)) or value is None:
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise errors.InvalidArgument(f"{_arguments.told(name, value)} must be a number") from None


def report(step: int, loss: float = math.nan, tokens: int = 0) -> None:
    """A step has ended: its number, its loss, and the tokens this rank has worked on in it.

    `helios describe` shows it, a rank that makes no steps any more is named, and the job's recovery counts
    from it. It costs about a microsecond and calls nobody. Outside of a job nobody reads it. Raises
    InvalidArgument for a step below 0.
    """
    global _report, _highest, _last, _waited_ns
    if type(step) is not int or type(loss) is not float or type(tokens) is not int or (step | tokens) >> 63:
        step, tokens = (_arguments.integer(name, value, 0, _arguments.INT64_MAX)
                        for name, value in (("step", step), ("tokens", tokens)))
        loss = _number("loss", loss)
    if _report is None:
        _report = _abi.library().helios_report if _is_read() else lambda *_: 0
    if _waited_ns and _is_read():
        _abi.check(_abi.library().helios_waited(_waited_ns))
    _waited_ns = 0
    code = _report(step, loss, tokens)
    if code != 0:
        _abi.check(code)
    _last = step
    if step > _highest:
        _highest = step


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """The rank waits for others within the block.

    What is left of a step is the rank's own time, by which a slow rank is told from those that wait for it.
    helios.elastic counts the waits of torch.distributed by itself; this is for other ways to wait.
    """
    began = time.monotonic_ns()
    try:
        yield
    finally:
        add_wait(time.monotonic_ns() - began)


def add_wait(ns: int) -> None:
    """So long has the rank waited for others."""
    global _waited_ns
    _waited_ns += ns


def activity(word: str) -> None:
    """What the rank is busy with from now on: "joining", "loading", "training" or "saving".

    load_state_dict and save_state_dict say it by themselves, report() that it trains. Say "training" before the
    first step where much is done between loading and that, and "saving" around checkpoints that are not
    Helios's: a rank that trains and makes no steps is taken for one that hangs.
    """
    if not isinstance(word, str) or word not in ACTIVITIES:
        raise errors.InvalidArgument(f"{_arguments.told('word', word)} must be one of {', '.join(ACTIVITIES)}")
    if _is_read():
        _abi.check(_abi.library().helios_activity(1 + ACTIVITIES.index(word)))


def trouble(text: str) -> None:
    """Something is wrong with this rank: its job gets an event that says so."""
    if _is_read():
        _abi.check(_abi.library().helios_trouble(text.encode()))


def held(address: int, size: int) -> None:
    """Where the largest parameter lies."""
    if _is_read():
        _abi.check(_abi.library().helios_held(address, size))


def joined(generation: int) -> None:
    """The gang has come together: what was reported before counts no more."""
    global _last, _waited_ns
    _last, _waited_ns = -1, 0
    if _is_read():
        _abi.check(_abi.library().helios_joined(generation))


def generation() -> int:
    """The last one that a process of this rank was in; 0: none, or nobody keeps it."""
    return int(_abi.library().helios_generation()) if _is_read() else 0


def progress() -> tuple[int, int]:
    """The last step since the gang came together, and the highest of this process; -1: none."""
    return _last, _highest


def around(word: str, after: str | None) -> Any:
    """Decorator of a method: the rank is busy with `word`, and behind it with `after`.

    After an error it stays with `word`: a process that ends of it failed at that.
    """
    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            activity(word)
            result = method(*args, **kwargs)
            if after is not None:
                activity(after)
            return result
        return call
    return decorate

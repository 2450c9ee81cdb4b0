"""How a rank reports its training, in a page of memory that its node reads."""
from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from typing import Any, Callable, Iterator

from . import _abi, _arguments, errors

ACTIVITIES = ("joining", "loading", "training", "saving")

_report: Callable[..., int] | None = None  # the library's function, once the rank has its page
_highest = -1  # highest step that this process reported
_last = -1  # last one since its gang formed
_waited_ns = 0  # time spent waiting for other ranks since the last report


def _is_read() -> bool:
    """Whether the node has given this rank a page. A parked process has none yet."""
    return bool(os.environ.get("HELIOS_STEPS"))


def _number(name: str, value: Any) -> float:
    """Accept anything that float() takes except a text: a tensor of one element, an int."""
    try:
        if isinstance(value, (bool, str, bytes)) or value is None:
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise errors.InvalidArgument(f"{_arguments.told(name, value)} must be a number") from None


def report(step: int, loss: float = math.nan, tokens: int = 0) -> None:
    """Report the end of a step: its number, its loss, and the number of tokens this rank processed
    in it.

    `helios describe` shows it, ranks that stop making steps are named, and the job's recovery
    counts from it. It costs about a microsecond and makes no call. Outside a job it has no effect.
    Raises InvalidArgument for a step below 0.
    """
    global _report, _highest, _last, _waited_ns
    plain = type(step) is int and type(loss) is float and type(tokens) is int
    if not plain or (step | tokens) >> 63:
        step, tokens = (_arguments.integer(name, value, 0, _arguments.INT64_MAX)
                        for name, value in (("step", step), ("tokens", tokens)))
        loss = _number("loss", loss)
    if _report is None and _is_read():  # a parked process gets its page later
        _report = _abi.library().helios_report
    if _waited_ns and _is_read():
        _abi.check(_abi.library().helios_waited(_waited_ns))
    _waited_ns = 0
    code = _report(step, loss, tokens) if _report is not None else 0
    if code != 0:
        _abi.check(code)
    _last = step
    if step > _highest:
        _highest = step


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Mark the block as waiting for other ranks.

    The rest of a step is the rank's own time, which tells a slow rank from the ranks that wait for
    it. helios.elastic counts the waits of torch.distributed by itself; use this for other kinds of
    waiting.
    """
    began = time.monotonic_ns()
    try:
        yield
    finally:
        add_wait(time.monotonic_ns() - began)


def add_wait(ns: int) -> None:
    """Add time that the rank has waited for others."""
    global _waited_ns
    _waited_ns += ns


def activity(word: str) -> None:
    """Say what the rank does from now on: "joining", "loading", "training" or "saving".

    load_state_dict and save_state_dict do this by themselves, and report() means "training". Say
    "training" before the first step if much happens between loading and that step, and "saving"
    around checkpoints that Helios does not make: a rank that is training but makes no steps is
    taken to hang.
    """
    if not isinstance(word, str) or word not in ACTIVITIES:
        raise errors.InvalidArgument(f"{_arguments.told('word', word)} must be one of "
                                     f"{', '.join(ACTIVITIES)}")
    if _is_read():
        _abi.check(_abi.library().helios_activity(1 + ACTIVITIES.index(word)))


def trouble(text: str) -> None:
    """Report that something is wrong with this rank: its job gets an event with the text."""
    if _is_read():
        _abi.check(_abi.library().helios_trouble(text.encode()))


def held(address: int, size: int) -> None:
    """Report where the largest parameter lies."""
    if _is_read():
        _abi.check(_abi.library().helios_held(address, size))


def joined(generation: int) -> None:
    """The gang has formed: earlier reports no longer count."""
    global _last, _waited_ns
    _last, _waited_ns = -1, 0
    if _is_read():
        _abi.check(_abi.library().helios_joined(generation))


def generation() -> int:
    """The last generation that a process of this rank was in; 0: none, or it is not recorded."""
    return int(_abi.library().helios_generation()) if _is_read() else 0


def progress() -> tuple[int, int]:
    """The last step since the gang formed, and the highest of this process; -1: none."""
    return _last, _highest


def around(word: str, after: str | None) -> Any:
    """Decorator of a method: the activity is `word` while it runs, and `after` afterwards.

    After an error it stays `word`: if the process dies of the error, it failed during that
    activity.
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

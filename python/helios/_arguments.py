"""Checks of the public functions' arguments, independent of torch.

Each check returns the value, or raises InvalidArgument with the name, the value and what is
allowed.
"""
from __future__ import annotations

import operator
from typing import Any, Mapping

from .errors import InvalidArgument

INT_MAX = (1 << 31) - 1  # of the C ABI's int
INT64_MAX = (1 << 63) - 1
SHOWN = 60  # characters of a value that messages show


def told(name: str, value: Any) -> str:
    """An argument as text in a sentence: "tp_size='2'", "state (a Linear)"."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = repr(value)
        return f"{name}={text if len(text) <= SHOWN else text[:SHOWN] + '…'}"
    return f"{name} (a {type(value).__name__})"


def _range(low: int, high: int) -> str:
    return f"of at least {low}" if high in (INT_MAX, INT64_MAX) else f"from {low} to {high}"


def integer(name: str, value: Any, low: int, high: int = INT_MAX) -> int:
    """Accept anything that is a whole number, except bool."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        what = "must be" if number is None or number < low else "is too large, it must be"
        raise InvalidArgument(f"{told(name, value)} {what} a whole number {_range(low, high)}")
    return number


def optional(name: str, value: Any, low: int, high: int = INT_MAX) -> int | None:
    """None, or a whole number."""
    return None if value is None else integer(name, value, low, high)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{told(name, value)} must be True or False")
    return value


def text(name: str, value: Any, what: str = "a text") -> str:
    """A text that can be passed to C."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{told(name, value)} must be {what}")
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidArgument(f"{told(name, value)} has characters that are not UTF-8, or a NUL")
    return value


def mapping(name: str, value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{told(name, value)} must be {what}")
    return value

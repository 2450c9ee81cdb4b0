"""Checks of the caller's non-tensor arguments."""
from __future__ import annotations

import math
import operator
from typing import Any

from .errors import DimensionError, NullInputError


def whole(value: Any, what: str, least: int = -2**31, most: int = 2**31 - 1) -> int:
    """A whole number within bounds."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except Exception:  # tensors raise many kinds
        number = None
    if number is None:
        raise DimensionError(f"{what} is {value!r}", "a whole number")
    if not least <= number <= most:
        raise DimensionError(f"{what} is {number}", f"{least} to {most}")
    return number


def real(value: Any, what: str, least: float = -math.inf) -> float:
    """A number, and not NaN."""
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan
    except Exception:
        number = math.nan
    if not number >= least:
        raise DimensionError(f"{what} is {value!r}",
                             "a number" if least == -math.inf else f"a number from {least} on")
    return number


def flag(value: Any, what: str) -> bool:
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise DimensionError(f"{what} is {value!r}", "True or False")
    return bool(value)


def name(value: Any, what: str) -> str:
    """A text that C can read."""
    if not isinstance(value, str) or "\0" in value or value != value.encode(
            "utf-8", "replace").decode():
        raise DimensionError(f"{what} is {value!r}", "text")
    return value


def sequence(value: Any, what: str) -> list[Any]:
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__"):
        raise NullInputError(f"{what} is a {type(value).__name__}", "give a list")
    try:
        return list(value)
    except TypeError:  # a tensor of no dimension
        raise NullInputError(f"{what} is {value!r}", "give a list") from None

"""Exceptions of the helios package: one class per code of the C ABI, each with a full sentence."""
from __future__ import annotations

__all__ = [
    "HeliosError", "InvalidArgument", "NotFound", "AlreadyExists", "OutOfMemory", "NoSpace",
    "IoFailed", "Corrupt", "TimedOut", "Unavailable", "Busy", "Stale", "Canceled",
    "NotPermitted", "ProtocolViolation", "Unsupported", "Conflict", "InternalError",
    "LibraryNotFound", "from_code",
]


class HeliosError(Exception):
    """Any failure of Helios.

    ``code`` is the negative HELIOS_E… number of ``helios.h``; ``str(error)`` is a sentence: what
    failed, where, and what to do.
    """

    code: int = -17

    def __init__(self, sentence: str, code: int | None = None) -> None:
        super().__init__(sentence)
        if code is not None:
            self.code = code


class InvalidArgument(HeliosError):
    """An argument, an environment variable or a file is invalid."""

    code = -1


class NotFound(HeliosError):
    """The model, version, shard or tensor does not exist."""

    code = -2


class AlreadyExists(HeliosError):
    """The object already exists."""

    code = -3


class OutOfMemory(HeliosError):
    """This process has run out of host memory."""

    code = -4


class NoSpace(HeliosError):
    """The L3 pool has no room for the shard."""

    code = -5


class IoFailed(HeliosError):
    """A system call or a transfer failed."""

    code = -6


class Corrupt(HeliosError):
    """Bytes stayed wrong after every retry; the sentence names the shard."""

    code = -7


class TimedOut(HeliosError):
    """The deadline of the operation passed."""

    code = -8


class Unavailable(HeliosError):
    """The Controller or the L3 service does not answer."""

    code = -9


class Busy(HeliosError):
    """It is in use by another process."""

    code = -10


class Stale(HeliosError):
    """The shard was replaced while it was read."""

    code = -11


class Canceled(HeliosError):
    """The operation was cancelled."""

    code = -12


class NotPermitted(HeliosError):
    """The operating system does not permit it."""

    code = -13


class ProtocolViolation(HeliosError):
    """The other side speaks another version, or not Helios at all."""

    code = -14


class Unsupported(HeliosError):
    """This build or machine cannot do it."""

    code = -15


class Conflict(HeliosError):
    """It contradicts what another rank reported."""

    code = -16


class InternalError(HeliosError):
    """A bug in Helios."""

    code = -17


class LibraryNotFound(Unavailable):
    """libhelios.so.0 could not be loaded."""


_BY_CODE = {
    cls.code: cls
    for cls in (
        InvalidArgument, NotFound, AlreadyExists, OutOfMemory, NoSpace, IoFailed, Corrupt,
        TimedOut, Unavailable, Busy, Stale, Canceled, NotPermitted, ProtocolViolation,
        Unsupported, Conflict, InternalError,
    )
}


def from_code(code: int, sentence: str) -> HeliosError:
    """The exception for a HELIOS_E… code; an unknown code becomes a plain HeliosError."""
    return _BY_CODE.get(code, HeliosError)(sentence, code)

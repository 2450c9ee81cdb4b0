"""Exceptions of the maco package: each says what is wrong and has a line with a hint."""
from __future__ import annotations


class MacoError(Exception):
    """Any failure of MACO. ``hint``: what to do about it, as the message's last line. ``code``: the
    library's HELIOS_E..., 0 if raised by Python."""

    def __init__(self, sentence: str, hint: str = "", code: int = 0) -> None:
        said, _, rest = sentence.partition(" Hint: ")  # the library's format
        self.hint, self.code = hint or rest, code
        super().__init__(f"{said}\nHint: {self.hint}" if self.hint else said)


class NullInputError(MacoError, ValueError):
    """An input or output that a task needs is missing."""


class DeviceError(MacoError, ValueError):
    """Tensors on a device that the back end does not support, or on several devices."""


class ShapeMismatchError(MacoError, ValueError):
    """Shapes that do not fit each other."""


class DimensionError(MacoError, ValueError):
    """A number of dimensions, a size or a stride that a task can't use."""


class LayoutError(DimensionError):
    """Strides that a task can't follow."""


class DTypeError(MacoError, TypeError):
    """An element type that a task can't use."""


class OverlapError(MacoError, ValueError):
    """Two unordered tasks use the same memory, and one writes it."""


class CyclicDependencyError(MacoError, ValueError):
    """Tasks that wait for each other.

    ``names``: each waits for the next, the last for the first.
    """

    names: tuple[str, ...] = ()


class NotCompiledError(MacoError, RuntimeError):
    """compile() has to be called first."""


class AlreadyCompiledError(MacoError, RuntimeError):
    """A compiled graph takes no more tasks."""


class NotCoResidentError(MacoError, RuntimeError):
    """More workers than the device can run at once: they would wait for each other forever."""


class OrderMismatchError(MacoError, RuntimeError):
    """Ranks would run different collectives, or the same ones in a different order. Only names tell
    similar collectives apart if a rank adds them in a different order."""


class TimeoutError(MacoError, TimeoutError):  # noqa: A001 - also Python's own
    """The deadline passed: which task waits for what, and what each worker does."""


class CanceledError(MacoError, RuntimeError):
    """The run was cancelled."""


class CollectiveFailedError(MacoError, RuntimeError):
    """A collective failed, for example because a rank died."""


class NotRowSeparableError(MacoError, ValueError):
    """f(cat(x)) is not cat(f(x)): the function can't be cut into chunks of rows."""


class SelfCheckError(MacoError, RuntimeError):
    """The optimized model computes a different result than the original."""


class NothingToOptimizeError(MacoError, RuntimeError):
    """strict=True, and nothing in the model could be overlapped."""


class UnsupportedError(MacoError, ValueError):
    """A module can't become a graph; with strict, one that needs calls into torch."""

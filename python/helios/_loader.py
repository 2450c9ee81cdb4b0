"""Finding and loading libhelios, for this package, hybridps and maco. Needs nothing but ctypes."""
from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any

SONAME = "libhelios.so.0"


class Sized(ctypes.Structure):
    """A struct of the ABI that may grow. Sets its first field, ``size``; arguments are the
    others."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(self), *values, **fields)


def candidates() -> list[str]:
    """Where to look for the library, in this order: $HELIOS_LIBRARY and nothing else; build/ of a
    source tree ($HELIOS_BUILD); next to the packages, as in a wheel; PREFIX/lib; the system
    loader's search path."""
    explicit = os.environ.get("HELIOS_LIBRARY")
    if explicit:
        return [explicit]
    packages = pathlib.Path(__file__).resolve().parents[1]
    build = os.environ.get("HELIOS_BUILD")
    built = pathlib.Path(build) if build else packages.parent / "build"
    places = (built / "lib" / SONAME, packages / "helios" / SONAME, packages.parent.parent / SONAME)
    return [str(place) for place in places if place.exists()] + [SONAME]


def load() -> ctypes.CDLL:
    """A separate handle, without prototypes. Raises OSError with a sentence for the user."""
    failed = {}
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            failed[path] = str(error)
    raise OSError(_why(failed))


def _why(failed: dict[str, str]) -> str:
    """The first existing candidate is the intended one: say what it lacks, nothing of others."""
    if os.environ.get("HELIOS_LIBRARY"):
        return ("the library that HELIOS_LIBRARY names cannot be loaded "
                f"({'; '.join(failed.values())})")
    for path, error in failed.items():
        if os.path.exists(path):
            requires = pathlib.Path(path).with_name("libhelios.requires")  # in a wheel
            needs = f"; {requires.read_text(encoding='utf-8').strip()}" if requires.exists() else ""
            return f"{path} cannot be loaded ({error}){needs}"
    return (f"{SONAME} is not found ({'; '.join(failed.values())}): install the package libhelios0 "
            "or Helios's wheel, build it with './run build', or name it in HELIOS_LIBRARY")

"""Finding and loading libhelios, for this package, hybridps and maco. Needs nothing but ctypes."""
from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any

SONAME = "libhelios.so.0"


class Sized(ctypes.Structure):
    """A struct of the ABI that may grow: its first field is ``size``, which is set here. Other arguments follow."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(self), *values, **fields)


def candidates() -> list[str]:
    """Where the library is looked for, in this order: $HELIOS_LIBRARY and nothing else; in a source tree its build/
    ($HELIOS_BUILD); beside the packages, as in a wheel; in PREFIX/lib; where the system's loader looks."""
    explicit = os.environ.get("HELIOS_LIBRARY")
    if explicit:
        return [explicit]
    packages = pathlib.Path(__file__).resolve().parents[1]
    build = os.environ.get("HELIOS_BUILD")
    built = pathlib.Path(build) if build else packages.parent / "build"
    places = (built / "lib" / SONAME, packages / "helios" / SONAME, packages.parent.parent / SONAME)
    return [str(place) for place in places if place.exists()] + [SONAME]


def load() -> ctypes.CDLL:
    """A handle of its own, without prototypes. Raises OSError with a sentence for the user."""
    failed = {}
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            failed[path] = str(error)
    raise OSError(_why(failed))


def _why(failed: dict[str, str]) -> str:
    """The first that exists is the one that is meant: what it lacks is said, not that others are not there."""
    if os.environ.get("HELIOS_LIBRARY"):
        return f"the library that HELIOS_LIBRARY names cannot be loaded ({'; '.join(failed.values())})"
    for path, error in failed.items():
        if os.path.exists(path):
            requires = pathlib.Path(path).with_name("libhelios.requires")  # of a wheel
            needs = f"; {requires.read_text(encoding='utf-8').strip()}" if requires.exists() else ""
            return f"{path} cannot be loaded ({error}){needs}"
    return (f"{SONAME} is not found ({'; '.join(failed.values())}): install the package libhelios0 or Helios's wheel, build it "
            "with './run build', or name it in HELIOS_LIBRARY")

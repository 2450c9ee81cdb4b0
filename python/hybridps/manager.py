"""The node's table of memory: what all its processes use together, on the host and on each device,
and who may take more."""
from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, Sequence

from helios import _loader

from ._abi import HybridPSError, bind, check_text, check_whole, failure

HOST = -1


class _Options(_loader.Sized):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("host_bytes", ctypes.c_uint64), ("device_bytes", ctypes.POINTER(ctypes.c_uint64)),
                ("devices", ctypes.c_uint32), ("lock_ms", ctypes.c_int), ("reap_ms", ctypes.c_int)]


class _Info(_loader.Sized):
    _fields_ = [("size", ctypes.c_size_t), ("capacity", ctypes.c_uint64), ("used", ctypes.c_uint64),
                ("reserved", ctypes.c_uint64), ("mine", ctypes.c_uint64),
                ("devices", ctypes.c_uint32), ("processes", ctypes.c_uint32)]


_P = ctypes.c_void_p
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "helios_last_error": (ctypes.c_char_p, []),
    "hybridps_manager_open": (ctypes.c_int, [ctypes.POINTER(_Options), ctypes.POINTER(_P)]),
    "hybridps_manager_close": (None, [_P]),
    "hybridps_manager_schedule": (ctypes.c_int, [_P, ctypes.c_uint64, ctypes.c_int,
                                                 ctypes.POINTER(ctypes.c_int),
                                                 ctypes.POINTER(ctypes.c_uint64)]),
    "hybridps_manager_cancel": (ctypes.c_int, [_P, ctypes.c_uint64]),
    "hybridps_manager_add": (ctypes.c_int, [_P, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "hybridps_manager_remove": (ctypes.c_int, [_P, ctypes.c_int, ctypes.c_uint64]),
    "hybridps_manager_info": (ctypes.c_int, [_P, ctypes.c_int, ctypes.POINTER(_Info)]),
}


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    return bind("hybridps.h", {_Options: 48, _Info: 48}, _PROTOTYPES, HybridPSError)


@dataclass(frozen=True)
class Ticket:
    """Room that is reserved on a device until it is added or cancelled."""

    device: int
    size: int
    number: int


@dataclass(frozen=True)
class Use:
    """Bytes of a device: its capacity, what all processes use and reserve, and what this one
    uses."""

    capacity: int
    used: int
    reserved: int
    mine: int
    processes: int


class Manager:
    """One process's place in the table of that name. A process that gives capacities creates the
    table; one without joins an existing table. Device -1 is the host, the others count from 0. What
    this process added is given back when it closes the manager, or dies.

    lock_ms: the longest wait for another process; reap_ms: interval between searches for dead ones.
    Threads: any. A forked child opens its own. Raises HybridPSError."""

    def __init__(self, name: str, host_bytes: int = 0, device_bytes: Sequence[int] = (),
                 lock_ms: int = 5000, reap_ms: int = 1000) -> None:
        self._h: ctypes.c_void_p | None = None
        self._lib = _library()
        check_text("name", name, "training")
        if not isinstance(device_bytes, (tuple, list)):
            raise HybridPSError(f"device_bytes is {device_bytes!r}: it must be a list of bytes, "
                                "one for each device")
        for what, value in (("host_bytes", host_bytes), ("lock_ms", lock_ms), ("reap_ms", reap_ms),
                            *((f"device_bytes[{i}]", b) for i, b in enumerate(device_bytes))):
            check_whole(what, value)
        if device_bytes and host_bytes == 0:
            raise HybridPSError("device_bytes without host_bytes: a new table has both, one "
                                "that is joined has neither")
        sizes = (ctypes.c_uint64 * len(device_bytes))(*device_bytes)
        handle = ctypes.c_void_p()
        options = _Options(name.encode(), host_bytes, sizes, len(device_bytes), lock_ms, reap_ms)
        self._check(self._lib.hybridps_manager_open(ctypes.byref(options), ctypes.byref(handle)))
        self._h = handle

    def schedule(self, size: int, refer_device: int = HOST) -> Ticket:
        """Reserve room for ``size`` bytes for this process: on the host, on ``refer_device`` or on
        another device, the first that has it."""
        device, number = ctypes.c_int(), ctypes.c_uint64()
        self._check(self._lib.hybridps_manager_schedule(
            self._open(), check_whole("size", size), _check_device(refer_device),
            ctypes.byref(device), ctypes.byref(number)))
        return Ticket(device.value, size, number.value)

    def cancel(self, ticket: Ticket) -> None:
        """Free the reserved room."""
        if not isinstance(ticket, Ticket):
            raise HybridPSError(f"ticket is {ticket!r}: it must be what schedule() returned")
        self._check(self._lib.hybridps_manager_cancel(self._open(), ticket.number))

    def add(self, size: int | Ticket, device: int = HOST) -> None:
        """Count ``size`` more bytes as used by this process; or a ticket's, on the ticket's
        device."""
        number = 0
        if isinstance(size, Ticket):
            device, number, size = size.device, size.number, size.size
        self._check(self._lib.hybridps_manager_add(
            self._open(), _check_device(device), check_whole("size", size), number))

    def remove(self, size: int, device: int = HOST) -> None:
        """Stop counting ``size`` bytes as used by this process."""
        self._check(self._lib.hybridps_manager_remove(
            self._open(), _check_device(device), check_whole("size", size)))

    def use(self, device: int = HOST) -> Use:
        out = self._info(device)
        return Use(out.capacity, out.used, out.reserved, out.mine, out.processes)

    @property
    def devices(self) -> int:
        """The table's number of devices, without the host."""
        return self._info(HOST).devices

    def close(self) -> None:
        handle, self._h = self._h, None
        if handle is not None:
            self._lib.hybridps_manager_close(handle)

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _info(self, device: int) -> _Info:
        out = _Info()
        self._check(self._lib.hybridps_manager_info(self._open(), _check_device(device),
                                                    ctypes.byref(out)))
        return out

    def _open(self) -> ctypes.c_void_p:
        if self._h is None:
            raise HybridPSError("this manager is closed")
        return self._h

    def _check(self, code: int) -> None:
        if code != 0:
            raise failure(self._lib, code)


def _check_device(device: int) -> int:
    if not isinstance(device, int) or isinstance(device, bool) or not HOST <= device < 1 << 31:
        raise HybridPSError(f"device is {device!r}: -1 is the host, others count from 0")
    return device

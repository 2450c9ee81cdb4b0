"""The C ABI of include/helios/hybridps.h, through ctypes. Nothing here knows about torch.

``Pool`` wraps one hybridps: plain Python values in and out, ``HybridPSError`` instead of codes.
Sizes are bytes. Threads: any, as for the C functions; ctypes releases the GIL during a call.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from typing import Any, Callable, Iterable, Iterator, Sequence

from helios import _loader

HOST, DEVICE = 0, 1
PARAM, GRAD, P32, MOMENTUM, VARIANCE, OTHER = range(6)
KINDS = ("param", "grad", "p32", "momentum", "variance", "other")
FREE, HOLD, COMPUTE, AFTER_FWD, AFTER_BWD = range(5)
STATES = ("FREE", "HOLD", "COMPUTE", "AFTER_FWD", "AFTER_BWD")
F32, F16, BF16 = range(3)

c_int, c_long, c_double = ctypes.c_int, ctypes.c_long, ctypes.c_double
c_uint32, c_uint64, c_size_t = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
c_char_p, c_void_p, POINTER = ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER


class HybridPSError(RuntimeError):
    """A call failed and changed nothing. ``code`` is HELIOS_E..., 0 if raised by Python."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


_process = [os.getpid()]
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


def forked(pid: int) -> bool:
    """Whether this is a child of process ``pid``. Makes no system call: every access checks it."""
    return _process[0] != pid


def failure(lib: ctypes.CDLL, code: int) -> HybridPSError:
    """The exception for a library call that has just returned ``code`` in this thread."""
    why = lib.helios_last_error()
    return HybridPSError(why.decode(errors="replace") if why else f"error {code}", code)


class _Options(_loader.Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("policy", c_char_p), ("mode", c_char_p),
                ("chunk_bytes", c_uint64), ("host_bytes", c_uint64), ("manager", c_char_p),
                ("prefetch", c_int), ("seed", c_uint64), ("spill", c_char_p),
                ("plan_ahead", c_int), ("heat_alpha", c_double), ("heat_beta", c_double),
                ("heat_window", c_double), ("heat_tau", c_double), ("spill_pause_ms", c_int)]


class Use(ctypes.Structure):
    _fields_ = [("tensor", c_uint32), ("where", c_int), ("write", c_int), ("address", c_void_p)]


def _as_dict(struct: ctypes.Structure) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, _ in struct._fields_:
        value = getattr(struct, name)
        if isinstance(value, _Traffic):
            out[name] = _as_dict(value)
        elif name.endswith("_by_kind"):
            out[name] = dict(zip(KINDS, value))
        elif name != "size":
            out[name] = value
    return out


class _Traffic(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in
                ("h2d", "d2h", "loads", "evictions", "drops", "stalls", "stall_ns")]


class _Stats(_loader.Sized):
    _fields_ = ([("size", c_size_t)] +
                [(name, c_uint64) for name in
                 ("capacity", "granule", "avail", "device", "device_peak", "host", "host_peak",
                  "pinned", "peak_over_avail")] +
                [("device_by_kind", c_uint64 * 6), ("host_by_kind", c_uint64 * 6)] +
                [(name, c_uint64) for name in
                 ("tensors", "chunks", "iterations", "moments", "deviations")] +
                [("planned", c_int), ("total", _Traffic), ("iteration", _Traffic),
                 ("last", _Traffic)] +
                [(name, c_uint64) for name in
                 ("spilled", "spilled_peak", "spill_out", "spill_in", "host_limit", "faults",
                  "fault_bytes", "given_back_bytes")])


class _Info(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("chunk", c_uint32), ("offset", c_uint64), ("bytes", c_uint64), ("kind", c_int),
                ("state", c_int), ("on_host", c_int), ("on_device", c_int),
                ("chunk_bytes", c_uint64)]


class _Kept(_loader.Sized):
    _fields_ = [("size", c_size_t), ("address", c_void_p), ("bytes", c_uint64)]


class Adam(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("p", c_void_p), ("m", c_void_p), ("v", c_void_p), ("g", c_void_p),
                ("grad_type", c_int), ("p16", c_void_p), ("p16_type", c_int), ("n", c_size_t),
                ("step", c_long), ("lr", c_double), ("b1", c_double), ("b2", c_double),
                ("eps", c_double), ("wd", c_double), ("grad_scale", c_double), ("adamw", c_int),
                ("nthreads", c_int)]


ALLGATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_void_p, c_uint64)
BROADCAST = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_uint64, c_int)
ALLREDUCE = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_uint64, c_int)
REDUCE = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_uint64, c_int, c_int)
REDUCE_SCATTER = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_void_p, c_uint64, c_int,
                                  c_int)
PAIR = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_uint64, c_int, c_int)
WHY = ctypes.CFUNCTYPE(c_void_p, c_void_p)
CLOSE = ctypes.CFUNCTYPE(None, c_void_p)


class Transport(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("rank", c_int), ("world", c_int), ("arg", c_void_p), ("allgather", ALLGATHER),
                ("broadcast", BROADCAST), ("allreduce", ALLREDUCE), ("why", WHY),
                ("close", CLOSE), ("reduce", REDUCE), ("reduce_scatter", REDUCE_SCATTER),
                ("alltoall", ALLGATHER), ("send", PAIR), ("recv", PAIR), ("cancel", CLOSE)]


class ShmOptions(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("name", c_char_p), ("rank", c_int), ("world", c_int), ("timeout_ms", c_int)]


class NetOptions(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("address", c_char_p), ("listen", c_char_p), ("rank", c_int), ("world", c_int),
                ("timeout_ms", c_int)]


# Struct sizes of hybridps.h on every 64-bit Linux; a mismatch would corrupt memory.
_SIZES = {_Options: 128, Use: 24, _Traffic: 56, _Stats: 456, _Info: 56, _Kept: 24, Adam: 136,
          Transport: 112, ShmOptions: 32, NetOptions: 40}

_PROTOTYPES = {
    "helios_last_error": (c_char_p, []),
    "hybridps_open": (c_int, [POINTER(_Options), POINTER(c_void_p)]),
    "hybridps_close": (None, [c_void_p]),
    "hybridps_add": (c_int, [c_void_p, c_char_p, c_int, c_uint64, POINTER(c_uint32)]),
    "hybridps_layout": (c_int, [c_void_p]),
    "hybridps_access": (c_int, [c_void_p, c_void_p, c_size_t]),
    "hybridps_release": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "hybridps_drop": (c_int, [c_void_p, c_void_p, c_size_t]),
    "hybridps_address": (c_int, [c_void_p, c_uint32, c_int, POINTER(c_void_p)]),
    "hybridps_serve_faults": (c_int, [c_void_p]),
    "hybridps_on_unreadable": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t]),
    "hybridps_share_host": (c_int, [c_void_p, c_int, ctypes.c_uint]),
    "hybridps_publish": (c_int, [c_void_p, c_void_p, c_size_t]),
    "hybridps_renew": (c_int, [c_void_p, c_void_p, c_size_t]),
    "hybridps_withdraw": (c_int, [c_void_p, c_uint32]),
    "hybridps_settle": (c_int, [c_void_p]),
    "hybridps_keep": (c_int, [c_void_p, c_uint32, c_int, POINTER(_Kept)]),
    "hybridps_kept_free": (None, [c_void_p, c_uint64]),
    "hybridps_iteration": (c_int, [c_void_p, c_char_p]),
    "hybridps_moment": (c_int, [c_void_p, c_char_p, c_char_p, c_uint64]),
    "hybridps_stats": (c_int, [c_void_p, POINTER(_Stats)]),
    "hybridps_tensor": (c_int, [c_void_p, c_uint32, POINTER(_Info)]),
    "hybridps_trace": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "hybridps_free_text": (None, [c_void_p]),
    "hybridps_adam_set_rounding": (c_int, [c_int]),
    "hybridps_adam_run": (c_int, [POINTER(Adam)]),
    "hybridps_grad_put": (None, [c_void_p, c_void_p, c_size_t]),
    "hybridps_grad_norm": (c_int, [c_void_p, c_int, c_size_t, c_double, c_int, POINTER(c_double),
                                   POINTER(c_int)]),
    "hybridps_group_over": (c_int, [POINTER(Transport), POINTER(c_void_p)]),
    "hybridps_group_shm": (c_int, [POINTER(ShmOptions), POINTER(c_void_p)]),
    "hybridps_group_net": (c_int, [POINTER(NetOptions), POINTER(c_void_p)]),
    "hybridps_group_close": (None, [c_void_p]),
    "hybridps_group_rank": (c_int, [c_void_p]),
    "hybridps_group_world": (c_int, [c_void_p]),
    "hybridps_group_allreduce": (c_int, [c_void_p, c_char_p, c_void_p, c_uint64, c_int, c_int]),
    "hybridps_group_broadcast": (c_int, [c_void_p, c_char_p, c_void_p, c_uint64, c_int]),
    "hybridps_group_allgather": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p, c_uint64]),
    "hybridps_group_reduce_scatter": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p, c_uint64,
                                              c_int, c_int]),
    "hybridps_group_alltoall": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p, c_uint64]),
    "hybridps_group_send": (c_int, [c_void_p, c_char_p, c_void_p, c_uint64, c_int, c_int]),
    "hybridps_group_recv": (c_int, [c_void_p, c_char_p, c_void_p, c_uint64, c_int, c_int]),
    "hybridps_group_cancel": (None, [c_void_p]),
}


def bind(header: str, sizes: dict[Any, int], prototypes: dict[str, tuple[Any, list[Any]]],
         error: type[Exception]) -> ctypes.CDLL:
    """libhelios with prototypes, found by helios._loader.candidates()."""
    for struct, size in sizes.items():
        if ctypes.sizeof(struct) != size:
            raise error(f"struct {struct.__name__} of {header} has {ctypes.sizeof(struct)} bytes "
                        f"here and {size} in the ABI: use a 64-bit Linux Python")
    try:
        lib = _loader.load()
    except OSError as failed:
        raise error(str(failed)) from None
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise error(f"{lib._name} has no {name}: it is older than this package; "
                        "install both from the same release") from None
        function.restype, function.argtypes = result, arguments
    return lib


@functools.lru_cache(maxsize=None)
def load_library() -> ctypes.CDLL:
    return bind("hybridps.h", _SIZES, _PROTOTYPES, HybridPSError)


class _Unreadable:
    """Raises an error for what a forked child can't read, between two bytecodes after the read: the
    library makes the interpreter evaluate the truth of this object, which raises."""

    def __init__(self, again: Callable[[], int]) -> None:
        self.text, self._again = ctypes.create_string_buffer(512), again

    def __bool__(self) -> bool:
        self._again()
        raise HybridPSError(self.text.value.decode(errors="replace"))


# Others have 63, milliseconds 31.
_BITS = {"seed": 64} | dict.fromkeys(("prefetch", "plan_ahead", "rank", "world", "src", "dst",
                                      "tag"), 31)


def check_whole(what: str, value: Any, below: bool = False) -> int:
    """Check for a whole number that C can take. below: it may be negative."""
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    number = value.__index__() if whole else None
    bits = _BITS.get(what, 31 if what.endswith("_ms") else 63)
    if number is None or not (-1 << bits if below else 0) <= number < 1 << bits:
        least = f"-2^{bits}" if below else 0
        raise HybridPSError(f"{what} is {value!r}: it is a whole number from {least} on, below "
                            f"2^{bits}")
    return int(number)


def check_flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise HybridPSError(f"{what} is {value!r}: it must be True or False")


def check_text(what: str, value: object, example: str) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise HybridPSError(f"{what} is {value!r}: it is text, such as {example!r}")


class Bundle:
    """The arguments of an access and a release of tensors that are used together, made once."""

    __slots__ = ("uses", "ids", "count", "uses_at", "ids_at")

    def __init__(self, tensors: Iterable[int], where: int, write: bool = False,
                 written: Iterable[int] = ()) -> None:
        """``written``: further tensors, which are written."""
        uses = [(t, where, int(write), None) for t in tensors]
        uses += [(t, where, 1, None) for t in written]
        self.count = len(uses)
        self.uses = (Use * self.count)(*uses)
        self.ids = (c_uint32 * self.count)(*tensors, *written)
        self.uses_at, self.ids_at = ctypes.addressof(self.uses), ctypes.addressof(self.ids)


class Pool:
    """One hybridps. See hybridps.h for what each call means and when it fails."""

    def __init__(self, device: str, policy: str | None, mode: str | None, chunk_bytes: int,
                 host_bytes: int, manager: str | None, prefetch: int, seed: int = 0,
                 spill: str | None = None, plan_ahead: int = 0,
                 heat: Sequence[float] | None = None, spill_pause_ms: int = 0) -> None:
        self._h: c_void_p | None = None
        self.lib = load_library()
        for what, value, example in (("device", device, "emu:256MiB"), ("policy", policy, "opt"),
                                     ("mode", mode, "copy"),
                                     ("manager", manager, "training"), ("spill", spill, "none")):
            if value is not None:
                check_text(what, value, example)
        for what, number in (("chunk_bytes", chunk_bytes), ("host_bytes", host_bytes),
                             ("seed", seed),
                             ("prefetch", prefetch), ("plan_ahead", plan_ahead),
                             ("spill_pause_ms", spill_pause_ms)):
            check_whole(what, number, not what.endswith("_bytes"))
        if heat is not None and not (isinstance(heat, (tuple, list)) and len(heat) <= 4 and
                                     all(isinstance(part, (int, float)) for part in heat)):
            raise HybridPSError(f"heat is {heat!r}: it must be alpha, beta, window and tau, four "
                                "numbers")
        text = [None if s is None else s.encode() for s in (device, policy, mode, manager,
                                                             spill)]
        options = _Options(text[0], text[1], text[2], chunk_bytes, host_bytes, text[3], prefetch,
                           seed, text[4], plan_ahead, *(heat if heat is not None else (0, 0, 0, 0)),
                           spill_pause_ms)
        handle = c_void_p()
        self.check(self.lib.hybridps_open(ctypes.byref(options), ctypes.byref(handle)))
        self._h = handle
        self._access, self._release = self.lib.hybridps_access, self.lib.hybridps_release
        self._moment, self.grad_put = self.lib.hybridps_moment, self.lib.hybridps_grad_put
        self._settle = self.lib.hybridps_settle
        self._stats = _Stats()
        self._stats_at = ctypes.byref(self._stats)
        self._info = _Info()
        self._info_at = ctypes.byref(self._info)

    def check(self, code: int) -> None:
        if code != 0:
            raise failure(self.lib, code)

    def close(self) -> None:
        handle, self._h = self._h, None
        if handle is not None:
            self.lib.hybridps_close(handle)

    def __del__(self) -> None:
        """Without a close: when no tensor shows its memory any more."""
        if not sys.is_finalizing():
            self.close()

    def add(self, name: str, kind: int, size: int) -> int:
        out = c_uint32()
        self.check(self.lib.hybridps_add(self._h, name.encode(), kind, size, ctypes.byref(out)))
        return out.value

    def layout(self) -> None:
        self.check(self.lib.hybridps_layout(self._h))

    def access(self, bundle: Bundle) -> None:
        if bundle.count:
            code = self._access(self._h, bundle.uses_at, bundle.count)
            if code:
                self.check(code)

    def release(self, bundle: Bundle, state: int = HOLD) -> None:
        if bundle.count:
            code = self._release(self._h, bundle.ids_at, bundle.count, state)
            if code:
                self.check(code)

    @contextlib.contextmanager
    def on_host(self, *tensors: int, write: bool = False) -> Iterator[None]:
        """Access the tensors on the host within the block."""
        bundle = Bundle(tensors, HOST, write)
        self.access(bundle)
        try:
            yield
        finally:
            self.release(bundle)

    def drop(self, tensors: Sequence[int]) -> None:
        if tensors:
            ids = (c_uint32 * len(tensors))(*tensors)
            self.check(self.lib.hybridps_drop(self._h, ctypes.addressof(ids), len(tensors)))

    def address(self, tensor: int, where: int) -> int:
        out = c_void_p()
        self.check(self.lib.hybridps_address(self._h, tensor, where, ctypes.byref(out)))
        return out.value or 0

    def share_host(self, file: int, kinds: Sequence[int]) -> None:
        """Make all ranks share one copy of the host memory of new chunks of these kinds."""
        self.check(self.lib.hybridps_share_host(self._h, file, sum(1 << kind for kind in kinds)))

    def publish(self, tensors: Sequence[int]) -> None:
        """Make this rank's host writes to these tensors, which are accessed there, visible to
        all."""
        ids = (c_uint32 * len(tensors))(*tensors)
        self.check(self.lib.hybridps_publish(self._h, ids, len(tensors)))

    def renew(self, tensors: Sequence[int]) -> None:
        """Update these tensors to what other ranks have published."""
        ids = (c_uint32 * len(tensors))(*tensors)
        self.check(self.lib.hybridps_renew(self._h, ids, len(tensors)))

    def withdraw(self, tensor: int) -> None:
        """Discard the shared content of its chunk, which no rank reads any more."""
        self.check(self.lib.hybridps_withdraw(self._h, tensor))

    def serve_faults(self) -> None:
        """Show tensors that are used where their chunk is absent."""
        self.check(self.lib.hybridps_serve_faults(self._h))
        python, settle, pool = ctypes.pythonapi, self.lib.hybridps_settle, self._h
        self._unreadable = _Unreadable(lambda: settle(pool))
        self.check(self.lib.hybridps_on_unreadable(
            self._h, python.Py_AddPendingCall, python.PyObject_IsTrue, id(self._unreadable),
            self._unreadable.text, len(self._unreadable.text)))

    def settle(self) -> None:
        """Make what was written to such tensors their content."""
        code = self._settle(self._h)
        if code:
            self.check(code)

    def keep(self, tensor: int, where: int) -> tuple[Any, int, int]:
        """Keep the memory of its chunk after close. Returns what frees it, its address and its
        size."""
        out = _Kept()
        self.check(self.lib.hybridps_keep(self._h, tensor, where, ctypes.byref(out)))
        return self.lib.hybridps_kept_free, out.address, out.bytes

    def iteration(self, phase: str | None) -> None:
        self.check(self.lib.hybridps_iteration(self._h, phase.encode() if phase else None))

    def moment(self, stage: bytes, op: bytes, other_bytes: int) -> None:
        code = self._moment(self._h, stage, op, other_bytes)
        if code:
            self.check(code)

    def stats(self) -> dict[str, Any]:
        out = _Stats()
        self.check(self.lib.hybridps_stats(self._h, ctypes.byref(out)))
        return _as_dict(out)

    def device_by_kind(self) -> tuple[int, dict[str, int]]:
        """The running iteration, and bytes by kind."""
        out = self._stats
        self.check(self.lib.hybridps_stats(self._h, self._stats_at))
        return out.iterations, dict(zip(KINDS, out.device_by_kind))

    def chunk(self, tensor: int) -> tuple[int, int]:
        """The chunk that it lies in, and that chunk's bytes."""
        out = self._info
        self.check(self.lib.hybridps_tensor(self._h, tensor, self._info_at))
        return out.chunk, out.chunk_bytes

    def tensor(self, tensor: int) -> dict[str, Any]:
        out = _Info()
        self.check(self.lib.hybridps_tensor(self._h, tensor, ctypes.byref(out)))
        return _as_dict(out)

    def trace(self, phase: str | None = None) -> str:
        out = c_void_p()
        self.check(self.lib.hybridps_trace(self._h, phase.encode() if phase else None,
                                           ctypes.byref(out)))
        try:
            return ctypes.string_at(out.value or 0).decode()
        finally:
            self.lib.hybridps_free_text(out)

    def adam(self, step: Adam) -> None:
        self.check(self.lib.hybridps_adam_run(ctypes.byref(step)))

    def norm(self, address: int, kind: int, count: int, scale: float,
             threads: int) -> tuple[float, bool]:
        """The sum of the squares, and whether all are finite."""
        total, finite = c_double(), c_int()
        self.check(self.lib.hybridps_grad_norm(address, kind, count, scale, threads,
                                               ctypes.byref(total), ctypes.byref(finite)))
        return total.value, bool(finite.value)

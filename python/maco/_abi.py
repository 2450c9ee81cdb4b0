"""The C ABI of include/helios/maco.h, through ctypes. Nothing here knows about torch.

``Graph``, ``Plan``, ``Runtime`` and ``Trace`` own the C objects of these names and raise the
exceptions of ``errors``. ctypes releases the GIL during a call.
"""
from __future__ import annotations

import ctypes
import enum
import functools
import json
import os
import tempfile
from typing import Any, Iterator, Sequence

from helios import _loader
from hybridps import _abi as base

from . import errors

c_int, c_int32, c_uint16 = ctypes.c_int, ctypes.c_int32, ctypes.c_uint16
c_uint32, c_uint64 = ctypes.c_uint32, ctypes.c_uint64
c_char_p, c_void_p, c_size_t, POINTER = (
    ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER)


class TaskType(enum.IntEnum):
    """enum maco_task_type, which documents what each takes, as does ``TaskGraph.add_task``."""

    TERMINATE = 0
    NOP = 1
    MATMUL = 100
    ATTENTION = 101
    LINEAR = 102
    LAYERNORM = 103
    GELU = 104
    SILU = 105
    SOFTMAX = 106
    RMSNORM = 107
    ELEMENTWISE = 120
    CUSTOM_COMPUTE = 150
    ALLREDUCE = 200
    ALLGATHER = 201
    REDUCE_SCATTER = 202
    ALL_TO_ALL = 203
    SEND = 204
    RECV = 205
    BROADCAST = 206
    CUSTOM_COMM = 250
    MEMCPY = 300
    MEMSET = 301

    @property
    def is_comm(self) -> bool:
        return TaskType.ALLREDUCE <= self <= TaskType.CUSTOM_COMM


F32, F16, BF16, F64, I32, I64, U8 = range(7)
ELEMENTWISE = ("add", "mul", "axpb", "relu", "cast", "sub", "scale_add")
REDUCE = ("sum", "avg", "min", "max", "prod")
POLICIES = ("direct", "scheduler", "static")
BALANCES = ("round_robin", "least_loaded")
NONE = 0xFFFFFFFF

EINVAL, ENOSPC, ETIMEDOUT, EUNAVAIL, EBUSY, ECANCELED, EPERM, EUNSUPPORTED, ECONFLICT, EINTERNAL = (
    -1, -5, -8, -9, -10, -12, -13, -15, -16, -17)


class Task(ctypes.Structure):
    _fields_ = [("type", c_uint16), ("flags", c_uint16), ("dependent_event", c_uint32),
                ("trigger_event", c_uint32), ("cost_ns", c_uint32), ("inputs", c_uint64 * 4),
                ("outputs", c_uint64 * 2), ("dims", c_int32 * 8), ("aux", ctypes.c_float * 4),
                ("group", c_uint32), ("name", c_uint32), ("user", c_uint64)]


FUNCTION = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Task))


class Range(ctypes.Structure):
    _fields_ = [("first", c_uint64), ("bytes", c_uint64)]


class Op(_loader.Sized):
    _fields_ = [("size", c_size_t), ("type", c_int), ("dtype", c_int), ("deterministic", c_int),
                ("inputs", c_void_p * 4), ("outputs", c_void_p * 2), ("dims", c_int32 * 8),
                ("aux", ctypes.c_float * 4), ("group", c_uint32), ("name", c_char_p),
                ("on_worker", c_int), ("priority", c_int), ("cost_ns", c_uint32),
                ("local_name", c_int),
                ("function", FUNCTION), ("arg", c_void_p), ("reads", POINTER(Range)),
                ("writes", POINTER(Range)), ("n_reads", c_uint32), ("n_writes", c_uint32)]


class _CompileOptions(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("policy", c_int), ("balance", c_int), ("workers", c_int), ("infer", c_int),
                ("lists", c_void_p)]


class _Virtual(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("workers", c_int), ("hop_ns", c_uint64), ("link_bytes_per_s", c_uint64),
                ("link_latency_ns", c_uint64)]


POLL = ctypes.CFUNCTYPE(c_int, c_void_p)


class _RuntimeOptions(_loader.Sized):
    _fields_ = [("size", c_size_t), ("workers", c_int), ("policy", c_int), ("balance", c_int),
                ("timeout_ns", c_uint64), ("trace", c_int), ("ring", c_uint32),
                ("groups", POINTER(c_void_p)), ("n_groups", c_uint32), ("poll", POLL),
                ("poll_arg", c_void_p)]


class _CudaOptions(_loader.Sized):
    _fields_ = [("size", c_size_t),
                ("workers", c_int), ("reserved", c_int), ("timeout_ns", c_uint64),
                ("trace", c_int), ("ring", c_uint32), ("comms", POINTER(c_void_p)),
                ("n_comms", c_uint32), ("driver", c_char_p), ("nccl", c_char_p),
                ("groups", POINTER(c_void_p)), ("peer_ctas", c_uint32)]


class _Overlap(_loader.Sized):
    _fields_ = [("size", c_size_t)] + \
               [(name, c_uint64) for name in
                ("total_ns", "compute_ns", "comm_ns", "both_ns", "busy_ns", "launch_ns")] + \
               [("tasks", c_uint32), ("comm_before_producer", c_uint32)]


# Struct sizes of maco.h on every 64-bit Linux; a mismatch would corrupt memory.
_SIZES = {Task: 128, Range: 16, Op: 192, _CompileOptions: 32, _Virtual: 40, _RuntimeOptions: 72,
          _CudaOptions: 80, _Overlap: 64}

_PROTOTYPES = {
    "helios_last_error": (c_char_p, []),
    "maco_graph_new": (c_int, [POINTER(c_void_p)]),
    "maco_graph_free": (None, [c_void_p]),
    "maco_graph_add": (c_int, [c_void_p, POINTER(Op), POINTER(c_uint32)]),
    "maco_graph_depend": (c_int, [c_void_p, c_uint32, c_uint32]),
    "maco_compile": (c_int, [c_void_p, POINTER(_CompileOptions), POINTER(c_void_p)]),
    "maco_plan_free": (None, [c_void_p]),
    "maco_plan_describe": (c_int, [c_void_p, POINTER(c_void_p)]),
    "maco_run_virtual": (c_int, [c_void_p, POINTER(_Virtual), POINTER(c_void_p)]),
    "maco_runtime_open": (c_int, [POINTER(_RuntimeOptions), POINTER(c_void_p)]),
    "maco_runtime_close": (None, [c_void_p]),
    "maco_run": (c_int, [c_void_p, c_void_p]),
    "maco_cancel": (None, [c_void_p]),
    "maco_run_order": (c_int, [c_void_p, POINTER(c_uint32), c_uint32, POINTER(c_uint32)]),
    "maco_run_trace": (c_int, [c_void_p, POINTER(c_void_p)]),
    "maco_cuda_available": (c_int, [c_char_p]),
    "maco_cuda_open": (c_int, [c_int, POINTER(_CudaOptions), POINTER(c_void_p)]),
    "maco_cuda_close": (None, [c_void_p]),
    "maco_cuda_load": (c_int, [c_void_p, c_void_p]),
    "maco_cuda_start": (c_int, [c_void_p, c_void_p]),
    "maco_cuda_wait": (c_int, [c_void_p]),
    "maco_cuda_cancel": (None, [c_void_p]),
    "maco_cuda_order": (c_int, [c_void_p, POINTER(c_uint32), c_uint32, POINTER(c_uint32)]),
    "maco_cuda_trace": (c_int, [c_void_p, POINTER(c_void_p)]),
    "maco_trace_free": (None, [c_void_p]),
    "maco_trace_write": (c_int, [c_void_p, c_int, c_char_p]),
    "maco_trace_overlap": (c_int, [c_void_p, POINTER(_Overlap)]),
    "maco_demo": (c_int, [c_void_p, c_uint64, c_int, c_int, c_int, c_int, POINTER(c_int32)]),
}


@functools.lru_cache(maxsize=None)
def load_library() -> ctypes.CDLL:
    return base.bind("maco.h", _SIZES, _PROTOTYPES, errors.MacoError)


def said(lib: ctypes.CDLL) -> str:
    """Why the last call of the library failed, in this thread."""
    why = lib.helios_last_error()
    return why.decode(errors="replace") if why else "the library says nothing"


_HINTS = {
    errors.TimeoutError: "see what is still at work, or give the run more time: timeout_s",
    errors.NotCoResidentError: "use fewer workers: each is a thread that the others wait for",
    errors.OrderMismatchError: "all ranks must make the same graph, with tasks in the same order",
    errors.CollectiveFailedError: "see what the other ranks say; then make a new group",
    errors.CanceledError: "execute() runs the graph again",
}


def check(code: int, kinds: dict[int, type[errors.MacoError]]) -> None:
    """kinds: exceptions by code; MacoError for other codes. The library's text may contain a
    hint."""
    if code:
        kind, text = kinds.get(code, errors.MacoError), said(load_library())
        hint = "" if " Hint: " in text else _HINTS.get(kind, "see docs/maco.md")
        raise kind(text, hint, code=code)


class _Owned:
    """A pointer of the library that is released once."""

    release = ""

    def __init__(self, handle: c_void_p) -> None:
        self.h: c_void_p | None = handle
        self.lib = load_library()

    def close(self) -> None:
        handle, self.h = self.h, None
        if handle is not None:
            getattr(self.lib, self.release)(handle)

    def __del__(self) -> None:
        if getattr(self, "h", None) is not None:
            self.close()


class Trace(_Owned):
    release = "maco_trace_free"

    def write(self, path: str, rank: int) -> None:
        check(self.lib.maco_trace_write(self.h, rank, os.fsencode(path)), {})

    def overlap(self) -> dict[str, int]:
        out = _Overlap()
        check(self.lib.maco_trace_overlap(self.h, ctypes.byref(out)), {})
        return {name: getattr(out, name) for name, _ in out._fields_[1:]}

    def events(self) -> list[dict[str, Any]]:
        """The events that ``write`` puts into its file."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/trace.json"
            self.write(path, 0)
            with open(path, encoding="utf-8") as file:
                return json.load(file)["traceEvents"]


class Plan(_Owned):
    release = "maco_plan_free"

    def describe(self) -> dict[str, Any]:
        text = c_void_p()
        check(self.lib.maco_plan_describe(self.h, ctypes.byref(text)), {})
        try:
            return json.loads(ctypes.string_at(text.value or 0))
        finally:
            _libc().free(text)

    def simulate(self, workers: int, hop_ns: int, link_bytes_per_s: int,
                 link_latency_ns: int) -> Trace:
        model, out = _Virtual(workers, hop_ns, link_bytes_per_s, link_latency_ns), c_void_p()
        check(self.lib.maco_run_virtual(self.h, ctypes.byref(model), ctypes.byref(out)),
              {EINVAL: errors.DimensionError})
        return Trace(out)


@functools.lru_cache(maxsize=None)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.free.restype, libc.free.argtypes = None, [c_void_p]
    return libc


class Graph(_Owned):
    release = "maco_graph_free"

    def __init__(self) -> None:
        lib, handle = load_library(), c_void_p()
        check(lib.maco_graph_new(ctypes.byref(handle)), {})
        super().__init__(handle)

    def add(self, op: Op) -> int:
        out = c_uint32()
        code = self.lib.maco_graph_add(self.h, ctypes.byref(op), ctypes.byref(out))
        if code:
            text = said(self.lib)
            overlap = " overlap. Hint" in text
            raise (errors.OverlapError if overlap else errors.DimensionError)(text, code=code)
        return out.value

    def depend(self, task: int, on: int) -> None:
        check(self.lib.maco_graph_depend(self.h, task, on),
              {ECONFLICT: errors.CyclicDependencyError})

    def compile(self, policy: str, balance: str, workers: int, infer: bool) -> Plan:
        """Raises OverlapError for every conflict: the caller knows whether its dependencies form a
        cycle."""
        options = _CompileOptions(POLICIES.index(policy), BALANCES.index(balance), workers,
                                  int(infer), None)
        out = c_void_p()
        check(self.lib.maco_compile(self.h, ctypes.byref(options), ctypes.byref(out)),
              {EINVAL: errors.DimensionError, ECONFLICT: errors.OverlapError})
        return Plan(out)


_OF_A_RUN = {ETIMEDOUT: errors.TimeoutError, ECONFLICT: errors.OrderMismatchError,
             EUNAVAIL: errors.CollectiveFailedError, ECANCELED: errors.CanceledError,
             ENOSPC: errors.NotCoResidentError, EUNSUPPORTED: errors.DeviceError}


class _Running(_Owned):
    """What both runtimes share: the functions, by the names that one of them uses."""

    names: dict[str, str] = {}

    def cancel(self) -> None:
        if self.h is not None:
            getattr(self.lib, self.names["cancel"])(self.h)

    def order(self, tasks: int) -> list[int]:
        ids, n = (c_uint32 * tasks)(), c_uint32()
        check(getattr(self.lib, self.names["order"])(self.h, ids, tasks, ctypes.byref(n)), {})
        return ids[:n.value]

    def trace(self) -> Trace | None:
        out = c_void_p()
        check(getattr(self.lib, self.names["trace"])(self.h, ctypes.byref(out)), {})
        return Trace(out) if out.value else None


def _signals(caught: list[BaseException]) -> Iterator[int]:
    """Results of a poll. Python's signal handlers run when the generator resumes from a yield, so
    what they raise, such as KeyboardInterrupt, is raised inside the try and can't get lost in
    ctypes."""
    while True:
        try:
            while True:
                yield len(caught)
        except GeneratorExit:
            raise
        except BaseException as error:
            caught.append(error.with_traceback(None))  # clearing its frames ends no generator


class Runtime(_Running):
    release = "maco_runtime_close"
    names = {"cancel": "maco_cancel", "order": "maco_run_order", "trace": "maco_run_trace"}

    def __init__(self, workers: int, policy: str, balance: str, timeout_s: float, trace: bool,
                 groups: Sequence[c_void_p]) -> None:
        lib, handle = load_library(), c_void_p()
        array = (c_void_p * len(groups))(*groups)
        self._caught: list[BaseException] = []
        answers = _signals(self._caught)
        next(answers)
        self._poll = POLL(answers.send)  # not a Python function, which could itself be interrupted
        options = _RuntimeOptions(workers, POLICIES.index(policy), BALANCES.index(balance),
                                  int(timeout_s * 1e9), int(trace), 0, array, len(groups),
                                  self._poll)
        check(lib.maco_runtime_open(ctypes.byref(options), ctypes.byref(handle)),
              {EINVAL: errors.NotCoResidentError})
        super().__init__(handle)

    def run(self, plan: Plan, stream: int = 0) -> None:
        """Run the plan. An exception from a signal handler meanwhile ends the run and is raised."""
        code = self.lib.maco_run(self.h, plan.h)
        if self._caught:
            raise self._caught.pop()
        check(code, _OF_A_RUN)

    def at_work(self) -> bool:
        """Whether a thread is still in a task of the last run and uses its memory."""
        return self.lib.maco_run_order(self.h, None, 0, ctypes.byref(c_uint32())) == EBUSY


def cuda_available() -> str:
    """Why CUDA is not available; "" = it is."""
    lib = load_library()
    return said(lib) if lib.maco_cuda_available(None) else ""


class Cuda(_Running):
    """A persistent kernel that runs one plan at a time."""

    release = "maco_cuda_close"
    names = {"cancel": "maco_cuda_cancel", "order": "maco_cuda_order",
             "trace": "maco_cuda_trace"}

    def __init__(self, device: int, workers: int, reserved: int, timeout_s: float, trace: bool,
                 groups: int) -> None:
        lib, handle = load_library(), c_void_p()
        options = _CudaOptions(workers=workers, reserved=reserved, trace=int(trace),
                               timeout_ns=int(timeout_s * 1e9),
                               comms=(c_void_p * groups)() if groups else None, n_comms=groups)
        check(lib.maco_cuda_open(device, ctypes.byref(options), ctypes.byref(handle)),
              {EINVAL: errors.DimensionError, ENOSPC: errors.NotCoResidentError,
               EUNAVAIL: errors.DeviceError, EUNSUPPORTED: errors.DeviceError})
        super().__init__(handle)
        self.loaded: Plan | None = None
        self.begun = False

    def run(self, plan: Plan, stream: int = 0) -> None:
        if self.loaded is not plan:
            check(self.lib.maco_cuda_load(self.h, plan.h), {**_OF_A_RUN})
            self.loaded = plan
        check(self.lib.maco_cuda_start(self.h, stream), _OF_A_RUN)
        self.begun = True
        code = self.lib.maco_cuda_wait(self.h)
        self.begun = code == ETIMEDOUT  # the kernel's own deadline passed, or it does not end
        check(code, _OF_A_RUN)

    def at_work(self) -> bool:
        """Whether the kernel of the last run may still be running."""
        return self.begun

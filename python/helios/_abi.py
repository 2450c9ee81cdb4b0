"""The C ABI of libhelios (include/helios/helios.h), through ctypes.

The rest of the package uses ``Client``: plain Python values in and out, exceptions instead of
codes. Nothing here knows about torch.
"""
from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

from . import _loader, errors

ABI = "0.1"  # major.minor of helios_version() that the structs below describe

c_int, c_int64 = ctypes.c_int, ctypes.c_int64
c_uint32, c_uint64 = ctypes.c_uint32, ctypes.c_uint64
c_char_p, c_void_p, c_size_t = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
POINTER = ctypes.POINTER


class _Options(_loader.Sized):
    _fields_ = [("size", c_size_t), ("controller", c_char_p), ("l3", c_char_p), ("path", c_char_p),
                ("timeout_ms", c_int), ("retries", c_int)]


class _Id(ctypes.Structure):
    _fields_ = [("hi", c_uint64), ("lo", c_uint64)]


class _Shard(ctypes.Structure):
    _fields_ = [("id", _Id), ("part", ctypes.c_char * 64), ("size", c_uint64),
                ("crc32", c_uint32), ("tensors", c_uint32)]


class _TensorName(ctypes.Structure):
    _fields_ = [("stored", c_char_p), ("shown", c_char_p)]


class _ShardView(ctypes.Structure):
    _fields_ = [("pp", c_int), ("tp", c_int), ("renamed", c_int), ("ep", c_int),
                ("count", c_size_t),
                ("names", POINTER(_TensorName))]


class _ShardList(ctypes.Structure):
    _fields_ = [("version", c_int64), ("count", c_size_t), ("shards", POINTER(_Shard)),
                ("meta_json", c_char_p), ("config_json", c_char_p), ("skipped", c_char_p),
                ("views", POINTER(_ShardView)), ("left_out", c_char_p)]


class _Names(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("names", POINTER(c_char_p))]


class _Split(_loader.Sized):
    _fields_ = [("size", c_size_t), ("tp", c_int), ("pp", c_int), ("virtual_stages", c_int),
                ("first_stage_layers", c_int), ("last_stage_layers", c_int), ("ep", c_int),
                ("etp", c_int)]


class _Place(_loader.Sized):
    _fields_ = [("size", c_size_t), ("pp", c_int), ("tp", c_int), ("ep", c_int)]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_int64)),
                ("rank", c_int), ("data", c_void_p)]


class _VersionSpec(_loader.Sized):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("job", c_char_p), ("attempt", c_int),
                ("step", c_int64), ("rank", c_int), ("world", c_int), ("layout", c_int),
                ("split", POINTER(_Split)), ("create", POINTER(_Split)),
                ("config_json", c_char_p)]


LAYOUT_EXACT, LAYOUT_ANY_DTYPE, LAYOUT_UNCHECKED = range(3)


class _Stats(_loader.Sized):
    _fields_ = [("size", c_size_t), ("path", ctypes.c_char * 16),
                ("reads", c_uint64), ("read_bytes", c_uint64), ("read_ns", c_uint64),
                ("writes", c_uint64), ("write_bytes", c_uint64), ("write_ns", c_uint64),
                ("crc_failures", c_uint64), ("retries", c_uint64)]


_Fill = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p, c_size_t)

# Struct sizes of helios.h on every 64-bit Linux; a mismatch here would corrupt memory.
_SIZES = {_Options: 40, _Id: 16, _Shard: 96, _TensorName: 16, _ShardView: 32, _ShardList: 64,
          _Names: 16, _Split: 40, _Place: 24, _Tensor: 40, _VersionSpec: 80, _Stats: 88}

_PROTOTYPES = {
    "helios_version": (c_char_p, []),
    "helios_last_error": (c_char_p, []),
    "helios_strerror": (c_char_p, [c_int]),
    "helios_open": (c_int, [POINTER(_Options), POINTER(c_void_p)]),
    "helios_close": (None, [c_void_p]),
    "helios_request_place": (c_int, [c_void_p, c_char_p, c_int64, POINTER(_Split), POINTER(_Place),
                                     POINTER(POINTER(_ShardList))]),
    "helios_shard_list_free": (None, [POINTER(_ShardList)]),
    "helios_names_under": (c_int,
                           [POINTER(c_char_p), c_size_t, c_char_p, POINTER(POINTER(_Names))]),
    "helios_parts_of": (c_int, [c_char_p, POINTER(_Split), c_int, POINTER(c_char_p), c_size_t,
                                POINTER(POINTER(_Names))]),
    "helios_names_free": (None, [POINTER(_Names)]),
    "helios_map_private": (c_int, [c_void_p, _Id, POINTER(c_void_p), POINTER(c_size_t)]),
    "helios_unmap": (c_int, [c_void_p, c_void_p]),
    "helios_version_open": (c_int, [c_void_p, POINTER(_VersionSpec), POINTER(c_int64)]),
    "helios_version_put_at": (c_int, [c_void_p, c_char_p, c_int64, POINTER(_Place), c_char_p,
                                      POINTER(_Tensor), c_size_t, _Fill, c_void_p,
                                      POINTER(_Shard)]),
    "helios_version_commit": (c_int, [c_void_p, c_char_p, c_int64, c_int, c_char_p,
                                      POINTER(c_int)]),
    "helios_version_abandon": (c_int, [c_void_p, c_char_p, c_int64, c_int, c_char_p]),
    "helios_get_stats": (c_int, [c_void_p, POINTER(_Stats)]),
    "helios_report": (c_int, [c_int64, ctypes.c_double, c_uint64]),
    "helios_waited": (c_int, [c_uint64]),
    "helios_checksums": (c_int, [c_void_p, c_uint64, POINTER(c_uint32)]),
    "helios_held": (c_int, [c_void_p, c_uint64]),
    "helios_trouble": (c_int, [c_char_p]),
    "helios_activity": (c_int, [c_int]),
    "helios_joined": (c_int, [c_uint32]),
    "helios_generation": (c_uint32, []),
    "helios_join_gang": (c_int, [c_void_p, c_char_p, c_int, c_int, c_int, POINTER(ctypes.c_int32),
                                 c_char_p, c_size_t]),
}


@dataclass(frozen=True)
class Split:
    """How a model is split among ranks. 0: the version's; ``virtual_stages`` 1: none."""

    tp: int = 0
    pp: int = 0
    virtual_stages: int = 0
    ep: int = 0
    etp: int = 0


@dataclass(frozen=True)
class Shard:
    """One shard of a model version. ``size`` is in bytes, header included.

    ``pp``, ``tp`` and ``ep`` are the position that it was stored for. If ``names`` is not empty,
    only these of its tensors belong to the requested position; it maps stored name -> name there.
    """

    id: tuple[int, int]
    part: str
    size: int
    crc32: int
    tensors: int
    pp: int | None = None
    tp: int | None = None
    names: dict[str, str] | None = None
    ep: int = 0


@dataclass(frozen=True)
class ShardList:
    """The shards of one version at one (pp, tp), in part order, and the version's JSON texts."""

    version: int
    shards: tuple[Shard, ...]
    meta_json: str
    config_json: str
    skipped: str = ""  # newer versions that are incomplete, and what each lacks; "" = none
    left_out: str = ""  # what can't be cut for another tensor parallel size, and why; "" = nothing


@dataclass(frozen=True)
class TensorRef:
    """A tensor to write: safetensors dtype, row-major shape, address of contiguous bytes.

    If ``fill`` is set, ``fill(address, size)`` writes the bytes when it is their turn.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    fill: Callable[[int, int], None] | None = None


class Mapping:
    """Verified bytes of one shard, unmapped when the last reference is dropped or the process ends.
    The mapping is copy-on-write: what is written stays private to this process."""

    def __init__(self, client: "Client", address: int, size: int) -> None:
        self.address = address
        self.size = size
        # Unlike __del__, it does nothing once the interpreter has begun to tear modules down.
        weakref.finalize(self, client.unmap, address).atexit = False

    def buffer(self) -> Any:
        """The bytes as a ctypes array, which keeps this mapping alive."""
        array = (ctypes.c_uint8 * self.size).from_address(self.address)
        array.mapping = self
        return array


def load_library() -> ctypes.CDLL:
    """libhelios with prototypes set, found by _loader.candidates().

    Raises LibraryNotFound, or Unsupported when the library's ABI is not the one described here.
    """
    for struct, size in _SIZES.items():
        if ctypes.sizeof(struct) != size:
            raise errors.Unsupported(
                f"struct {struct.__name__[1:].lower()} of helios.h has {ctypes.sizeof(struct)} "
                f"bytes here and {size} in the ABI: use a 64-bit Linux Python")
    try:
        library = _loader.load()
    except OSError as error:
        raise errors.LibraryNotFound(str(error)) from None
    path = library._name
    try:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise errors.Unsupported(f"{path} is not a libhelios of ABI {ABI}: {error}") from None
    version = library.helios_version().decode()
    if version.split(".")[:2] != ABI.split("."):
        raise errors.Unsupported(
            f"{path} is version {version} and this Python package speaks ABI {ABI}: install both "
            "from the same release")
    return library


_library: ctypes.CDLL | None = None
_library_lock = threading.Lock()


def library() -> ctypes.CDLL:
    """libhelios, loaded once per process."""
    global _library
    with _library_lock:
        if _library is None:
            _library = load_library()
        return _library


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _shard(raw: _Shard) -> Shard:
    return Shard((raw.id.hi, raw.id.lo), raw.part.decode(), raw.size, raw.crc32, raw.tensors)


def _viewed(raw: _Shard, view: _ShardView) -> Shard:
    names = {view.names[i].stored.decode(): view.names[i].shown.decode()
             for i in range(view.count)} if view.renamed else None
    return replace(_shard(raw), pp=view.pp, tp=view.tp, names=names, ep=view.ep)


def _split(split: Split | None) -> Any:
    return None if split is None else \
        ctypes.pointer(_Split(split.tp, split.pp, split.virtual_stages, 0, 0, split.ep, split.etp))


def _check(lib: ctypes.CDLL, code: int) -> None:
    if code != 0:
        text = (lib.helios_last_error() or b"").decode(errors="replace")
        raise errors.from_code(code, text or (lib.helios_strerror(code) or b"").decode())


def checksums(address: int, size: int) -> list[int]:
    """The CRC-32 of each MiB."""
    out = (c_uint32 * max(1, -(-size // (1 << 20))))()
    check(library().helios_checksums(address, size, out))
    return list(out) if size else []


def check(code: int) -> None:
    """Raise the exception for a library function's status, if it is an error."""
    _check(library(), code)


def _given(names: Sequence[str]) -> Any:
    return (c_char_p * len(names))(*[name.encode() for name in names])


def _take_names(lib: ctypes.CDLL, code: int, out: Any) -> list[str]:
    _check(lib, code)
    try:
        return [name.decode() for name in out.contents.names[:out.contents.count]]
    finally:
        lib.helios_names_free(out)


def names_under(names: Sequence[str], naming: str) -> list[str]:
    """Megatron-core's names for these tensors of whole layers under that naming, in order."""
    lib, given, out = library(), _given(names), POINTER(_Names)()
    return _take_names(lib,
                       lib.helios_names_under(given, len(names), naming.encode(),
                                              ctypes.byref(out)), out)


def parts_of(config: str, split: Split | None, pp: int, names: Sequence[str]) -> list[str]:
    """The part that a rank of stage `pp` saves each of these tensors in. `config`: a model's, or a
    Hugging Face config, which counts as one stage; `split` overrides its sizes."""
    lib, given, out = library(), _given(names), POINTER(_Names)()
    return _take_names(lib, lib.helios_parts_of(config.encode(), _split(split), pp, given,
                                                len(names), ctypes.byref(out)), out)


class Client:
    """A connection to the Controller and the L3 pool. Methods raise HeliosError subclasses.

    Any thread may call it; never use it in a forked child (open another one there). After close()
    the bytes of live mappings stay readable: the C client is closed with the last of them, and so
    is that of a client that is dropped without close().
    """

    def __init__(self, controller: str | None = None, l3: str | None = None,
                 path: str | None = None, timeout_ms: int = 0, retries: int = 0) -> None:
        self._lock = threading.Lock()
        self._handle: c_void_p | None = None
        self._mapped = 0
        self._closed = True
        # unmap and __del__ may run after this module's globals are gone
        self._getpid, self._finalizing = os.getpid, sys.is_finalizing
        self._lib = library()
        options = _Options(_bytes(controller), _bytes(l3), _bytes(path), timeout_ms, retries)
        handle = c_void_p()
        self._check(self._lib.helios_open(ctypes.byref(options), ctypes.byref(handle)))
        self._handle, self._closed, self._pid = handle, False, os.getpid()

    def _check(self, code: int) -> None:
        _check(self._lib, code)

    def _use(self) -> c_void_p:
        if self._closed or self._handle is None:
            raise errors.InvalidArgument("this helios client is closed: call helios.init() again")
        if os.getpid() != self._pid:
            raise errors.InvalidArgument(
                f"this helios client belongs to process {self._pid}, not to its forked child "
                f"{os.getpid()}: call helios.init() after fork()")
        return self._handle

    def request_shards(self, model: str, version: int, pp: int, tp: int,
                       split: Split | None = None, ep: int = 0) -> ShardList:
        """The shards of model/version at (pp, tp, ep) of the split; None: the version's own split.
        version -1: the newest visible, complete one."""
        out = POINTER(_ShardList)()
        self._check(self._lib.helios_request_place(
            self._use(), model.encode(), version, _split(split), ctypes.byref(_Place(pp, tp, ep)),
            ctypes.byref(out)))
        try:
            raw = out.contents
            shards = tuple(_viewed(raw.shards[i], raw.views[i]) for i in range(raw.count))
            return ShardList(raw.version, shards, (raw.meta_json or b"{}").decode(),
                             (raw.config_json or b"{}").decode(), (raw.skipped or b"").decode(),
                             (raw.left_out or b"").decode())
        finally:
            self._lib.helios_shard_list_free(out)

    def map(self, shard: Shard) -> Mapping:
        """Verified view of a whole shard, copy-on-write."""
        data, size = c_void_p(), c_size_t()
        handle = self._use()
        self._check(self._lib.helios_map_private(
            handle, _Id(*shard.id), ctypes.byref(data), ctypes.byref(size)))
        with self._lock:
            self._mapped += 1
        return Mapping(self, data.value or 0, size.value)

    def unmap(self, address: int) -> None:
        """Called by Mapping. The last mapping of a closed client also closes the C client.

        Uses no global names, because they may be None during interpreter shutdown."""
        with self._lock:
            if self._handle is None or self._getpid() != self._pid:
                return
            self._mapped -= 1
            last = self._closed and self._mapped == 0
            handle = self._handle
            if last:
                self._handle = None
        self._lib.helios_unmap(handle, address)
        if last:
            self._lib.helios_close(handle)

    def version_open(self, model: str, job: str, attempt: int, step: int, rank: int, world: int,
                     layout: int = LAYOUT_EXACT, split: Split | None = None,
                     create: Split | None = None, config: str | None = None) -> int:
        """Number of the new version, the same for every rank of the gang in the same save.
        `create`: if no model of that name exists, it is created with these sizes and the Hugging
        Face config `config`; an existing model must have that config."""
        version = c_int64()
        spec = _VersionSpec(model.encode(), job.encode(), attempt, step, rank, world, layout,
                            _split(split), _split(create), _bytes(config))
        self._check(self._lib.helios_version_open(
            self._use(), ctypes.byref(spec), ctypes.byref(version)))
        return version.value

    def version_put(self, model: str, version: int, pp: int, tp: int, part: str,
                    tensors: Sequence[TensorRef], ep: int = 0) -> Shard:
        """Write one part; the bytes are copied before this returns. For experts `ep` is their
        expert-parallel rank and `tp` the rank within etp."""
        raw = (_Tensor * len(tensors))()
        shapes = []
        for slot, tensor in zip(raw, tensors):
            shape = (c_int64 * len(tensor.shape))(*tensor.shape)
            shapes.append(shape)
            slot.name, slot.dtype = tensor.name.encode(), tensor.dtype.encode()
            slot.shape, slot.rank = ctypes.cast(shape, POINTER(c_int64)), len(tensor.shape)
            slot.data = tensor.address
        out = _Shard()
        put = (self._use(), model.encode(), version, ctypes.byref(_Place(pp, tp, ep)),
               part.encode(),
               raw, len(tensors))
        failed: list[BaseException] = []

        def fill(_: Any, number: int, address: int, size: int) -> int:
            try:
                tensors[number].fill(address, size)
            except BaseException as error:  # re-raised once back in Python
                failed.append(error)
            return len(failed)

        filler = _Fill(fill) if any(tensor.fill for tensor in tensors) else _Fill()
        code = self._lib.helios_version_put_at(*put, filler, None, ctypes.byref(out))
        if failed:
            raise failed[0]
        self._check(code)
        return _shard(out)

    def version_commit(self, model: str, version: int, rank: int, meta_json: str | None) -> bool:
        """True when this commit was the last one needed, so the version is visible now."""
        visible = c_int()
        self._check(self._lib.helios_version_commit(
            self._use(), model.encode(), version, rank, _bytes(meta_json), ctypes.byref(visible)))
        return bool(visible.value)

    def version_abandon(self, model: str, version: int, rank: int, reason: str) -> None:
        """Report that this rank can't complete its part. Raises Conflict if the version is already
        visible."""
        self._check(self._lib.helios_version_abandon(
            self._use(), model.encode(), version, rank, reason.encode(errors="replace")))

    def join_gang(self, job: str, attempt: int, container: int,
                  local_rank: int) -> tuple[int, dict[str, str]]:
        """Number of the gang's current size, counted from 0, and the environment of that process
        for it; {}: it has no place yet. Raises NotFound when it no longer belongs to the gang."""
        number, env = ctypes.c_int32(), ctypes.create_string_buffer(1 << 14)
        self._check(self._lib.helios_join_gang(self._use(), job.encode(), attempt, container,
                                               local_rank,
                                               ctypes.byref(number), env, len(env)))
        lines = env.value.decode().splitlines()
        return number.value, dict(line.split("=", 1) for line in lines)

    def stats(self) -> dict[str, Any]:
        """Counters of this client since it was opened: bytes, nanoseconds, path name."""
        raw = _Stats()
        self._check(self._lib.helios_get_stats(self._use(), ctypes.byref(raw)))
        values = {name: getattr(raw, name) for name, _ in _Stats._fields_[1:]}
        values["path"] = raw.path.decode()
        return values

    def close(self, force: bool = False) -> None:
        """Allow no more calls. Live mappings stay valid until dropped, unless `force` (at exit)."""
        with self._lock:
            self._closed = True
            if self._handle is None or os.getpid() != self._pid or (self._mapped and not force):
                return
            handle, self._handle = self._handle, None
        self._lib.helios_close(handle)

    def __del__(self) -> None:
        """A client without references keeps no threads and connections: mappings refer to it."""
        if hasattr(self, "_lib") and not self._finalizing():
            self.close()

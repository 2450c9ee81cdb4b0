"""A small, strict reader and writer of the safetensors format. Standard library only.

A file is: u64 little-endian length N, N bytes of JSON ({name: {dtype, shape, data_offsets}}, and an
optional "__metadata__" of strings), then the data. Offsets are relative to the end of the header.
"""
from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Iterable, Mapping

from . import _arguments
from .errors import Corrupt, InvalidArgument

__all__ = ["DTYPE_BYTES", "Entry", "Header", "parse_header", "read_header", "write"]

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}
HEADER_LIMIT = 100 << 20  # bytes of JSON; the reference reader has the same limit
ALIGNMENT = 64  # of the first data byte in files written here


@dataclass(frozen=True)
class Entry:
    """One tensor: bytes [begin, end) of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A parsed header. ``data_start`` is the offset of the data section in the file."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    data_start: int


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the name '{key}' appears twice")
        out[key] = value
    return out


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _entry(where: str, name: str, raw: Any) -> Entry:
    if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
        raise Corrupt(f"{where}: tensor '{name}' needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if dtype not in DTYPE_BYTES:
        raise Corrupt(f"{where}: tensor '{name}' has the unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(map(_count, shape)):
        raise Corrupt(f"{where}: tensor '{name}' has a shape that is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_count, offsets)):
        raise Corrupt(f"{where}: tensor '{name}' has data_offsets that are not [begin, end]")
    begin, end = offsets
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != size:
        raise Corrupt(f"{where}: tensor '{name}' occupies {end - begin} bytes, "
                      f"but its dtype and shape need {size}")
    return Entry(name, dtype, tuple(shape), begin, end)


def parse_header(head: bytes, total: int, where: str = "safetensors") -> Header:
    """Parse the first 8+N bytes of a file of `total` bytes.

    `where` names the source in error sentences. Raises Corrupt for anything the format forbids:
    holes, overlaps, duplicate names, wrong sizes, bytes beyond the end.
    """
    if not isinstance(head, (bytes, bytearray)):
        raise InvalidArgument(f"{_arguments.told('head', head)} must be bytes")
    _arguments.integer("total", total, 0, _arguments.INT64_MAX)
    if len(head) < 8 or total < 8:
        raise Corrupt(f"{where}: {total} bytes are too few for a safetensors file")
    (length,) = struct.unpack_from("<Q", head)
    if length > HEADER_LIMIT or length > total - 8 or length > len(head) - 8:
        raise Corrupt(f"{where}: the header claims {length} bytes, "
                      f"{total - 8} are there (limit {HEADER_LIMIT})")
    try:
        raw = json.loads(head[8:8 + length].decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: the header is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise Corrupt(f"{where}: the header is not a JSON object")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise Corrupt(f"{where}: __metadata__ must map strings to strings")
    entries = {name: _entry(where, name, value) for name, value in raw.items()}
    at = 0
    for entry in sorted(entries.values(), key=lambda e: (e.begin, e.end)):
        if entry.begin != at:
            kind = "overlaps its neighbour" if entry.begin < at else "leaves a hole before it"
            raise Corrupt(f"{where}: tensor '{entry.name}' at byte {entry.begin} {kind}")
        at = entry.end
    if at != total - 8 - length:
        raise Corrupt(f"{where}: the tensors end at byte {at} of the data, "
                      f"which has {total - 8 - length}")
    return Header(entries, metadata, 8 + length)


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of a file, checked against the file's size."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(f"{_arguments.told('path', path)} must be the path of a file")
    with open(path, "rb") as file:
        total = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if len(head) == 8:
            head += file.read(min(struct.unpack("<Q", head)[0], HEADER_LIMIT))
        return parse_header(head, total, os.fspath(path))


def _check_form(name: Any, dtype: Any, shape: Any) -> None:
    _arguments.text("name of a tensor", name)
    if name == "__metadata__":
        raise InvalidArgument(f"no tensor can be named '{name}': the format reserves it for "
                              "metadata")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise InvalidArgument(f"tensor '{name}': safetensors has no dtype {dtype!r}")
    if not isinstance(shape, (tuple, list)):
        raise InvalidArgument(f"tensor '{name}': {_arguments.told('shape', shape)} must be a tuple "
                              "of sizes")
    for size in shape:
        _arguments.integer(f"tensor '{name}': size in shape", size, 0, _arguments.INT64_MAX)


def pack_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]],
                metadata: Mapping[str, str] | None = None) -> bytes:
    """Header bytes (length word included) for tensors stored in the given order without holes."""
    for item in _arguments.mapping("metadata", metadata or {},
                                   "a mapping of texts to texts").items():
        for value in item:
            _arguments.text("text in metadata", value)
    raw: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape in tensors:
        _check_form(name, dtype, shape)
        if name in raw:
            raise InvalidArgument(f"tensor '{name}' is given twice")
        end = at + math.prod(shape) * DTYPE_BYTES[dtype]
        raw[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(raw, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def write(file: BinaryIO, tensors: Iterable[tuple[str, str, tuple[int, ...], Any]],
          metadata: Mapping[str, str] | None = None) -> int:
    """Write (name, dtype, shape, bytes-like) tensors; returns the number of bytes written.

    Raises InvalidArgument when a tensor's number of bytes does not fit its dtype and shape.
    """
    items = list(tensors)
    header = pack_header(((n, d, s) for n, d, s, _ in items), metadata)
    for name, dtype, shape, data in items:
        try:
            size = memoryview(data).nbytes
        except TypeError:
            raise InvalidArgument(f"tensor '{name}': {_arguments.told('data', data)} must be "
                                  "bytes-like") from None
        if size != math.prod(shape) * DTYPE_BYTES[dtype]:
            raise InvalidArgument(f"tensor '{name}': {size} bytes do not fit {dtype} {shape}")
    written = file.write(header)
    for _, _, _, data in items:
        written += file.write(data)
    return written

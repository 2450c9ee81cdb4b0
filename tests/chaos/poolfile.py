"""Reads the index of a pool file by its description in docs/formats.md:
independent of the daemon's code."""
from __future__ import annotations

import os
import pathlib
import struct
from typing import NamedTuple

ENTRY = struct.Struct("<QQQQIIIII12x")
MAGIC = b"HELIOSP1"
MANIFEST = "6d616e6966657374"  # prefix of the ids of manifests
DERIVED = "6465726976656421"  # and of shards that were cut from others
EMPTY, WRITING, SEALED, FREED, DELETED, LEASED = range(6)


class Entry(NamedTuple):
    id: str
    at: int  # of the entry, in the file
    offset: int
    size: int
    state: int


def entries(path: pathlib.Path) -> list[Entry]:
    """All entries that are or were in use. Raises ValueError for a damaged superblock."""
    out = []
    with path.open("rb") as file:
        head = file.read(128)
        if head[:8] != MAGIC:
            raise ValueError(f"{path} starts with {head[:8]!r}")
        start, slots = struct.unpack_from("<QQ", head, 48)
        file.seek(start)
        index = file.read(slots * ENTRY.size)
    for number, raw in enumerate(ENTRY.iter_unpack(index)):
        hi, lo, offset, size, _, _, state, _, _ = raw
        if state != EMPTY:
            out.append(
                Entry(f"{hi:016x}{lo:016x}", start + number * ENTRY.size, offset, size, state)
            )
    return out


def sealed(path: pathlib.Path) -> dict[str, Entry]:
    return {entry.id: entry for entry in entries(path) if entry.state == SEALED}


def flip(path: pathlib.Path, at: int, bit: int) -> tuple[int, int]:
    """Flip one bit of the byte at `at`; returns (before, after)."""
    fd = os.open(path, os.O_RDWR)
    try:
        before = os.pread(fd, 1, at)[0]
        after = before ^ 1 << bit
        os.pwrite(fd, bytes([after]), at)
    finally:
        os.close(fd)
    return before, after


def restore(path: pathlib.Path, at: int, before: int, after: int) -> None:
    """Undo flip(), unless the byte has been overwritten since."""
    fd = os.open(path, os.O_RDWR)
    try:
        if os.pread(fd, 1, at) == bytes([after]):
            os.pwrite(fd, bytes([before]), at)
    finally:
        os.close(fd)

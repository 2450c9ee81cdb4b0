"""A stand-in for libhelios: the methods of helios._abi.Client over a directory of shard files.

Lets the Python package and the training run without daemons. A version is a directory; it is served
once all the ranks it was begun for have committed.
"""
from __future__ import annotations

import ctypes
import json
import mmap
import os
import pathlib
import zlib

from helios import _abi, errors, safetensors


class FileClient:
    def __init__(self, root: str | pathlib.Path) -> None:
        self.root = pathlib.Path(root)
        self.paths: dict[int, pathlib.Path] = {}
        self.counters = {
            "path": "",
            "reads": 0,
            "read_bytes": 0,
            "read_ns": 1,
            "writes": 0,
            "write_bytes": 0,
            "write_ns": 1,
            "crc_failures": 0,
            "retries": 0,
        }

    def _visible(self, model: str) -> list[int]:
        return sorted(int(p.parent.name) for p in self.root.glob(f"{model}/*/visible"))

    def request_shards(
        self, model: str, version: int, pp: int, tp: int, split: _abi.Split | None = None
    ) -> _abi.ShardList:
        """Files have one split, whatever was requested."""
        visible = self._visible(model)
        if not visible or version not in (-1, *visible):
            raise errors.NotFound(f"{model}@{version} is not here")
        version = visible[-1] if version == -1 else version
        home = self.root / model / str(version)
        shards = []
        for path in sorted(home.glob(f"pp{pp}-tp{tp}-*.safetensors")):
            part = path.stem.split("-", 2)[2]
            header = safetensors.read_header(path)
            key = int(zlib.crc32(str(path).encode()))
            self.paths[key] = path
            shards.append(_abi.Shard((0, key), part, path.stat().st_size, 0, len(header.entries)))
        meta = home / "meta.json"
        return _abi.ShardList(
            version,
            tuple(shards),
            meta.read_text() if meta.exists() else "{}",
            (self.root / model / "config.json").read_text(),
        )

    def map(self, shard: _abi.Shard) -> _abi.Mapping:
        with open(self.paths[shard.id[1]], "rb") as file:
            area = mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        self.counters.update(
            path="file",
            reads=self.counters["reads"] + 1,
            read_bytes=self.counters["read_bytes"] + shard.size,
        )
        mapping = _abi.Mapping(self, ctypes.addressof(ctypes.c_char.from_buffer(area)), shard.size)
        mapping.area = area
        return mapping

    def unmap(self, address: int) -> None:
        pass

    def version_open(
        self,
        model: str,
        job: str,
        attempt: int,
        step: int,
        rank: int,
        world: int,
        layout: int = 0,
        split: _abi.Split | None = None,
    ) -> int:
        """One file per number, created exclusively, records the number's gang and step; one per
        rank records that the rank has begun it."""
        key = json.dumps([job, attempt, step, world])
        number = 2  # 1 is the imported version
        while True:
            home = self.root / model / str(number)
            home.mkdir(parents=True, exist_ok=True)
            draft = home / f"key-{os.getpid()}"
            draft.write_text(key)
            try:
                os.link(draft, home / "key")
            except FileExistsError:
                pass
            finally:
                draft.unlink()
            try:
                if (home / "key").read_text() == key:
                    (home / f"begin-{rank}").touch(exist_ok=False)
                    return number
            except FileExistsError:
                pass
            number += 1

    def version_abandon(self, model, version, rank, reason) -> None:
        home = self.root / model / str(version)
        if (home / "visible").exists():
            raise errors.Conflict(f"version {version} is visible")
        for path in home.glob("*.safetensors"):
            path.unlink()
        (home / "failed").write_text(f"rank {rank}: {reason}")

    def version_put(self, model, version, pp, tp, part, tensors) -> _abi.Shard:
        path = self.root / model / str(version) / f"pp{pp}-tp{tp}-{part}.safetensors"
        rows = []
        for t in tensors:
            size = safetensors.DTYPE_BYTES[t.dtype]
            for extent in t.shape:
                size *= extent
            buffer = ctypes.create_string_buffer(max(1, size))
            if t.fill:
                t.fill(ctypes.addressof(buffer), size)
            elif size:
                ctypes.memmove(buffer, t.address, size)
            rows.append((t.name, t.dtype, t.shape, buffer.raw[:size]))
        with open(path, "xb") as file:
            size = safetensors.write(file, rows)
        return _abi.Shard((0, 0), part, size, 0, len(rows))

    def version_commit(self, model, version, rank, meta_json) -> bool:
        home = self.root / model / str(version)
        if (home / "failed").exists():
            raise errors.Canceled((home / "failed").read_text())
        if meta_json is not None:
            (home / "meta.json").write_text(meta_json)
        (home / f"commit-{rank}").touch()
        world = json.loads((home / "key").read_text())[3]
        if len(list(home.glob("commit-*"))) < world:
            return False
        (home / "visible").touch()
        return True

    def stats(self) -> dict:
        return dict(self.counters)

    def close(self, force: bool = False) -> None:
        pass


def publish(root: pathlib.Path, model: str, config: dict, sliced: dict) -> None:
    """Version 1 of a model from slicer.slice_model()'s result, as an import would make it."""
    from helios import _tensors

    client = FileClient(root)
    home = root / model / "1"
    home.mkdir(parents=True)
    (root / model / "config.json").write_text(json.dumps(config))
    for (pp, tp), parts in sliced.items():
        for part, tensors in parts.items():
            refs, alive = _tensors.refs(tensors)
            client.version_put(model, 1, pp, tp, part, refs)
            del alive
    (home / "visible").touch()

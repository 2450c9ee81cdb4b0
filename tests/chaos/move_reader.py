"""A process that reads all shards of a model, one after the other and again, and compares every
byte. Started by moves.py:

    move_reader.py CONTROLLER DIRECTORY PATH < until its end

DIRECTORY has a file ID for each shard with its expected bytes. Prints a line for each read that
failed or was wrong, and one at the end."""
from __future__ import annotations

import json
import mmap
import pathlib
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))

from helios import _abi, errors  # noqa: E402

REST_S = 0.03  # between two reads: the reader leaves time to others


def good_bytes(directory: pathlib.Path, name: str) -> mmap.mmap:
    with (directory / name).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class Reader:
    def __init__(self, controller: str, directory: pathlib.Path, path: str) -> None:
        self.client = _abi.Client(controller, path=path or None)
        self.shards = self.client.request_shards("m", -1, 0, 0).shards
        self.names = {s.id: f"{s.id[0]:016x}{s.id[1]:016x}" for s in self.shards}
        self.good = {s.id: good_bytes(directory, self.names[s.id]) for s in self.shards}
        self.reads, self.slowest = 0, 0.0
        self.stop = threading.Event()

    def read(self, shard: _abi.Shard) -> None:
        began, error, wrong = time.time(), "", False
        try:
            view = memoryview(self.client.map(shard).buffer())
            wrong = view.cast("B") != memoryview(self.good[shard.id])
        except errors.HeliosError as failed:
            error = str(failed)
        ended = time.time()
        self.reads += 1
        self.slowest = max(self.slowest, ended - began)
        if error or wrong:
            print(
                json.dumps(
                    {
                        "shard": self.names[shard.id],
                        "wrong": wrong,
                        "error": error,
                        "began": began,
                        "ended": ended,
                    }
                ),
                flush=True,
            )

    def run(self) -> None:
        print(json.dumps({"ready": True}), flush=True)
        while not self.stop.is_set():
            for shard in self.shards:
                self.read(shard)
                self.stop.wait(REST_S)
        print(json.dumps({"reads": self.reads, "slowest": self.slowest}), flush=True)


def main() -> int:
    reader = Reader(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3])
    threading.Thread(target=lambda: (sys.stdin.read(), reader.stop.set()), daemon=True).start()
    reader.run()
    return 0


sys.exit(main())

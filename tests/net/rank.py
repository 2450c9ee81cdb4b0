"""A rank on a host, driven by the namespace tests: a JSON object per line in, one per line out.

    rank.py CONTROLLER L3 PATH TIMEOUT_MS
    {"op": "list", "model": m}              -> ids and sizes of the shards at (0, 0)
    {"op": "read", "ids": [[hi, lo]…]}      -> CRC of each, read through helios_map
    {"op": "write", "model": m, "bytes": n} -> a new version with one shard of n bytes
"""
import ctypes
import json
import random
import sys
import time
import zlib

from helios import _abi
from helios.errors import HeliosError


def shards_of(client, model):
    return client.request_shards(model, -1, 0, 0)


def read(client, ask):
    crcs = []
    for hi, lo in ask["ids"]:
        view = client.map(_abi.Shard((hi, lo), "", 0, 0, 0))
        crcs.append(zlib.crc32(view.buffer()))
    return {"crcs": crcs}


def write(client, ask):
    data = ctypes.create_string_buffer(
        random.Random(ask["bytes"]).randbytes(1 << 16) * (ask["bytes"] >> 16)
    )
    version = client.version_open(
        ask["model"], "net", 1, ask.get("step", 1), 0, 1, _abi.LAYOUT_UNCHECKED
    )
    tensor = _abi.TensorRef("w", "U8", (len(data) - 1,), ctypes.addressof(data))
    shard = client.version_put(ask["model"], version, 0, 0, "layer-0000", [tensor])
    visible = client.version_commit(ask["model"], version, 0, None)
    return {"version": version, "visible": visible, "id": list(shard.id), "crc": shard.crc32}


def listed(client, ask):
    found = shards_of(client, ask["model"])
    return {"version": found.version, "shards": [[*s.id, s.size, s.crc32] for s in found.shards]}


OPS = {"list": listed, "read": read, "write": write}


def answer(client, ask):
    start = time.monotonic()
    try:
        line = {"status": "OK", "error": "", **OPS[ask["op"]](client, ask)}
    except HeliosError as error:
        line = {"status": type(error).__name__, "error": str(error)}
    now = time.monotonic()
    return {**line, "seconds": now - start, "at": now, **client.stats()}


def main(controller, l3, path, timeout_ms):
    client = _abi.Client(controller, l3 or None, path, int(timeout_ms))
    print(json.dumps({"status": "OK"}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(client, json.loads(line))), flush=True)
    client.close()


main(*sys.argv[1:])

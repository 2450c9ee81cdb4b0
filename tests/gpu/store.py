#!/usr/bin/python3
"""The store with a CUDA device as L1: shards go there and back, ranks map them on the device and \
read right bytes, telemetry knows the GPU, and helios validate carries out what needs a device.

    tests/gpu/store.py [--gib 1] [--report FILE]

Daemons of `helios up` on this machine; each of two nodes has a share of device 0."""
from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import sys
import time
import zlib
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
from support import checkpoints  # noqa: E402
from support.cluster import cluster, wait_for  # noqa: E402
from helios import _abi, _loader  # noqa: E402
from hybridps._tensors import _device_bytes  # noqa: E402

WRONG: list[str] = []


def tell(text: str) -> None:
    print("  " + text, flush=True)


def hold(what: str, found: Any, want: Any) -> None:
    if found != want:
        WRONG.append(what)
    tell(f"{what}: {'ok' if found == want else f'WRONG: {found!r}, not {want!r}'}")


class DeviceView(_loader.Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("device", ctypes.c_char * 96),
    ]


def crc(data: Any) -> int:
    return zlib.crc32(data)


def name_of(shard: Any) -> str:
    return f"{shard.id[0]:016x}{shard.id[1]:016x}"


def node_client(c: Any, node: str) -> Any:
    """As a rank of that node."""
    nodes = {n["node"]["name"]: n["node"] for n in c.json("nodes")["items"]}
    os.environ.update(HELIOS_STORE_SOCKET=nodes[node]["storeSocket"], HELIOS_NODE=node)
    return _abi.Client(c.info["controller"])


def map_on_device(client: Any, shard: Any) -> tuple[Any, Any]:
    """The view, and a tensor of it."""
    view = DeviceView()
    status = client._lib.helios_map_device(client._use(), _abi._Id(*shard.id), ctypes.byref(view))
    if status != 0:
        raise RuntimeError(
            f"helios_map_device: {status}: {client._lib.helios_last_error().decode()}"
        )
    return view, _device_bytes(view.address, view.bytes, "cuda:0")


def timed(c: Any, *args: str) -> float:
    began = time.perf_counter()
    c.json(*args)
    return time.perf_counter() - began


def there_and_back(c: Any, shards: list, client: Any) -> None:
    """Into L1, read there by a rank, back into L2, read again; at what rate."""
    want = {name_of(s): crc(client.map(s).buffer()) for s in shards}
    size = sum(s.size for s in shards)
    for turn in range(2):
        into = sum(timed(c, "shard", "copy", name_of(s), "--to", "node-0:l1") for s in shards)
        found = {}
        for s in shards:
            view, flat = map_on_device(client, s)
            found[name_of(s)] = crc(flat.cpu().numpy())
            if not flat.is_cuda or view.address == 0 or view.host:
                WRONG.append("a mapped shard is not on the device")
            del flat
            if client._lib.helios_unmap_device(client._use(), ctypes.byref(view)) != 0:
                WRONG.append("unmap: " + client._lib.helios_last_error().decode())
        hold(
            (
                f"turn {turn}: {len(shards)} shards in L1 have their bytes,"
                " as a rank sees them on the device"
            ),
            found,
            want,
        )
        verified = [c.json("shard", "show", name_of(s), "--verify") for s in shards]
        bad = [v for one in verified for v in str(one).split() if v in ("'bad'", "'lost'")]
        hold(f"turn {turn}: each holder reads its copy through", bad, [])
        down = sum(timed(c, "shard", "copy", name_of(s), "--to", "node-0") for s in shards)
        tell(
            f"turn {turn}: {size / 2**20:.0f} MiB: L3 to L1 {size / into / 1e9:.2f} GB/s, L1 to L2"
            f" {size / down / 1e9:.2f} GB/s (with a command each)"
        )
        for s in shards:
            c.json("shard", "drop", name_of(s), "--from", "node-0:l1")
            c.json("shard", "drop", name_of(s), "--from", "node-0")


def telemetry(c: Any) -> None:
    def gpus() -> list:
        return [g for n in c.json("nodes")["items"] for g in n.get("telemetry", {}).get("gpus", [])]

    found = wait_for("the GPU's telemetry", gpus, 30)
    real = torch.cuda.get_device_properties(0)
    for g in found[:1]:
        tell(f"telemetry: {g}")
        hold("its name is the driver's", g["name"], real.name)
        hold(
            "it has memory, in use too",
            g["memoryTotalBytes"] >= real.total_memory and g["memoryUsedBytes"] > 0,
            True,
        )
        hold(
            "it is warm and takes power",
            10 < g["temperatureCelsius"] < 110 and g["powerWatts"] > 10,
            True,
        )
        hold("its UUID is torch's", g["uuid"].endswith(str(real.uuid)), True)
    text = c.run("metrics", "node-0").stdout
    hold(
        "metrics have the GPU",
        "helios_gpu_memory_used_bytes" in text and "helios_gpu_power_watts" in text,
        True,
    )
    tell(c.run("nodes").stdout.strip().replace("\n", "\n  "))


def validate(c: Any) -> None:
    done = c.run("validate", "--size", "400MiB", "--time", "4m", "--row-time", "40s")
    tell(done.stdout.strip().replace("\n", "\n  "))
    hold("helios validate", done.returncode, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="of the checkpoint")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        needs.skip("torch sees no GPU")
    hidden = 1024
    layers = max(1, args.mib * 2**20 // (4 * 13 * hidden * hidden))
    with cluster(
        nodes=2,
        slots=1,
        size=f"{4 * args.mib}MiB",
        up=["--l2-size", f"{2 * args.mib}MiB", "--devices", f"cuda:0:{2 * args.mib}MiB"],
    ) as c:
        for item in c.json("store")["items"]:
            for tier in item["tiers"]:
                if tier["tier"] == "L1":
                    tell(f"{item['node']}: {tier}")
        directory, _ = checkpoints.llama(
            c.dir / "model",
            layers=layers,
            hidden=hidden,
            heads=8,
            groups=8,
            ffn=3 * hidden,
            vocab=1000,
        )
        c.json("model", "import", directory, "--name", "m", "--tp", "2", "--pp", "1")
        client = node_client(c, "node-0")
        shards = [s for tp in range(2) for s in client.request_shards("m", -1, 0, tp).shards]
        for part in (lambda: there_and_back(c, shards, client), lambda: telemetry(c)):
            try:
                part()
            except Exception as error:
                WRONG.append(f"{type(error).__name__}: {error}")
                tell(f"WRONG: {WRONG[-1]}")
    with cluster(
        nodes=2,
        slots=1,
        size="2GiB",
        up=["--l2-size", "512MiB", "--devices", "cuda:0:256MiB"],
        env={
            "HELIOS_PLACEMENT_INTERVAL": "100ms",
            "HELIOS_PLACEMENT_GRACE": "100ms",
            "HELIOS_HEARTBEAT": "200ms",
            "HELIOS_PLACEMENT_RETRY": "200ms",
            "HELIOS_POLICY_RESIDENCE": "1s",
        },
    ) as c:
        validate(c)
    print(
        f"store on {torch.cuda.get_device_name(0)}:"
        f" {len(WRONG)} wrong{': ' if WRONG else ''}{'; '.join(WRONG)}"
    )
    return 1 if WRONG else 0


if __name__ == "__main__":
    sys.exit(main())

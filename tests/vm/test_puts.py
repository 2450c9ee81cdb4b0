"""Shards written over RDMA verbs into helios-l3d."""
import ctypes
import os
import signal
import subprocess
import zlib

from harness import test
from l3d import NETWORK, daemon
from prepare import packets
from support.cluster import BUILD, wait_for

from helios import _abi

PERIOD = bytes(range(251))
MIB = 1 << 20
LARGE = 16 * MIB
# More than the 64 pieces that can be in flight: a stopped writer cannot complete it.
KILLED = 100 * MIB
DEADLINE_MS = "300000"


def pattern(k, size):
    """The bytes that puts.c writes: byte i is (i + k) % 251."""
    turned = PERIOD[k % 251 :] + PERIOD[: k % 251]
    return (turned * (size // 251 + 1))[:size]


def start(d, count, size):
    return subprocess.Popen(
        [BUILD / "tests/vm/vm_puts", d.data, DEADLINE_MS, str(count), str(size)],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def put(d, count, size):
    """Ids of `count` objects that went over rdma."""
    before = packets()
    out, _ = start(d, count, size).communicate(timeout=400)
    lines = out.splitlines()
    assert lines[0] == "path rdma", lines[:3]
    assert [line.split()[0] for line in lines[1:]] == ["stored"] * count, lines[:5]
    grown = packets()[1] - before[1]
    assert grown > count * size // 4096, grown
    return [line.split()[1] for line in lines[1:]]


def client(d, path):
    os.environ.update(NETWORK)
    return _abi.Client("", d.address, path, timeout_ms=300000)


def shard(text):
    return _abi.Shard((int(text[:16], 16), int(text[16:], 16)), "", 0, 0, 0)


def check(d, ids, size):
    """As a reader on the pool's host sees them."""
    reader = client(d, "shm")
    for k, each in enumerate(ids):
        assert bytes(reader.map(shard(each)).buffer()) == pattern(k, size), each
    reader.close()


@test(
    "many small puts in one call and one of 16 MiB go over rdma into helios-l3d,"
    " and its bytes are the sender's"
)
def puts(note):
    with daemon("64MiB") as d:
        small = put(d, 300, 1000)
        large = put(d, 1, LARGE)
        check(d, small, 1000)
        check(d, large, LARGE)
        used, shards = d.used()
        note(f"{shards} shards, {used} bytes")
        assert shards == 301, shards


@test(
    "helios_version_put writes small and large parts over rdma; readers by shm and rdma find them"
)
def version_puts(note):
    with daemon("64MiB") as d:
        writer = client(d, "net")
        before = packets()
        written = {}
        for part, size in (("layer-0000", 1000), ("layer-0001", LARGE), ("head", 3 * MIB + 17)):
            data = pattern(size % 250, size)
            held = ctypes.create_string_buffer(data, size)
            tensor = _abi.TensorRef("w", "U8", (size,), ctypes.addressof(held))
            written[part] = (writer.version_put("toy", 1, 0, 0, part, [tensor]), data)
        stats = writer.stats()
        note(stats)
        assert stats["writes"] == 3 and stats["retries"] == 0, stats
        assert packets()[1] - before[1] > (LARGE + 3 * MIB) // 4096
        for path in ("shm", "net"):
            reader = client(d, path)
            for one, data in written.values():
                image = bytes(reader.map(one).buffer())
                assert image.endswith(data) and zlib.crc32(image) == one.crc32, (path, one)
            assert reader.stats()["path"] == {"shm": "shm", "net": "rdma"}[path], reader.stats()
            reader.close()
        writer.close()


@test(
    "a sender killed in the middle of a large put leaves the pool as it was,"
    " and the daemon serves on over rdma"
)
def killed_sender(note):
    with daemon("256MiB") as d:
        ids = put(d, 3, 5000)
        before = d.used()
        sender = start(d, 1, KILLED)
        assert sender.stdout.readline() == "path rdma\n"
        first = packets()[1]
        # Its connection is established, so the counter now grows by pieces;
        # the whole put is 25600 packets.
        wait_for(
            "pieces of the put",
            lambda: packets()[1] - first > 1500 or sender.poll() is not None,
            300,
        )
        sender.send_signal(signal.SIGSTOP)
        during = d.told()["usedBytes"]
        sender.kill()
        rest, _ = sender.communicate()
        note(f"killed after {packets()[1] - first} packets, {during} bytes used")
        assert rest == "" and during >= before[0] + KILLED, (rest, during, before)
        # Not because it was stopped: that is tolerated for a minute.
        wait_for("the room of the dead sender to be free", lambda: d.used() == before, 240)
        # The whole pool is usable again, and its contents are good.
        again = put(d, 1, KILLED)
        check(d, again, KILLED)
        check(d, ids, 5000)

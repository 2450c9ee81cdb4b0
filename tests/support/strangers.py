"""Seeds of what an unknown peer may send to each kind of port, and the program that sends mutations
of them (strangers.c)."""
import json
import pathlib
import random
import struct
import subprocess

from support import wire
from support.cluster import BUILD

SENDER = BUILD / "tests" / "strangers"
SEEDS = 2000  # of a port
# Connections at a time. Of connections without a request yet, a daemon closes the oldest of 64, for
# HTTP the oldest of 16.
WINDOW, HTTP_WINDOW = 48, 12
MUTATED, FRAMED, MORE, CARRIES = 1, 2, 4, 8  # as stranger_seeds.c has them
DATA_SUM, MIGRATE_SUM = [(0, 60)], [(0, 92)]
# Not the names of what the cluster has: any caller can also remove those.
WORDS = (
    "",
    "0",
    "-1",
    "stranger",
    "x" * 4096,
    "f" * 32,
    "0" * 32,
    "../..",
    "/",
    "dir:/nowhere",
    "127.0.0.1:1",
    "%n%s",
    "{}",
    "a: [b",
    "name: x\nreplicas: 1\n",
    "\u00e9\u4e2d",
)


def as_is(content, flags=0):
    return content, flags, ()


def mutated(content, sums=(), flags=0):
    """Mostly with corrected checksums: of `start` to `end`, stored at `end`."""
    return content, MUTATED | flags, sums


def seed_rpc(port, rng):
    interface, methods, _ = port.interface
    asked = wire.call(1, interface, rng.randrange(methods + 1), wire.parameters(rng, WORDS))
    if rng.random() < 0.1:
        return [mutated(wire.bootstrap(0)), as_is(asked)]
    return [as_is(wire.bootstrap(0)), mutated(asked)]


def seed_data(_, rng):
    hello = wire.data_message(1, payload=bytes(wire.DATA_KEY))
    if rng.random() < 0.2:
        return [mutated(hello, DATA_SUM)]
    size = rng.choices((1, 64, 4096, 1 << 20), (8, 8, 8, 1))[0]
    after = rng.choice(
        (
            wire.data_message(3, 1, rng.choice((0, 1 << 40)), size),
            wire.data_message(6, 1, 0, size, crc=7),
            wire.data_message(10, 1, payload=rng.randbytes(rng.choice((8, 40, 200)))),
            wire.data_message(12, 1),
        )
    )
    return [as_is(hello), mutated(after, DATA_SUM)]


def seed_migrate(_, rng):
    if rng.random() < 0.2:
        return [mutated(wire.ZMTP_GREETING), as_is(wire.ZMTP_READY)]
    if rng.random() < 0.1:
        return [as_is(wire.ZMTP_GREETING), mutated(wire.ZMTP_READY)]
    header = wire.migrate_message(
        rng.choice((1, 2, 3, 4, 11)),
        rng.choice((1, rng.getrandbits(60))),
        1 << 20,
        1 << 20,
        1,
        0,
        rng.choice((0, 64)),
    )
    payload = [as_is(rng.randbytes(64), FRAMED)] if rng.random() < 0.5 else []
    greeted = [as_is(wire.ZMTP_GREETING), as_is(wire.ZMTP_READY)]
    if rng.random() < 0.2:
        return [*greeted, mutated(wire.zmtp(header, more=bool(payload))), *payload]
    return [*greeted, mutated(header, MIGRATE_SUM, FRAMED | (MORE if payload else 0)), *payload]


def seed_pool(_, rng):
    """SOCK_SEQPACKET: each piece is a packet; some carry a descriptor."""
    asked = wire.pool_message(
        rng.randrange(10),
        2,
        rng.choice((0, 1, rng.getrandbits(60))),
        rng.choice((0, 1, 4096)),
        rng.choice((0, 1, 4096, 1 << 62)),
    )
    carries = CARRIES if rng.random() < 0.2 else 0
    if rng.random() < 0.1:
        return [mutated(wire.pool_message(1), flags=carries), as_is(asked)]
    return [as_is(wire.pool_message(1)), mutated(asked, flags=carries)]


def seed_http(_, rng):
    verb = rng.choice(("GET", "HEAD", "POST"))
    path = rng.choice(("metrics", "healthz", "x" * 300))
    length = rng.choice(("0", "-1", "9" * 30))
    head = f"{verb} /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    return [mutated(head.encode())]


# ---- a cluster with a secret: peers that do not know it get no further than this ----


def guarded_rpc(port, rng):
    if rng.random() < 0.3:
        return seed_rpc(port, rng)
    hello = mutated(b"HELIOSA1" + rng.randbytes(32))
    rest = [as_is(rng.randbytes(32)), as_is(wire.bootstrap(0))]
    return [hello, *rest[: rng.randrange(3)]]


def guarded_data(port, rng):
    if rng.random() < 0.3:
        return seed_data(port, rng)
    hello = wire.data_message(1, payload=rng.randbytes(wire.DATA_KEY))
    return [mutated(hello, DATA_SUM), as_is(wire.data_message(3, 1, 0, 64))]


def guarded_migrate(port, rng):
    if rng.random() < 0.3:
        return seed_migrate(port, rng)
    greeting = wire.ZMTP_GREETING.replace(b"NULL\0", b"CURVE")
    hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + rng.randbytes(120)
    if rng.random() < 0.3:
        return [mutated(greeting), as_is(hello)]
    initiate = b"\x06" + struct.pack(">Q", 600) + b"\x08INITIATE" + rng.randbytes(591)
    return [as_is(greeting), mutated(hello), *([mutated(initiate)] if rng.random() < 0.3 else [])]


def write_seeds(path, port, rng, guarded):
    make = globals()[f"{'guarded' if guarded else 'seed'}_{port.kind}"]
    with open(path, "wb") as out:
        out.write(struct.pack("<I", SEEDS))
        for _ in range(SEEDS):
            pieces = make(port, rng)
            out.write(struct.pack("<I", len(pieces)))
            for content, flags, sums in pieces:
                out.write(struct.pack("<III", flags, len(content), len(sums)))
                for start, end in sums:
                    out.write(struct.pack("<II", start, end))
                out.write(content)


class Sender:
    """The program, running against one port."""

    def __init__(self, port, directory, count, seed, guarded=False):
        self.port = port
        path = pathlib.Path(directory, port.name.replace(" ", "-") + ".seeds")
        write_seeds(path, port, random.Random(f"{seed}/{port.name}"), guarded)
        command = [
            SENDER,
            port.address,
            "packets" if port.kind == "pool" else "stream",
            path,
            count,
            seed,
            HTTP_WINDOW if port.kind == "http" else WINDOW,
        ]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)

    def result(self, seconds):
        """How the connections ended, once all have."""
        try:
            said, _ = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
        if self.process.returncode != 0:
            raise AssertionError(
                f"the sender to {self.port.name} ended with {self.process.returncode}"
            )
        return json.loads(said)

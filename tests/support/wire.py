"""Every address of a cluster's daemons: messages of its protocol, and a client that measures
one."""
import array
import contextlib
import json
import re
import socket
import struct
import subprocess
import time
import zlib

from support.cluster import ROOT

DEADLINE = 10.0
DATA_HEAD, DATA_KEY = 64, 32
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
ZMTP_READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


class Gone(OSError):
    """The peer has closed the connection."""


def exactly(s, count):
    got = bytearray()
    while len(got) < count:
        more = s.recv(count - len(got))
        if not more:
            raise Gone("the connection is closed")
        got += more
    return bytes(got)


# ---- Cap'n Proto RPC, encoded by hand: one segment, structs laid out as rpc.capnp says ----


def framed(words):
    return struct.pack("<II", 0, len(words) // 8) + words


def struct_pointer(offset, data, pointers):
    return struct.pack("<IHH", offset << 2 & 0xFFFFFFFF, data, pointers)


def bootstrap(question):
    return framed(
        struct_pointer(0, 1, 1)
        + struct.pack("<HHI", 8, 0, 0)
        + struct_pointer(0, 1, 1)
        + struct.pack("<IIQ", question, 0, 0)
    )


def call(question, interface, method, content=bytes(8), target=0):
    """A call on the object that question `target` asked for. `content`: a pointer, followed by what
    it points to."""
    # 0 root, 1 Message's data, 2 its pointer, 3-5 Call's data, 6 target, 7 params, 8 third party,
    # 9 MessageTarget, 10 its pointer, 11 PromisedAnswer, 12 its pointer, 13 Payload's content,
    # 14 its capTable, 15... what content points to
    if len(content) > 8:  # its first pointer is relative to word 14, and the capTable is in between
        (first,) = struct.unpack_from("<Q", content)
        content = struct.pack("<Q", first + (1 << 2)) + bytes(8) + content[8:]
    else:
        content += bytes(8)
    return framed(
        struct_pointer(0, 1, 1)
        + struct.pack("<HHI", 2, 0, 0)
        + struct_pointer(0, 3, 3)
        + struct.pack("<IHHQQ", question, method, 0, interface, 0)
        + struct_pointer(2, 1, 1)
        + struct_pointer(5, 0, 2)
        + bytes(8)
        + struct.pack("<IHH", 0, 1, 0)
        + struct_pointer(0, 1, 1)
        + struct.pack("<IIQ", target, 0, 0)
        + content
    )


def finish(question):
    return framed(
        struct_pointer(0, 1, 1)
        + struct.pack("<HHI", 4, 0, 0)
        + struct_pointer(0, 1, 0)
        + struct.pack("<II", question, 1)
    )


def parameters(rng, words):
    """A struct of numbers and of pointers to texts, lists of texts, or nothing, like the parameters
    of any method."""
    data, pointers = rng.randrange(5), rng.randrange(1, 9)
    heap = bytearray(8 * (data + pointers))
    for i in range(data):
        struct.pack_into(
            "<Q", heap, 8 * i, rng.choice((0, 1, 2, 1 << 31, (1 << 64) - 1, rng.getrandbits(64)))
        )

    def text(at):
        value = rng.choice(words).encode() + b"\0"
        struct.pack_into("<II", heap, at, (len(heap) - at - 8) // 8 << 2 | 1, len(value) << 3 | 2)
        heap.extend(value + bytes(-len(value) % 8))

    for i in range(pointers):
        at, what = 8 * (data + i), rng.randrange(4)
        if what == 0:
            text(at)
        elif what == 1:
            n, base = rng.randrange(1, 5), len(heap)
            struct.pack_into("<II", heap, at, (base - at - 8) // 8 << 2 | 1, n << 3 | 6)
            heap.extend(bytes(8 * n))
            for k in range(n):
                text(base + 8 * k)
    return struct_pointer(0, data, pointers) + bytes(heap)


def rpc_answer(s):
    """(tag of the message, its question, how a Return ends: 0 results, 1 exception)"""
    # number of segments but the first; words of that one; of the others, padded to whole words
    last, size = struct.unpack("<II", exactly(s, 8))
    more = struct.unpack(f"<{last + last % 2}I", exactly(s, 4 * (last + last % 2)))
    words = exactly(s, 8 * (size + sum(more[:last])))
    at = 8 * (1 + (struct.unpack_from("<i", words)[0] >> 2))
    (tag,) = struct.unpack_from("<H", words, at)
    inner = at + 8
    (pointer,) = struct.unpack_from("<i", words, inner)
    if pointer & 3 or tag != 3:
        return tag, None, None
    inner += 8 + 8 * (pointer >> 2)
    return (
        tag,
        struct.unpack_from("<I", words, inner)[0],
        struct.unpack_from("<H", words, inner + 6)[0],
    )


def schema():
    """For every interface its id and the number of its methods."""
    text = subprocess.run(
        ["capnp", "compile", "-ocapnp", f"-I{ROOT / 'api'}", ROOT / "api" / "v1" / "helios.capnp"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {}
    for name, number, body in re.findall(
        r"^interface (\w+) @(0x[0-9a-f]+) \{$(.*?)^\}$", text, re.MULTILINE | re.DOTALL
    ):
        found[name] = (int(number, 16), re.findall(r"^  (\w+) @\d+ \(", body, re.MULTILINE))
    return found


# ---- the others ----


def data_message(kind, op=0, offset=0, length=0, payload=b"", crc=0):
    head = struct.pack(
        "<IBBHQQQQQIiI", 0x31544C48, 1, kind, 0, op, offset, length, 0, 0, crc, 0, len(payload)
    )
    return head + struct.pack("<I", zlib.crc32(head)) + payload


def migrate_message(kind, number=1, total=0, chunk_size=0, chunk_count=0, chunk=0, length=0):
    head = struct.pack(
        "<IHHIIQQQIIIIIiIIQQI",
        0x474D4C48,
        1,
        kind,
        0,
        1,
        0xABCD,
        number,
        total,
        chunk_size,
        chunk_count,
        chunk,
        length,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    return head + struct.pack("<I", zlib.crc32(head))


def zmtp(body, more=False):
    if len(body) < 256:
        return bytes([more, len(body)]) + body
    return struct.pack(">BQ", 2 | more, len(body)) + body


def pool_message(kind, seq=1, number=0, offset=0, size=0):
    return struct.pack("<IHHIIQQQQ", 0x334C4C48, 1, kind, seq, 0, 0, number, offset, size)


# ---- ports ----


class Port:
    """An address and its protocol. `method`: for RPC, a call without parameters that only reads."""

    def __init__(self, daemon, kind, address, pid, interface=None):
        self.daemon, self.kind, self.address, self.pid, self.interface = (
            daemon,
            kind,
            address,
            pid,
            interface,
        )
        self.name = f"{daemon} {kind}"

    def connect(self):
        path = self.address.removeprefix("unix:")
        if path.startswith("/"):
            s = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET if self.kind == "pool" else socket.SOCK_STREAM
            )
            target = path
        else:
            host, number = self.address.rsplit(":", 1)
            target = (host.strip("[]"), int(number))
            s = socket.socket(
                socket.AF_INET6 if ":" in target[0] else socket.AF_INET, socket.SOCK_STREAM
            )
        try:
            s.settimeout(DEADLINE)
            s.connect(target)
            if s.family != socket.AF_UNIX:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            s.close()
            raise
        return s


INTERFACES = {
    "controllerd": ("Controller", "options"),
    "l3d": ("L3", "poolInfo"),
    "node": ("Agent", "info"),
}
KINDS = {
    "address": "rpc",
    "dataAddress": "data",
    "migrateAddress": "migrate",
    "socket": "pool",
    "storeSocket": "pool",
    "metrics": "http",
}


def ports(state):
    """All addresses that cluster.json names."""
    found, interfaces = [], schema()
    for name, daemon in json.loads((state / "cluster.json").read_text()).items():
        if not isinstance(daemon, dict) or "pid" not in daemon:
            continue
        for key, kind in KINDS.items():
            if daemon.get(key):
                interface = None
                if kind == "rpc":
                    which, reads = INTERFACES[name.split("-")[0]]
                    number, methods = interfaces[which]
                    interface = (number, len(methods), methods.index(reads))
                found.append(Port(name, kind, daemon[key], daemon["pid"], interface))
    return found


class Caller:
    """One connection; call() sends a request and waits for the answer."""

    def __init__(self, port):
        self.port, self.number = port, 0
        self.socket = port.connect()
        try:
            getattr(self, f"greet_{port.kind}")()
        except BaseException:
            self.socket.close()
            raise

    def close(self):
        self.socket.close()

    def call(self):
        self.number += 1
        getattr(self, f"call_{self.port.kind}")()

    def greet_rpc(self):
        self.socket.sendall(bootstrap(0))
        self.answer_rpc(0)

    def answer_rpc(self, question):
        while True:
            tag, asked, how = rpc_answer(self.socket)
            if tag == 3 and asked == question:
                if how != 0:
                    raise AssertionError(f"{self.port.name}: the call failed")
                return

    def call_rpc(self):
        interface, _, method = self.port.interface
        self.socket.sendall(call(self.number, interface, method, struct_pointer(0xFFFFFFFF, 0, 0)))
        self.answer_rpc(self.number)
        self.socket.sendall(finish(self.number))

    def greet_data(self):
        self.socket.sendall(data_message(1, payload=bytes(DATA_KEY)))
        self.answer_data(2)

    def answer_data(self, kind):
        head = exactly(self.socket, DATA_HEAD)
        payload = exactly(self.socket, struct.unpack_from("<I", head, 56)[0])
        if head[5] != kind:
            raise AssertionError(f"{self.port.name}: message {head[5]} for {kind}: {payload[:100]}")

    def call_data(self):
        self.socket.sendall(data_message(3, op=self.number, offset=0, length=64))
        self.answer_data(4)

    def greet_migrate(self):
        self.socket.sendall(ZMTP_GREETING)
        exactly(self.socket, len(ZMTP_GREETING))
        self.socket.sendall(ZMTP_READY)
        self.frame()

    def frame(self):
        flags, size = exactly(self.socket, 2)
        if flags & 2:
            size = struct.unpack(">Q", bytes([size]) + exactly(self.socket, 7))[0]
        return flags, exactly(self.socket, size)

    def call_migrate(self):
        self.socket.sendall(zmtp(migrate_message(4, self.number)))
        while self.frame()[0] & 1:
            pass

    def greet_pool(self):
        self.ask_pool(1)

    def ask_pool(self, kind):
        self.socket.sendall(pool_message(kind, seq=self.number, number=12345))
        data, control, _, _ = self.socket.recvmsg(4096, 256)
        for level, what, fds in control:
            if (level, what) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for fd in array.array("i", fds[: len(fds) // 4 * 4]):
                    socket.close(fd)
        if not data:
            raise Gone("the connection is closed")

    def call_pool(self):
        self.ask_pool(2)

    def greet_http(self):
        self.call_http()

    def call_http(self):
        """The daemons answer one request per connection."""
        self.socket.close()
        self.socket = self.port.connect()
        self.socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = self.socket.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise Gone(f"{self.port.name}: /healthz answers {answer[:60]!r}")


@contextlib.contextmanager
def caller(port):
    made = Caller(port)
    try:
        yield made
    finally:
        made.close()


def latencies(asked, count):
    """The duration of `count` calls in seconds."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        asked.call()
        taken.append(time.perf_counter() - begun)
    return taken

"""Reads over RDMA verbs: which path the network layer chooses,
and that the owner's CPU takes no part in it."""
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

from harness import test
from prepare import ADDRESS, deaf, packets, sh
from support.cluster import BUILD

ONESIDED = BUILD / "tests/vm/vm_onesided"
SIZES = ["64", str(64 << 10), str(1 << 20), str(8 << 20)]
POOL = 24 << 20
TCP = {"HELIOS_UCX_TLS": "tcp"}


@contextlib.contextmanager
def owner(env=None, wrap=list, listen=ADDRESS):
    """A process with a pool; (its address, its pid)."""
    process = subprocess.Popen(
        wrap([ONESIDED, "serve", f"{listen}:0", str(POOL), "auto"]),
        text=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=dict(os.environ, **(env or {})),
    )
    try:
        address = process.stdout.readline().strip()
        assert address, "the owner ended at once"
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def fetch(address, what, pid, sizes, timeout_ms=180000, env=None, wrap=list, log=None):
    """The lines that `onesided fetch` printed, and its exit code; warnings go to `log`."""
    command = wrap([ONESIDED, "fetch", address, "auto", what, str(pid), str(timeout_ms), *sizes])
    done = subprocess.run(
        command,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=600,
        check=False,
        env=dict(os.environ, **(env or {})),
    )
    sys.stderr.write(done.stderr)
    if log:
        log("\n".join(line for line in done.stderr.splitlines() if " warn " in line))
    return done.stdout.splitlines(), done.returncode


@test("rxe0 is an active verbs device")
def device(note):
    assert "rxe0" in sh("ibv_devices")
    assert "PORT_ACTIVE" in sh("ibv_devinfo -d rxe0")
    note(sh("rdma link show"))


@test("AUTO finds the path rdma by its self-test, data is right and packets went over rxe0")
def auto_is_rdma(note):
    before = packets()
    with owner() as (address, pid):
        lines, code = fetch(address, "live", pid, SIZES)
    note("\n".join(lines))
    assert lines[0].startswith("path rdma"), lines
    assert code == 0 and [line.split()[:2] for line in lines[1:]] == [["fetched", s] for s in SIZES]
    after = packets()
    # 9 MiB in packets of at most 4 KiB.
    assert after[1] - before[1] > (9 << 20) // 4096, (before, after)


@test("the owner listens on one TCP port, which is not UCX's, and a stranger there hurts nobody")
def one_port(note):
    with owner() as (address, pid):
        ports = [line.split()[3] for line in sh("ss -Hltnp").splitlines() if f"pid={pid}," in line]
        note(ports)
        assert ports == [address], (ports, address)
        host, port = address.split(":")
        for noise in (bytes(17), b"A" * 3000):
            with socket.create_connection((host, int(port)), 60) as s:
                s.sendall(noise)
        lines, code = fetch(address, "live", pid, SIZES)
    assert code == 0 and lines[0].startswith("path rdma"), lines


@test("a read succeeds while the owner is stopped: it is one-sided")
def stopped_owner(note):
    with owner() as (address, pid):
        lines, code = fetch(address, "stop", pid, SIZES)
    note("\n".join(lines))
    assert lines[0].startswith("path rdma"), lines
    assert lines[1] == "stopped", lines
    assert code == 0 and [line.split()[:2] for line in lines[2:]] == [["fetched", s] for s in SIZES]


@test("over TCP the same read does not succeed, and the error says peer, path and time")
def stopped_owner_tcp(note):
    with owner(env=TCP) as (address, pid):
        lines, _ = fetch(address, "live", pid, ["64"], env=TCP)
        assert lines[0].startswith("path tcp") and lines[1].startswith("fetched 64"), lines
        lines, code = fetch(address, "stop", pid, ["64"], timeout_ms=20000, env=TCP)
    note("\n".join(lines))
    assert code == 1 and lines[1] == "stopped" and lines[2].startswith("failed 64 ETIMEDOUT"), lines
    error = lines[2].split(": ", 1)[1]
    assert address in error and "over tcp" in error and re.search(r"\d+ ms", error), lines


@test("the death of the owner during reads over rdma is an ordinary error")
def dead_owner(note):
    with owner() as (address, pid):
        lines, code = fetch(address, "kill", pid, [str(4 << 20)], timeout_ms=180000)
    note("\n".join(lines))
    assert lines[0].startswith("path rdma"), lines
    assert code == 0 and re.match(r"noticed (EUNAVAIL|ETIMEDOUT) ", lines[1]), lines


@test(
    "where RDMA lets nothing through the connection is made over tcp, with a warning,"
    " before its deadline"
)
def lost_fabric(note):
    with deaf() as (host, where), owner(
        wrap=lambda c: ["ip", "netns", "exec", host, *c], listen=where
    ) as (address, pid):
        lines, code = fetch(address, "live", pid, ["65536"], timeout_ms=60000, log=note)
    note("\n".join(lines))
    assert (
        code == 0 and lines[0].startswith("path tcp") and lines[1].startswith("fetched 65536")
    ), lines
    assert any("rdma did not work" in line for line in note.lines), note.lines


def as_nobody(command, locked_kib):
    """Drops root's right to lock any amount of memory."""
    return [
        "sh",
        "-c",
        f"ulimit -l {locked_kib}; exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
        "sh",
        *command,
    ]


@test("a process that may lock only 64 KiB of memory serves and reads over tcp, and says why")
def memlock(note):
    with owner(wrap=lambda c: as_nobody(c, 64)) as (address, pid):
        lines, code = fetch(address, "live", pid, SIZES, log=note, wrap=lambda c: as_nobody(c, 64))
    note("\n".join(lines))
    assert code == 0 and lines[0].startswith("path tcp"), lines
    assert any("may not lock" in line for line in note.lines), note.lines


@test("with 128 MiB of it an ordinary user reads over rdma")
def memlock_enough(note):
    with owner(wrap=lambda c: as_nobody(c, 128 << 10)) as (address, pid):
        lines, code = fetch(
            address, "live", pid, SIZES, log=note, wrap=lambda c: as_nobody(c, 128 << 10)
        )
    note("\n".join(lines))
    assert code == 0 and lines[0].startswith("path rdma"), lines


@contextlib.contextmanager
def forbidden():
    """The adapter is there, but only root may use it: RDMA fails for others, TCP does not."""
    modes = {path: path.stat().st_mode for path in pathlib.Path("/dev/infiniband").glob("uverbs*")}
    assert modes

    def set_modes(allowed):
        for path, mode in modes.items():
            path.chmod(mode | 0o666 if allowed else 0o600)

    set_modes(False)
    try:
        yield set_modes
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@test(
    "a connection that had to do without RDMA goes over to it while it is read from,"
    " once RDMA works"
)
def renewed(note):
    with owner() as (address, pid), forbidden() as allow:
        command = as_nobody(
            [ONESIDED, "fetch", address, "auto", "renew", str(pid), "180000", *SIZES], 128 << 10
        )
        with subprocess.Popen(
            command,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as reader:
            first = reader.stdout.readline()
            before = packets()
            allow(True)
            rest, errors = reader.communicate(timeout=600)
        after = packets()
    sys.stderr.write(errors)
    lines = [line for line in rest.splitlines() if not line.startswith("fetched 64 ")]
    note(first + "\n".join(lines))
    note("\n".join(line for line in errors.splitlines() if "net: reads" in line))
    assert first.startswith("path tcp"), first
    assert reader.returncode == 0 and re.match(
        r"renewed rdma after \d+ good reads over tcp", lines[0]
    ), lines
    assert "over rdma again" in errors, errors
    assert after[1] - before[1] > (9 << 20) // 4096, (before, after)

"""Reads over RDMA verbs: which path our net layer finds, and that the owner's CPU has no part in it."""
import contextlib
import os
import re
import signal
import subprocess
import sys

from harness import test
from prepare import ADDRESS, packets, sh
from support.cluster import BUILD

ONESIDED = BUILD / "tests/vm/vm_onesided"
SIZES = ["64", str(64 << 10), str(1 << 20), str(8 << 20)]
POOL = 24 << 20
TCP = {"HELIOS_UCX_TLS": "tcp"}


@contextlib.contextmanager
def owner(mode="auto", env=None, listen=f"{ADDRESS}:0"):
    """A process with a pool; (its address, its pid)."""
    process = subprocess.Popen([ONESIDED, "serve", listen, str(POOL), mode], stdout=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))
    try:
        address = process.stdout.readline().strip()
        assert address, "the owner ended at once"
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def fetch(address, what, pid, sizes, timeout_ms=20000, env=None, mode="auto"):
    """Lines that `onesided fetch` printed, and its exit code."""
    done = subprocess.run([ONESIDED, "fetch", address, mode, what, str(pid), str(timeout_ms), *sizes], text=True,
                          stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=sys.stderr, timeout=180, check=False,
                          env=dict(os.environ, **(env or {})))
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
        lines, code = fetch(address, "stop", pid, ["64"], timeout_ms=4000, env=TCP)
    note("\n".join(lines))
    assert code == 1 and lines[1] == "stopped" and lines[2].startswith("failed 64 ETIMEDOUT"), lines
    error = lines[2].split(": ", 1)[1]
    assert address in error and "over tcp" in error and re.search(r"\d+ ms", error), lines


@test("the death of the owner during reads over rdma is an ordinary error")
def dead_owner(note):
    with owner() as (address, pid):
        lines, code = fetch(address, "kill", pid, [str(4 << 20)], timeout_ms=30000)
    note("\n".join(lines))
    assert lines[0].startswith("path rdma"), lines
    assert code == 0 and re.match(r"noticed (EUNAVAIL|ETIMEDOUT) ", lines[1]), lines

"""What a rank is told of servers that are lost: the file HELIOS_MEETING, of lines MASTER_ADDR=..., MASTER_PORT=... and
LOST=...

A server that is gone resets no connection, so who waits for it waits for as long as its collective may take. The
connections to it are cut here, by a thread, once the file names it.
"""
from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time

LOOK = 0.25  # seconds between two looks at the file
_watching = threading.Lock()


def _lines() -> list[tuple[str, str]]:
    try:
        with open(os.environ.get("HELIOS_MEETING", ""), encoding="utf-8") as file:
            return [(name, value) for name, _, value in (line.strip().partition("=") for line in file)]
    except OSError:
        return []  # nothing was ever said


def master() -> tuple[str, str]:
    """Address and port at which rank 0 meets the others where they are not those of the start; "" = they are."""
    told = dict(_lines())
    return told.get("MASTER_ADDR", ""), told.get("MASTER_PORT", "")


def _numeric(address: str) -> str:
    """Without the prefix of an IPv4 address on an IPv6 socket, and without a scope."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def _cut_one(s: socket.socket, lost: set[str]) -> bool:
    if s.type != socket.SOCK_STREAM or s.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        peer = _numeric(s.getpeername()[0])
        if peer not in lost or peer == _numeric(s.getsockname()[0]):
            return False
        s.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # not connected, or no more
    return True


def cut(addresses: set[str]) -> int:
    """Shut this process's TCP connections to those; how many there were. Connections within one host are left: their
    ends hear of each other."""
    lost, count = {_numeric(address) for address in addresses}, 0
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        try:
            s = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue  # no socket
        with s:
            count += _cut_one(s, lost)
    return count


def _named() -> set[str]:
    return {value for name, value in _lines() if name == "LOST"}


def _follow(known: set[str]) -> None:
    while True:
        time.sleep(LOOK)
        lost = _named()
        if not lost <= known:
            cut(lost - known)
            known = lost


def watch() -> None:
    """Once in a process; of a job without such a file nothing is watched."""
    if os.environ.get("HELIOS_MEETING") and _watching.acquire(blocking=False):
        known = _named()  # read here: a thread that starts late would take a server lost meanwhile for an old one
        threading.Thread(target=_follow, args=(known,), name="helios-lost", daemon=True).start()

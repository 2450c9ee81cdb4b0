"""How a rank learns of lost servers: from the file HELIOS_MEETING, with lines MASTER_ADDR=...,
MASTER_PORT=... and LOST=...

A server that is gone resets no connection, so ranks that wait for it wait until their collective
times out. A thread here cuts the connections to it as soon as the file names it. It also cuts those
to rank 0's former port, where another process may be listening by now without ever answering.
"""
from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from typing import Callable

LOOK = 0.25  # seconds between two checks of the file
_watching = threading.Lock()


def _lines() -> list[tuple[str, str]]:
    try:
        with open(os.environ.get("HELIOS_MEETING", ""), encoding="utf-8") as file:
            return [(name, value)
                    for name, _, value in (line.strip().partition("=") for line in file)]
    except OSError:
        return []  # no file was ever written


def master() -> tuple[str, str]:
    """Address and port at which rank 0 meets the others, if that has changed; "" = unchanged."""
    told = dict(_lines())
    return told.get("MASTER_ADDR", ""), told.get("MASTER_PORT", "")


def _numeric(address: str) -> str:
    """Without the prefix of an IPv4 address on an IPv6 socket, and without a scope."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def _cut_one(s: socket.socket, unwanted: Callable[[str, int, str], bool]) -> bool:
    if s.type != socket.SOCK_STREAM or s.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        address, port = s.getpeername()[:2]
        if not unwanted(_numeric(address), port, _numeric(s.getsockname()[0])):
            return False
        s.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # not connected, or not any more
    return True


def _cut_all(unwanted: Callable[[str, int, str], bool]) -> int:
    """Shut down TCP connections that are unwanted(peer address, peer port, own address)."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = os.dup(int(name))
        except OSError:
            continue  # closed in the meantime
        try:
            s = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue  # not a socket
        with s:
            count += _cut_one(s, unwanted)
    return count


def cut(addresses: set[str]) -> int:
    """Shut down this process's TCP connections to these addresses; returns how many. Connections
    within one host are left alone, because their ends notice each other's death."""
    lost = {_numeric(address) for address in addresses}
    return _cut_all(lambda peer, _, own: peer in lost and peer != own)


def _named() -> set[str]:
    return {value for name, value in _lines() if name == "LOST"}


def _port() -> int:
    return int(master()[1] or os.environ.get("MASTER_PORT") or 0)


def _follow(known: set[str], port: int) -> None:
    while True:
        time.sleep(LOOK)
        lost, before = _named(), port
        if not lost <= known:
            cut(lost - known)
            known = lost
        port = _port()
        if port != before:
            _cut_all(lambda _, at, __, old=before: at == old)


def watch() -> None:
    """Start the thread, once per process. In a job without such a file nothing is watched."""
    if os.environ.get("HELIOS_MEETING") and _watching.acquire(blocking=False):
        known = _named(), _port()  # here: a late thread would take new losses for old
        threading.Thread(target=_follow, args=known, name="helios-lost", daemon=True).start()

"""Private namespaces for a chaos run: small disks that can be filled, and nothing left behind."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

MARK = "HELIOS_CHAOS_SANDBOX"
STATE_MIB, SHM_MIB = 48, 256


def enter() -> str:
    """Start this program again in its own namespaces, if the kernel allows that.

    Returns "" inside of them, otherwise the reason why there are none; faults that need a file
    system of their own are then skipped. All processes of the namespaces end with the program.
    """
    if MARK in os.environ:
        if not os.environ[MARK]:
            small_disk(pathlib.Path("/dev/shm"), SHM_MIB)
        return os.environ[MARK]
    base = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        base += ["--user", "--map-root-user"]
    probe = [*base, "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        tried = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False)
        reason = tried.stderr.strip().splitlines()[-1] if tried.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    os.environ[MARK] = reason
    if reason:
        return reason
    # The shell is process 1: it reaps the daemons when their parent has ended.
    command = [*base, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv]
    sys.stdout.flush()
    os.execvp(command[0], command)


def small_disk(path: pathlib.Path, mib: int) -> None:
    """Mount an empty tmpfs of `mib` MiB at `path`; it ends with the namespace."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", path], check=True)


def fill(directory: pathlib.Path) -> pathlib.Path:
    """Fill all free space of a disk of small_disk; returns the file that fills it."""
    space = os.statvfs(directory)
    if space.f_blocks * space.f_frsize > max(STATE_MIB, SHM_MIB) << 20:
        raise RuntimeError(f"{directory} is no small disk of this run: it is not filled")
    path = directory / "filler"
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size >= 1:
            try:
                written = file.write(bytes(size))
            except OSError:
                written = 0
            if written < size:
                size //= 2
    return path


def release(path: pathlib.Path) -> None:
    """Unmount a disk of small_disk, even if a process still has one of its files open."""
    subprocess.run(["umount", "-l", path], check=False, capture_output=True)

"""Jobs in containers of a real Podman, with cgroup v2: one cluster, whose Agent has the machine's
two NUMA nodes as slots."""
import atexit
import contextlib
import functools
import pathlib

from harness import test
from l3d import PATIENT
from numa import allowed
from support import podman
from support.cluster import Cluster

SLOW = 600
PROGRAM = pathlib.Path("/usr/bin/podman")
CRUN = pathlib.Path("/usr/bin/crun")


@functools.lru_cache(maxsize=None)
def cluster():
    podman.put_image()
    made = Cluster(
        nodes=1,
        slots=0,
        size="64MiB",
        env=PATIENT,
        up=("--timeout", "300s", "--executor", "podman"),
        patience=6,
    )
    atexit.register(made.run, "down", "--purge")
    made.up()
    return made


def jobs(note):
    return podman.Jobs(cluster(), SLOW, note)


@contextlib.contextmanager
def hidden(program):
    away = program.with_name(f"{program.name}-away")
    program.rename(away)
    try:
        yield
    finally:
        away.rename(program)


def bound_and_limited(pids, note):
    bound = {rank: (allowed(pid, "Cpus"), allowed(pid, "Mems")) for rank, pid in pids.items()}
    groups = {
        rank: (
            pathlib.Path(f"/proc/{pid}/cgroup")
            .read_text(encoding="ascii")
            .strip()
            .partition("::")[2]
        )
        for rank, pid in pids.items()
    }
    note(f"CPUs and memory nodes of the ranks: {bound}; group of rank 0: {groups[0]}")
    assert sorted(bound.values()) == [("0", "0"), ("1", "1")], bound
    limits = {
        pathlib.Path(f"/sys/fs/cgroup{group}/memory.max").read_text(encoding="ascii")
        for group in groups.values()
    }
    assert limits == {f"{64 << 20}\n"}, limits


@test(
    "podman job: a gang of two ranks runs in its image on its NUMA nodes, with its mounts, its"
    " memory and its log"
)
def gang(note):
    jobs(note).gang(lambda pids: bound_and_limited(pids, note))


@test("podman job: a stop lets the ranks say goodbye, and nothing of them is left")
def stop(note):
    jobs(note).stop()


@test("podman job: want of memory names the limit and the rank, and shows the kernel's words")
def memory(note):
    jobs(note).memory()


@test(
    "podman job: an image is pinned by its digest when the job is submitted, pulled, and stays it"
    " when the tag moves"
)
def pinned(note):
    registry = podman.Registry("/etc/containers/registries.conf.d/helios-test.conf")
    try:
        jobs(note).pinned(registry)
    finally:
        registry.close()


@test(
    "podman job: without podman, and without its runtime,"
    " that is the reason of a job that starts then"
)
def away(note):
    jobs(note).broken(hidden(PROGRAM), ["podman: there is no such program in PATH"])
    jobs(note).broken(hidden(CRUN), ["podman ", "crun"])


@test(
    "podman job: containers outlive the Agent, and podman itself being away meanwhile is a warning"
)
def outlive(note):
    jobs(note).outlive(hidden(PROGRAM))

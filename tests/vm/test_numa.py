"""Real NUMA nodes: CPUs 0-1 are node 0, CPUs 2-3 node 1."""
import json
import pathlib
import re
import subprocess

from harness import test
from l3d import PATIENT, daemon, slow_cluster
from numa import CPUS, allowed
from prepare import sh
from support.cluster import BUILD, HELIOS

SLEEPER = """
jobName: sleeper
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 1, data_parallel_size: 1}
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'echo here; while [ ! -e %s ]; do sleep 0.2; done']
"""


@test("the machine has two nodes, and helios sees them as two slots with their CPUs")
def slots(note):
    note(sh("numactl -H"))
    out = subprocess.run(
        [HELIOS, "topo", "-o", "json"], capture_output=True, text=True, check=True
    ).stdout
    found = {s["numaId"]: s["cpus"] for s in json.loads(out)["slots"]}
    assert found == CPUS, found


@test("an Agent offers two slots, and a job's ranks run on their node's CPUs and memory only")
def ranks(note):
    with slow_cluster(slots=0, env=PATIENT) as c:
        nodes = c.json("nodes")["items"]
        assert sorted(s["numaId"] for s in nodes[0]["slots"]) == [0, 1], nodes
        stop = c.dir / "stop"
        job = c.submit(SLEEPER % stop)
        running = c.wait_job(job, "running", seconds=300)
        seen = {}
        for k in running["plan"]["containers"]:
            for r in k["ranks"]:
                pid = next(
                    x["pid"]
                    for held in running["containers"]
                    for x in held["ranks"]
                    if x["rank"] == r["rank"]
                )
                seen[k["numaId"]] = (allowed(pid, "Cpus"), allowed(pid, "Mems"))
        note(seen)
        stop.touch()
        c.wait_job(job, "succeeded", seconds=300)
        assert {n: cpus for n, (cpus, _) in seen.items()} == CPUS, seen
        assert {n: mems for n, (_, mems) in seen.items()} == {0: "0", 1: "1"}, seen


@test("every page of a shard lies on the node it was wanted near, as move_pages tells")
def pool_pages(note):
    # From either node: an unbound page would come from the node that touches it.
    for cpu in ("0", "3"):
        done = subprocess.run(
            ["taskset", "-c", cpu, BUILD / "tests/vm/vm_numa_pool", "/dev/shm/numa.pool", "0", "1"],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=840,
            check=False,
        )
        note(done.stdout)
        assert done.returncode == 0, done.returncode
        assert done.stdout.count("misplaced 0") == 12, done.stdout


def regions(pid, path):
    """{policy: {node: pages}} of a process's mappings of a file, as reported by the kernel."""
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/numa_maps").read_text(encoding="ascii").splitlines():
        _, policy, *rest = line.split()
        if f"file={path}" in rest:
            pages = found.setdefault(policy, {})
            for node, count in (word.split("=") for word in rest if re.match(r"N\d+=", word)):
                pages[node] = pages.get(node, 0) + int(count)
    return found


@test("helios-l3d's own pool has a region on each node: bound there, and its pages are there")
def daemon_pool(note):
    # From either node: an unbound page would come from the node that touches it.
    for cpu in ("0", "3"):
        with daemon("64MiB", wrap=["taskset", "-c", cpu]) as d:
            found = regions(d.pid, d.pool)
            note(f"CPU {cpu}: {found}")
            half = (32 << 20) // 4096
            for node in ("0", "1"):
                pages = found[f"bind:{node}"]
                assert pages[f"N{node}"] >= half, found
                assert sum(pages.values()) == pages[f"N{node}"], found
            told = next(t["regions"] for t in d.told()["tiers"] if t["tier"] == "L3")
            note(told)
            assert sorted(r["numaId"] for r in told) == [0, 1], told

"""The daemons as services of a real systemd, with the installed units."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess

from harness import test
from l3d import PATIENT
from numa import CPUS, allowed
from prepare import sh
from support.cluster import BUILD, HELIOS, ROOT, alive, wait_for

DAEMONS = ("l3d", "controller", "agent")
CONTROLLER = "127.0.0.1:7400"
GROUPS = pathlib.Path("/sys/fs/cgroup")
SLEEPER = """
jobName: sleeper
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 1, data_parallel_size: 1}
resources: {ranks_per_slot: 1, memory: 96MiB}
command: [/bin/sh, -c, 'while [ ! -e %s ]; do sleep 0.2; done']
"""


def helios(*args):
    done = subprocess.run(
        [HELIOS, "--controller", CONTROLLER, *map(str, args), "-o", "json"],
        capture_output=True,
        text=True,
        env=dict(os.environ, **PATIENT),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"helios {args}: {done.stderr}"
    return json.loads(done.stdout)


def install():
    """As installed, with the emulated machine's timeouts."""
    for program in (BUILD / "bin").glob("helios*"):
        link = pathlib.Path("/usr/local/bin", program.name)
        link.unlink(missing_ok=True)
        link.symlink_to(program)
    pathlib.Path("/etc/sysusers.d").mkdir(exist_ok=True)
    conf = pathlib.Path("/etc/helios/helios.yaml")
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text("l3: {size: 64MiB}\n")
    environment = "".join(
        f"Environment={k}={v}\n"
        for k, v in {**PATIENT, "LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]}.items()
    )
    for name in DAEMONS:
        shutil.copy(ROOT / f"deploy/systemd/helios-{name}.service", "/etc/systemd/system")
        more = pathlib.Path(f"/etc/systemd/system/helios-{name}.service.d")
        more.mkdir(exist_ok=True)
        (more / "patience.conf").write_text(f"[Service]\n{environment}")
    shutil.copy(ROOT / "deploy/systemd/helios.sysusers", "/etc/sysusers.d/helios.conf")
    sh("systemd-sysusers helios.conf && systemctl daemon-reload")


@contextlib.contextmanager
def services():
    install()
    units = " ".join(f"helios-{name}" for name in DAEMONS)
    try:
        sh(f"systemctl start {units}")
        wait_for("the agent to register", registered, 300)
        yield
    except BaseException:
        print(sh(f"journalctl --no-pager -n 60; systemctl status --no-pager {units} || true"))
        raise
    finally:
        sh(f"systemctl stop {units}")


def registered():
    with contextlib.suppress(AssertionError):
        return [n for n in helios("nodes")["items"] if n["state"] == "ready"]
    return None


class Job:
    """Two containers, one on each node, that end when told to."""

    def __init__(self):
        self.stop = pathlib.Path("/tmp/stop")
        self.stop.unlink(missing_ok=True)
        pathlib.Path("/tmp/job.yaml").write_text(SLEEPER % self.stop)
        self.id = helios("submit", "/tmp/job.yaml")["id"]

    def wait(self, state):
        return wait_for(
            f"job {self.id} to be {state}",
            lambda: (d := helios("describe", self.id))["state"] == state and d,
            300,
        )

    def ranks(self):
        """{NUMA node: pid}, and how they are bound."""
        told = self.wait("running")
        pids = {r["rank"]: r["pid"] for held in told["containers"] for r in held["ranks"]}
        numa = {
            k["numaId"]: pids[r["rank"]] for k in told["plan"]["containers"] for r in k["ranks"]
        }
        return numa, {held["binding"] for held in told["containers"]}

    def end(self):
        self.stop.touch()
        return self.wait("succeeded")


def bound(pid, numa):
    return (allowed(pid, "Cpus"), allowed(pid, "Mems")) == (CPUS[numa], str(numa))


def group(pid):
    return (
        pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").strip().partition("::")[2]
    )


def disturb():
    """Makes systemd check all its groups."""
    sh(
        "systemctl daemon-reload; systemd-run --quiet --wait -p CPUWeight=50 -p AllowedCPUs=0-3"
        " true; systemctl daemon-reload"
    )


def no_scopes():
    return "helios-" not in sh("systemctl list-units --no-pager --plain --type=scope --all")


@test(
    "ranks are bound to their node in scopes of systemd,"
    " and stay so whatever systemd does with its units"
)
def scopes(note):
    with services():
        job = Job()
        numa, how = job.ranks()
        note({n: group(pid) for n, pid in numa.items()})
        assert how == {"cpuset-cgroup"}, how
        for node, pid in numa.items():
            assert re.match(r"/helios\.slice/helios-[^/]*\.scope/", group(pid)), group(pid)
            assert (GROUPS / group(pid)[1:] / "memory.max").read_text() == f"{96 << 20}\n"
            assert bound(pid, node)
        disturb()
        assert all(bound(pid, node) for node, pid in numa.items())
        job.end()
        wait_for("the scopes to be gone", no_scopes, 120)


@test(
    "an Agent that systemd stops, or restarts after it was killed, leaves its ranks running and"
    " bound, and finds them again"
)
def restart(note):
    with services():
        job = Job()
        numa, _ = job.ranks()
        sh("systemctl stop helios-agent")
        disturb()
        assert all(alive(pid) and bound(pid, node) for node, pid in numa.items())
        sh("systemctl start helios-agent; systemctl kill --kill-whom=main -s KILL helios-agent")
        wait_for(
            "the agent to be started again",
            lambda: sh("systemctl show -P NRestarts helios-agent").strip() == "1",
            120,
        )
        # On another port, as the units say; the node's record has the old one for a while.
        wait_for(
            "it to register",
            lambda: sh("journalctl --no-pager -u helios-agent").count("agent: registered") == 3,
            300,
        )
        again, _ = job.ranks()
        note(again)
        assert again == numa, (again, numa)
        assert all(alive(pid) and bound(pid, node) for node, pid in numa.items())
        assert job.end()["attempt"] == 1


@test("where the bus is away ranks are bound by affinity, which systemd does not touch either")
def no_bus(note):
    with services():
        sh("systemctl stop dbus.socket dbus.service")
        try:
            job = Job()
            numa, how = job.ranks()
            note(how)
            assert how == {"affinity"}, how
            sh("systemctl daemon-reload")
            for node, pid in numa.items():
                assert allowed(pid, "Cpus") == CPUS[node], pid
            job.end()
        finally:
            sh("systemctl start dbus.socket dbus.service")

"""Podman without root: a user's own cluster, in a systemd user session."""
import json
import os
import pathlib
import shlex
import subprocess

from harness import test
from l3d import PATIENT
from prepare import sh
from support.cluster import HELIOS, wait_for
from support.dockerd import busybox_image
from support.podman import IMAGE

SLOW = 600
HOME = pathlib.Path("/home/tester")


def dd(mebibytes):
    return f"dd if=/dev/zero of=/dev/null count=1 bs={mebibytes}M 2>/dev/null"


JOB = f"""
jobName: mine
dockerImage: {IMAGE}
parallelism: {{tensor_parallel_size: 2}}
resources: {{memory: 64MiB, ranks_per_slot: 1}}
command: [/bin/sh, -c, 'echo $GLOBAL_RANK of $WORLD_SIZE; {dd(32)} && echo fits; \
{dd(128)} || echo too much; exit 4']
"""
DELEGATE = pathlib.Path("/etc/systemd/system/user@.service.d/delegate.conf")


def as_tester(*words):
    """Runs it in a new session of the user; (exit code, output, error)."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG")}
    env = {
        **kept,
        **PATIENT,
        "HELIOS_CONFIG": "",
        "HOME": str(HOME),
        "XDG_RUNTIME_DIR": "/run/user/1000",
    }
    line = (
        "cd; exec env"
        f" {' '.join(f'{k}={shlex.quote(v)}' for k, v in env.items())}"
        f" {shlex.join(map(str, words))}"
    )
    done = subprocess.run(
        [
            "systemd-run",
            "--quiet",
            "--wait",
            "--pipe",
            "--uid=tester",
            "-p",
            "PAMName=login",
            "sh",
            "-c",
            line,
        ],
        capture_output=True,
        text=True,
        timeout=SLOW,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def helios(*words):
    code, out, err = as_tester(HELIOS, "--state", HOME / "state", *words, "-o", "json")
    assert code == 0, (words, out, err)
    return json.loads(out)


def make_user():
    if HOME.exists():
        return
    # Lingering keeps the user's systemd alive, which has the containers' groups.
    sh("useradd --create-home --shell /bin/bash --uid 1000 tester; loginctl enable-linger tester")
    (HOME / "image.tar").write_bytes(busybox_image())
    (HOME / "job.yaml").write_text(JOB)
    code, _, err = as_tester("podman", "import", HOME / "image.tar", IMAGE)
    assert code == 0, err


def job():
    """The record of an ended job, and the logs of its ranks."""
    make_user()
    helios(
        "up",
        "--nodes",
        "1",
        "--l3-size",
        "64MiB",
        "--no-supervise",
        "--timeout",
        "300s",
        "--executor",
        "podman",
    )
    try:
        name = helios("submit", HOME / "job.yaml")["id"]
        end = wait_for(
            "the job to end",
            lambda: (d := helios("describe", name))["state"] in ("failed", "succeeded") and d,
            SLOW,
        )
        return end, [helios("logs", name, "--rank", rank)["text"] for rank in (0, 1)]
    finally:
        helios("down", "--purge")
        code, left, _ = as_tester("podman", "ps", "--all", "--quiet")
        assert (code, left) == (0, ""), (code, left)


@test(
    "podman user: without root, as Debian's systemd is,"
    " a job is refused for want of the control group of CPUs"
)
def refused(note):
    end, _ = job()
    note(end["reason"])
    assert (
        end["state"] == "failed"
        and "`cpuset` is not available; systemd has to delegate it" in end["reason"]
    ), end


@test(
    "podman user: without root, where systemd delegates CPUs to users,"
    " a gang runs and has its memory"
)
def delegated(note):
    make_user()
    DELEGATE.parent.mkdir(exist_ok=True)
    DELEGATE.write_text("[Service]\nDelegate=cpu cpuset io memory pids\n")
    sh("systemctl daemon-reload; systemctl restart user@1000")
    end, logs = job()
    note(f"{end['reason']}; {[(k['binding'], k['warning']) for k in end['containers']]}")
    assert "exited with code 4" in end["reason"], end
    assert any(
        text.startswith(f"{rank} of 2\nfits\n") and text.endswith("too much\n")
        for rank, text in enumerate(logs)
    ), logs

"""The suite of all executors against a real Podman, under systemd and with cgroup v2: each of its
tests is a test here, because each call of an emulated Podman takes seconds."""
import functools
import json
import os
import re
import subprocess

from harness import Skip, test
from prepare import sh
from support.cluster import BUILD, ROOT, wait_for
from support.podman import IMAGE, containers, podman, put_image

SUITE = BUILD / "tests" / "hw_test_executor_suite"
SLOW = 600  # seconds for what takes one on an idle host
# Once: each call takes seconds.
image = functools.lru_cache(maxsize=None)(put_image)


def names():
    """Names of the suite's tests: it lists them when asked for one that it does not have."""
    said = subprocess.run([SUITE, "?"], capture_output=True, text=True, check=False).stderr
    found = said.partition("its tests are:")[2].split()
    assert found, f"{SUITE}: {said}"
    return found


def said_by(name):
    """The suite's output for one of its tests, once all of its containers are gone."""
    env = {
        **os.environ,
        "HELIOS_TEST_ENGINE": "podman",
        "HELIOS_TEST_IMAGE": IMAGE,
        "HELIOS_TEST_PATIENCE": "10",
    }
    try:
        done = subprocess.run(
            [SUITE, name],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        wait_for("podman to be empty", lambda: not containers(), SLOW)
        return done.stdout
    except BaseException:
        podman("rm", "--force", "--time=0", "--all")  # so that the next test does not see them
        raise


def podman_passes(name):
    def run(_note):
        image()
        said = said_by(name)
        if "SKIPPED" in said:
            raise Skip(said.partition("REASON  ] ")[2].partition("\n")[0])

    return run


@test(
    "podman runs as root by crun, systemd makes its control groups, and they are of the second kind"
)
def engine(note):
    told = json.loads(podman("info", "--format=json"))
    host = told["host"]
    note(
        f"podman {told['version']['Version']}, {host['ociRuntime']['version'].splitlines()[0]}, log"
        f" {host['logDriver']}, events {host['eventLogger']}, storage"
        f" {told['store']['graphDriverName']}, Linux {host['kernel']}"
    )
    assert (host["cgroupVersion"], host["cgroupManager"], host["security"]["rootless"]) == (
        "v2",
        "systemd",
        False,
    ), host
    assert host["ociRuntime"]["name"] == "crun", host["ociRuntime"]


CDI = """cdiVersion: 0.3.0
kind: nvidia.com/gpu
devices:
- name: %s
  containerEdits: {env: [SEEN=gpu], deviceNodes: [{path: /dev/nvidia7}]}
"""


@test("podman: a GPU by its UUID is what the CDI file says; without the file it is refused by name")
def cdi(note):
    """The argument is that of the command line with which a unit test compares ours."""
    image()
    uuid = re.search(
        r"^--device=nvidia.com/gpu=(\S+)$",
        (ROOT / "tests/data/engine/podman-power-8-cdi.txt").read_text(),
        re.M,
    )[1]
    command = [
        "podman",
        "run",
        "--rm",
        "--network=host",
        f"--device=nvidia.com/gpu={uuid}",
        IMAGE,
        "sh",
        "-c",
        "echo $SEEN; test -c /dev/nvidia7 && echo device",
    ]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=SLOW, check=False)
    note(refused.stderr)
    assert refused.returncode != 0 and f"nvidia.com/gpu={uuid}" in refused.stderr, refused
    sh(
        f"[ -e /dev/nvidia7 ] || mknod /dev/nvidia7 c 1 3; mkdir -p /etc/cdi; printf '{CDI % uuid}'"
        " >/etc/cdi/nvidia.yaml"
    )
    try:
        given = subprocess.run(command, capture_output=True, text=True, timeout=SLOW, check=False)
        assert (given.returncode, given.stdout) == (0, "gpu\ndevice\n"), given
    finally:
        sh("rm /etc/cdi/nvidia.yaml /dev/nvidia7")


for each in names():
    test(f"podman: {each.replace('_', ' ')}")(podman_passes(each))

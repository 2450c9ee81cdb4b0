"""The suite of all executors against a real Podman, under systemd and with control groups of the second kind: each of
its tests is one here, since an emulated Podman takes seconds for a call."""
import os
import subprocess
import sys

from harness import test
from support.cluster import BUILD, wait_for
from support.dockerd import busybox_image

IMAGE = "helios-test:1"
SUITE = BUILD / "tests" / "hw_test_executor_suite"
SLOW = 600  # seconds for what comes in one on an idle host


def podman(*args, data=None):
    done = subprocess.run(["podman", *map(str, args)], input=data, capture_output=True, timeout=SLOW, check=False)
    assert done.returncode == 0, f"podman {args}: {done.stderr.decode()}"
    return done.stdout.decode().split()


def containers():
    return podman("ps", "--all", "--quiet", "--filter=label=helios.container")


def names():
    """Of the suite's tests: it lists them when it is asked for one that it does not have."""
    said = subprocess.run([SUITE, "?"], capture_output=True, text=True, check=False).stderr
    found = said.partition("its tests are:")[2].split()
    assert found, f"{SUITE}: {said}"
    return found


def podman_passes(name):
    def run(_note):
        if not podman("images", "--quiet", IMAGE):
            podman("import", "-", IMAGE, data=busybox_image())
        env = {**os.environ, "HELIOS_TEST_ENGINE": "podman", "HELIOS_TEST_IMAGE": IMAGE, "HELIOS_TEST_PATIENCE": "10"}
        subprocess.run([SUITE, name], env=env, stdout=sys.stdout, stderr=subprocess.STDOUT, check=True)
        wait_for("podman to be empty", lambda: not containers(), SLOW)
    return run


for each in names():
    test(f"podman: {each.replace('_', ' ')}")(podman_passes(each))

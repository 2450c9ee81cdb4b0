"""Containers of a real Podman, under systemd and control groups of the second kind: the suite of all executors, and
jobs of a cluster whose executor it is."""
import os
import pathlib
import shutil
import subprocess
import sys

from harness import test
from l3d import PATIENT, slow_cluster
from numa import CPUS
from support.cluster import BUILD, alive, wait_for
from support.dockerd import busybox_image

IMAGE = "helios-test:1"
SUITE = BUILD / "tests" / "hw_test_executor_suite"
SLOW = 600  # seconds for what comes in one on an idle host


def podman(*args, data=None):
    done = subprocess.run(["podman", *map(str, args)], input=data, capture_output=True, timeout=SLOW, check=False)
    assert done.returncode == 0, f"podman {args}: {done.stderr.decode()}"
    return done.stdout.decode().strip()


def image():
    podman("import", "-", IMAGE, data=busybox_image())


def containers():
    return podman("ps", "--all", "--quiet", "--filter=label=helios.container").split()


def nothing_left():
    wait_for("podman to be empty", lambda: not containers(), SLOW)


@test("podman passes the suite of all executors")
def suite(note):
    image()
    env = {**os.environ, "HELIOS_TEST_ENGINE": "podman", "HELIOS_TEST_IMAGE": IMAGE, "HELIOS_TEST_PATIENCE": "10"}
    try:
        subprocess.run([SUITE], env=env, stdout=sys.stdout, stderr=subprocess.STDOUT, check=True)
    finally:
        note("\n".join(containers()))
    nothing_left()

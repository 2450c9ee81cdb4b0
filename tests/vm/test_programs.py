"""Tests that also run on the host, here with an RDMA device and two NUMA nodes."""
import pathlib
import subprocess

from harness import test
from support.cluster import BUILD

OLD_NEWS = ("[ RUN", "[       OK", "[==", "[  PASSED")


def program(name):
    def run(note):
        done = subprocess.run(
            [BUILD / "tests" / name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        text = done.stdout + done.stderr
        note("\n".join(line for line in text.splitlines() if not line.startswith(OLD_NEWS))[-3000:])
        assert done.returncode == 0, f"{name} ended with {done.returncode}"

    run.__name__ = name
    test(f"{name} passes")(run)


for each in pathlib.Path("/job/tests").read_text(encoding="ascii").split():
    program(each)

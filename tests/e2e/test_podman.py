"""Jobs in containers of a real Podman, and the suite of all executors against it."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, Cluster, wait_for  # noqa: E402
from support import podman  # noqa: E402

SUITE = BUILD / "tests" / "hw_test_executor_suite"


def memory_of(pid):
    """The limit of its cgroup, v1 or v2."""
    groups = pathlib.Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
    first = re.search(r"^\d+:memory:(.*)$", groups, re.M)
    path = (
        f"/sys/fs/cgroup/memory{first[1]}/memory.limit_in_bytes"
        if first
        else f"/sys/fs/cgroup{groups.partition('::')[2].strip()}/memory.max"
    )
    return int(pathlib.Path(path).read_text(encoding="ascii"))


@contextlib.contextmanager
def hidden(program):
    """Removes a link where the Agent first looks for the program."""
    target = os.readlink(program)
    program.unlink()
    try:
        yield
    finally:
        program.symlink_to(target)


class Podman(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(os.environ["HELIOS_TEST_PODMAN"])
        podman.put_image()
        why = podman.why_not()
        if why:
            raise unittest.SkipTest(f"podman starts no container here: {why}")
        # The Agent's podman is a link that a test can remove.
        cls.bin = cls.dir / "bin"
        cls.bin.mkdir()
        (cls.bin / "podman").symlink_to(shutil.which("podman"))
        path = [p for p in os.environ["PATH"].split(":") if not pathlib.Path(p, "podman").exists()]
        cls.c = Cluster.of_class(
            cls,
            nodes=1,
            slots=2,
            up=("--executor", "podman"),
            env={"PATH": ":".join([str(cls.bin), *path])},
        )
        cls.jobs = podman.Jobs(cls.c, 120, print)

    def test_1_a_gang_runs_in_its_image_with_mounts_memory_log_and_exit_code(self):
        self.jobs.gang(
            lambda pids: self.assertEqual({memory_of(pid) for pid in pids.values()}, {64 << 20})
        )

    def test_2_a_stop_lets_the_ranks_say_goodbye(self):
        self.jobs.stop()

    def test_3_want_of_memory_names_limit_and_rank(self):
        self.jobs.memory()

    def test_4_an_image_is_pinned_by_its_digest_pulled_and_stays_it(self):
        if shutil.which("docker-registry") is None:
            self.skipTest("docker-registry is not installed")
        registry = podman.Registry(self.dir / "registries.conf")
        self.addCleanup(registry.close)
        self.jobs.pinned(registry)

    def test_5_no_podman_is_the_reason_of_a_job(self):
        self.jobs.broken(hidden(self.bin / "podman"), ["podman: there is no such program in PATH"])

    def test_6_containers_outlive_the_agent_and_podman_that_is_away(self):
        self.jobs.outlive(hidden(self.bin / "podman"))

    def test_7_podman_passes_the_suite_of_all_executors(self):
        env = {**os.environ, "HELIOS_TEST_ENGINE": "podman", "HELIOS_TEST_IMAGE": podman.IMAGE}
        done = subprocess.run(
            [SUITE],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(
            re.findall(r"SKIPPED \] (\w+)\n\[ RUN|SKIPPED \] (\w+)\n\[=", done.stdout),
            [("", "an_engine_that_is_down_is_the_reason")],
        )
        wait_for("podman to be empty", lambda: not podman.containers())


if __name__ == "__main__":
    if podman.missing():
        print(f"skipped: {podman.missing()}")
        sys.exit(77)
    if "HELIOS_TEST_PODMAN" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="helios-podman-") as place:
            sys.exit(podman.run_again(place))
    unittest.main(verbosity=2)

"""Jobs in containers of a real Docker engine, and the suite of all executors against it."""
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, ROOT, Cluster, alive, wait_for  # noqa: E402
from support.dockerd import Docker, Registry, missing  # noqa: E402

IMAGE = "helios-test:1"
SUITE = BUILD / "tests" / "hw_test_executor_suite"


class Engines(unittest.TestCase):
    """One cluster; the suite of all executors runs beside it, until the engine is killed."""

    @classmethod
    def setUpClass(cls):
        if missing():
            raise unittest.SkipTest(missing())
        cls.docker = Docker()
        cls.addClassCleanup(cls.docker.close)
        if cls.docker.why:
            raise unittest.SkipTest(cls.docker.why)
        cls.docker.add(IMAGE)
        cls.suite = subprocess.Popen(
            [SUITE],
            env={**os.environ, "HELIOS_TEST_ENGINE": "docker", "HELIOS_TEST_IMAGE": IMAGE},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        cls.addClassCleanup(cls.suite.kill)
        cls.c = Cluster.of_class(cls, nodes=1, slots=2, up=("--executor", "docker"))

    def containers(self, job=""):
        return self.docker.run(
            "ps", "--all", "--quiet", "--filter", f"label=helios.job{job and '=' + job}"
        ).split()

    def test_8_docker_passes_the_suite_of_all_executors(self):
        printed, _ = self.suite.communicate(timeout=280)
        self.assertEqual(self.suite.returncode, 0, printed)
        self.assertNotIn("SKIPPED", printed)
        wait_for("docker to be empty", lambda: not self.containers())

    def test_1_a_gang_runs_in_its_image_on_its_slots_and_leaves_nothing(self):
        text = (
            f"jobName: gang\ndockerImage: {IMAGE}\nparallelism: {{tensor_parallel_size:"
            " 2}\ncommand: [/bin/sh, -c, 'echo $GLOBAL_RANK of $WORLD_SIZE; ls /in; cat"
            " /proc/self/cgroup | grep memory; test -S ${HELIOS_CONTROLLER#unix:} && echo"
            " reached; exit $GLOBAL_RANK']\nresources: {memory: 64MiB, ranks_per_slot: 1}\n"
        )
        c = self.c
        (c.dir / "data").mkdir()
        (c.dir / "data" / "corpus").touch()
        job = c.submit(text + f"mounts: ['{c.dir}/data:/in:ro']\n")
        end = c.wait_job(job, "failed")
        self.assertIn("rank 1 exited with code 1", end["reason"])
        words = c.log(job, 1).split("\n")
        self.assertEqual([words[0], words[1], words[3]], ["1 of 2", "corpus", "reached"])
        self.assertIn("docker", words[2])
        wait_for("docker to be empty", lambda: not self.containers(job))
        # It is in no registry: every attempt runs its id.
        self.assertEqual(
            end["image"], self.docker.run("image", "inspect", "--format={{.Id}}", IMAGE)
        )

        # Options that this executor can't honour are refused by name, before anything runs.
        path = c.dir / "bad.yaml"
        path.write_text(f"jobName: x\ndockerImage: {IMAGE}\nvenv: /v\ncommand: [true]\n")
        self.assertIn(
            "bad.yaml:3:1: venv: the executor docker can't honour it", c.refuse("submit", path)
        )
        path.write_text("jobName: x\ncommand: ['true']\n")
        self.assertIn("dockerImage is missing", c.refuse("submit", path))

        job = c.submit("jobName: none\ndockerImage: localhost:1/no/such:2\ncommand: ['true']\n")
        end = c.wait_job(job, "failed")
        self.assertIn("image localhost:1/no/such:2 is not available", end["reason"])

    def test_2_want_of_memory_names_limit_and_rank_and_shows_the_kernels_words(self):
        job = self.c.submit(
            f"jobName: eater\ndockerImage: {IMAGE}\n"
            "resources: {memory: 64MiB, ranks_per_slot: 1}\n"
            "command: [/bin/sh, -c, 'dd if=/dev/zero of=/dev/null bs=300M count=1; exit 3']\n"
        )
        end = self.c.wait_job(job, "failed")
        self.assertIn(
            "rank 0 exited with code 3 (out of memory: the container's limit is 64 MiB)",
            end["reason"],
        )
        first = wait_for("the first failure", lambda: next(iter(self.c.job(job)["failures"]), None))
        self.assertEqual((first["kind"], first["rank"]), ("memory", 0))
        if os.access("/dev/kmsg", os.R_OK):  # of a child of the rank, in its container
            self.assertRegex(
                self.c.run("logs", "--first-failure", job).stdout,
                r"Memory cgroup out of memory: Killed process \d+ \(dd\)",
            )

    def test_3_an_image_is_pinned_pulled_ahead_and_waited_for(self):
        registry = Registry(self.docker)
        self.addCleanup(registry.close)
        if registry.why:
            self.skipTest(registry.why)
        c, name = self.c, f"{registry.name}/train:1"
        job_file = (
            f"jobName: pinned\ndockerImage: {name}\nmounts: ['{c.dir}:/gate']\nresources:"
            " {ranks_per_slot: 1}\nparallelism: {tensor_parallel_size: 2}\nrestarts:"
            " 1\ncommand: [/bin/sh, -c, 'cat /etc/which; until [ -e /gate/@ ]; do sleep 0.3; done;"
            " exit $HELIOS_ATTEMPT']\n"
        )
        one = registry.push("train:1", "one\n")
        registry.signal(signal.SIGSTOP)
        job = c.submit(job_file.replace("@", "first"))
        wait_for("the pull", lambda: f"node node-0: pulling {name}" in c.job(job)["reason"])
        self.assertIn(
            f"it has its slots; node node-0: pulling {name}", c.run("explain", job).stdout
        )
        registry.signal(signal.SIGCONT)
        shown = c.wait_job(job, "running")
        self.assertEqual(shown["image"], one)
        self.assertIn(
            f"{name} is {one}", [e["text"] for e in shown["events"] if e["kind"] == "image"]
        )
        self.assertIn(f"image        {one}", c.run("describe", job).stdout)
        self.assertGreater(shown["ledger"]["imageMs"], 0)
        self.assertEqual(
            sum(v for k, v in shown["ledger"].items() if k.endswith("Ms") and k != "wallMs"),
            shown["ledger"]["wallMs"],
        )

        # The tag moves. A waiting job has its image before it starts;
        # the one that restarts keeps its own.
        two = registry.push("train:1", "two\n")
        registry.signal(signal.SIGSTOP)
        waits = c.submit(job_file.replace("@", "second"))
        wait_for(
            "the pull ahead",
            lambda: f"; node node-0: pulling {name}" in c.run("explain", waits).stdout,
        )
        self.assertIn(f"; node node-0: pulling {name}", c.job(waits)["reason"])
        registry.signal(signal.SIGCONT)
        wait_for(
            "the image of the next in line",
            lambda: self.docker.run("image", "inspect", two, check=False) not in ("", "[]"),
        )
        wait_for("its digest", lambda: c.job(waits)["image"] == two)
        self.assertEqual(c.job(waits)["state"], "pending")
        (c.dir / "first").touch()
        c.wait_job(job, "failed")
        self.assertEqual(
            [c.json("logs", job, "--attempt", n)["text"] for n in (1, 2)], ["one\n", "one\n"]
        )
        c.wait_job(waits, "running")
        wait_for("the rank", lambda: c.log(waits) == "two\n")

        wrong = f"{registry.name}/train@sha256:{'0' * 64}"
        bad = c.submit(f"jobName: wrong\ndockerImage: {wrong}\ncommand: ['true']\n")
        wait_for(
            "the reason, before it is placed",
            lambda: "node node-0: its image is not available: " in c.run("explain", bad).stdout,
        )
        self.assertEqual(c.job(bad)["state"], "pending")
        c.json("cancel", waits)
        end = c.wait_job(bad, "failed")
        self.assertIn(f"image {wrong}"[:80], end["reason"])
        self.assertIn("is not available", end["reason"])

    def test_4_helios_run_pulls_what_the_rank_loads_and_becomes_the_command(self):
        self.docker.add_empty("helios-host:1")
        up = self.c.dir / "up"
        up.mkdir()
        mounts = [
            *(
                f"{path}:{path}:ro"
                for path in ("/usr", "/etc/ld.so.cache", "/etc/alternatives", str(ROOT))
            ),
            f"{up}:/up",
        ]
        job_file = (
            "jobName: loads\ndockerImage: helios-host:1\nmodel: {name: tiny}\nparallelism:"
            f" {{tensor_parallel_size: 2}}\nmounts: {json.dumps(mounts)}\nresources:"
            f" {{ranks_per_slot: 1}}\nenv: {{PATH: '{BUILD}/bin:/usr/bin:/bin', LD_LIBRARY_PATH:"
            f" {BUILD}/lib}}\ncommand: "
        )
        run = str(ROOT / "deploy/docker/helios-run")
        c = self.c
        source, _ = checkpoints.llama(c.dir / "hf")
        c.json("model", "import", source, "--name", "tiny", "--tp", "2")
        whole = c.dir / "whole"
        c.json("model", "export", "tiny", "--format", "torch", "--naming", "te", "--out", whole)
        wanted = [
            hashlib.sha256(
                (whole / f"release/mp_rank_{tp:02}/model_optim_rng.pt").read_bytes()
            ).hexdigest()
            for tp in (0, 1)
        ]
        tell = (
            "cd $HELIOS_LOAD; cat latest_checkpointed_iteration.txt; echo; ls release; sha256sum"
            " release/*/*.pt; echo $0 $1; exit 4"
        )
        # The first rank that exits with 4 has the other one stopped, which still reports its own
        # exit: both ignore the signal before either goes on.
        ignore = (
            "trap '' TERM; mktemp /up/XXXXXX; until [ $(ls /up | wc -l) = 2 ]; do sleep 0.1; done;"
            " exec \"$@\""
        )
        on = ["/bin/sh", "-c", ignore, "sh"]
        job = c.submit(
            job_file
            + json.dumps(
                [*on, run, "--megatron", "-", "--naming", "te", "/bin/sh", "-c", tell, "an", "a b"]
            )
        )
        end = c.wait_job(job, "failed")
        self.assertIn("exited with code 4", end["reason"])  # the command's own
        for tp in (0, 1):
            words = [
                line
                for line in c.log(job, tp).splitlines()
                if not line.startswith(("exported", "left out", "warning", "Megatron", "/up/"))
            ]
            self.assertEqual(
                words,
                [
                    "release",
                    f"mp_rank_{tp:02}",
                    f"{wanted[tp]}  release/mp_rank_{tp:02}/model_optim_rng.pt",
                    "an a b",
                ],
            )
        # Shards that can't be read keep the command from starting.
        job = c.submit(
            job_file + json.dumps([run, "--naming", "no", "--megatron", "-", "/bin/echo", "ran"])
        )
        c.wait_job(job, "failed")
        self.assertIn("the command is not started", c.log(job, 0) + c.log(job, 1))
        self.assertNotIn("ran\n", c.log(job, 0) + c.log(job, 1))

    def test_9_containers_outlive_agent_and_engine(self):
        text = (
            f"jobName: long\ndockerImage: {IMAGE}\nmounts: ['@:/gate']\nresources:"
            " {ranks_per_slot: 1}\ncommand: [/bin/sh, -c, 'echo one; until [ -e /gate/open ]; do"
            " sleep 0.3; done; echo two; exit 6']\n"
        )
        if self.docker.process is None:
            self.skipTest("the machine's own engine is not to be killed")
        self.suite.wait(280)
        c = self.c
        job = c.submit(text.replace("@", str(c.dir)))
        wait_for("the first line", lambda: "one\n" in c.log(job))
        running = c.job(job)["containers"][0]
        pid, before = running["ranks"][0]["pid"], running["warning"]
        c.kill("node-0")
        self.docker.stop(signal.SIGKILL)
        c.up()
        # The host may have given another warning before: it does not grant every limit.
        away = "does not answer"
        wait_for("the warning", lambda: away in c.job(job)["containers"][0]["warning"])
        self.assertTrue(alive(pid))
        end = c.wait_job(
            c.submit(f"jobName: down\ndockerImage: {IMAGE}\ncommand: ['true']\n"), "failed"
        )
        self.assertIn("does not answer", end["reason"])
        self.docker.start()
        wait_for("the warning to go", lambda: away not in c.job(job)["containers"][0]["warning"])
        self.assertEqual(c.job(job)["containers"][0]["warning"], before)
        (c.dir / "open").touch()
        end = c.wait_job(job, "failed")
        self.assertIn("exited with code 6", end["reason"])
        self.assertEqual(c.log(job), "one\ntwo\n")

    def test_5_a_node_with_another_executor_is_refused(self):
        c = self.c
        agent = [
            BUILD / "bin" / "helios-agent",
            "--state",
            c.dir / "other",
            "--name",
            "other",
            "--listen",
            f"unix:{c.dir}/other.sock",
            "--controller",
            c.info["controller"],
            "--data-listen",
            "",
            "--migrate-listen",
            "",
        ]
        with subprocess.Popen(
            agent, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=c.env
        ) as other:
            try:
                for line in other.stderr:
                    if "refuses" in line:
                        break
                self.assertIn(
                    "node 'other' runs containers by process, jobs of this cluster are for docker",
                    line,
                )
            finally:
                other.terminate()


if __name__ == "__main__":
    unittest.main(verbosity=2)

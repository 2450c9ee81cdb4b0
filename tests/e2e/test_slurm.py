"""helios-agent as a step of a Slurm job: the allocation gives its slots,
and everything it runs ends with the allocation.

HELIOS_SLURM_CYCLES=50 tests/e2e/test_slurm.py repeats the allocation so many times."""
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, cluster, wait_for  # noqa: E402
from support.dockerd import Docker, missing as no_docker  # noqa: E402
from support.slurm import Slurm, missing  # noqa: E402

CYCLES = int(os.environ.get("HELIOS_SLURM_CYCLES", "2"))
NAME = f"held{os.getpid()}"
AGENT = BUILD / "bin" / "helios-agent"


def processes_with(variable, value):
    """{pid: CPUs it can use} of all processes that have the variable in their environment."""
    found = {}
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{variable}={value}".encode() in (proc / "environ").read_bytes().split(b"\0"):
                for line in (proc / "status").read_text().splitlines():
                    if line.startswith("Cpus_allowed_list:"):
                        found[int(proc.name)] = cpus_of(line.split()[1])
        except OSError:
            continue  # it has ended
    return found


def cpus_of(text):
    return {
        cpu
        for part in text.split(",")
        for first, last in [(part.split("-") * 2)[:2] if "-" not in part else part.split("-")]
        for cpu in range(int(first), int(last) + 1)
    }


def groups_left(job):
    """Control groups of the job's containers; other clusters of this machine have theirs."""
    return sorted(
        str(d) for d in pathlib.Path("/sys/fs/cgroup").glob(f"**/helios-*-{job}.*") if d.is_dir()
    )


class SlurmAllocation(unittest.TestCase):
    def start_agents(self, slurm, c, number, before="", executor="process"):
        state = c.dir / f"slurm-{number}"
        state.mkdir()
        command = (
            f"{before} exec {AGENT} --controller {c.info['controller']} --state"
            f" {state}/$SLURMD_NODENAME --listen unix:{state}/$SLURMD_NODENAME.sock --data-listen"
            f" '' --migrate-listen '' --executor {executor}"
        )
        with open(c.dir / f"srun-{number}.log", "wb") as log:
            return slurm.srun(
                "--job-name",
                f"h{number}",
                "-N2",
                "-n2",
                "-c1",
                "sh",
                "-c",
                command,
                env=c.env,
                log=log,
            )

    def nodes(self, c):
        return {
            n["node"]["name"]: n["node"] for n in c.json("nodes")["items"] if n["state"] == "ready"
        }

    def one_cycle(self, slurm, c, number):
        step = self.start_agents(slurm, c, number)
        try:
            wait_for(
                "two nodes of the allocation",
                lambda: step.poll() is not None or set(self.nodes(c)) == {"hn0", "hn1"},
            )
            self.assertEqual(
                set(self.nodes(c)), {"hn0", "hn1"}, (c.dir / f"srun-{number}.log").read_text()
            )
            slurm_job = slurm.run("squeue", "--noheader", "--format=%i", "--name", f"h{number}")
            agents = processes_with("SLURM_JOB_ID", slurm_job)
            given = set().union(
                *(
                    cpus
                    for pid, cpus in agents.items()
                    if pathlib.Path(f"/proc/{pid}/exe").resolve() == AGENT.resolve()
                )
            )
            self.assertLess(
                len(given),
                os.cpu_count(),
                "the job has the whole machine: this would prove nothing",
            )
            for node in self.nodes(c).values():
                self.assertEqual(sum(len(cpus_of(s["cpus"])) for s in node["slots"]), 1)
                self.assertTrue({cpu for s in node["slots"] for cpu in cpus_of(s["cpus"])} <= given)

            job = c.submit(
                f"jobName: {NAME}\nparallelism: {{tensor_parallel_size: 2}}\nresources:"
                " {ranks_per_slot: 1}\ncommand: [/bin/sh, -c, \"trap '' TERM; setsid sleep 1000"
                " & echo up; while :; do sleep 1; done\"]\n"
            )
            c.wait_job(job, "running")
            for rank in (0, 1):
                wait_for("the rank", lambda rank=rank: "up" in c.log(job, rank))
            ranks = processes_with("HELIOS_JOB", job)
            self.assertGreaterEqual(len(ranks), 4)
            self.assertNotEqual(groups_left(job), [])
            for pid, cpus in {**ranks, **agents}.items():
                self.assertTrue(
                    cpus <= given, f"process {pid} may use CPUs {cpus} of which Slurm gave {given}"
                )

            slurm.run("scancel", slurm_job)
            step.wait(60)
        finally:
            step.kill()
            step.wait(60)
        wait_for(
            "all of the allocation to end",
            lambda: not processes_with("SLURM_JOB_ID", slurm_job)
            and not processes_with("HELIOS_JOB", job),
        )
        wait_for(
            "Slurm's nodes to be free",
            lambda: slurm.run("sinfo", "--noheader", "--format=%T %D") == "idle 2",
        )
        self.assertEqual(groups_left(job), [])
        c.json("cancel", job)

    @unittest.skipIf(
        missing() or os.cpu_count() < 2, missing() or "one CPU: no allocation leaves one to others"
    )
    def test_an_agent_keeps_to_its_allocation_and_ends_with_it(self):
        with Slurm() as slurm, cluster(
            nodes=1, slots=1, env={"HELIOS_NODE_LOST": "1s", "HELIOS_JOB_STOP_GRACE": "1s"}
        ) as c:
            c.kill("node-0")  # the Controller has no other nodes
            wait_for("it to be lost", lambda: not self.nodes(c))
            for number in range(CYCLES):
                self.one_cycle(slurm, c, number)

            # A job that is not bound would use the CPUs of others.
            step = self.start_agents(
                slurm, c, "free", before=f"taskset -pc 0-{os.cpu_count() - 1} $$ &&"
            )
            try:
                self.assertNotEqual(step.wait(60), 0)
            except subprocess.TimeoutExpired:
                step.kill()
                raise
            self.assertIn(
                "binds helios-agent to none of them", (c.dir / "srun-free.log").read_text()
            )

    @unittest.skipIf(
        missing() or no_docker() or os.cpu_count() < 2,
        missing() or no_docker() or "one CPU: no allocation leaves one to others",
    )
    def test_containers_of_docker_keep_to_the_allocation_and_end_with_it(self):
        docker = Docker()
        self.addCleanup(docker.close)
        if docker.why:
            self.skipTest(docker.why)
        docker.add("helios-slurm:1")
        with Slurm() as slurm, cluster(
            nodes=1, slots=1, env={"HELIOS_NODE_LOST": "1s"}, up=("--executor", "docker")
        ) as c:
            c.kill("node-0")
            wait_for("it to be lost", lambda: not self.nodes(c))
            step = self.start_agents(slurm, c, "docker", executor="docker")
            try:
                wait_for(
                    "two nodes of the allocation",
                    lambda: step.poll() is not None or set(self.nodes(c)) == {"hn0", "hn1"},
                )
                given = set().union(
                    *(cpus_of(s["cpus"]) for n in self.nodes(c).values() for s in n["slots"])
                )
                self.assertLess(
                    len(given),
                    os.cpu_count(),
                    "the job has the whole machine: this would prove nothing",
                )
                job = c.submit(
                    f"jobName: {NAME}\ndockerImage: helios-slurm:1\nparallelism:"
                    " {tensor_parallel_size: 2}\nstopGrace: 1s\nresources: {ranks_per_slot:"
                    " 1}\ncommand: [/bin/sh, -c, \"trap '' TERM; grep Cpus_allowed_list"
                    " /proc/self/status; while :; do sleep 1; done\"]\n"
                )
                c.wait_job(job, "running")
                for rank in (0, 1):
                    line = wait_for("the rank", lambda rank=rank: c.log(job, rank))
                    self.assertTrue(cpus_of(line.split()[1]) <= given, line)
                slurm.run(
                    "scancel", slurm.run("squeue", "--noheader", "--format=%i", "--name", "hdocker")
                )
                step.wait(60)
            finally:
                step.kill()
                step.wait(60)
            wait_for(
                "docker to be empty",
                lambda: not docker.run(
                    "ps", "--all", "--quiet", "--filter", f"label=helios.job={job}"
                ),
            )


if __name__ == "__main__":
    unittest.main(verbosity=2)

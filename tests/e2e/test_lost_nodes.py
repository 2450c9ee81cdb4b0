"""What a job does when one of its nodes does not answer: it waits for `nodeLostAfter`,
then fails or is restarted elsewhere."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, Daemon, alive, cluster, wait_for  # noqa: E402

QUICK = {"HELIOS_NODE_LOST": "1s", "HELIOS_HEARTBEAT": "200ms"}

# One rank on each of two nodes.
JOB = """
jobName: two
parallelism: {pipeline_parallel_size: 2}
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'while [ ! -e %s ]; do sleep 0.2; done']
stopGrace: 500ms
"""

# A rank that ignores SIGTERM, and records whether another rank has its slot.
STUBBORN = """
jobName: stubborn
parallelism: {pipeline_parallel_size: 2}
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'trap "" TERM; exec 9>>%(dir)s/$HELIOS_NODE.slot;
                        flock -n 9 || echo $HELIOS_NODE >> %(dir)s/twice;
                        while [ ! -e %(dir)s/stop ]; do sleep 0.2 9>&-; done']
stopGrace: 500ms
nodeLostAfter: 2s
"""


def lines_with(text):
    """Command lines of processes that contain it."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            line = path.read_bytes()
            if str(text).encode() in line:
                yield line


class LostNodes(unittest.TestCase):
    def start(self, c, more="", text=None):
        """A running job, and the pids of its ranks by node."""
        job = c.submit((text or JOB % (c.dir / "stop")) + more)
        running = c.wait_job(job, "running")
        nodes = [k["node"] for k in running["plan"]["containers"]]
        return job, dict(zip(nodes, (k["ranks"][0]["pid"] for k in running["containers"])))

    def kinds(self, c, job):
        return [e["kind"] for e in c.job(job)["events"]]

    def test_an_agent_that_comes_back_in_time_costs_nothing(self):
        with cluster(slots=1, env=QUICK) as c:
            job, pids = self.start(c)
            c.kill("node-0")
            wait_for("the silence to be noticed", lambda: "node-silent" in self.kinds(c, job))
            seen = c.job(job)
            self.assertEqual((seen["state"], seen["attempt"]), ("running", 1))
            self.assertRegex(seen["reason"], "node-0.*2 min")  # nodes.lost_after
            self.assertIn(
                "node-0", next(j["reason"] for j in c.json("list")["items"] if j["id"] == job)
            )
            c.up()
            wait_for("the node to be back", lambda: "node-back" in self.kinds(c, job))
            self.assertEqual(c.job(job)["reason"], "")
            self.assertTrue(all(alive(p) for p in pids.values()))
            (c.dir / "stop").touch()
            done = c.wait_job(job, "succeeded")
            self.assertEqual((done["attempt"], done["nodeLosses"]), (1, 0))

    def test_a_job_without_restarts_is_not_run_twice(self):
        with cluster(nodes=3, slots=1, env=QUICK) as c:
            job, pids = self.start(c, "nodeLostAfter: 2s\n")
            lost = next(n for n in pids)
            c.kill(lost)
            failed = c.wait_job(job, "failed")
            self.assertRegex(failed["reason"], f"{lost}.*restarts: 0.*onNodeLost")
            self.assertEqual(failed["attempt"], 1)
            self.assertRegex(
                c.run("describe", job).stdout, r"failed, attempt 1 \(restarts: 0\): node"
            )
            wait_for("another Agent of the machine to end its rank", lambda: not alive(pids[lost]))

    def test_a_job_that_says_so_is_repeated_elsewhere_and_its_old_ranks_end(self):
        with cluster(nodes=3, slots=1, env=QUICK) as c:
            job, pids = self.start(c, "nodeLostAfter: 2s\nonNodeLost: restart\n")
            lost = next(n for n in pids)
            c.kill(lost)
            again = wait_for(
                "the second attempt",
                lambda: (d := c.job(job))["attempt"] == 2 and d["state"] == "running" and d,
                30,
            )
            self.assertNotIn(lost, [k["node"] for k in again["plan"]["containers"]])
            self.assertEqual((again["restarts"], again["nodeLosses"]), (0, 1))
            self.assertRegex(
                c.run("describe", job).stdout,
                rf"attempt 2 \(restarts: 0; repeated because node {lost} was lost",
            )
            wait_for(
                "another Agent of the machine to end the rank of the first attempt",
                lambda: not alive(pids[lost]),
            )
            c.up()
            wait_for(
                "the node to be back",
                lambda: all(n["state"] == "ready" for n in c.json("nodes")["items"]),
            )
            now = c.job(job)
            self.assertEqual((now["attempt"], now["state"]), (2, "running"))
            (c.dir / "stop").touch()
            c.wait_job(job, "succeeded")

    def test_a_restarted_controller_has_the_ranks_of_an_agent_ended_that_is_lost_after_it(self):
        with cluster(nodes=3, slots=1, env=QUICK) as c:
            job, pids = self.start(c, "onNodeLost: restart\n", STUBBORN % {"dir": c.dir})
            lost, stays = pids
            c.kill(lost)
            with Daemon(c, "controllerd").again():  # it has no heartbeat from the lost one
                wait_for("its rank to be ended", lambda: not alive(pids[lost]), 30)
                self.await_word_of_the_end(c, job, (n.name for n in (c.state / "agents").iterdir()))
                again = wait_for(
                    "the second attempt",
                    lambda: (d := c.job(job))["attempt"] == 2 and d["state"] == "running" and d,
                    30,
                )
                self.assertNotIn(lost, [k["node"] for k in again["plan"]["containers"]])
                self.assertIn(stays, [k["node"] for k in again["plan"]["containers"]])
            c.up()  # the Agent, and a third Controller
            self.slots_are_used_once(c, job, lost)

    def test_a_restarted_controller_has_the_ranks_of_an_agent_ended_that_was_lost_before_it(self):
        with cluster(nodes=2, slots=1, env=QUICK) as c:
            job, pids = self.start(c, "", STUBBORN % {"dir": c.dir})
            lost, comes = pids
            agent = Daemon(c, comes)
            c.kill(lost)
            # and there is no Agent that could stop them
            self.assertIn("lost", c.wait_job(job, "failed")["reason"])
            self.assertTrue(all(alive(p) for p in pids.values()))
            with Daemon(c, "controllerd").again(), agent.again():
                wait_for(
                    "both ranks to be ended", lambda: not any(alive(p) for p in pids.values()), 30
                )
                self.await_word_of_the_end(c, job, [comes])
            c.up()
            self.slots_are_used_once(c, None, lost)

    def await_word_of_the_end(self, c, job, nodes):
        """Whether one of `nodes` has logged that it ended a container of `job`:
        it does so when the shim is gone, after the rank."""
        logs, said = [
            c.state / "log" / f"{n}.log" for n in nodes
        ], f"container of a silent Agent of this machine was ended id={job}.1."
        wait_for("an Agent to log the end", lambda: any(said in log.read_text() for log in logs))

    def slots_are_used_once(self, c, job, node):
        """Afterwards a rank runs in the slot of the lost node,
        and no process is left once all jobs have ended."""
        wait_for(
            "the node to be back",
            lambda: all(n["state"] == "ready" for n in c.json("nodes")["items"]),
        )
        other = c.submit((STUBBORN % {"dir": c.dir}).replace("_size: 2", "_size: 1"))
        placed = c.wait_job(other, "running")
        if job is not None:
            self.assertEqual([k["node"] for k in placed["plan"]["containers"]], [node])
        (c.dir / "stop").touch()
        for each in filter(None, (job, other)):
            c.wait_job(each, "succeeded")
        self.assertFalse((c.dir / "twice").exists(), "a slot was used twice")
        c.down("--keep")
        wait_for("every process to be gone", lambda: not list(lines_with(c.dir)))

    def test_an_agent_whose_name_another_one_got_ends_what_no_job_wants(self):
        # otherwise another Agent of the machine ends it first
        with cluster(nodes=1, env=QUICK) as c:
            job, pids = self.start(c, "nodeLostAfter: 4s\n")
            agent, log = c.pid("node-0"), c.dir / "second.log"
            os.kill(agent, signal.SIGSTOP)
            wait_for("the silence to be noticed", lambda: "node-silent" in self.kinds(c, job))
            flags = [
                "--name",
                "node-0",
                "--state",
                c.dir / "second",
                "--controller",
                c.info["controller"],
                "--data-listen",
                "",
                "--listen",
                f"unix:{c.dir}/second.sock",
                "--migrate-listen",
                "",
                "--health=false",
                "--log-file",
                log,
            ]
            with subprocess.Popen(
                [BUILD / "bin" / "helios-agent", *flags], env=c.env, stderr=subprocess.DEVNULL
            ) as second:
                try:
                    wait_for(
                        "its refusal",
                        lambda: log.exists()
                        and "node 'node-0' is silent, and containers of jobs may run"
                        in log.read_text(),
                    )
                    self.assertEqual(c.job(job)["state"], "running")
                    self.assertIn("node-0 was lost", c.wait_job(job, "failed")["reason"])
                    wait_for(
                        "it to have the name", lambda: "registered controller" in log.read_text()
                    )
                    self.assertTrue(alive(pids["node-0"]))
                    os.kill(agent, signal.SIGCONT)
                    wait_for(
                        "the rank that is of no use any more to end",
                        lambda: not alive(pids["node-0"]),
                    )
                    wait_for(
                        "the first one's refusal",
                        lambda: "is in use by the Agent at"
                        in (c.state / "log" / "node-0.log").read_text(),
                    )
                finally:
                    second.terminate()

    def test_a_start_that_waited_in_a_stopped_agent_starts_nothing(self):
        with cluster(
            nodes=3, slots=1, env={"HELIOS_NODE_LOST": "3s", "HELIOS_HEARTBEAT": "200ms"}
        ) as c:
            begun = c.dir / "begun"
            text = f"""
jobName: two
parallelism: {{pipeline_parallel_size: 2}}
resources: {{ranks_per_slot: 1}}
command: [/bin/sh, -c, 'echo $HELIOS_ATTEMPT $HELIOS_NODE >> {begun};
                        while [ ! -e {c.dir}/stop ]; do sleep 0.2; done']
stopGrace: 500ms
onNodeLost: restart
"""
            path = c.dir / "two.yaml"
            path.write_text(text)
            # not rank 0's, which is asked for a port first
            node = c.json("plan", path)["containers"][1]["node"]
            agent = c.pid(node)
            os.kill(agent, signal.SIGSTOP)
            job = c.submit(text)
            again = wait_for(
                "the second attempt",
                lambda: (d := c.job(job))["attempt"] == 2 and d["state"] == "running" and d,
            )
            self.assertNotIn(node, [k["node"] for k in again["plan"]["containers"]])
            os.kill(agent, signal.SIGCONT)
            # in the only free slot, after what has waited
            other = c.submit("jobName: other\ncommand: [/bin/true]\n")
            done = c.wait_job(other, "succeeded")
            self.assertEqual([k["node"] for k in done["plan"]["containers"]], [node])
            wait_for(
                "both ranks", lambda: begun.exists() and len(begun.read_text().splitlines()) >= 3
            )
            self.assertNotIn(f"1 {node}", begun.read_text().splitlines())
            self.assertEqual((c.job(job)["attempt"], c.job(job)["state"]), (2, "running"))
            (c.dir / "stop").touch()
            c.wait_job(job, "succeeded")

    def test_a_job_that_ends_does_not_wait_for_a_silent_node(self):
        with cluster(slots=1, env=QUICK) as c:
            job, _ = self.start(c)
            c.kill("node-1")
            wait_for("the silence to be noticed", lambda: "node-silent" in self.kinds(c, job))
            c.json("cancel", job)
            # without the 2 minutes that a running job waits
            c.wait_job(job, "cancelled", seconds=20)

    def test_a_controller_that_stood_still_takes_no_node_for_silent(self):
        with cluster(slots=1, env=QUICK) as c:
            job, pids = self.start(c, "nodeLostAfter: 1s\n")
            pid = c.pid("controllerd")
            os.kill(pid, signal.SIGSTOP)
            time.sleep(4)  # longer than a node may be silent
            os.kill(pid, signal.SIGCONT)
            log = c.state / "log" / "controllerd.log"
            wait_for("it to notice", lambda: "the Controller was paused" in log.read_text())
            (c.dir / "stop").touch()
            done = c.wait_job(job, "succeeded")
            self.assertEqual(done["attempt"], 1)
            self.assertFalse(any(alive(p) for p in pids.values()))

    def test_a_time_that_can_not_be_kept_is_refused(self):
        with cluster(nodes=1, slots=1, env=QUICK) as c:
            path = c.dir / "job.yaml"
            path.write_text("jobName: x\ncommand: 'true'\nnodeLostAfter: 500ms\n")
            for command in ("plan", "submit"):
                self.assertRegex(
                    c.refuse(command, path), "job.yaml:3:16: nodeLostAfter: .*node_lost"
                )
            path.write_text("jobName: x\ncommand: 'true'\nonNodeLost: wait\n")
            self.assertRegex(
                c.refuse("submit", path), "job.yaml:3:13: onNodeLost: 'wait' .*restart"
            )


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Where gangs run: within leaves that a file of switches names, and never on a drained node."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import cluster, wait_for  # noqa: E402

SWITCHES = """
SwitchName=leaf-0 Nodes=node-[0-1]
SwitchName=leaf-1 Nodes=node-[2-3]
SwitchName=spine-0 Switches=leaf-[0-1]
"""

JOB = """
jobName: gang
parallelism: {tensor_parallel_size: %d, data_parallel_size: %d}
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'echo cp $CONTEXT_PARALLEL_RANK of $CONTEXT_PARALLEL_SIZE;
                        while [ ! -e %s ]; do sleep 0.2; done']
stopGrace: 500ms
placement: {%s}
"""


class Place(unittest.TestCase):
    def plan(self, c, tp, dp, rules):
        (c.dir / "plan.yaml").write_text(JOB % (tp, dp, c.dir / "stop", rules))
        return json.loads(c.run("plan", c.dir / "plan.yaml", "-o", "json").stdout)

    def nodes_of(self, plan):
        return {k["node"] for k in plan["containers"]}

    def states(self, c):
        return {
            line.split(":")[0]: line.split()[1] for line in c.run("nodes").stdout.splitlines()[1:]
        }

    def ready(self, c):
        return all(n["state"] == "ready" for n in c.json("nodes")["items"])

    def test_rules_and_drains_decide_where_a_gang_runs(self):
        with tempfile.NamedTemporaryFile("w") as switches:
            switches.write(SWITCHES)
            switches.flush()
            with cluster(nodes=4, slots=2, env={"HELIOS_NODES_SWITCHES": switches.name}) as c:
                wait_for("the nodes", lambda: self.ready(c))
                at = {
                    n["node"]["name"]: (n["node"]["leaf"], n["node"]["spine"])
                    for n in c.json("nodes")["items"]
                }
                self.assertEqual(
                    (at["node-1"], at["node-2"]), (("leaf-0", "spine-0"), ("leaf-1", "spine-0"))
                )
                self.rules(c)
                self.drains(c)
                self.defrags(c)

    def rules(self, c):
        self.assertEqual(
            self.nodes_of(self.plan(c, 4, 1, "tensor: leaf required")), {"node-0", "node-1"}
        )
        never = self.plan(c, 6, 1, "tensor: leaf required")
        self.assertEqual((never["feasible"], never["never"]), (False, True))
        self.assertIn("within one leaf", never["reason"])
        self.assertIn("within one leaf", c.refuse("submit", c.dir / "plan.yaml"))
        wide = self.plan(c, 6, 1, "tensor: leaf preferred")
        self.assertTrue(wide["feasible"])
        self.assertIn(
            "1 of 1 tensor-parallel group is not within one leaf, as placement prefers",
            wide["warnings"],
        )
        self.assertIn("server required", c.refuse("plan", self.broken(c)))

    def broken(self, c):
        (c.dir / "broken.yaml").write_text(JOB % (1, 1, "x", "gang: rack"))
        return c.dir / "broken.yaml"

    def drains(self, c):
        job = c.submit(JOB % (2, 2, c.dir / "stop", "gang: leaf required"))
        running = c.wait_job(job, "running")
        self.assertEqual(self.nodes_of(running["plan"]), {"node-0", "node-1"})
        self.assertEqual(c.json("node", "drain", "node-3", "--reason", "bad DIMM")["changed"], True)
        drained = c.json("node", "drain", "node-0")
        self.assertEqual((drained["changed"], drained["jobs"]), (True, [job]))
        self.assertEqual(c.json("node", "drain", "node-0")["changed"], False)
        self.assertEqual(
            self.states(c),
            {"node-0": "draining", "node-1": "ready", "node-2": "ready", "node-3": "drained"},
        )
        self.assertIn("bad DIMM", c.run("nodes").stdout)
        self.assertRegex(c.refuse("node", "drain", "node-9"), "no node 'node-9'")
        self.assertEqual(self.nodes_of(self.plan(c, 2, 1, "")), {"node-2"})

        c.kill("controllerd")  # the mark is durable, and outlives the Agents' registrations
        c.up()
        wait_for("the nodes", lambda: self.ready(c))
        self.assertEqual(self.states(c)["node-3"], "drained")
        waits = self.plan(c, 4, 1, "")
        self.assertIn("2 servers are draining", waits["reason"])
        self.assertEqual((waits["feasible"], waits["never"]), (False, False))
        self.assertEqual(c.job(job)["state"], "running")

        for node in ("node-1", "node-2"):
            c.json("node", "drain", node)
        # ending jobs would not help, with all servers drained
        stuck = c.submit(JOB % (8, 1, c.dir / "stop", ""))
        said = wait_for(
            "its reason",
            lambda: (e := c.json("explain", stuck))["reason"] == "NotEnoughFreeSlots" and e,
        )
        self.assertIn("`helios node undrain` of a drained server", said["remedy"])
        c.json("cancel", stuck)
        for node in ("node-1", "node-2"):
            c.json("node", "undrain", node)

        self.assertEqual(c.json("node", "undrain", "node-3")["changed"], True)
        self.assertEqual(
            self.nodes_of(self.plan(c, 4, 1, "tensor: leaf required")), {"node-2", "node-3"}
        )
        (c.dir / "stop").touch()
        c.wait_job(job, "succeeded")
        self.assertIn("cp 0 of 1", c.log(job))
        self.assertEqual(self.states(c)["node-0"], "drained")

    def defrags(self, c):
        """Each leaf is half full, and a gang needs a whole one."""
        (c.dir / "stop").unlink()
        c.json("node", "undrain", "node-0")
        jobs = []
        for away in (("node-2", "node-3"), ("node-0", "node-1")):
            for node in away:
                c.json("node", "drain", node)
            jobs.append(c.submit(JOB % (2, 1, c.dir / "stop", "")))
            c.wait_job(jobs[-1], "running")
            for node in away:
                c.json("node", "undrain", node)
        (c.dir / "plan.yaml").write_text(JOB % (4, 1, c.dir / "stop", "gang: leaf required"))
        plan = json.loads(c.run("plan", c.dir / "plan.yaml", "--defrag", "-o", "json").stdout)
        self.assertEqual((plan["feasible"], plan["never"]), (False, False))
        move = plan["defrag"]["moves"][0]
        self.assertEqual(
            (len(plan["defrag"]["moves"]), move["job"], move["containers"]), (1, jobs[0], 2)
        )
        self.assertTrue(
            set(move["from"]) <= {"node-0", "node-1"} and set(move["to"]) <= {"node-2", "node-3"},
            move,
        )
        self.assertEqual(set(plan["defrag"]["nodes"]), {"node-0", "node-1"})
        shown = c.run("plan", c.dir / "plan.yaml", "--defrag")
        self.assertEqual(shown.returncode, 1)
        self.assertIn("it fits on node-0, node-1 once these have restarted elsewhere", shown.stdout)
        for tensor, said in (
            (1, "it fits as it is: no gang has to move"),
            (8, "moving frees no slots"),
        ):
            (c.dir / "other.yaml").write_text(JOB % (tensor, 1, c.dir / "stop", ""))
            self.assertIn(said, c.run("plan", c.dir / "other.yaml", "--defrag").stdout)
        # nothing was moved
        self.assertEqual([c.job(j)["state"] for j in jobs], ["running", "running"])
        (c.dir / "stop").touch()
        for job in jobs:
            c.wait_job(job, "succeeded")


if __name__ == "__main__":
    unittest.main()

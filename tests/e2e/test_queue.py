"""Jobs that wait for slots: two queues, a quota, preemption of real gangs, and a Controller that is restarted meanwhile."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import Cluster, alive, wait_for  # noqa: E402

JOB = """
jobName: {name}
parallelism: {{pipeline_parallel_size: {slots}}}
resources: {{ranks_per_slot: 1}}
command: [/bin/sh, -c, 'trap "touch {dir}/saved-{name}-$HELIOS_ATTEMPT; exit 0" TERM; while [ ! -e {dir}/stop-{name} ]; do sleep 0.1; done']
stopGrace: 20s
{more}
"""


class Queue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, slots=2, env={"HELIOS_QUEUE_LIST": "prod weight=3, dev quota=2", "HELIOS_QUEUE_PENDING": "4"})

    def submit(self, name, slots, more=""):
        return self.c.submit(JOB.format(name=name, slots=slots, dir=self.c.dir, more=more))

    def refused(self, name, slots, more=""):
        path = self.c.dir / "refused.yaml"
        path.write_text(JOB.format(name=name, slots=slots, dir=self.c.dir, more=more))
        return self.c.refuse("submit", path)

    def end(self, name):
        (self.c.dir / f"stop-{name}").touch()

    def why(self, job, reason):
        return wait_for(f"{job} to wait for {reason}", lambda: (e := self.c.json("explain", job))["reason"] == reason and e)

    def kinds(self, job):
        return [e["kind"] for e in self.c.job(job)["events"]]

    def line(self):
        return [j["id"] for j in self.c.json("queue")["jobs"]]

    def pids(self, job):
        return [r["pid"] for k in self.c.job(job)["containers"] for r in k["ranks"]]

    def test_a_gang_of_higher_priority_has_lower_ones_stopped_which_save_and_run_again(self):
        c = self.c
        dev = self.submit("dev", 2, "queue: dev")
        c.wait_job(dev, "running")
        # the quota of its queue holds the next one back, though slots are free
        more = self.submit("more", 1, "queue: dev\npriority: -5")
        said = self.why(more, "QuotaExceeded")
        self.assertRegex(said["text"], "queue dev holds 2 of its quota of 2 slots, and this job needs 1")
        self.assertEqual({k["use"]: k["slots"] for k in said["counts"]}, {"free": 2, "busy": 2})
        self.assertRegex(c.run("explain", more).stdout, "QuotaExceeded[^$]*quota[^$]*place +1 of 1")
        fill = self.submit("fill", 2, "timeouts: {run: 10m}")
        c.wait_job(fill, "running")
        # who can't have the slots without stopping equals waits, with an estimate
        late = self.submit("late", 2)
        self.assertGreater(self.why(late, "NotEnoughFreeSlots")["startMs"], 0)

        urgent = self.submit("urgent", 4, "priority: 5")
        c.wait_job(urgent, "running")
        for job, name in ((dev, "dev"), (fill, "fill")):
            now = c.job(job)
            self.assertEqual((now["state"], now["attempt"], now["restarts"]), ("pending", 2, 0))
            self.assertIn("preempted", self.kinds(job))
            self.assertTrue((c.dir / f"saved-{name}-1").exists())  # they had their grace
        # priority first, then fair share: prod has three parts of four
        self.assertEqual(self.line()[-1], more)
        before = self.line()

        # full: the next submission is refused, none is lost
        self.assertRegex(self.refused("fifth", 1), "4 jobs wait for slots, and option queue.pending")

        pids = self.pids(urgent)
        self.assertEqual(len(pids), 4)
        c.kill("controllerd")
        c.up()
        wait_for("the line to be known again", lambda: self.line() == before)
        self.assertEqual(self.pids(urgent), pids)
        self.assertTrue(all(alive(p) for p in pids))
        self.end("urgent")
        c.wait_job(urgent, "succeeded")
        for name, job in (("fill", fill), ("late", late), ("dev", dev), ("more", more)):
            self.end(name)
            done = c.wait_job(job, "succeeded")
            self.assertEqual(done["restarts"], 0)
        self.assertEqual(self.line(), [])
        used = {q["name"]: q["used"] for q in c.json("queue")["queues"]}
        self.assertGreater(used["prod"], used["dev"])
        self.assertRegex(c.run("explain", dev).stdout, "it is over")

    def test_what_can_never_run_is_refused_with_the_arithmetic(self):
        self.assertRegex(self.refused("big", 3, "queue: dev"), "never run in queue dev: it needs 3 slots and the quota is 2 .*PP 3")
        self.assertRegex(self.refused("huge", 5), "never run here: needs 5 slots.*PP 5 × TP 1 × DP 1 = 5 ranks")
        self.assertRegex(self.refused("lost", 1, "queue: test"), "no queue 'test'; this cluster has prod, dev")
        self.assertRegex(self.refused("much", 1, "priority: 1001"), "priority: is 1001, must be from -1000 to 1000")


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Jobs that wait for slots: two queues, a quota, preemption of real gangs,
and a restart of the Controller in between."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import Cluster, alive, wait_for  # noqa: E402

JOB = """
jobName: {name}
parallelism: {{pipeline_parallel_size: {slots}}}
resources: {{ranks_per_slot: 1}}
command: [/bin/sh, -c, 'trap "touch {dir}/saved-{name}-$HELIOS_ATTEMPT; exit 0" TERM;
                        while [ ! -e {dir}/stop-{name} ]; do sleep 0.1; done']
stopGrace: 20s
{more}
"""

# One job that ends while it saves; one whose second rank is stopped;
# one that is lost four times before it makes steps again.
PROGRAM = '''
import os, pathlib, signal, sys, time
import helios
from helios import _steps
kind, path = sys.argv[1], pathlib.Path(sys.argv[2])
lives = len(list(path.parent.glob("life-*")))
if kind == "lost":
    path.with_name(f"life-{lives}").touch()
    if 0 < lives < 4:
        sys.exit(1)
for step in range(10**9):
    helios.report(step)  # without a loss
    time.sleep(0.02)
    if kind == "lost" and lives == 0:
        sys.exit(1)
    if kind == "stall" and os.environ["RANK"] == "1" and step == 20:
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "save" and path.exists():
        _steps.activity("saving")
        sys.exit(1)
'''


class Queue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(
            cls,
            slots=2,
            env={
                "HELIOS_QUEUE_LIST": "prod weight=3, dev quota=2",
                "HELIOS_QUEUE_PENDING": "4",
                "HELIOS_JOB_HANG_AFTER": "1s",
            },
        )

    def submit(self, name, slots, more=""):
        return self.c.submit(JOB.format(name=name, slots=slots, dir=self.c.dir, more=more))

    def refused(self, name, slots, more=""):
        path = self.c.dir / "refused.yaml"
        path.write_text(JOB.format(name=name, slots=slots, dir=self.c.dir, more=more))
        return self.c.refuse("submit", path)

    def end(self, name):
        (self.c.dir / f"stop-{name}").touch()

    def why(self, job, reason):
        return wait_for(
            f"{job} to wait for {reason}",
            lambda: (e := self.c.json("explain", job))["reason"] == reason and e,
        )

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
        # the quota of its queue holds the next one back, although slots are free
        more = self.submit("more", 1, "queue: dev\npriority: -5")
        said = self.why(more, "QuotaExceeded")
        self.assertRegex(
            said["text"], "queue dev holds 2 of its quota of 2 slots, and this job needs 1"
        )
        self.assertEqual({k["use"]: k["slots"] for k in said["counts"]}, {"free": 2, "busy": 2})
        self.assertRegex(c.run("explain", more).stdout, "QuotaExceeded[^$]*quota[^$]*place +1 of 1")
        fill = self.submit("fill", 2, "timeouts: {run: 10m}")
        c.wait_job(fill, "running")
        # a job that could get its slots only by stopping jobs of equal priority waits,
        # with an estimate
        late = self.submit("late", 2)
        self.assertGreater(self.why(late, "NotEnoughFreeSlots")["startMs"], 0)

        urgent = self.submit("urgent", 4, "priority: 5")
        c.wait_job(urgent, "running")
        for job, name in ((dev, "dev"), (fill, "fill")):
            now = c.job(job)
            self.assertEqual((now["state"], now["attempt"], now["restarts"]), ("pending", 2, 0))
            self.assertIn("preempted", self.kinds(job))
            self.assertTrue((c.dir / f"saved-{name}-1").exists())  # they were given their grace
        # priority first, then fair share: prod has a weight of three quarters
        self.assertEqual(self.line()[-1], more)
        before = self.line()

        # full: the next submission is refused, none is lost
        self.assertRegex(
            self.refused("fifth", 1), "4 jobs wait for slots, and option queue.pending"
        )

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

    def test_attempts_without_new_steps_wait_and_end_as_the_job_says(self):
        c = self.c
        fails = """jobName: {}
resources: {{ranks_per_slot: 1}}
command: [/bin/sh, -c, '[ $HELIOS_ATTEMPT = {} ] && exit 9; exit 7']
restarts: 5
recovery: {{backoff: {}, backoffMax: 10m}}
onFailure: {{"9": fail}}
"""
        late, soon = c.submit(fails.format("late", 3, "5m")), c.submit(
            fails.format("soon", 4, "200ms")
        )
        self.addCleanup(c.run, "cancel", late)
        done = c.wait_job(soon, "failed")
        self.assertEqual((done["attempt"], done["restarts"], done["lastFailure"]), (4, 3, "exit"))
        self.assertIn("onFailure ends the job after exit", done["reason"])
        waits = [e["text"] for e in done["events"] if e["kind"] == "back-off"]
        self.assertEqual(
            [text.split(" begins in ")[0] for text in waits], ["attempt 3", "attempt 4"]
        )
        said = self.why(late, "BackOff")
        self.assertIn("(exit)", said["text"])
        next_try = c.job(late)["nextAttemptMs"]
        self.assertEqual(said["startMs"], next_try)
        self.assertRegex(
            c.run("describe", late).stdout,
            r"(?m)^last failure exit\nnext try     attempt 3 in [34] min",
        )
        c.kill("controllerd")
        c.up()
        self.assertEqual(self.why(late, "BackOff")["startMs"], next_try)
        self.assertEqual(c.job(late)["restarts"], 2)
        c.run("cancel", late)
        c.wait_job(late, "cancelled")

    def test_kinds_of_failure_that_only_a_program_with_steps_has(self):
        c, program = self.c, self.c.dir / "program.py"
        program.write_text(PROGRAM)

        def submit(kind, ranks, more):
            return c.submit(
                json.dumps(
                    {
                        "jobName": kind,
                        "parallelism": {"pipeline_parallel_size": ranks},
                        "resources": {"ranks_per_slot": 1},
                        "stopGrace": "1s",
                        "command": [sys.executable, str(program), kind, str(c.dir / kind)],
                        **more,
                    }
                )
            )

        save = submit("save", 1, {"restarts": 1, "onFailure": {"save": "fail"}})
        stall = submit(
            "stall",
            2,
            {"restarts": 1, "onFailure": {"stall": "fail"}, "recovery": {"onHang": "end"}},
        )
        lost = submit("lost", 1, {"recovery": {"mode": "replace", "backoff": "500ms"}})
        self.addCleanup(c.run, "cancel", lost)
        wait_for(
            "steps of the one that saves",
            lambda: any(
                r.get("progress", {}).get("steps", 0) > 0
                for k in c.job(save)["containers"]
                for r in k["ranks"]
            ),
        )
        (c.dir / "save").touch()
        for job, kind, said in (
            (save, "save", "exited with code 1 while it saved a version"),
            (stall, "stall", "was ended because it hung or was slow"),
        ):
            c.wait_job(job, "failed")
            # with its log
            done = wait_for(
                "its first failure", lambda job=job: (told := c.job(job))["failures"] and told
            )
            self.assertEqual(
                (done["lastFailure"], done["attempt"], done["failures"][0]["kind"]), (kind, 1, kind)
            )
            self.assertIn(f"onFailure ends the job after {kind}", done["reason"])
            self.assertIn(said, c.run("describe", job).stdout)
        wait_for("the recovery", lambda: "recovered" in self.kinds(lost))
        job = c.job(lost)
        merged = [e["text"] for e in job["events"] if e["kind"] == "recovery-merged"]
        self.assertTrue(merged, job)
        self.assertRegex(merged[0], r"^rank 0 was lost again before it reported a step, \d time")
        self.assertRegex(
            c.run("metrics", "controller").stdout, r"(?m)^helios_recoveries_merged_total [1-9]"
        )

    def places(self, job):
        return {k["node"] for k in self.c.job(job)["plan"]["containers"]}

    def test_a_reserved_node_takes_who_ends_before_and_a_restart_keeps_it(self):
        c = self.c
        said = c.json(
            "node", "reserve", "node-0", "--in", "1h", "--for", "2h", "--reason", "new firmware"
        )
        self.assertEqual(said["untilMs"] - said["fromMs"], 2 * 3600 * 1000)
        self.assertRegex(c.run("nodes").stdout, "reserved from .* until .*: new firmware")
        early = self.submit("early", 4, "timeouts: {run: 10m}")
        c.wait_job(early, "running")
        self.assertEqual(self.places(early), {"node-0", "node-1"})
        self.end("early")
        c.wait_job(early, "succeeded")
        aside = self.submit("aside", 2)
        c.wait_job(aside, "running")
        self.assertEqual(self.places(aside), {"node-1"})
        late = self.submit("late-one", 2, "timeouts: {run: 3598s}")  # and 20 s to stop
        why = self.why(late, "ServerReserved")
        self.assertEqual(why["startMs"], said["untilMs"])
        self.assertRegex(why["text"], "needs 2 slots.*1 server is reserved")
        self.assertRegex(
            c.run("explain", late).stdout, "starts +in about 3.0 h, by the end of reservations"
        )
        # all or none; and the error says what is wrong
        self.assertRegex(
            c.refuse("node", "reserve", "node-1,node-7", "--for", "1h"), "no node 'node-7'"
        )
        self.assertEqual(
            [n["reservedUntilMs"] for n in c.json("nodes")["items"]], [said["untilMs"], 0]
        )
        self.assertRegex(c.refuse("node", "reserve", "node-1", code=2), "--for 4h")

        c.kill("controllerd")
        c.up()
        self.why(late, "ServerReserved")
        self.assertEqual(c.json("nodes")["items"][0]["reservedReason"], "new firmware")
        self.assertEqual(c.json("node", "unreserve", "node-0,node-1")["untilMs"], 0)
        c.wait_job(late, "running")
        self.assertEqual(self.places(late), {"node-0"})
        # a job running there stays, and is named
        self.assertEqual(c.json("node", "reserve", "node-0", "--for", "1h")["jobs"], [late])
        self.assertEqual(c.job(late)["state"], "running")
        self.assertRegex(c.run("nodes").stdout, "node-0:0 +reserved")
        self.assertEqual(
            c.run("node", "unreserve", "node-1,node-0,node-1").stdout,
            "node-1 was not reserved\nnode-0 is no longer reserved\n",
        )
        for name, job in (("aside", aside), ("late-one", late)):
            self.end(name)
            c.wait_job(job, "succeeded")

    def test_of_many_submissions_at_once_each_is_answered_and_none_is_lost(self):
        c = self.c
        hold = self.submit("hold", 4)
        c.wait_job(hold, "running")
        path = c.dir / "crowd.yaml"
        path.write_text(JOB.format(name="crowd", slots=1, dir=c.dir, more=""))
        self.end("crowd")
        crowd = [c.start("submit", path, "-o", "json") for _ in range(9)]
        answers = [(*p.communicate(timeout=c.limit), p.returncode) for p in crowd]
        taken = [json.loads(out)["id"] for out, _, code in answers if code == 0]
        self.assertEqual(len(taken), 4)  # HELIOS_QUEUE_PENDING
        for _, err, code in answers:
            self.assertTrue(
                code == 0 or "4 jobs wait for slots, and option queue.pending" in err, err
            )
        wait_for("the line to have them", lambda: sorted(self.line()) == sorted(taken))
        self.end("hold")
        for job in taken:
            c.wait_job(job, "succeeded")

    def test_what_can_never_run_is_refused_with_the_arithmetic(self):
        self.assertRegex(
            self.refused("big", 3, "queue: dev"),
            "never run in queue dev: it needs 3 slots and the quota is 2 .*PP 3",
        )
        self.assertRegex(
            self.refused("huge", 5), "never run here: needs 5 slots.*PP 5 × TP 1 × DP 1 = 5 ranks"
        )
        self.assertRegex(
            self.refused("lost", 1, "queue: test"), "no queue 'test'; this cluster has prod, dev"
        )
        self.assertRegex(
            self.refused("much", 1, "priority: 1001"),
            "priority: is 1001, must be from -1000 to 1000",
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

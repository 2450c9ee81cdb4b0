"""Gangs whose Controller or Job goes away, or that the API server does not take: a mixin as in
gang_scenarios.py."""
from __future__ import annotations

from support.cluster import wait_for
from support.gang_world import World


class Recovery(World):
    def test_a_controller_that_comes_back_finds_its_gang(self):
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded()
        c.wait_job(job, "running")
        c.kill("controllerd")
        c.up()
        wait_for("the job", lambda: c.run("describe", job).returncode == 0)
        self.assertEqual(c.job(job)["state"], "running")
        self.assertIn("loaded", c.log(job, 3))
        c.kill("controllerd")
        self.end_ranks()
        wait_for(
            "it to end without us",
            lambda: all(
                p["status"].get("phase") == "Succeeded" for p in self.objects("pods").values()
            ),
        )
        c.up()
        c.wait_job(job, "succeeded")
        self.assertEqual(c.job(job)["attempt"], 1)
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])

    def test_a_gang_that_went_while_the_controller_was_away_does_not_run_again(self):
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded()
        c.wait_job(job, "running")
        c.kill("controllerd")
        self.end_ranks()
        wait_for(
            "it to end without us",
            lambda: all(
                p["status"].get("phase") == "Succeeded" for p in self.objects("pods").values()
            ),
        )
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a1")
        self.wait_gone()
        c.up()
        self.assertIn(
            "deleted while the Controller was not running", c.wait_job(job, "cancelled")["reason"]
        )
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])
        self.wait_gone()

    def test_a_gang_that_began_and_went_while_the_controller_was_away_does_not_run_again(self):
        c = self.start_cluster()
        self.volcano.paused = True
        job = c.submit(self.plain("exit 0"))  # and asks no Controller
        wait_for("its Job", lambda: self.objects("vcjobs"))
        wait_for(
            "its ConfigMaps, which are the last that a rank needs",
            lambda: len(self.objects("configmaps")) == 2,
        )
        self.assertEqual(c.job(job)["state"], "starting")
        c.kill("controllerd")
        self.volcano.paused = False
        wait_for(
            "it to end without us",
            lambda: [p.get("status", {}).get("phase") for p in self.objects("pods").values()]
            == ["Succeeded"] * 2,
        )
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a1")
        self.wait_gone()
        c.up()
        self.assertIn(
            "deleted while the Controller was not running", c.wait_job(job, "cancelled")["reason"]
        )
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])
        self.wait_gone()

    def test_a_gang_that_was_never_made_is_made_by_the_next_controller(self):
        c = self.start_cluster()
        with self.refuse_jobs("come back later", code=503):
            job = c.submit(self.text())
            wait_for("the reason", lambda: "come back later" in c.job(job)["reason"])
            c.kill("controllerd")
        c.up()
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])

    def test_a_gang_whose_job_goes_before_its_pods_are_there_is_made_again(self):
        c = self.start_cluster()
        self.volcano.slots = 0
        job = c.submit(self.text())
        wait_for("it to wait", lambda: "NotEnoughResources" in c.job(job)["reason"])
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a1")
        wait_for("another attempt", lambda: c.job(job)["attempt"] == 2)
        self.volcano.slots = 2
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertIn(
            "the Volcano Job is deleted",
            next(e["text"] for e in c.job(job)["events"] if e["kind"] == "node-lost"),
        )
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1", f"helios-{job}-a2"])

    def test_a_gang_that_is_refused_leaves_nothing(self):
        c = self.start_cluster()
        with self.refuse_jobs("jobName is not allowed here"):
            job = c.submit(self.text(restarts=1))
            self.assertRegex(
                c.wait_job(job, "failed")["reason"],
                "webhook .* denied the request: jobName is not allowed here",
            )
            self.wait_gone()
        self.assertNotIn(f"helios-{job}-a1", self.volcano.made)

    def test_the_name_of_somebody_elses_job_is_not_touched(self):
        c = self.start_cluster()
        theirs = self.api.create(
            "vcjobs",
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": {
                    "name": "helios-gpt-1-a1",
                    "namespace": self.namespace,
                    "labels": {"team": "other"},
                },
                "spec": {"minAvailable": 0, "tasks": []},
            },
        )
        job = c.submit(self.text())
        ended = c.wait_job(job, "failed")
        self.assertIn("was not made for this job", ended["reason"])
        wait_for("what we made of it is gone", lambda: not self.objects("configmaps"))
        self.assertEqual(
            self.api.get("vcjobs", self.namespace, "helios-gpt-1-a1")["metadata"]["uid"],
            theirs["metadata"]["uid"],
        )

#!/usr/bin/python3
"""Jobs on Kubernetes: the scenarios of tests/support/gang_scenarios.py against an API server
that a test can break."""
from __future__ import annotations

import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from support import gang_scripted, kube_api, ranktable_scenarios  # noqa: E402
from support.cluster import Cluster, wait_for  # noqa: E402
from support.gang_recovery import Recovery  # noqa: E402
from support.gang_scenarios import Engines, Gangs  # noqa: E402
from support.side_by_side import SideBySide  # noqa: E402

AT_ONCE = 3  # scenarios, each with a server of its own


class OnScriptedServer(gang_scripted.Scripted, Gangs, Recovery, Engines, unittest.TestCase):
    def test_an_answer_that_is_lost_makes_no_second_job(self):
        c = self.start_cluster()
        self.server.swallow_posts = 1
        self.server.refusals = [
            ["configmaps", "POST", 2, kube_api.Refused(503, "ServiceUnavailable")]
        ]
        self.server.late["vcjobs"] = 30  # so that the watch alone can't explain it
        job = c.submit(self.text())
        wait_for(
            "it is asked for again",
            lambda: [r for r in self.server.requests if r[0] == "POST" and r[1] == "vcjobs"][1:],
        )
        self.server.late.clear()
        self.loaded()
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])
        self.assertNotIn("container-failed", self.kinds(job))

    def test_an_api_server_that_goes_away_takes_no_gang_with_it(self):
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded()
        c.wait_job(job, "running")
        self.server.__exit__()
        self.assertEqual(c.job(job)["state"], "running")
        self.server.forget()
        self.server.__enter__()
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.kinds(job), ["submitted", "placed", "running", "succeeded"])

    def test_lists_of_many_pages_whose_tokens_expire(self):
        expired = []

        def expire():
            if len(expired) < 3:
                expired.append(len(self.server.requests))
                forget()

        def forget():
            """Something else has changed since; otherwise every version is still the newest."""
            self.server.put("events", {"metadata": {"name": "news", "namespace": self.namespace}})
            self.server.forget()

        def lists(plural):
            return sum(r[:2] == ("LIST", plural) for r in self.server.requests)

        self.server.page = 1
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded()
        c.wait_job(job, "running")
        self.server.between_pages = expire
        # watches end, and their versions are too old: pods are listed again, one to a page
        forget()
        wait_for("tokens to expire", lambda: len(expired) == 3)
        c.kill("controllerd")
        expired.clear()
        c.up()  # gets the first list in pages, some of which are late
        wait_for("tokens to expire", lambda: len(expired) == 3)
        self.assertEqual(c.job(job)["state"], "running")
        before = lists("pods")
        forget()
        wait_for("a whole list", lambda: lists("pods") >= before + 2)
        self.end_ranks()
        c.wait_job(job, "succeeded")
        # a missing page is no lost pod
        self.assertEqual(self.kinds(job), ["submitted", "placed", "running", "succeeded"])
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])

    def test_a_watch_that_broke_and_goes_on_is_no_problem(self):
        c = self.start_cluster()

        def watches():
            return sum(r[:2] == ("WATCH", "vcjobs") for r in self.server.requests)

        wait_for("the watch", watches)
        before = watches()
        self.server.cut_watches()
        wait_for("the watch to begin again", lambda: watches() > before)
        wait_for("all to be well", lambda: c.json("info")["kubernetesState"] == "ready")

    def test_what_keeps_a_gang_from_being_made_is_shown(self):
        away = kube_api.Refused(503, "ServiceUnavailable", "etcd has no leader")
        self.server.refusals = [["vcjobs", "POST", 1000, away]]
        c = self.start_cluster()
        job = c.submit(self.text())
        wait_for(  # a job that is not placed yet has no containers
            "the reason",
            lambda: any("etcd has no leader" in k["message"] for k in c.job(job)["containers"]),
        )
        self.assertEqual(c.job(job)["state"], "starting")
        self.server.refusals.clear()
        self.loaded()
        self.assertEqual(c.job(job)["containers"][0]["message"], "")
        self.end_ranks()
        c.wait_job(job, "succeeded")

    def test_ascend_devices_come_from_their_plugin_by_helios_ranktable(self):
        tables = ranktable_scenarios.Controller(
            self.kubeconfig, "--no-leader-elect", "--label-value=ascend-910b"
        )
        self.addCleanup(tables.end)
        c = self.start_cluster(
            env={
                "HELIOS_KUBE_DEVICE": "huawei.com/Ascend910",
                "HELIOS_KUBE_SLOT_DEVICES": "2",
                "HELIOS_KUBE_TABLE_LABEL": "ascend-910b",
                "HELIOS_KUBE_ACCELERATOR_TYPE": "card-910b-2",
            }
        )
        (c.dir / "wide.yaml").write_text(
            self.text().replace("ranks_per_slot: 2", "ranks_per_slot: 4")
        )
        self.assertIn(
            "a pod of it has 4 devices, which card-910b-2 does not give",
            c.refuse("submit", c.dir / "wide.yaml"),
        )
        job = c.submit(self.text())
        self.loaded()
        pods = [
            t["template"]["spec"]
            for t in self.api.list("vcjobs", self.namespace)[0]["spec"]["tasks"]
        ]
        self.assertEqual(
            [p["nodeSelector"] for p in pods], [{"accelerator-type": "card-910b-2"}] * 2
        )
        seen = json.loads((c.dir / "table.3").read_text())
        # its two pods
        self.assertEqual(
            [
                (
                    s["server_id"],
                    [(d["device_id"], d["device_ip"], d["rank_id"]) for d in s["device"]],
                )
                for s in seen["server_list"]
            ],
            [("10.0.0.1", [(str(i), f"192.168.0.{i + 1}", str(i)) for i in range(4)])],
        )
        self.end_ranks()
        c.wait_job(job, "succeeded")

    def test_up_says_what_keeps_it_from_kubernetes(self):
        c = Cluster(nodes=1, slots=1)
        self.addCleanup(shutil.rmtree, c.dir, True)
        self.addCleanup(c.run, "down", "--purge")
        up = ["up", "--executor", "kubernetes", "--nodes", 0, "--l3-size", "1MiB"]
        told = c.refuse(*up, "--kubeconfig", c.dir / "none")
        self.assertIn(f"executor kubernetes: {c.dir}/none can't be read", told)
        told = c.refuse(
            *up,
            "--kubeconfig",
            self.kubeconfig,
            "--master",
            "http://127.0.0.1:1",
            "--timeout",
            "2s",
        )
        self.assertRegex(told, r"Kubernetes is not ready.*127\.0\.0\.1")
        self.assertFalse(c.state.exists())  # nor a daemon, which would keep it
        # for a machine that is to run ranks itself
        self.assertIn("1 to 256", c.refuse("up", "--nodes", 0))

    def test_without_the_right_to_see_nodes_it_works_and_says_what_it_lacks(self):
        self.server.refusals = [
            [
                "nodes",
                "LIST",
                1000,
                kube_api.Refused(403, "Forbidden", 'cannot list resource "nodes"'),
            ]
        ]
        c = self.start_cluster()
        wait_for("the warning", lambda: "nodes" in c.json("info")["kubernetesWarning"])
        info = c.json("info")
        self.assertEqual(info["kubernetesState"], "ready")
        self.assertRegex(
            info["kubernetesWarning"],
            r"dead nodes can't be detected: .*cannot list resource \"nodes\"",
        )
        self.assertIn("ready, but dead nodes can't be detected", c.run("info").stdout)

    def test_a_topology_that_this_volcano_does_not_know_is_no_silent_wish(self):
        self.server.is_old = True
        c = self.start_cluster()
        job = c.submit(
            self.text(restarts=1)
            + "kubernetes: {networkTopology: {mode: hard, highestTierAllowed: 1}}\n"
        )
        self.assertIn(
            "networkTopology: this cluster's Volcano does not know it",
            c.wait_job(job, "failed")["reason"],
        )
        self.wait_gone()

    def test_a_conflict_that_passes_takes_no_gang_with_it(self):
        """A ResourceQuota that another request changes at the same time;
        an object that goes before it is read."""
        c = self.start_cluster()
        quota = (
            'Operation cannot be fulfilled on resourcequotas "team": the object has been modified'
        )
        self.server.refusals = [
            ["vcjobs", "POST", 1, kube_api.Refused(409, "Conflict", quota)],
            ["configmaps", "POST", 1, kube_api.Refused(409, "AlreadyExists")],
        ]
        job = c.submit(self.text())
        self.loaded()
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.kinds(job), ["submitted", "placed", "running", "succeeded"])

    def test_gangs_that_share_a_quota_take_turns(self):
        """What a gang can't have whole, it leaves to others."""
        c = self.start_cluster(
            env={
                "HELIOS_KUBE_PODGROUPS": "v1alpha3",
                "HELIOS_KUBE_KEEP": "1s",
                "HELIOS_GC_INTERVAL": "200ms",
            }
        )
        self.server.quotas = {"pods": 3}  # one and a half
        first = c.submit(self.text())
        self.loaded()
        second = c.submit(self.plain("echo hi"))
        wait_for("the reason", lambda: "exceeded quota: team" in c.job(second)["reason"])
        self.assertIn("exceeded quota: team", c.run("explain", second).stdout)
        wait_for("its first pod is withdrawn", lambda: len(self.objects("pods")) == 2)
        self.assertEqual(c.job(second)["state"], "starting")
        self.end_ranks()
        for job in (first, second):
            c.wait_job(job, "succeeded")
            self.assertEqual(self.kinds(job), ["submitted", "placed", "running", "succeeded"])
        self.wait_gone()

    def test_a_right_that_is_missing_is_told(self):
        c = self.start_cluster()
        self.server.refusals = [
            [
                "vcjobs",
                "POST",
                1,
                kube_api.Refused(403, "Forbidden", 'cannot create resource "jobs"'),
            ]
        ]
        job = c.submit(self.text())
        self.assertIn('cannot create resource "jobs"', c.wait_job(job, "failed")["reason"])
        wait_for("its ConfigMap is gone", lambda: not self.objects("configmaps"))


def load_tests(loader, _tests, _pattern):
    return SideBySide(loader.loadTestsFromTestCase(OnScriptedServer), AT_ONCE)


if __name__ == "__main__":
    unittest.main()

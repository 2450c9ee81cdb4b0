#!/usr/bin/python3
"""helios-ranktable against an API server that a test can break (tests/support/kube_api.py)."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
sys.dont_write_bytecode = True

from support import kube_api  # noqa: E402
from support.cluster import BUILD  # noqa: E402
from support.cluster import wait_for as poll  # noqa: E402

LABEL = {"ring-controller.atlas": "ascend-910"}
KEY = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
KEYS = (KEY, "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
        "atlas.kubectl.kubernetes.io/ascend-910-configuration")
WAIT_S = 30  # of a busy machine


def wait_for(condition, seconds, what):
    return poll(what, condition, seconds)


class Controller:
    def __init__(self, server, *flags):
        self.dir = tempfile.TemporaryDirectory()
        self.ready = pathlib.Path(self.dir.name) / "ready"
        self.log = open(pathlib.Path(self.dir.name) / "log", "w+", encoding="utf-8")
        config = pathlib.Path(self.dir.name) / "kubeconfig"
        config.write_text(json.dumps({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}]}), encoding="utf-8")
        self.process = subprocess.Popen(
            [str(BUILD / "bin" / "helios-ranktable"), "--kubeconfig", str(config), "--ready-file", str(self.ready),
             "--metrics-listen", "127.0.0.1:0", *flags], stderr=self.log, stdin=subprocess.DEVNULL)
        wait_for(lambda: self.ready.exists() or self.process.poll() is not None, WAIT_S, "the program serves")
        if self.process.poll() is not None:
            raise AssertionError(self.text())

    def text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def metric(self, name):
        address = json.loads(self.ready.read_text(encoding="utf-8"))["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as r:
            for line in r.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def memory_kib(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(10)  # it promises 10 s
            if code != 0:
                raise AssertionError(f"exit {code}: {self.text()}")
        self.log.close()
        self.dir.cleanup()


def devices(server, count=2):
    return json.dumps({"pod_name": str(server), "server_id": f"10.1.{server // 250}.{server % 250}", "devices": [
        {"device_id": str(d), "device_ip": f"10.{2 + d}.{server // 250}.{server % 250}"} for d in range(count)]})


class Scenarios(unittest.TestCase):
    def setUp(self):
        self.server = kube_api.Server()
        self.server.__enter__()
        self.addCleanup(self.server.__exit__, None, None, None)
        self.api = kube_api.client_of(self.server)

    def controller(self, *flags):
        c = Controller(self.server, *flags)
        self.addCleanup(c.end)
        return c

    def job(self, name="j", replicas=2, namespace="ns", config_map=True, version=0):
        if config_map:
            self.config_map(name, namespace)
        return self.server.put("vcjobs", {
            "metadata": {"name": name, "namespace": namespace, "labels": LABEL},
            "spec": {"tasks": [{"name": "w", "replicas": replicas}]}, "status": {"version": version}})

    def config_map(self, name="j", namespace="ns", labels=LABEL):
        return self.server.put("configmaps", {
            "metadata": {"name": f"rings-config-{name}", "namespace": namespace, "labels": labels},
            "data": {"hccl.json": '{"status":"initializing"}', "other": "theirs"}})

    def pod(self, job, index, server=None, version=0, labels=LABEL, rank=None, key=KEY, name=None):
        meta = job["metadata"]
        notes = {"volcano.sh/task-spec": "w", "volcano.sh/task-index": str(index), "volcano.sh/job-version": str(version)}
        if server is not None:
            notes[key] = server if isinstance(server, str) else devices(server)
        if rank is not None:
            notes["hccl/rankIndex"] = str(rank)
        return self.server.put("pods", {
            "metadata": {"name": name or f"{meta['name']}-w-{index}", "namespace": meta["namespace"],
                         "labels": {**labels, "volcano.sh/job-name": meta["name"]}, "annotations": notes,
                         "ownerReferences": [{"name": meta["name"], "uid": meta["uid"]}]},
            "spec": {"containers": [{"resources": {"limits": {"huawei.com/Ascend910": "2"}}}]},
            "status": {"phase": "Running"}})

    def table(self, name="j", namespace="ns"):
        return json.loads(self.server.get("configmaps", namespace, f"rings-config-{name}")["data"]["hccl.json"])

    def ranks(self, **where):
        """server -> first rank, once the table is complete."""
        def complete():
            return self.table(**where)["status"] == "completed"
        wait_for(complete, WAIT_S, "the table is complete")
        return {s["server_id"].split(".")[-1]: int(s["device"][0]["rank_id"]) for s in self.table(**where)["server_list"]}

    def wait_status(self, status, **where):
        wait_for(lambda: self.table(**where)["status"] == status, WAIT_S, f"the table is {status}")

    def settle(self, c, gap=0.6):
        """Nothing is written any more."""
        before = -1
        while before != len(self.server.patched):
            before = len(self.server.patched)
            time.sleep(gap)
        self.assertIsNone(c.process.poll())

    # ---- the ordinary course ----

    def test_pods_in_any_order_and_keys_of_all_ages(self):
        job = self.job(replicas=3)
        c = self.controller()
        for index in (2, 0, 1):
            self.pod(job, index)
        for index in (1, 2, 0):
            self.assertEqual(self.table()["status"], "initializing")
            self.pod(job, index, server=index + 1, key=KEYS[index])
        self.assertEqual(self.ranks(), {"1": 0, "2": 2, "3": 4})
        self.settle(c)
        self.assertEqual(len(self.server.patched), 1)
        config_map = self.server.get("configmaps", "ns", "rings-config-j")
        self.assertEqual(config_map["data"]["other"], "theirs")

    def test_rank_indices_that_are_wished(self):
        job = self.job()
        self.controller()
        self.pod(job, 0, server=1, rank=1)
        self.pod(job, 1, server=2, rank=0)
        self.assertEqual(self.ranks(), {"2": 0, "1": 2})

    def test_the_first_format(self):
        job = self.job()
        self.controller("-json", "v1", "-v=5", "--logtostderr=true", "--stderrthreshold=1")
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.wait_status("completed")
        group, = self.table()["group_list"]
        self.assertEqual([i["pod_name"] for i in group["instance_list"]], ["j-w-0", "j-w-1"])

    def test_a_pod_is_replaced_by_one_with_other_devices(self):
        job = self.job()
        self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.server.delete("pods", "ns", "j-w-0")
        self.wait_status("initializing")
        self.pod(job, 0, server=7)
        self.assertEqual(self.ranks(), {"7": 0, "2": 2})

    def test_an_annotation_is_corrected_after_completion(self):
        job = self.job()
        self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.server.patch("pods", "ns", "j-w-1", {"metadata": {"annotations": {KEY: devices(9)}}})
        wait_for(lambda: self.ranks() == {"1": 0, "9": 2}, WAIT_S, "the new device")

    def test_a_restart_with_a_lingering_pod(self):
        job = self.job()
        self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.server.patch("vcjobs", "ns", "j", {"status": {"version": 1}})
        self.wait_status("initializing")
        self.pod(job, 0, server=3, version=1, name="j-w-0b")
        time.sleep(0.5)
        self.assertEqual(self.table()["status"], "initializing")
        self.pod(job, 1, server=4, version=1, name="j-w-1b")
        self.assertEqual(self.ranks(), {"3": 0, "4": 2})

    def test_labels_that_are_missing_or_foreign(self):
        job = self.job(config_map=False)
        c = self.controller()
        self.config_map(labels={"ring-controller.atlas": "ascend-310"})
        self.pod(job, 0, server=1)
        pod = self.pod(job, 1, server=2, labels={})
        self.settle(c)
        self.assertEqual(self.server.patched, [])
        self.server.patch("configmaps", "ns", "rings-config-j", {"metadata": {"labels": LABEL}})
        self.settle(c)
        self.assertEqual(self.table()["status"], "initializing")
        self.server.patch("pods", "ns", pod["metadata"]["name"], {"metadata": {"labels": LABEL}})
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})

    def test_hostile_annotations_cost_their_own_job(self):
        good, bad = self.job("good"), self.job("bad")
        c = self.controller()
        for i, text in enumerate(("[" * 20000, "x" * 100000, '{"server_id":7.5,"devices":{}}')):
            self.pod(bad, i, server=text)
        self.pod(good, 0, server=1)
        self.pod(good, 1, server=2)
        self.assertEqual(self.ranks(name="good"), {"1": 0, "2": 2})
        self.assertEqual(self.table(name="bad")["status"], "initializing")
        wait_for(lambda: any(e["involvedObject"]["name"] == "bad" and "bad-w-" in e["message"]
                             for e in self.api.list("events", "ns")), WAIT_S, "an event on the job")
        self.assertIsNone(c.process.poll())

    def test_one_name_in_two_namespaces(self):
        one, two = self.job(namespace="a"), self.job(namespace="b")
        self.controller()
        for i in range(2):
            self.pod(one, i, server=1 + i)
            self.pod(two, i, server=11 + i)
        self.assertEqual(self.ranks(namespace="a"), {"1": 0, "2": 2})
        self.assertEqual(self.ranks(namespace="b"), {"11": 0, "12": 2})

    def test_a_job_is_deleted_and_made_again(self):
        job = self.job()
        c = self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.server.delete("vcjobs", "ns", "j")
        self.settle(c)
        writes = len(self.server.patched)
        self.server.delete("pods", "ns", "j-w-0")
        self.settle(c)
        self.assertEqual(len(self.server.patched), writes)
        job = self.job(config_map=False)
        self.pod(job, 0, server=3)  # j-w-1 is still the old job's
        self.wait_status("initializing")
        self.server.delete("pods", "ns", "j-w-1")
        self.pod(job, 1, server=4)
        self.assertEqual(self.ranks(), {"3": 0, "4": 2})

    # ---- the ConfigMap ----

    def test_the_config_map_comes_late_is_made_again_and_reset(self):
        job = self.job(config_map=False)
        c = self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.settle(c)
        self.config_map()
        self.ranks()
        self.server.delete("configmaps", "ns", "rings-config-j")
        self.config_map()
        self.ranks()
        self.server.patch("configmaps", "ns", "rings-config-j", {"data": {"hccl.json": '{"status":"initializing"}'}})
        self.ranks()
        self.server.patch("configmaps", "ns", "rings-config-j", {"data": {"hccl.json": "scribble"}})
        wait_for(lambda: "scribble" not in self.server.get("configmaps", "ns", "rings-config-j")["data"]["hccl.json"],
                 WAIT_S, "the table is mended")
        self.server.patch("configmaps", "ns", "rings-config-j", {"data": {"other": "mine"}})
        self.settle(c)
        self.assertEqual(self.server.get("configmaps", "ns", "rings-config-j")["data"]["other"], "mine")

    def test_two_jobs_want_one_config_map(self):
        volume = {"template": {"spec": {"volumes": [{"name": "ascend-910-config", "configMap": {"name": "rings-config-j"}}]}}}
        first = self.job()
        self.server.patch("vcjobs", "ns", "j", {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}})
        other = self.job("other", config_map=False)
        self.server.patch("vcjobs", "ns", "other", {"spec": {"tasks": [{"name": "w", "replicas": 2, **volume}]}})
        c = self.controller()
        for i in range(2):
            self.pod(first, i, server=1 + i)
            self.pod(other, i, server=11 + i)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.settle(c)
        self.assertEqual(len(self.server.patched), 1)
        self.server.delete("vcjobs", "ns", "j")
        wait_for(lambda: self.ranks() == {"11": 0, "12": 2}, WAIT_S, "the other job's table")

    # ---- faults ----

    def test_the_controller_is_killed_in_the_middle(self):
        job = self.job()
        c = Controller(self.server, "--no-leader-elect")
        self.pod(job, 0, server=1)
        self.server.swallow = 1
        self.pod(job, 1, server=2)
        wait_for(lambda: self.server.patched, WAIT_S, "the write")
        c.kill()
        c.end()
        written = self.table()
        self.server.delete("pods", "ns", "j-w-0")  # while nobody looks
        c = self.controller("--no-leader-elect")
        self.wait_status("initializing")
        self.pod(job, 0, server=1)
        self.ranks()
        self.assertEqual(self.table(), written)
        self.settle(c)

    def test_an_answer_that_is_lost(self):
        job = self.job()
        c = self.controller()
        self.server.swallow = 2
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.settle(c)
        self.assertEqual(len({text for _, text in self.server.patched}), 1)

    def test_the_api_server_is_killed(self):
        job = self.job()
        c = self.controller("--no-leader-elect")
        self.pod(job, 0, server=1)
        self.server.__exit__()
        self.pod(job, 1, server=2)
        time.sleep(1)
        self.server.forget()
        self.server.__enter__()
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.assertGreater(c.metric('helios_ranktable_watch_failures_total{kind="pods"}'), 0)

    def test_versions_that_are_forgotten(self):
        job = self.job()
        c = self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        with self.server.lock:  # deleted, and nobody was told
            self.server.delete("pods", "ns", "j-w-1")
            self.server.forget()
        self.wait_status("initializing")
        self.assertGreater(c.metric('helios_ranktable_lists_total{kind="pods"}'), 1)

    def test_watches_in_small_pieces_long_lines_and_ends_in_the_middle(self):
        self.server.cut = 7
        self.server.bulk["pods"] = 1 << 20
        self.server.window_s = 2
        job = self.job()
        self.server.cut = 4099
        self.controller()
        self.pod(job, 0, server=1)
        self.server.cut_watches()
        self.pod(job, 1, server=2)
        self.server.cut_watches()
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})

    def test_refusals_are_waited_out(self):
        self.server.refusals += [["pods", "LIST", 2, kube_api.Refused(429, "TooManyRequests", "slowly", 1)],
                                 ["configmaps", "LIST", 1, kube_api.Refused(500, "InternalError", "no")],
                                 ["configmaps", "PATCH", 1, kube_api.Refused(503, "ServiceUnavailable", "no", 1)],
                                 ["jobs", "LIST", 1000, kube_api.Refused(403, "Forbidden", "jobs is forbidden")]]
        self.server.absent.add("deployments")
        job = self.job()
        c = self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.assertIn("jobs is forbidden", c.text())

    def test_a_stale_list_is_overtaken(self):
        job = self.job()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.server.delete("pods", "ns", "j-w-1")
        self.server.stale_lists = 1000
        c = self.controller()
        self.settle(c)
        self.server.stale_lists = 0
        self.wait_status("initializing")

    # ---- several instances ----

    def test_one_of_two_writes_and_the_other_takes_over(self):
        job = self.job()
        first = Controller(self.server, "--lease-namespace", "ns")
        wait_for(lambda: first.metric("helios_ranktable_leader") == 1, WAIT_S, "the lease is held")
        second = self.controller("--lease-namespace", "ns")
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.assertEqual(second.metric("helios_ranktable_leader"), 0)
        self.assertEqual(second.metric('helios_ranktable_writes_total{result="ok"}'), 0)
        first.end()  # sets it free
        self.server.delete("pods", "ns", "j-w-1")
        self.wait_status("initializing")
        self.assertEqual(second.metric("helios_ranktable_leader"), 1)

    # ---- size ----

    def test_a_thousand_pods_in_few_writes(self):
        job = self.job(replicas=1000)
        c = self.controller()
        for i in range(1000):
            self.pod(job, i, server=i)
        self.assertEqual(len(self.ranks()), len({i % 250 for i in range(1000)}))
        self.settle(c)
        self.assertLessEqual(len(self.server.patched), 5)
        self.assertEqual(self.table()["server_count"], "1000")
        print(f"\n1000 pods: {len(self.server.patched)} writes, {c.memory_kib() / 1024:.1f} MiB, {c.cpu_s():.2f} s CPU",
              flush=True)


if __name__ == "__main__":
    unittest.main()

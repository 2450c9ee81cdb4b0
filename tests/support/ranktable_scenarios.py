"""What helios-ranktable must do, written once for every API server: the one that a test can break
(tests/support/kube_api.py) and a real one (tests/support/apiserver.py). Tests play the kubelet and
Volcano: they create pods and write their status."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

from support import kube_api
from support.cluster import BUILD, wait_for

LABEL = {"ring-controller.atlas": "ascend-910"}
KEY = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
KEYS = (
    KEY,
    "ascend.kubectl.kubernetes.io/ascend-npu-configuration",
    "atlas.kubectl.kubernetes.io/ascend-910-configuration",
)
WAIT_S = 90  # for what must happen, on a busy machine, too
INITIALIZING = '{"status":"initializing"}'


class Controller:
    """The program; `before`: words of a command that starts it."""

    def __init__(self, kubeconfig, *flags, before=(), env=None):
        self.dir = tempfile.TemporaryDirectory()
        self.ready = pathlib.Path(self.dir.name) / "ready"
        self.log = open(pathlib.Path(self.dir.name) / "log", "w+", encoding="utf-8")
        source = ("--kubeconfig", str(kubeconfig)) if kubeconfig else ()
        self.process = subprocess.Popen(
            [
                *before,
                str(BUILD / "bin" / "helios-ranktable"),
                *source,
                "--ready-file",
                str(self.ready),
                "--metrics-listen",
                "127.0.0.1:0",
                *flags,
            ],
            stderr=self.log,
            stdin=subprocess.DEVNULL,
            env=env,
        )
        wait_for(
            "the program serves",
            lambda: self.ready.exists() or self.process.poll() is not None,
            WAIT_S,
        )
        if self.process.poll() is not None:
            raise AssertionError(self.text())

    def text(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def metric(self, name):
        address = json.loads(self.ready.read_text(encoding="utf-8"))["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as r:
            for line in r.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def writes(self):
        return self.metric('helios_ranktable_writes_total{result="ok"}')

    def reads(self):
        return self.metric("helios_ranktable_reads_total")

    def events(self, kind):
        return self.metric(f'helios_ranktable_events_total{{kind="{kind}"}}')

    def rounds(self):
        return self.metric("helios_ranktable_rounds_total")

    def let_decide(self, rounds):
        """Waits until it has checked so often what it should do: counted in its rounds, because a
        busy machine gives it little time."""
        until = self.rounds() + rounds
        wait_for(
            f"{rounds} rounds of the controller", lambda: self.rounds() >= until, WAIT_S + rounds
        )

    def leads(self):
        return self.metric("helios_ranktable_leader") == 1

    def memory_mib(self, what="VmRSS"):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return (
            next(int(line.split()[1]) for line in text.splitlines() if line.startswith(what)) / 1024
        )

    def cpu_s(self):
        fields = (
            pathlib.Path(f"/proc/{self.process.pid}/stat")
            .read_text(encoding="ascii")
            .rsplit(")", 1)[1]
            .split()
        )
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
    return json.dumps(
        {
            "pod_name": str(server),
            "server_id": f"10.1.{server // 250}.{server % 250}",
            "devices": [
                {"device_id": str(d), "device_ip": f"10.{2 + d}.{server // 250}.{server % 250}"}
                for d in range(count)
            ],
        }
    )


def job_object(namespace, name, replicas, volume=None, labels=LABEL):
    pod = {"containers": [{"name": "c", "image": "none"}]}
    if volume:
        pod["volumes"] = [{"name": "ascend-910-config", "configMap": {"name": volume}}]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": replicas,
            "tasks": [{"name": "w", "replicas": replicas, "template": {"spec": pod}}],
        },
    }


def pod_object(job, index, version=0, labels=LABEL, name=None):
    meta = job["metadata"]
    limits = {"huawei.com/Ascend910": "2"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name or f"{meta['name']}-w-{index}",
            "namespace": meta["namespace"],
            "labels": {**labels, "volcano.sh/job-name": meta["name"]},
            "annotations": {
                "volcano.sh/task-spec": "w",
                "volcano.sh/task-index": str(index),
                "volcano.sh/job-version": str(version),
            },
            "ownerReferences": [
                {
                    "apiVersion": job["apiVersion"],
                    "kind": "Job",
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {
            "containers": [
                {"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}
            ],
            "restartPolicy": "Never",
        },
    }


class World:
    """A namespace of an API server, and the actors in it. A test case sets `api` and `ns` and has
    controller()."""

    def job(self, name="j", replicas=2, ns=None, config_map=True, volume=None):
        if config_map:
            self.config_map(name, ns)
        return self.api.create("vcjobs", job_object(ns or self.ns, name, replicas, volume))

    def config_map(self, name="j", ns=None, labels=LABEL):
        return self.api.create(
            "configmaps",
            {
                "metadata": {
                    "name": f"rings-config-{name}",
                    "namespace": ns or self.ns,
                    "labels": labels,
                },
                "data": {"hccl.json": INITIALIZING, "other": "theirs"},
            },
        )

    def pod(self, job, index, server=None, rank=None, key=KEY, **how):
        """A pod; with `server`, including what the device plugin and the kubelet add."""
        made = self.api.create("pods", pod_object(job, index, **how))
        if rank is not None:
            self.annotate(made, {"hccl/rankIndex": str(rank)})
        if server is not None:
            self.give(made, server, key)
        return made

    def annotate(self, pod, annotations):
        meta = pod["metadata"]
        self.api.patch(
            "pods", meta["namespace"], meta["name"], {"metadata": {"annotations": annotations}}
        )

    def give(self, pod, server, key=KEY):
        meta = pod["metadata"]
        self.annotate(pod, {key: server if isinstance(server, str) else devices(server)})
        self.api.patch(
            "pods", meta["namespace"], meta["name"], {"status": {"phase": "Running"}}, status=True
        )

    def delete(self, plural, name, ns=None):
        self.api.delete(plural, ns or self.ns, name)

    def data(self, name="j", ns=None):
        return self.api.get("configmaps", ns or self.ns, f"rings-config-{name}")["data"]

    def table(self, name="j", ns=None):
        return json.loads(self.data(name, ns)["hccl.json"])

    def write(self, text, key="hccl.json"):
        """A change to the ConfigMap by another client."""
        self.api.patch("configmaps", self.ns, "rings-config-j", {"data": {key: text}})

    def ranks(self, **where):
        """server -> first rank, once the table is complete."""

        def complete():
            table = self.table(**where)
            return table if table["status"] == "completed" else None

        table = wait_for("the table is completed", complete, WAIT_S)
        return {
            s["server_id"].split(".")[-1]: int(s["device"][0]["rank_id"])
            for s in table["server_list"]
        }

    def wait_status(self, status, **where):
        wait_for(f"the table is {status}", lambda: self.table(**where)["status"] == status, WAIT_S)

    def wait_ranks(self, ranks, **where):
        wait_for(f"the table says {ranks}", lambda: self.ranks(**where) == ranks, WAIT_S)

    def settle(self, c, rounds=6):
        """Waits until there are no more writes."""
        before = -1
        while before != c.writes():
            before = c.writes()
            c.let_decide(rounds)
        self.assertIsNone(c.process.poll())

    def two(self, c=None):
        """A job of two pods whose table is complete."""
        job = self.job()
        c = c or self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        return job, c


class Scenarios(World):
    # ---- the ordinary course ----

    def test_pods_in_any_order_and_keys_of_all_ages(self):
        job = self.job(replicas=3)
        c = self.controller()
        pods = {index: self.pod(job, index) for index in (2, 0, 1)}
        for index in (1, 2, 0):
            self.assertEqual(self.table()["status"], "initializing")
            self.give(pods[index], index + 1, KEYS[index])
        self.assertEqual(self.ranks(), {"1": 0, "2": 2, "3": 4})
        self.settle(c)
        self.assertEqual(c.writes(), 1)
        self.assertEqual(self.data()["other"], "theirs")

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
        (group,) = self.table()["group_list"]
        self.assertEqual([i["pod_name"] for i in group["instance_list"]], ["j-w-0", "j-w-1"])

    def test_a_pod_is_replaced_by_one_with_other_devices(self):
        job, c = self.two()
        self.delete("pods", "j-w-0")
        self.wait_status("initializing")
        self.pod(job, 0, server=7)
        self.assertEqual(self.ranks(), {"7": 0, "2": 2})
        self.settle(c)
        self.assertEqual((c.writes(), c.reads()), (3, 0))  # our own objects are recognized

    def test_a_pod_that_fails_is_lost(self):
        self.two()
        self.api.patch("pods", self.ns, "j-w-1", {"status": {"phase": "Failed"}}, status=True)
        self.wait_status("initializing")

    def test_an_annotation_is_corrected_after_completion(self):
        self.two()
        self.api.patch("pods", self.ns, "j-w-1", {"metadata": {"annotations": {KEY: devices(9)}}})
        self.wait_ranks({"1": 0, "9": 2})

    def test_a_restart_with_a_lingering_pod(self):
        job, c = self.two()
        self.api.patch("vcjobs", self.ns, "j", {"status": {"version": 1}}, status=True)
        self.wait_status("initializing")
        self.pod(job, 0, server=3, version=1, name="j-w-0b")
        self.settle(c)
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
        self.assertEqual(c.writes(), 0)
        self.api.patch("configmaps", self.ns, "rings-config-j", {"metadata": {"labels": LABEL}})
        self.settle(c)
        self.assertEqual(self.table()["status"], "initializing")
        self.api.patch("pods", self.ns, pod["metadata"]["name"], {"metadata": {"labels": LABEL}})
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

        def told():
            return [
                e
                for e in self.api.list("events", self.ns)
                if e["involvedObject"]["name"] == "bad" and "bad-w-" in e["message"]
            ]

        event = wait_for("an event on the job", told, WAIT_S)[0]
        self.assertEqual(
            (event["type"], event["involvedObject"]["uid"]), ("Warning", bad["metadata"]["uid"])
        )
        self.assertIsNone(c.process.poll())

    def test_one_name_in_two_namespaces(self):
        other = self.another_namespace()
        one, two = self.job(), self.job(ns=other)
        self.controller()
        for i in range(2):
            self.pod(one, i, server=1 + i)
            self.pod(two, i, server=11 + i)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.assertEqual(self.ranks(ns=other), {"11": 0, "12": 2})

    def test_the_jobs_of_one_namespace_alone(self):
        other = self.another_namespace()
        theirs, ours = self.job(ns=other), self.job()
        c = self.controller("--namespace", self.ns)
        for i in range(2):
            self.pod(theirs, i, server=11 + i)
            self.pod(ours, i, server=1 + i)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.settle(c)
        self.assertEqual(self.table(ns=other)["status"], "initializing")

    def test_a_job_is_deleted_and_made_again(self):
        _, c = self.two()
        self.delete("vcjobs", "j")
        self.settle(c)
        writes = c.writes()
        self.delete("pods", "j-w-0")
        self.settle(c)
        self.assertEqual(c.writes(), writes)
        job = self.job(config_map=False)
        self.pod(job, 0, server=3)  # j-w-1 still belongs to the old job
        self.wait_status("initializing")
        self.delete("pods", "j-w-1")
        self.pod(job, 1, server=4)
        self.assertEqual(self.ranks(), {"3": 0, "4": 2})

    def test_a_deployment_and_a_batch_job(self):
        c = self.controller()
        template = {
            "metadata": {"labels": {**LABEL, "deploy-name": "d", "app": "d"}},
            "spec": {"containers": [{"name": "c", "image": "none"}]},
        }
        deployment = self.api.create(
            "deployments",
            {
                "metadata": {"name": "d", "namespace": self.ns, "labels": LABEL},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": {"app": "d"}},
                    "template": template,
                },
            },
        )
        batch = self.api.create(
            "jobs",
            {
                "metadata": {"name": "b", "namespace": self.ns, "labels": LABEL},
                "spec": {
                    "parallelism": 2,
                    "completions": 2,
                    "template": {"spec": {**template["spec"], "restartPolicy": "Never"}},
                },
            },
        )
        self.config_map("d")
        self.config_map("b")
        for index in range(2):
            pod = pod_object(
                {**deployment, "apiVersion": "apps/v1"}, index, labels={**LABEL, "deploy-name": "d"}
            )
            del pod["metadata"]["labels"]["volcano.sh/job-name"], pod["metadata"]["ownerReferences"]
            self.give(self.api.create("pods", pod), 1 + index)
            pod = pod_object(
                {**batch, "apiVersion": "batch/v1"}, index, labels={**LABEL, "job-name": "b"}
            )
            del pod["metadata"]["labels"]["volcano.sh/job-name"]
            self.give(self.api.create("pods", pod), 11 + index)
        self.assertEqual(self.ranks(name="d"), {"1": 0, "2": 2})
        self.assertEqual(self.ranks(name="b"), {"11": 0, "12": 2})
        self.delete("pods", "d-w-0")
        self.wait_status("initializing", name="d")
        pod["metadata"] = {
            "name": "d-w-9",
            "namespace": self.ns,
            "labels": {**LABEL, "deploy-name": "d"},
        }
        self.give(self.api.create("pods", pod), 9)
        # pods that stayed keep their ranks
        self.assertEqual(self.ranks(name="d"), {"9": 0, "2": 2})
        self.settle(c)

    # ---- the ConfigMap ----

    def test_the_config_map_comes_late_is_made_again_and_reset(self):
        job = self.job(config_map=False)
        c = self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.settle(c)
        self.config_map()
        self.ranks()
        self.delete("configmaps", "rings-config-j")
        self.config_map()
        self.ranks()
        self.write(INITIALIZING)
        self.ranks()
        self.write("scribble")
        wait_for("the table is mended", lambda: "scribble" not in self.data()["hccl.json"], WAIT_S)
        self.write("mine", "other")
        self.settle(c)
        self.assertEqual(self.data()["other"], "mine")
        self.assertLessEqual(c.reads(), 5)  # one for each change that was made to it

    def test_another_writer_of_its_config_map_does_not_keep_it_waiting(self):
        self.controller()
        ending, written = threading.Event(), []

        def write():
            while not ending.wait(1 / 15):
                self.write(str(len(written)), key="other")
                written.append(time.monotonic())

        job = self.job()
        self.pod(job, 0, server=1)
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            wait_for("the other writer", lambda: len(written) > 5, WAIT_S)
            began, count = time.monotonic(), len(written)
            self.pod(job, 1, server=2)
            self.assertEqual(self.ranks(), {"1": 0, "2": 2})
            took, others = time.monotonic() - began, len(written) - count
        finally:
            ending.set()
            writer.join()
        self.assertLess(took, 5 if others > 10 * took else WAIT_S)  # slower only if the machine is
        self.assertEqual(self.data()["other"], str(len(written) - 1))  # nothing of theirs is lost

    def test_two_jobs_want_one_config_map(self):
        first = self.job()
        time.sleep(1.1)  # creation times are whole seconds
        other = self.job("other", config_map=False, volume="rings-config-j")
        c = self.controller()
        for i in range(2):
            self.pod(first, i, server=1 + i)
            self.pod(other, i, server=11 + i)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.settle(c)
        self.assertEqual(c.writes(), 1)
        self.delete("vcjobs", "j")
        self.wait_ranks({"11": 0, "12": 2})

    # ---- faults ----

    def test_the_controller_is_killed_in_the_middle(self):
        c = self.controller("--no-leader-elect")
        job, _ = self.two(c)
        written = self.table()
        self.delete("pods", "j-w-1")
        self.wait_status("initializing")
        c.kill()
        self.delete("pods", "j-w-0")  # while no instance runs
        self.pod(job, 1, server=2)
        c = self.controller("--no-leader-elect")
        self.settle(c)
        self.assertEqual((self.table()["status"], c.writes()), ("initializing", 0))
        self.pod(job, 0, server=1)
        self.ranks()
        self.assertEqual(self.table(), written)
        self.settle(c)
        self.assertEqual(c.writes(), 1)

    def test_the_controller_is_away_while_a_pod_is_lost(self):
        c = self.controller("--no-leader-elect")
        self.two(c)
        c.kill()
        self.delete("pods", "j-w-0")
        self.controller("--no-leader-elect")
        self.wait_status("initializing")

    def test_the_api_server_is_killed(self):
        job = self.job()
        c = self.controller("--no-leader-elect")
        first = self.pod(job, 0, server=1)
        self.kill_server()
        wait_for(
            "the controller sees it",
            lambda: c.metric('helios_ranktable_watch_failures_total{kind="pods"}') > 0,
            WAIT_S,
        )
        self.start_server()
        self.pod(job, 1, server=2)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.delete("pods", first["metadata"]["name"])
        self.wait_status("initializing")

    def test_watches_end_and_nothing_is_missed(self):
        job = self.job()
        self.controller("--watch-window", "1s")
        self.pod(job, 1, server=2)
        for server in range(3, 8):
            pod = self.pod(job, 0, server=server)
            self.assertEqual(self.ranks(), {str(server): 0, "2": 2})
            self.api.delete("pods", self.ns, pod["metadata"]["name"])
            self.wait_status("initializing")

    # ---- several instances ----

    def test_one_of_two_writes_and_the_other_takes_over(self):
        first = self.controller("--lease-namespace", self.lease_ns)
        wait_for("the lease is held", first.leads, WAIT_S)
        second = self.controller("--lease-namespace", self.lease_ns)
        self.two(first)
        self.settle(second)
        self.assertEqual((second.leads(), second.writes(), second.reads()), (False, 0, 0))
        first.end()  # releases the lease
        self.delete("pods", "j-w-1")
        self.wait_status("initializing")
        self.assertTrue(second.leads())

    def test_a_short_lease_is_taken_over_soon_after_a_kill(self):
        first = self.controller("--lease-namespace", self.lease_ns, "--lease-duration", "3s")
        wait_for("the lease is held", first.leads, WAIT_S)
        second = self.controller("--lease-namespace", self.lease_ns, "--lease-duration", "3s")
        second.let_decide(3)
        first.kill()
        began = time.monotonic()
        wait_for("the other one to lead", second.leads, WAIT_S)
        self.assertLess(time.monotonic() - began, 12)  # a lease is 15 s unless it is set

    def test_instances_for_different_labels_write_side_by_side(self):
        first = self.controller("--lease-namespace", self.lease_ns)
        wait_for("the lease is held", first.leads, WAIT_S)
        second = self.controller("--lease-namespace", self.lease_ns, "--label-value", "Ascend_910b")
        wait_for("its own lease", second.leads, WAIT_S)
        self.assertTrue(first.leads())
        self.assertEqual(
            {o["metadata"]["name"] for o in self.api.list("leases", self.lease_ns)},
            {"helios-ranktable", "helios-ranktable-ascend-910b"},
        )

    def test_a_dry_run_writes_nothing(self):
        c = self.controller("--dryRun", "-jobParallelism=2", "-isCompress", "-logLevel=0")
        job = self.job()
        for index in range(2):
            self.pod(job, index, server=index + 1)
        wait_for("a table that is not written", lambda: "dry run: a table of" in c.text(), WAIT_S)
        self.assertEqual(self.table()["status"], "initializing")
        for flag in ("--jobParallelism", "--isCompress"):
            self.assertIn(f"no effect of {flag}", c.text())


Refused = kube_api.Refused

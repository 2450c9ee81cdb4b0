"""Helios' gangs on Kubernetes, whatever the API server: a mixin over `self.api`, `self.volcano`,
`self.kubeconfig` (a path) and `self.namespace`. Ranks are real processes that read their shards
from a real L3."""
from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

from support.cluster import HELIOS, ROOT, Cluster, wait_for
from support.gang_world import HOLD, World

# The section `kubernetes` of the job file: what each pod has besides what Helios gives it.
TEMPLATE = """
kubernetes:
  queue: research
  networkTopology: {mode: soft}
  podTemplate:
    metadata: {labels: {team: language}}
    spec:
      nodeSelector: {accelerator: h100}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [training]}]}]
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      imagePullSecrets: [{name: registry}]
      priorityClassName: system-cluster-critical
      hostNetwork: true
      securityContext: {runAsUser: 1000}
      volumes:
      - {name: datasets, persistentVolumeClaim: {claimName: datasets}}
      - {name: tokens, secret: {secretName: tokens}}
      - {name: scratch, hostPath: {path: /data/scratch}}
      containers:
      - name: rank
        envFrom: [{secretRef: {name: storage}}]
        env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]
        volumeMounts: [{name: datasets, mountPath: /datasets, readOnly: true},
                       {name: tokens, mountPath: /tokens},
                       {name: scratch, mountPath: /scratch}]
        resources: {limits: {rdma/hca: "1"}}
        securityContext: {capabilities: {add: [IPC_LOCK]}}
"""


class Gangs(World):
    def check_ranks(self, c, job, files):
        for rank, file in enumerate(files):
            plain = c.dir / f"pulled.{rank}"
            done = c.run(
                "pull", "--model", "tiny", "--pp", rank // 2, "--tp", rank % 2, "--out", plain
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(file.read_bytes(), plain.read_bytes())
            env = dict(
                line.split("=", 1)
                for line in (c.dir / f"env.{rank}.1").read_text().splitlines()
                if "=" in line
            )
            self.assertEqual(
                (env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]), (str(rank), "0", "1")
            )
            self.assertEqual(env["MASTER_ADDR"], f"helios-{job}-a1-c0-0.helios-{job}-a1")
            self.assertEqual(env["PRICE"], "$5 for $(RANK) and $$")
            self.assertEqual(env["HELIOS_NODE"], self.volcano.node)
        tables = [json.loads((c.dir / f"table.{rank}").read_text()) for rank in range(4)]
        self.assertTrue(all(t == tables[0] for t in tables))
        servers = [
            (s["server_id"], [(d["device_id"], d["rank_id"]) for d in s["device"]])
            for s in tables[0]["server_list"]
        ]
        self.assertEqual(
            servers,
            [
                (f"helios-{job}-a1-c0-0", [("0", "0"), ("1", "1")]),
                (f"helios-{job}-a1-c1-0", [("0", "2"), ("1", "3")]),
            ],
        )

    def test_a_gang_is_one_job_whose_ranks_load_their_shards(self):
        c = self.start_cluster()
        self.volcano.tell_scope("container")
        job = c.submit(self.text())
        files = self.loaded()
        c.wait_job(job, "running")
        spread = (
            f"its ranks may be on several NUMA nodes: node {self.volcano.node},"
            " .*topologyManagerScope: container"
        )
        wait_for(
            "what is known of the kubelet",
            lambda: re.search(spread, c.job(job)["containers"][1]["message"]),
        )
        self.assertRegex(
            " ".join(c.json("plan", c.dir / "job.yaml")["warnings"]),
            r"topologyManagerScope: pod .* \d+ of \d+ have not: node",
        )
        self.volcano.tell_scope("pod")
        wait_for("it to be well", lambda: c.job(job)["containers"][1]["message"] == "")
        made = self.objects("vcjobs")
        self.assertEqual(list(made), [f"helios-{job}-a1"])
        doc = made[f"helios-{job}-a1"]
        self.assertEqual(doc["spec"]["minAvailable"], 2)
        self.assertEqual([t["topologyPolicy"] for t in doc["spec"]["tasks"]], ["best-effort"] * 2)
        limits = doc["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]
        self.assertEqual(limits, {"cpu": "1", "memory": str(1 << 30)})
        # nodeLostAfter, in whole seconds
        self.assertEqual(
            [
                (t["key"].rsplit("/")[1], t["effect"], t["tolerationSeconds"])
                for t in doc["spec"]["tasks"][1]["template"]["spec"]["tolerations"]
            ],
            [("not-ready", "NoExecute", 91), ("unreachable", "NoExecute", 91)],
        )
        self.assertEqual(
            sorted(self.objects("pods")), [f"helios-{job}-a1-c0-0", f"helios-{job}-a1-c1-0"]
        )
        self.check_ranks(c, job, files)

        self.end_ranks()
        c.wait_job(job, "succeeded")
        for rank in range(4):
            lines = c.log(job, rank).splitlines()
            self.assertEqual(
                lines[0],
                f"rank {rank} of 4 attempt 1 on {self.volcano.node}: $5 for $(RANK) and $$",
            )
            self.assertEqual(lines[-2:], ["loaded", "bye"])
        self.assertEqual(self.kinds(job), ["submitted", "placed", "running", "succeeded"])
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a1")  # as when --kube-keep is over
        self.wait_gone()
        self.assertIn("loaded", c.log(job, 3))
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])

    def test_a_failed_rank_restarts_the_gang_and_its_log_stays(self):
        c = self.start_cluster()
        job = c.submit(
            self.text(
                then="[ $RANK.$HELIOS_ATTEMPT != 3.1 ] || { echo what went wrong; exit 7; }\n"
                + HOLD,
                restarts=1,
            )
        )
        followed = subprocess.Popen(
            [
                str(HELIOS),
                "--state",
                str(c.state),
                "logs",
                job,
                "--rank",
                "3",
                "-f",
                "--attempt",
                "1",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=c.env,
        )
        self.loaded(2)
        seen = c.job(job)
        self.assertEqual(seen["attempt"], 2)
        failed = next(e["text"] for e in seen["events"] if e["kind"] == "container-failed")
        self.assertIn("rank 3 exited with code 7", failed)
        wait_for(
            "only the second attempt is left",
            lambda: list(self.objects("vcjobs")) == [f"helios-{job}-a2"],
        )
        os.kill(self.volcano.logs[f"helios-{job}-a2-c1-0", "local-0"].process.pid, signal.SIGKILL)
        ended = c.wait_job(job, "failed")
        self.assertIn("rank 2 was killed by signal 9", ended["reason"])
        self.wait_gone()
        self.assertIn("loaded", c.log(job, 2))  # from pods that no longer exist
        first, second = (
            c.run("logs", job, "--rank", 3, "--attempt", attempt).stdout for attempt in (1, 2)
        )
        self.assertEqual(first.splitlines()[-1], "what went wrong")
        with followed:
            self.assertEqual(followed.stdout.read(), first + second)
        self.assertEqual(followed.returncode, 1)
        shown = c.run("logs", job)
        self.assertIn("rank 2 failed first", shown.stderr)
        self.assertEqual(shown.stdout, c.log(job, 2))
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1", f"helios-{job}-a2"])

    def test_ranks_with_devices_are_processes_of_one_container(self):
        c = self.start_cluster(
            env={"HELIOS_KUBE_DEVICE": "nvidia.com/gpu", "HELIOS_KUBE_SLOT_DEVICES": "2"}
        )
        job = c.submit(
            self.text(
                restarts=1,
                then="""
            i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i + 1)); done; echo late >&2
            [ $RANK.$HELIOS_ATTEMPT != 3.1 ] || { echo what went wrong; exit 7; }
            """
                + HOLD,
            )
        )
        self.loaded(2)
        failed = next(e["text"] for e in c.job(job)["events"] if e["kind"] == "container-failed")
        self.assertIn("rank 3 exited with code 7", failed)
        wait_for(
            "only the second attempt is left",
            lambda: list(self.objects("vcjobs")) == [f"helios-{job}-a2"],
        )
        for task in self.objects("vcjobs")[f"helios-{job}-a2"]["spec"]["tasks"]:
            (container,) = task["template"]["spec"]["containers"]
            self.assertEqual(
                container["resources"]["limits"],
                {"cpu": "2", "memory": str(2 << 30), "nvidia.com/gpu": "2"},
            )
        for rank in range(4):
            env = dict(
                line.split("=", 1)
                for line in (c.dir / f"env.{rank}.2").read_text().splitlines()
                if "=" in line
            )
            self.assertEqual(
                [
                    env[n]
                    for n in (
                        "RANK",
                        "LOCAL_RANK",
                        "LOCAL_WORLD_SIZE",
                        "GROUP_RANK",
                        "GROUP_WORLD_SIZE",
                        "PRICE",
                    )
                ],
                [str(rank), str(rank % 2), "2", str(rank // 2), "2", "$5 for $(RANK) and $$"],
            )
        self.end_ranks()
        c.wait_job(job, "succeeded")
        lines = [f"line {i}" for i in range(50)] + ["late"]
        for rank in range(4):  # each rank's own lines, though a pod has one log
            said = c.log(job, rank).splitlines()
            self.assertTrue(
                said[0].startswith(f"rank {rank} of 4 attempt 2 on {self.volcano.node}: "), said
            )
            self.assertEqual(said[said.index("loaded") + 1 :], [*lines, "bye"])
        self.assertEqual(
            c.run("logs", job, "--rank", 3, "--attempt", 1).stdout.splitlines()[-2:],
            ["late", "what went wrong"],
        )

    def test_pods_that_are_taken_away_do_not_use_up_restarts(self):
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded(1)
        c.wait_job(job, "running")
        self.volcano.evict(f"helios-{job}-a1-c1-0")
        self.loaded(2)
        self.assertIn("node-lost", self.kinds(job))
        lost = next(e["text"] for e in c.job(job)["events"] if e["kind"] == "node-lost")
        self.assertIn("Evicted the node was low on memory", lost)
        c.wait_job(job, "running")
        self.api.delete("pods", self.namespace, f"helios-{job}-a2-c0-0")
        self.loaded(3)
        c.wait_job(job, "running")
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a3")
        self.loaded(4)
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.volcano.made, [f"helios-{job}-a{n}" for n in (1, 2, 3, 4)])

    def test_two_dead_nodes_hold_up_neither_a_restart_nor_an_end(self):
        c = self.start_cluster()
        nodes = [f"{self.namespace}-{i}" for i in range(4)]
        self.volcano.join(*nodes)
        self.addCleanup(lambda: [self.api.delete("nodes", None, n) for n in nodes])
        text = self.text().replace("nodeLostAfter: 90500ms", "nodeLostAfter: 300ms")
        job = c.submit(text)
        self.loaded(1)
        c.wait_job(job, "running")
        first = {p["spec"]["nodeName"] for p in self.objects("pods").values()}
        self.assertEqual(len(first), 2)
        self.volcano.lose(*first)
        self.loaded(2)
        c.wait_job(job, "running")
        lost = [e["text"] for e in c.job(job)["events"] if e["kind"] == "node-lost"]
        self.assertRegex(lost[0], "its node .* is silent: Kubelet stopped posting node status")
        self.assertEqual({p.split("-c")[0] for p in self.objects("pods")}, {f"helios-{job}-a2"})
        second = {p["spec"]["nodeName"] for p in self.objects("pods").values()}
        self.assertFalse(second & first)
        self.volcano.lose(*second)
        c.json("cancel", job)
        c.wait_job(job, "cancelled")
        self.wait_gone()

    def test_a_job_that_may_not_be_repeated_fails_with_an_evicted_pod(self):
        c = self.start_cluster()
        job = c.submit(self.text(lost="fail"))
        self.loaded(1)
        c.wait_job(job, "running")
        self.volcano.evict(f"helios-{job}-a1-c1-0")
        failed = c.wait_job(job, "failed")
        self.assertRegex(failed["reason"], "Evicted.*not repeated")
        self.wait_gone()
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])

    def test_pods_are_drawn_to_the_nodes_that_hold_their_shards(self):
        c = self.start_cluster(up=("--l2-size", "16MiB"), agents=1)
        shards = [s for s in c.json("shard", "ls", "--model", "tiny")["items"] if s["pp"] == 1]
        c.json("shard", "copy", shards[0]["id"], "--to", "node-0:l2")
        self.volcano.paused = True
        job = c.submit(self.text())
        wait_for("its Job", lambda: self.objects("vcjobs"))
        tasks = self.objects("vcjobs")[f"helios-{job}-a1"]["spec"]["tasks"]
        specs = [t["template"]["spec"] for t in tasks]
        self.assertNotIn("affinity", specs[0])  # pipeline stage 0
        affinity = specs[1]["affinity"]["nodeAffinity"]
        preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        self.assertEqual(
            preferred[0]["preference"]["matchExpressions"],
            [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-0"]}],
        )
        self.volcano.paused = False
        self.end_ranks()
        c.wait_job(job, "succeeded")

    def test_a_log_is_whole_however_often_it_is_read(self):
        c = self.start_cluster()
        job = c.submit(
            self.text(
                then=(
                    "i=0; while [ $i -lt 2000 ]; do echo line $i of $RANK; i=$((i+1));"
                    " [ $((i %% 100)) != 0 ] || sleep 0.05; done"
                )
            )
        )
        followed = subprocess.Popen(
            [str(HELIOS), "--state", str(c.state), "logs", job, "--rank", "1", "-f"],
            stdout=subprocess.PIPE,
            text=True,
            env=c.env,
        )
        with followed:
            text = followed.stdout.read()
        self.assertEqual(followed.returncode, 0)
        lines = text.splitlines()
        self.assertEqual(
            lines[lines.index("loaded") + 1 :], [f"line {i} of 1" for i in range(2000)]
        )
        self.assertEqual(c.log(job, 1), text)
        c.wait_job(job, "succeeded")

    def check_container(self, job, rank):
        self.assertEqual(
            [e[next(iter(e))]["name"] for e in rank["envFrom"]], ["storage", f"helios-{job}-a1"]
        )
        self.assertEqual(
            [v["name"] for v in rank["env"] if "secretKeyRef" in v.get("valueFrom", {})],
            ["HF_TOKEN"],
        )
        self.assertEqual(
            rank["resources"]["limits"],
            {"cpu": "1", "memory": rank["resources"]["requests"]["memory"], "rdma/hca": "1"},
        )
        self.assertEqual(rank["securityContext"], {"capabilities": {"add": ["IPC_LOCK"]}})
        self.assertEqual(
            [m["mountPath"] for m in rank["volumeMounts"]][-4:],
            ["/models", "/datasets", "/tokens", "/scratch"],
        )

    def test_a_job_adds_to_its_pods_what_helios_does_not_set(self):
        c = self.start_cluster(
            env={"HELIOS_KUBE_HOST_PATHS": "/data,/srv", "HELIOS_KUBE_TOPOLOGY_KEY": "rack"}
        )
        path = self.write(c, self.text() + TEMPLATE.replace("/data/scratch", "/etc"))
        line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "/etc" in text)
        self.assertRegex(
            c.refuse("submit", path),
            (
                f"plan.yaml:{line}:.*hostPath: '/etc' is in no directory that pods may mount"
                " .*/data,/srv"
            ),
        )
        self.end_ranks()
        job = c.submit(self.text() + TEMPLATE + "mounts: ['/srv/models:/models:ro']\n")
        c.wait_job(job, "succeeded")
        spec = self.objects("vcjobs")[f"helios-{job}-a1"]["spec"]
        self.assertEqual(
            (spec["queue"], spec["networkTopology"], spec["priorityClassName"]),
            ("research", {"mode": "soft"}, "system-cluster-critical"),
        )
        for pod in self.objects("pods").values():
            spec = pod["spec"]
            self.assertEqual(pod["metadata"]["labels"]["team"], "language")
            self.assertEqual(
                (
                    spec["nodeSelector"],
                    spec["imagePullSecrets"],
                    spec["securityContext"]["runAsUser"],
                ),
                ({"accelerator": "h100"}, [{"name": "registry"}], 1000),
            )
            self.assertEqual(
                (spec["priorityClassName"], spec["hostNetwork"], spec["dnsPolicy"]),
                ("system-cluster-critical", True, "ClusterFirstWithHostNet"),
            )
            self.assertEqual(
                [t["key"] for t in spec["tolerations"]][:3],
                [
                    "node.kubernetes.io/not-ready",
                    "node.kubernetes.io/unreachable",
                    "nvidia.com/gpu",
                ],
            )
            self.assertIn(
                "requiredDuringSchedulingIgnoredDuringExecution", spec["affinity"]["nodeAffinity"]
            )
            affinity = spec["affinity"]["podAffinity"]
            near = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
            self.assertEqual([t["podAffinityTerm"]["topologyKey"] for t in near], ["rack"])
            self.assertEqual(
                [v["name"] for v in spec["volumes"]],
                ["ascend-910-config", "shm", "mount-0", "datasets", "tokens", "scratch"],
            )
            for rank in spec["containers"]:
                self.check_container(job, rank)

    def test_a_gang_by_a_pod_group_of_kubernetes(self):
        """All or nothing without Volcano: a lost pod is not recreated, and succeeded pods end by
        themselves."""
        self.allow_pod_groups()
        c = self.start_cluster(
            env={
                "HELIOS_KUBE_PODGROUPS": "v1alpha3",
                "HELIOS_KUBE_KEEP": "1s",
                "HELIOS_GC_INTERVAL": "200ms",
            }
        )
        self.volcano.slots = 1
        job = c.submit(
            self.text()
            + "kubernetes: {podTemplate: {spec: {priorityClassName: system-cluster-critical}}}\n"
        )
        wait_for(
            "the reason", lambda: c.job(job)["reason"] == "Unschedulable: 2 of 2 pods fit no node"
        )
        name = f"helios-{job}-a1"
        self.assertEqual(
            self.objects("gangs")[name]["spec"],
            {
                "schedulingPolicy": {"gang": {"minCount": 2}},
                "priorityClassName": "system-cluster-critical",
            },
        )
        service = self.objects("services")[name]
        self.assertEqual(
            (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]),
            ("None", True),
        )
        pods = self.objects("pods")
        self.assertEqual(sorted(pods), [f"{name}-c0-0", f"{name}-c1-0"])
        for pod in pods.values():
            self.assertLessEqual(
                service["spec"]["selector"].items(), pod["metadata"]["labels"].items()
            )
            self.assertEqual(
                (pod["spec"]["hostname"], pod["spec"]["subdomain"]), (pod["metadata"]["name"], name)
            )
            self.assertEqual(
                pod["spec"].get("schedulerName", "default-scheduler"), "default-scheduler"
            )
        self.api.delete("pods", self.namespace, f"{name}-c1-0")  # before it has begun
        wait_for("another attempt", lambda: c.job(job)["attempt"] == 2)
        lost = next(e["text"] for e in c.job(job)["events"] if e["kind"] == "node-lost")
        # as reported by the watch
        self.assertRegex(lost, "the PodGroup is without one of its pods|the pod is being deleted")
        self.volcano.slots = 2
        self.loaded(2)
        c.wait_job(job, "running")
        c.kill("controllerd")
        c.up()
        wait_for("the job", lambda: c.run("describe", job).returncode == 0)
        self.api.delete("pods", self.namespace, f"helios-{job}-a2-c0-0")
        self.loaded(3)
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.wait_gone()
        self.assertEqual(c.log(job, 3).splitlines()[-1], "bye")
        self.assertEqual(self.volcano.made, [f"helios-{job}-a{n}" for n in (1, 2, 3)])

    def test_a_cancelled_job_leaves_nothing(self):
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded()
        self.assertEqual(
            sorted(self.objects("configmaps")),
            [f"helios-{job}-a1", f"rings-config-helios-{job}-a1"],
        )
        c.json("cancel", job)
        c.wait_job(job, "cancelled")
        self.wait_gone()
        self.assertIn("loaded", c.log(job, 1))
        self.assertEqual(list(self.volcano.pods), [])

    def test_down_takes_its_gangs_along(self):
        c = self.start_cluster()
        info = c.json("info")
        self.assertEqual(
            (info["kubernetesServer"], info["kubernetesState"], info["kubernetesEngine"]),
            (
                json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"],
                "ready",
                "Volcano Job batch.volcano.sh/v1alpha1",
            ),
        )
        self.assertIn(
            "gangs by        Volcano Job batch.volcano.sh/v1alpha1\n", c.run("info").stdout
        )
        c.submit(self.text())
        self.loaded()
        c.down("--keep")
        self.assertEqual(len(self.objects("vcjobs")), 1)  # it goes on
        c.up()
        done = c.run("down")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.wait_gone()
        self.assertFalse(c.state.exists())

    def test_a_gang_waits_for_all_its_pods_and_says_so(self):
        c = self.start_cluster()
        self.volcano.slots = 1
        job = c.submit(self.text())
        wait_for("its Job", lambda: self.objects("vcjobs"))
        self.assertEqual(c.job(job)["state"], "starting")
        why = "NotEnoughResources: 2/2 tasks in gang unschedulable"
        wait_for("the reason", lambda: c.job(job)["reason"] == why)
        self.assertIn(why, c.run("explain", job).stdout)
        self.assertEqual(self.objects("pods"), {})  # all or none
        late = c.submit(self.text().replace("stopGrace", "timeouts: {start: 2s}\nstopGrace"))
        self.assertRegex(c.wait_job(late, "failed")["reason"], f"within 2000 ms; it waited: {why}")
        gone = c.submit(self.text())
        wait_for("the reason", lambda: c.job(gone)["reason"] == why)
        c.json("cancel", gone)
        self.assertIn(f"it waited: {why}", c.wait_job(gone, "cancelled")["reason"])
        self.volcano.missing_images = True
        self.volcano.slots = 2
        wait_for(
            "the pods' reason",
            lambda: "ImagePullBackOff Back-off pulling image" in c.job(job)["reason"],
        )
        self.assertIn("ImagePullBackOff", c.run("explain", job).stdout)
        self.volcano.missing_images = False
        self.loaded()
        self.end_ranks()
        c.wait_job(job, "succeeded")
        kept = [c.state / "controller" / "logs" / f"{job}.1.{rank}.log" for rank in range(4)]
        wait_for(
            "the logs are kept, which nobody has read",
            lambda: all(k.exists() and "bye" in k.read_text() for k in kept),
        )
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a1")
        self.wait_gone()
        self.assertEqual(c.log(job, 2).splitlines()[-1], "bye")

    def test_a_forgotten_job_leaves_no_logs(self):
        c = self.start_cluster(env={"HELIOS_JOBS_KEEP": "1", "HELIOS_GC_INTERVAL": "200ms"})
        self.end_ranks()

        def logs(job):
            return len(list((c.state / "controller" / "logs").glob(f"{job}.1.*.log")))

        jobs = []
        for _ in range(2):
            jobs.append(c.submit(self.text()))
            c.wait_job(jobs[-1], "succeeded")
            wait_for("its logs are kept", lambda: logs(jobs[-1]) == 4)
        self.assertEqual(logs(jobs[0]), 4)  # its objects still exist
        self.api.delete("vcjobs", self.namespace, f"helios-{jobs[0]}-a1")
        wait_for("the logs of the first job go", lambda: logs(jobs[0]) == 0)
        self.assertEqual([j["id"] for j in c.json("list")["items"]], jobs[1:])
        self.assertEqual(logs(jobs[1]), 4)

    def test_what_kubernetes_can_not_have_is_refused(self):
        c = self.start_cluster()
        path = pathlib.Path(c.dir / "job.yaml")
        path.write_text("jobName: x\ncommand: 'true'\n")
        self.assertIn("dockerImage is missing", c.refuse("submit", path))
        path.write_text("jobName: x\ndockerImage: i\nworkdir: src\n")
        self.assertIn("workdir: 'src' is relative", c.refuse("submit", path))
        path.write_text("jobName: x\ndockerImage: i\nvenv: /v\n")
        self.assertIn("job.yaml:3:1: venv: ", c.refuse("submit", path))
        path.write_text("jobName: x\ndockerImage: i\n")
        self.assertIn("name the variables", c.refuse("plan", path, "--export", "ALL"))
        self.assertEqual(c.json("plan", path, "--export", "A=1")["launch"]["exported"], ["A"])
        path.write_text("jobName: x\ndockerImage: i\nresources: {gpus_per_rank: 1}\n")
        self.assertIn("--kube-device", c.refuse("submit", path))
        plan = c.json("plan", ROOT / "examples" / "spec-job.yaml")  # the specification's own file
        self.assertEqual(
            (plan["feasible"], plan["worldSize"], len(plan["containers"])), (True, 1024, 1024)
        )
        self.assertRegex(" ".join(plan["arithmetic"]), "16 .*64 ranks")
        self.assertIn("'gpt3'", " ".join(plan["warnings"]))  # which has to come from the image
        plan = c.json("plan", self.write(c, self.text()))
        self.assertEqual([len(p["ranks"]) for p in plan["containers"]], [2, 2])
        self.assertEqual(self.objects("vcjobs"), {})

    @staticmethod
    def write(c, text):
        path = c.dir / "plan.yaml"
        path.write_text(text)
        return path


class Engines(World):
    def test_what_starts_gangs_is_found_out(self):
        """First without an engine; then with PodGroups; PodGroups are still used when Volcano is
        there, too."""
        self.allow_pod_groups()
        self.serve()
        c = Cluster(nodes=1, slots=1)
        self.addCleanup(shutil.rmtree, c.dir, True)
        self.addCleanup(c.run, "down", "--purge")
        told = c.run(
            *"up --executor kubernetes --nodes 0 --l3-size 1MiB --timeout 3s".split(),
            *("--kubeconfig", self.kubeconfig, "--kube-namespace", self.namespace),
        )
        self.assertNotEqual(told.returncode, 0)
        # it also reports its progress
        self.assertRegex(
            told.stderr,
            "serves neither Volcano .* nor PodGroups of scheduling.k8s.io: install Volcano",
        )
        self.assertFalse(c.state.exists())  # nor a daemon, which would keep it

        self.serve("gangs")
        c = self.start_cluster()
        by_groups = "PodGroup scheduling.k8s.io/v1alpha3"
        self.assertEqual(c.json("info")["kubernetesEngine"], by_groups)
        (c.dir / "job.yaml").write_text(self.text() + "kubernetes: {queue: research}\n")
        self.assertIn("queue", c.refuse("submit", c.dir / "job.yaml"))
        job = c.submit(self.text())
        self.loaded()
        self.assertEqual(list(self.objects("gangs")), [f"helios-{job}-a1"])

        self.serve("gangs", "vcjobs")
        c.kill("controllerd")
        c.up()
        self.assertEqual(c.json("info")["kubernetesEngine"], by_groups)
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1"])

#!/usr/bin/python3
"""./run bench ranktable [--real]: what helios-ranktable needs, for pods of the size that real ones have.

Against a server in this process; with --real also against kube-apiserver (./run test-k8s makes it). Ends with 1 when a bar is
missed, which a busy machine or a server that is too slow for the events makes likely."""
import argparse
import collections
import contextlib
import copy
import itertools
import json
import pathlib
import queue
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

from bars import Bars  # noqa: E402

from support import apiserver, kube_api, kustomize  # noqa: E402
from support.cluster import wait_for  # noqa: E402
from support.ranktable_scenarios import INITIALIZING, KEY, LABEL, Controller, devices, job_object, pod_object  # noqa: E402

DEVICES = 8
BATCHES = 20
COMPLETE_S, WRITES, CORE_PERCENT, MEMORY_MIB = 1, 5, 10, 50e6 / (1 << 20)  # bars
LOSSES = 200  # pods in a second, each four events
BACK_S = 2    # after which a pod that was lost runs again


def real_sized(pod):
    """What a pod of a training job has besides: 6 kB."""
    spec = pod["spec"]
    spec["containers"][0].update(
        command=["/bin/sh", "-c", "exec python3 -m train --config /config/model.yaml"],
        env=[{"name": f"TRAIN_SETTING_{i}", "value": f"value-{i}"} for i in range(16)],
        volumeMounts=[{"name": f"volume-{i}", "mountPath": f"/data/{i}"} for i in range(6)])
    spec["volumes"] = [{"name": f"volume-{i}", "hostPath": {"path": f"/srv/{i}"}} for i in range(6)]
    spec["tolerations"] = [{"key": f"node.kubernetes.io/{k}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                           for k in ("not-ready", "unreachable", "memory-pressure")]
    pod["metadata"]["managedFields"] = [{
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"c"}': {
            ".": {}, "f:env": {f'k:{{"name":"TRAIN_SETTING_{i}"}}': {".": {}, "f:name": {}, "f:value": {}} for i in range(16)},
            "f:volumeMounts": {f'k:{{"mountPath":"/data/{i}"}}': {".": {}, "f:mountPath": {}, "f:name": {}} for i in range(6)}}}}}}
        for manager in ("volcano-controller", "kubelet")]
    return pod


class Scripted:
    """Straight into the server's memory: its own HTTP is not what is measured."""

    name = "scripted"
    drivers = 1

    def __init__(self, folder):
        self.server = kube_api.Server()
        self.server.bookmark_s = 60
        self.server.__enter__()
        self.config = self.server.kubeconfig(folder / "kubeconfig")
        self.create, self.get, self.delete = self.server.put, self.server.get, self.server.delete

    def patch(self, plural, ns, name, patch, status=False):
        self.server.patch(plural, ns, name, patch)

    def end(self):
        self.server.__exit__()


class Real:
    name = "kube-apiserver"
    drivers = 8  # most of a request is waiting

    def __init__(self, folder):
        self.server = apiserver.shared_server()
        if not self.server.has_namespace("helios"):
            self.server.namespace("helios")
            for o in kustomize.render(ROOT / "deploy/k8s/overlays/ranktable"):
                self.server.put(o)
            self.server.namespace("bench")
        self.config = self.server.kubeconfig(folder / "kubeconfig", {
            "token": self.server.account_token("helios", "helios-ranktable")}, "helios")
        self.api = self.server.admin
        self.get, self.delete, self.patch = self.api.get, self.api.delete, self.api.patch

    def create(self, plural, obj):
        obj = copy.deepcopy(obj)
        obj["metadata"].pop("managedFields", None)  # it makes its own
        return self.api.create(plural, obj)

    def end(self):
        pass


def make_job(where, name, pods):
    where.create("configmaps", {"metadata": {"name": f"rings-config-{name}", "namespace": "bench", "labels": LABEL},
                                "data": {"hccl.json": INITIALIZING}})
    return where.create("vcjobs", job_object("bench", name, pods))


def new_pod(job, index):
    return real_sized(pod_object(job, index))


def new_ready_pod(job, index, server):
    pod = new_pod(job, index)
    pod["metadata"]["annotations"][KEY] = devices(server, DEVICES)
    return pod


def annotate(where, job, index, server):
    where.patch("pods", "bench", f"{job['metadata']['name']}-w-{index}",
                {"metadata": {"annotations": {KEY: devices(server, DEVICES)}}})


def table(where, name):
    return json.loads(where.get("configmaps", "bench", f"rings-config-{name}")["data"]["hccl.json"])


def wait_complete(where, name, step=0.01):
    """Not by wait_for: its step is as long as what is measured."""
    deadline = time.monotonic() + 120
    while "completed" not in where.get("configmaps", "bench", f"rings-config-{name}")["data"]["hccl.json"]:
        if time.monotonic() > deadline:
            raise AssertionError(f"{name} is not complete")
        time.sleep(step)


def in_threads(work, items, count=4):
    """A real server answers several at once."""
    def some(mine):
        for item in mine:
            work(item)
    threads = [threading.Thread(target=some, args=(items[i::count],)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def big_job(where, bars, pods):
    """Pods first, then their annotations in batches; the clock runs from the last one."""
    job = make_job(where, "big", pods)
    c = Controller(where.config, "--no-leader-elect")
    try:
        in_threads(lambda i: where.create("pods", new_pod(job, i)), range(pods))
        for batch in range(BATCHES):
            in_threads(lambda i: annotate(where, job, i, i), range(batch, pods - (batch == BATCHES - 1), BATCHES))
            if where.name == "scripted":
                time.sleep(0.15)  # every batch is seen by itself
        annotate(where, job, pods - 1, pods - 1)
        since = time.monotonic()
        wait_complete(where, "big")
        took = time.monotonic() - since
        wait_for("the write is answered", c.writes, 5)
        count = len(table(where, "big")["server_list"])
        print(f"{where.name}: {pods} pods, {count} servers: {c.memory_mib():.1f} MiB, {c.cpu_s():.2f} s CPU", flush=True)
        bars.judge(f"{where.name}: {pods} pods complete after the last annotation", took, COMPLETE_S, " s")
        bars.judge(f"{where.name}: {pods} pods, writes", c.writes(), WRITES)
    finally:
        c.end()


def replaced(where, job, index, server):
    """What is seen of a pod that is lost and made again, step by step."""
    name = f"{job['metadata']['name']}-w-{index}"

    def lose():
        with contextlib.suppress(kube_api.Refused):  # it may be one that is lost already
            where.delete("pods", "bench", name)
    yield lose
    yield lambda: where.create("pods", new_pod(job, index))
    yield lambda: annotate(where, job, index, server)
    yield lambda: where.patch("pods", "bench", name, {"status": {"phase": "Running"}}, status=True)


def restarts(where, jobs, pods):
    """Endless: one job after the other is restarted as a whole, as Volcano does when a pod is evicted."""
    for job in itertools.cycle(range(len(jobs))):
        lives = [replaced(where, jobs[job], index, job * pods + index) for index in range(pods)]
        for steps in zip(*lives):
            yield from enumerate(steps)


def losses(where, jobs, pods, at_once=LOSSES * BACK_S):
    """Endless: single pods here and there; a step of a pod follows the one before after `at_once` steps of others."""
    def lives():
        for n in itertools.count():
            job, index = n % len(jobs), (n // len(jobs) * 7) % pods
            yield n, replaced(where, jobs[job], index, job * pods + index)
    source = lives()
    under_way = collections.deque(next(source) for _ in range(at_once))
    while True:
        n, life = under_way.popleft()
        step = next(life, None)
        if step is None:
            n, life = next(source)
            step = next(life)
        under_way.append((n, life))
        yield n, step


class Drivers:
    """Threads that carry out steps; those of one pod in their order."""

    def __init__(self, count):
        self.queues = [queue.Queue(2) for _ in range(count)]
        self.threads = [threading.Thread(target=self.drive, args=(q,), daemon=True) for q in self.queues]
        self.problem = None
        for t in self.threads:
            t.start()

    def drive(self, steps):
        for step in iter(steps.get, None):
            try:
                step()
            except Exception as problem:  # pylint: disable=broad-except # told by put()
                self.problem = problem

    def put(self, pod, step):
        if self.problem is not None:
            raise self.problem
        self.queues[pod % len(self.queues)].put(step)

    def end(self):
        for q in self.queues:
            q.put(None)
        for t in self.threads:
            t.join()
        if self.problem is not None:
            raise self.problem


def slow_losses(where, jobs, pods):
    """A quarter of them in a second, each of which runs again after the same time: tables are complete for half of it."""
    return losses(where, jobs, pods, LOSSES * BACK_S // 4)


def churn(where, bars, jobs, pods, seconds):
    """Pods of complete jobs are lost and made again: four events for each."""
    all_jobs = [make_job(where, f"j{n}", pods) for n in range(jobs)]
    for n, job in enumerate(all_jobs):
        in_threads(lambda i, n=n, job=job: where.create("pods", new_ready_pod(job, i, n * pods + i)), range(pods))
    c = Controller(where.config, "--no-leader-elect")
    try:
        for n in range(jobs):
            wait_complete(where, f"j{n}", 0.1)
        time.sleep(2)
        for what, rate in ((restarts, LOSSES), (slow_losses, LOSSES), (losses, 4 * LOSSES)):
            before, cpu, writes, begin = c.memory_mib(), c.cpu_s(), c.writes(), time.monotonic()
            drivers = Drivers(where.drivers)
            for count, (pod, step) in enumerate(what(where, all_jobs, pods), 1):
                drivers.put(pod, step)
                now = time.monotonic() - begin
                if now > seconds:
                    break
                time.sleep(max(0, count / rate - now))
            drivers.end()
            now = time.monotonic() - begin
            case = f"{where.name}: {jobs} x {pods} pods, {what.__name__}"
            print(f"{case}: {count / now:.0f} pod events/s, {(c.writes() - writes) / now:.1f} writes/s, "
                  f"{c.memory_mib():.1f} MiB ({before:.1f} before)", flush=True)
            bars.judge(f"{case}: CPU", 100 * (c.cpu_s() - cpu) / now, CORE_PERCENT, " % of a core",
                       "" if count >= 0.9 * rate * now else f"the server takes {count / now:.0f} of {rate} events/s")
        bars.judge(f"{where.name}: {jobs} x {pods} pods, peak of memory", c.memory_mib("VmHWM"), MEMORY_MIB, " MiB")
    finally:
        c.end()


def main():
    parser = argparse.ArgumentParser(prog="./run bench ranktable", description=__doc__)
    parser.add_argument("--real", action="store_true", help="also against kube-apiserver")
    parser.add_argument("--only", choices=("big", "churn"))
    parser.add_argument("--seconds", type=float, default=30, help="of churning")
    args = parser.parse_args()
    bars = Bars()
    for kind in (Scripted, Real) if args.real else (Scripted,):
        for name, work, *how in (("big", big_job, 1000), ("churn", churn, 100, 100, args.seconds)):
            if args.only not in (None, name):
                continue
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                where = kind(pathlib.Path(folder))
                stack.callback(where.end)
                work(where, bars, *how)
    return bars.status()


if __name__ == "__main__":
    sys.exit(main())

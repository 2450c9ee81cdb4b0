#!/usr/bin/python3
"""./run bench ranktable [--real]: how much time and memory helios-ranktable needs,
with pods of a realistic size.

Runs against a server in this process; with --real also against kube-apiserver (./run test-k8s
builds it). Exits with 1 if a bar is missed, which is likely on a busy machine or with a server that
is too slow for the events.

A loss is four changes, each of which the watch delivers: the pod is deleted, created, annotated,
and its status becomes Running. Two processors can't make 800 requests a second beside the real
server, so lost pods are changed in its store (pod_store.py), which is in memory. The store records
no field managers; instead, a pod has as many bytes in members that helios-ranktable does not read.
The events that the watch delivered are judged."""
import argparse
import collections
import contextlib
import itertools
import json
import pathlib
import socket
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

from bars import Bars  # noqa: E402
from pod_store import PodStore  # noqa: E402

from support import apiserver, kube_api, kustomize  # noqa: E402
from support.cluster import wait_for  # noqa: E402
from support.ranktable_scenarios import (
    INITIALIZING,
    KEY,
    LABEL,
    Controller,
    devices,
    job_object,
    pod_object,
)  # noqa: E402

DEVICES = 8
BATCHES = 20
COMPLETE_S, WRITES, CORE_PERCENT, MEMORY_MIB = 1, 5, 10, 50e6 / (1 << 20)  # bars
LOSSES = 200  # pods in a second, each four events
SLOT_S = 0.01  # of pods that are changed together
BACK_S = 2  # after which a pod that was lost runs again


def pod_name(job, index):
    return f"{job['metadata']['name']}-w-{index}"


def devices_of(server):
    return {KEY: devices(server, DEVICES)}


def real_sized(pod):
    """What a pod of a training job has besides."""
    spec = pod["spec"]
    spec["containers"][0].update(
        command=["/bin/sh", "-c", "exec python3 -m train --config /config/model.yaml"],
        env=[{"name": f"TRAIN_SETTING_{i}", "value": f"value-{i}"} for i in range(16)],
        volumeMounts=[{"name": f"volume-{i}", "mountPath": f"/data/{i}"} for i in range(6)],
    )
    spec["volumes"] = [{"name": f"volume-{i}", "hostPath": {"path": f"/srv/{i}"}} for i in range(6)]
    spec["tolerations"] = [
        {
            "key": f"node.kubernetes.io/{k}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        for k in ("not-ready", "unreachable", "memory-pressure")
    ]
    pod["metadata"]["managedFields"] = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:spec": {
                    "f:containers": {
                        'k:{"name":"c"}': {
                            ".": {},
                            "f:env": {
                                f'k:{{"name":"TRAIN_SETTING_{i}"}}': {
                                    ".": {},
                                    "f:name": {},
                                    "f:value": {},
                                }
                                for i in range(16)
                            },
                            "f:volumeMounts": {
                                f'k:{{"mountPath":"/data/{i}"}}': {
                                    ".": {},
                                    "f:mountPath": {},
                                    "f:name": {},
                                }
                                for i in range(6)
                            },
                        }
                    }
                }
            },
        }
        for manager in ("volcano-controller", "kubelet")
    ]
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
        self.create, self.get = self.server.put, self.server.get

    def make_pod(self, job, index, annotations):
        pod = real_sized(pod_object(job, index))
        pod["metadata"]["annotations"].update(annotations)
        self.server.put("pods", pod)

    def annotate_pod(self, job, index, annotations):
        self.server.patch(
            "pods", "bench", pod_name(job, index), {"metadata": {"annotations": annotations}}
        )

    def run_pod(self, job, index, _):
        self.server.patch("pods", "bench", pod_name(job, index), {"status": {"phase": "Running"}})

    def lose_pod(self, job, index):
        self.server.delete("pods", "bench", pod_name(job, index))

    def flush(self):
        pass

    def end(self):
        self.server.__exit__()


class Wire:
    """A connection to the API server. Of an answer nothing is read but its code and its end: a
    client that makes objects of all that it is told takes the processor from those who are
    measured."""

    def __init__(self, server):
        raw = socket.create_connection(("127.0.0.1", server.port), 30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = server.context().wrap_socket(raw, server_hostname="127.0.0.1")
        self.head = (
            "Host: 127.0.0.1\r\n"
            f"Authorization: Bearer {server.admin_token}\r\n"
            "Content-Type: application/json\r\n"
            "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1\r\n"
        ).encode()

    def ask(self, verb, path, body=b""):
        self.socket.sendall(
            f"{verb} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n".encode()
            + self.head
            + b"\r\n"
            + body
        )
        answer = self.socket.recv(65536)
        while b"\r\n\r\n" not in answer:
            answer += self.more()
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        while len(rest) < int(length) if length else not rest.endswith(b"0\r\n\r\n"):
            rest += self.more()
        code = int(head[9:12])
        if code >= 300:
            raise kube_api.Refused(code, "", f"{verb} {path}: {rest[:300]}")

    def more(self):
        data = self.socket.recv(65536)
        if not data:
            raise OSError("the API server has closed a connection")
        return data


class Real:
    name = "kube-apiserver"
    drivers = 8  # most of a request is waiting
    instead = 146  # words of the command that have the bytes of managedFields

    def __init__(self, folder):
        if pathlib.Path("/dev/shm").is_dir():
            tempfile.tempdir = "/dev/shm"  # where the store is
        apiserver.GOGC = "400"
        self.server = apiserver.shared_server(*apiserver.NO_MANAGED_FIELDS)
        if not self.server.has_namespace("helios"):
            self.server.namespace("helios")
            for o in kustomize.render(ROOT / "deploy/k8s/overlays/ranktable"):
                if o["kind"] in apiserver.RIGHTS:
                    self.server.make(o)
            self.server.namespace("bench")
        self.config = self.server.kubeconfig(
            folder / "kubeconfig",
            {"token": self.server.account_token("helios", "helios-ranktable")},
            "helios",
        )
        self.create, self.get = self.server.admin.create, self.server.admin.get
        self.own, self.texts = threading.local(), {}

    def wire(self):
        """This thread's."""
        if not hasattr(self.own, "wire"):
            self.own.wire = Wire(self.server)
        return self.own.wire

    def pod_text(self, job):
        """Of a job's pods; @ stands for their numbers, @@ for what else they are told."""
        name = job["metadata"]["name"]
        if name not in self.texts:
            pod = real_sized(pod_object(job, "@"))
            del pod["metadata"]["managedFields"]
            pod["spec"]["containers"][0]["args"] = [
                f"--setting-{i}=value-{i}" for i in range(self.instead)
            ]
            pod["metadata"]["annotations"]["bench"] = "@@"
            self.texts[name] = json.dumps(
                {**pod, "status": {"phase": "@phase"}}, separators=(",", ":")
            )
        return self.texts[name]

    def ask(self, verb, job, index, annotations, *, phase="Pending", path=""):
        more = json.dumps({"bench": "", **annotations})[1:-1]
        text = (
            self.pod_text(job)
            .replace('"bench":"@@"', more)
            .replace("@phase", phase)
            .replace("@", str(index))
        )
        self.wire().ask(verb, kube_api.path_of("pods", "bench") + path, text.encode())

    def make_pod(self, job, index, annotations):
        self.ask("POST", job, index, annotations)

    def annotate_pod(self, job, index, annotations):
        self.ask("PUT", job, index, annotations, path=f"/{pod_name(job, index)}")

    def run_pod(self, job, index, annotations):
        self.ask(
            "PUT", job, index, annotations, path=f"/{pod_name(job, index)}/status", phase="Running"
        )

    def lose_pod(self, job, index):
        self.wire().ask(
            "DELETE",
            kube_api.path_of("pods", "bench", pod_name(job, index)) + "?gracePeriodSeconds=0",
        )

    def flush(self):
        pass

    def end(self):
        pass


class Stored(Real):
    """Pods are changed in the server's store, those of a slot in one transaction."""

    drivers = 1

    def __init__(self, folder):
        super().__init__(folder)
        self.store = PodStore(self.server.etcd_port)

    def put_pod(self, job, index, annotations, *, is_new=False, phase="Pending"):
        if not self.store.rest:
            super().make_pod(job, index, annotations)
            self.store.learn("bench", pod_name(job, index))
        pod = {"metadata": pod_object(job, index)["metadata"], "status": {"phase": phase}}
        pod["metadata"]["annotations"].update(annotations)
        self.store.put(pod, job, is_new)

    def make_pod(self, job, index, annotations):
        self.put_pod(job, index, annotations, is_new=True)

    def annotate_pod(self, job, index, annotations):
        self.put_pod(job, index, annotations)

    def run_pod(self, job, index, annotations):
        self.put_pod(job, index, annotations, phase="Running")

    def lose_pod(self, job, index):
        self.store.delete("bench", pod_name(job, index))

    def flush(self):
        self.store.flush()


def make_job(where, name, pods):
    where.create(
        "configmaps",
        {
            "metadata": {"name": f"rings-config-{name}", "namespace": "bench", "labels": LABEL},
            "data": {"hccl.json": INITIALIZING},
        },
    )
    return where.create("vcjobs", job_object("bench", name, pods))


def table(where, name):
    return json.loads(where.get("configmaps", "bench", f"rings-config-{name}")["data"]["hccl.json"])


def wait_complete(where, name, step=0.01):
    """Not by wait_for: its step is as long as what is measured."""
    deadline = time.monotonic() + 120
    while (
        "completed"
        not in where.get("configmaps", "bench", f"rings-config-{name}")["data"]["hccl.json"]
    ):
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
        in_threads(lambda i: where.make_pod(job, i, {}), range(pods))
        for batch in range(BATCHES):
            in_threads(
                lambda i: where.annotate_pod(job, i, devices_of(i)),
                range(batch, pods - (batch == BATCHES - 1), BATCHES),
            )
            if where.name == "scripted":
                time.sleep(0.15)  # every batch is seen by itself
        where.annotate_pod(job, pods - 1, devices_of(pods - 1))
        since = time.monotonic()
        wait_complete(where, "big")
        took = time.monotonic() - since
        wait_for("the write is answered", c.writes, 5)
        count = len(table(where, "big")["server_list"])
        print(
            (
                f"{where.name}: {pods} pods, {count} servers: {c.memory_mib():.1f} MiB,"
                f" {c.cpu_s():.2f} s CPU"
            ),
            flush=True,
        )
        bars.judge(
            f"{where.name}: {pods} pods complete after the last annotation", took, COMPLETE_S, " s"
        )
        bars.judge(f"{where.name}: {pods} pods, writes", c.writes(), WRITES)
    finally:
        c.end()


def replaced(where, job, index, server):
    """What is seen of a pod that is lost and made again, step by step."""

    def lose():
        with contextlib.suppress(kube_api.Refused):  # it may be one that is lost already
            where.lose_pod(job, index)

    yield lose
    yield lambda: where.make_pod(job, index, {})
    yield lambda: where.annotate_pod(job, index, devices_of(server))
    yield lambda: where.run_pod(job, index, devices_of(server))


def restarts(where, jobs, pods):
    """Endless: one job after the other is restarted as a whole,
    as Volcano does when a pod is evicted."""
    for job in itertools.cycle(range(len(jobs))):
        lives = [replaced(where, jobs[job], index, job * pods + index) for index in range(pods)]
        for steps in zip(*lives):
            yield from enumerate(steps)


def losses(where, jobs, pods, at_once=LOSSES * BACK_S):
    """Endless: single pods here and there; a step of a pod follows the one before
    after `at_once` steps of others."""

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


def drive(where, steps, rate, seconds):
    """Carries out endless steps at this rate, those of one pod by one thread and so in their order.
    How many a second it were."""
    begin, done, problems = time.monotonic(), [], []
    slot = SLOT_S if where.drivers == 1 else 1 / rate

    def some(mine):
        for count, (pod, step) in enumerate(steps()):
            if pod % where.drivers != mine:
                continue
            now, due = time.monotonic() - begin, count / rate // slot * slot
            if max(now, due) > seconds or problems:
                return
            try:
                if due > now:
                    where.flush()
                    time.sleep(due - now)
                step()
            except Exception as problem:  # pylint: disable=broad-except # told below
                problems.append(problem)
            done.append(pod)

    in_threads(some, range(where.drivers), where.drivers)
    if problems:
        raise problems[0]
    where.flush()
    return len(done) / (time.monotonic() - begin)


def slow_losses(where, jobs, pods):
    """A quarter of them in a second, each of which runs again after the same time:
    tables are complete for half of it."""
    return losses(where, jobs, pods, LOSSES * BACK_S // 4)


def churn(where, bars, jobs, pods, seconds):
    """Pods of complete jobs are lost and made again: four events for each."""
    all_jobs = [make_job(where, f"j{n}", pods) for n in range(jobs)]
    for n, job in enumerate(all_jobs):
        in_threads(
            lambda i, n=n, job=job: where.make_pod(job, i, devices_of(n * pods + i)),
            range(pods),
            where.drivers,
        )
        where.flush()
    c = Controller(where.config, "--no-leader-elect")
    try:
        for n in range(jobs):
            wait_complete(where, f"j{n}", 0.1)
        time.sleep(2)
        for what, rate in ((restarts, LOSSES), (slow_losses, LOSSES), (losses, 4 * LOSSES)):
            before, cpu, writes, seen, begin = (
                c.memory_mib(),
                c.cpu_s(),
                c.writes(),
                c.events("pods"),
                time.monotonic(),
            )
            drive(where, lambda what=what: what(where, all_jobs, pods), rate, seconds)
            took = time.monotonic() - begin
            got = (c.events("pods") - seen) / took
            case = f"{where.name}: {jobs} x {pods} pods, {what.__name__}"
            print(
                (
                    f"{case}: {got:.0f} pod events/s, {(c.writes() - writes) / took:.1f} writes/s, "
                    f"{c.memory_mib():.1f} MiB ({before:.1f} before)"
                ),
                flush=True,
            )
            bars.judge(
                f"{case}: CPU",
                100 * (c.cpu_s() - cpu) / took,
                CORE_PERCENT,
                " % of a core",
                "" if got >= 0.95 * rate else f"the server takes {got:.0f} of {rate} events/s",
            )
        bars.judge(
            f"{where.name}: {jobs} x {pods} pods, peak of memory",
            c.memory_mib("VmHWM"),
            MEMORY_MIB,
            " MiB",
        )
    finally:
        c.end()


def main():
    parser = argparse.ArgumentParser(prog="./run bench ranktable", description=__doc__)
    parser.add_argument("--real", action="store_true", help="also against kube-apiserver")
    parser.add_argument("--only", choices=("big", "churn"))
    parser.add_argument("--seconds", type=float, default=30, help="length of each phase of changes")
    args = parser.parse_args()
    bars = Bars()
    for kinds in ((Scripted, Scripted), (Real, Stored)) if args.real else ((Scripted, Scripted),):
        for kind, name, work, *how in (
            (kinds[0], "big", big_job, 1000),
            (kinds[1], "churn", churn, 100, 100, args.seconds),
        ):
            if args.only not in (None, name):
                continue
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                where = kind(pathlib.Path(folder))
                stack.callback(where.end)
                work(where, bars, *how)
    return bars.status()


if __name__ == "__main__":
    sys.exit(main())

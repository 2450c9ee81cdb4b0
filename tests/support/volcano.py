"""Volcano's controllers and scheduler and Kubernetes' garbage collection, as far as gangs need
them, over any API server's HTTP; the kubelet is in kubelet.py."""
from __future__ import annotations

import http.server
import json
import threading
import urllib.parse

from support import kube_api
from support.kube_mirror import Mirror
from support.kubelet import LOG, Pods, now

STEP_S = 0.05  # between two rounds


class Volcano(Pods):
    """`with Volcano(api, namespace) as v:`. Knobs: `slots` pods at once; `missing_images`;
    `paused`: nothing is done."""

    def __init__(self, api, namespace, node="worker-1", image_env=None):
        self.api, self.namespace, self.node = api, namespace, node
        self.nodes = [node]
        self.placed = 0
        self.dead = set()  # nodes whose kubelets are gone
        self.groups = {}  # Job -> status of its PodGroup
        self.image_env = image_env or {}  # environment that the image would set
        self.slots = 1000
        self.missing_images = False  # images of pods can't be pulled
        self.paused = False
        self.pods = {}  # uid -> {"name", "containers", "dir", "maps"}
        self.logs = {}  # (pod, container) -> Container
        self.made = []  # names of all Jobs ever seen
        self.jobs = {}  # name -> uid
        self.devices = 0  # number given out
        self.has_topology = False
        self.data = {}  # ConfigMap -> its data
        self.lock = threading.RLock()
        self.ending = threading.Event()
        self.news = threading.Event()
        self.errors = []

    def __enter__(self):
        self.mirrors = {
            plural: Mirror(self.api, plural, self.namespace, self.news)
            for plural in ("vcjobs", "gangs", "pods", "configmaps", "services")
        }
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()
        for mirror in self.mirrors.values():
            mirror.close()
        for pod in self.pods.values():
            self._stop(pod)
        if self.has_topology:
            self.api.delete("noderesourcetopologies", None, self.node)
        if self.errors:
            raise AssertionError(
                f"the player of Volcano failed: {self.errors[0]!r}"
            ) from self.errors[0]

    def _run(self):
        try:
            self._keep_going()
        finally:
            self.api.close()

    def _keep_going(self):
        while not self.ending.is_set():
            self.news.wait(STEP_S)
            self.ending.wait(STEP_S / 5)  # there will be more of it soon
            self.news.clear()
            try:
                with self.lock:
                    if not self.paused and all(m.synced for m in self.mirrors.values()):
                        self._step()
            except (OSError, kube_api.http.client.HTTPException, json.JSONDecodeError):
                self.ending.wait(STEP_S)  # the API server is unreachable
            except kube_api.Refused as refused:
                if refused.code not in (404, 409, 410, 429, 503):
                    self.errors.append(refused)
                    return
                self.ending.wait(STEP_S)  # another client changed it before the watch showed that
            except Exception as error:  # shown by __exit__
                self.errors.append(error)
                return

    # ---- writes, and what is known from them ----

    def _create(self, plural, obj):
        self.mirrors[plural].take(self.api.create(plural, obj))

    def _patch_status(self, plural, name, status):
        self.mirrors[plural].take(
            self.api.patch(plural, self.namespace, name, {"status": status}, status=True)
        )

    def _delete(self, plural, obj):
        self.api.delete(plural, self.namespace, obj["metadata"]["name"])
        self.mirrors[plural].drop(obj)

    # ---- Volcano ----

    def _step(self):
        jobs, pods, configs = (
            self.mirrors[plural].all() for plural in ("vcjobs", "pods", "configmaps")
        )
        self.data = {name: c.setdefault("data", {}) for name, c in configs.items()}
        for name, job in jobs.items():
            if self.jobs.get(name) != job["metadata"]["uid"]:
                self.jobs[name] = job["metadata"]["uid"]
                self.made.append(name)
            self._keep_job(job, pods)
        gangs = self.mirrors["gangs"].all()
        for name, gang in gangs.items():
            if self.jobs.get(name) != gang["metadata"]["uid"]:
                self.jobs[name] = gang["metadata"]["uid"]
                self.made.append(name)
            self._schedule(gang, pods)
        for name in set(self.jobs) - set(jobs) - set(gangs):
            del self.jobs[name]
            if self.groups.pop(name, None) is not None:
                self.api.delete("podgroups", self.namespace, f"{name}-group")
        for pod in pods.values():
            owner = next(iter(pod["metadata"].get("ownerReferences", [])), None)
            if (
                owner is not None
                and self.jobs.get(owner["name"]) != owner["uid"]
                and not self._is_there(owner)
            ):
                self._delete_pod(pod)
            else:
                self._keep_pod(pod)
        for plural, objects in (
            ("configmaps", configs),
            ("services", self.mirrors["services"].all()),
        ):
            for o in objects.values():
                for owner in o["metadata"].get("ownerReferences", []):
                    if self.jobs.get(owner["name"]) != owner["uid"] and not self._is_there(owner):
                        self._delete(plural, o)
        alive = {p["metadata"]["uid"] for p in self.mirrors["pods"].all().values()}
        for uid in set(self.pods) - alive:  # deleted by another client
            self._stop(self.pods.pop(uid))

    def _is_there(self, owner):
        """Perhaps created after the list."""
        try:
            plural = "vcjobs" if owner["kind"] == "Job" else "gangs"
            return (
                self.api.get(plural, self.namespace, owner["name"])["metadata"]["uid"]
                == owner["uid"]
            )
        except kube_api.Refused as refused:
            if refused.code != 404:
                raise
            return False

    def _keep_job(self, job, pods):
        meta, spec = job["metadata"], job["spec"]
        names = [
            (t, f"{meta['name']}-{t['name']}-{i}")
            for t in spec["tasks"]
            for i in range(t["replicas"])
        ]
        phase = job.get("status", {}).get("state", {}).get("phase")
        if phase in ("Completed", "Failed", "Aborted", "Terminated"):
            return
        if phase is None:
            self._set_phase(job, "Pending")
        missing = [n for n in names if n[1] not in pods]
        if missing and phase == "Running":
            self._set_phase(job, "Terminated")  # its policy for evictions
            for _, name in names:
                if name in pods:
                    self._delete_pod(pods[name])
            return
        running = sum(p.get("status", {}).get("phase") == "Running" for p in pods.values())
        if missing and running + len(names) <= self.slots:  # all of minAvailable, or none
            for task, name in missing:
                self._make_pod(job, task, name)
            return
        self._keep_group(
            job, f"{len(missing)}/{len(names)} tasks in gang unschedulable" if missing else ""
        )
        phases = [pods[n].get("status", {}).get("phase") for _, n in names if n in pods]
        if phases.count("Succeeded") == len(names):
            self._set_phase(job, "Completed")
        elif "Failed" in phases:
            self._set_phase(job, "Failed")
        elif (
            phases.count("Running") + phases.count("Succeeded") == len(names) and phase != "Running"
        ):
            self._set_phase(job, "Running")

    # ---- Kubernetes' own scheduler ----

    def _schedule(self, gang, pods):
        """All pods of a PodGroup, or none."""
        meta, wanted = gang["metadata"], gang["spec"]["schedulingPolicy"]["gang"]["minCount"]
        mine = [
            p
            for p in pods.values()
            if any(o["uid"] == meta["uid"] for o in p["metadata"].get("ownerReferences", []))
        ]
        unbound = [p for p in mine if "nodeName" not in p["spec"]]
        running = sum(p.get("status", {}).get("phase") == "Running" for p in pods.values())
        if not unbound or len(mine) < wanted:
            return
        if running + len(mine) > self.slots:
            self._tell_scheduled(
                gang, "False", "Unschedulable", f"{len(unbound)} of {wanted} pods fit no node"
            )
            return
        for pod in unbound:
            self.api.bind(self.namespace, pod["metadata"]["name"], self._choose_node())
        self._tell_scheduled(gang, "True", "Scheduled", "all pods have nodes")

    def _tell_scheduled(self, gang, status, reason, message):
        told = gang.get("status", {}).get("conditions", [{}])[0]
        if (told.get("status"), told.get("message")) != (status, message):
            self._patch_status(
                "gangs",
                gang["metadata"]["name"],
                {
                    "conditions": [
                        {
                            "type": "PodGroupInitiallyScheduled",
                            "status": status,
                            "reason": reason,
                            "message": message,
                            "lastTransitionTime": now()[:19] + "Z",
                        }
                    ]
                },
            )

    # ---- Volcano ----

    def _keep_group(self, job, waits):
        name = job["metadata"]["name"]
        if name not in self.groups:
            self.groups[name] = None
            self.api.create(
                "podgroups",
                {
                    "apiVersion": "scheduling.volcano.sh/v1beta1",
                    "kind": "PodGroup",
                    "metadata": {
                        "name": f"{name}-group",
                        "namespace": self.namespace,
                        "labels": job["metadata"].get("labels", {}),
                        "ownerReferences": [
                            {
                                "apiVersion": "batch.volcano.sh/v1alpha1",
                                "kind": "Job",
                                "name": name,
                                "uid": job["metadata"]["uid"],
                                "controller": True,
                            }
                        ],
                    },
                    "spec": {
                        "minMember": job["spec"]["minAvailable"],
                        "queue": job["spec"].get("queue", "default"),
                    },
                },
            )
        if self.groups[name] != waits:
            self.groups[name] = waits
            self.api.patch(
                "podgroups",
                self.namespace,
                f"{name}-group",
                {
                    "status": {
                        "phase": "Inqueue" if waits else "Running",
                        "conditions": [
                            {
                                "type": "Unschedulable" if waits else "Scheduled",
                                "status": "True",
                                "transitionID": "t",
                                "reason": (
                                    "NotEnoughResources"
                                    if waits
                                    else "tasks in gang are ready to be scheduled"
                                ),
                                "message": waits,
                            }
                        ],
                    }
                },
                status=True,
            )

    def _set_phase(self, job, phase):
        self._patch_status("vcjobs", job["metadata"]["name"], {"state": {"phase": phase}})

    def _make_pod(self, job, task, name):
        meta, template = job["metadata"], task["template"]
        labels = {**template["metadata"].get("labels", {}), "volcano.sh/job-name": meta["name"]}
        self._create(
            "pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": self.namespace,
                    "labels": labels,
                    "annotations": {
                        **template["metadata"].get("annotations", {}),
                        "volcano.sh/task-spec": task["name"],
                        "volcano.sh/job-version": "0",
                        **self._devices(template["spec"]),
                    },
                    "ownerReferences": [
                        {
                            "apiVersion": job.get("apiVersion", "batch.volcano.sh/v1alpha1"),
                            "kind": "Job",
                            "name": meta["name"],
                            "uid": meta["uid"],
                            "controller": True,
                        }
                    ],
                },
                "spec": {**template["spec"], "nodeName": self._choose_node()},
            },
        )

    def _choose_node(self):
        alive = [n for n in self.nodes if n not in self.dead]
        self.placed += 1
        return alive[self.placed % len(alive)]

    def _devices(self, spec):
        """What Ascend's device plugin records."""
        count = sum(
            int(c["resources"].get("limits", {}).get("huawei.com/Ascend910", 0))
            for c in spec["containers"]
        )
        first, self.devices = self.devices, self.devices + count
        if count == 0:
            return {}
        return {
            "ascend.kubectl.kubernetes.io/ascend-910-configuration": json.dumps(
                {
                    "server_id": "10.0.0.1",
                    "devices": [
                        {"device_id": str(d), "device_ip": f"192.168.0.{d + 1}"}
                        for d in range(first, first + count)
                    ],
                }
            )
        }

    def _delete_pod(self, pod):
        if pod["spec"].get("nodeName") in self.dead:  # no kubelet there reports its end
            if "deletionTimestamp" not in pod["metadata"]:
                self.api.delete("pods", self.namespace, pod["metadata"]["name"], grace=30)
            return
        started = self.pods.pop(pod["metadata"]["uid"], None)
        if started is not None:
            self._stop(started)
        self._delete("pods", pod)

    # ---- what a test does ----

    def tell_scope(self, scope):
        """What Node Feature Discovery publishes about the kubelet of `node`; removed with the
        test."""
        said = {
            "attributes": [
                {"name": "topologyManagerPolicy", "value": "best-effort"},
                {"name": "topologyManagerScope", "value": scope},
            ]
        }
        if self.has_topology:
            self.api.patch("noderesourcetopologies", None, self.node, said)
        else:
            self.api.create(
                "noderesourcetopologies",
                {
                    "apiVersion": "topology.node.k8s.io/v1alpha2",
                    "kind": "NodeResourceTopology",
                    "metadata": {"name": self.node},
                    "zones": [{"name": "node-0", "type": "Node"}],
                    **said,
                },
            )
        self.has_topology = True

    def evict(self, pod):
        """Evicts, as the kubelet does under pressure."""
        with self.lock:
            uid = self.api.get("pods", self.namespace, pod)["metadata"]["uid"]
            self._stop(self.pods[uid])
            self._patch_status(
                "pods",
                pod,
                {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
            )
            del self.pods[uid]

    def join(self, *nodes):
        """The nodes that Kubernetes knows, for pods created from now on."""
        self.nodes = list(nodes)
        for node in nodes:
            self.api.create(
                "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
            )
            self._set_ready(node, "True", "kubelet is posting ready status")

    def _set_ready(self, node, status, message):
        self.api.patch(
            "nodes",
            None,
            node,
            {
                "status": {
                    "conditions": [
                        {
                            "type": "MemoryPressure",
                            "status": "Unknown" if status == "Unknown" else "False",
                        },
                        {
                            "type": "Ready",
                            "status": status,
                            "reason": "KubeletReady",
                            "message": message,
                        },
                    ]
                }
            },
            status=True,
        )

    def lose(self, *nodes):
        """Their kubelets are gone, with everything that ran there."""
        with self.lock:
            self.dead |= set(nodes)
            for pod in self.mirrors["pods"].all().values():
                known = self.pods.get(pod["metadata"]["uid"])
                if pod["spec"]["nodeName"] in nodes and known is not None:
                    self._stop(self.pods.pop(pod["metadata"]["uid"]))
        for node in nodes:
            self._set_ready(node, "Unknown", "Kubelet stopped posting node status.")


class Server(kube_api.Server):
    """The scripted API server with logs; `volcano` has them."""

    volcano = None
    swallow_posts = 0  # so many objects are created and the answer is lost
    is_old = False  # its Volcano does not know network topology, and drops it
    posted = None

    def handle(self, h):
        if LOG.match(urllib.parse.urlsplit(h.path).path) and h.command == "GET":
            code, data = self.volcano.log(h.path)
            h.send_response(code)
            h.send_header("Content-Length", str(len(data)))
            h.end_headers()
            h.wfile.write(data)
            return
        super().handle(h)

    def put(self, plural, obj):
        if plural == "vcjobs" and self.is_old:
            obj["spec"].pop("networkTopology", None)
        return super().put(plural, obj)

    def _send(self, h, code, doc, retry_after=0):
        kind = h.path.split("?")[0].rsplit("/", 1)[-1]
        if h.command == "POST" and code < 300 and self.swallow_posts > 0 and kind == "jobs":
            with self.lock:
                self.swallow_posts -= 1
            h.close_connection = True
            h.connection.shutdown(2)
            return
        kube_api.Server._send(h, code, doc, retry_after)


class TlsServer:
    """Answers over TLS on a port of its own. `pair`: certificate and key; `answer`: maps (path,
    body) to (code, bytes)."""

    def __init__(self, pair, answer):
        import ssl  # pylint: disable=import-outside-toplevel

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                code, data = answer(self.path, body)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_any

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(STEP_S,), daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class Kubelet(TlsServer):
    """Serves logs, as a real API server asks for them."""

    def __init__(self, volcano, pair):
        super().__init__(pair, lambda path, _: volcano.log(path))


class Webhook(TlsServer):
    """Admits no request."""

    def __init__(self, pair, why, code):
        def review(_, body):
            request = json.loads(body)["request"]
            return (
                200,
                json.dumps(
                    {
                        "apiVersion": "admission.k8s.io/v1",
                        "kind": "AdmissionReview",
                        "response": {
                            "uid": request["uid"],
                            "allowed": False,
                            "status": {"message": why, "code": code},
                        },
                    }
                ).encode(),
            )

        super().__init__(pair, review)

"""An API server for tests, in this process: lists in pages, watches, merge patches with optimistic
concurrency, and the faults that can happen. A real server runs the same scenarios through
`Client`."""
from __future__ import annotations

import collections
import http.client
import http.server
import json
import marshal
import select
import threading
import time
import urllib.parse

PLURALS = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "events": "/api/v1",
    "nodes": "/api/v1",
    "podgroups": "/apis/scheduling.volcano.sh/v1beta1",
    "leases": "/apis/coordination.k8s.io/v1",
    "gangs": "/apis/scheduling.k8s.io/v1alpha3",
    "vcjobs": "/apis/batch.volcano.sh/v1alpha1",
    "jobs": "/apis/batch/v1",
    "deployments": "/apis/apps/v1",
    "noderesourcetopologies": "/apis/topology.node.k8s.io/v1alpha2",
}
CALLED = {"vcjobs": "jobs", "gangs": "podgroups"}  # where two groups have a kind of the same name
STEP_S = 0.02
FIRST = 100  # version of an empty server

PROTOBUF = "application/vnd.kubernetes.protobuf"


def path_of(plural, namespace=None, name=None):
    out = PLURALS[plural]
    if namespace is not None:
        out += f"/namespaces/{namespace}"
    out += f"/{CALLED.get(plural, plural)}"
    return out if name is None else f"{out}/{name}"


def clone(obj):
    """Like copy.deepcopy for JSON values, in a tenth of its time."""
    return marshal.loads(marshal.dumps(obj))


def merge(into, patch):
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class Refused(Exception):
    def __init__(self, code, reason, message="", retry_after=0):
        super().__init__(message)
        self.code, self.reason, self.message, self.retry_after = code, reason, message, retry_after

    def status(self):
        out = {
            "kind": "Status",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }
        if self.retry_after:
            out["details"] = {"retryAfterSeconds": self.retry_after}
        return out


class Server:
    """`with Server() as s:` serves on s.port. Knobs are plain attributes."""

    def __init__(self):
        self.lock = threading.RLock()
        # one per plural
        self.news = collections.defaultdict(lambda: threading.Condition(self.lock))
        self.objects = {}  # (plural, namespace, name) -> object
        # (version, plural, before, after, time), one for every version from FIRST
        self.history = []
        self.version = FIRST
        self.oldest = 0  # older versions are forgotten
        self.uids = 0
        self.cut = 0  # bytes of one piece of a watch; 0 = whole lines
        self.bookmark_s = 1.0
        self.window_s = 1e9  # watches end sooner than requested
        self.absent = set()  # plurals that are not known
        self.refusals = []  # [plural, verb, how often, Refused]
        self.quotas = {}  # plural -> objects that there may be; more are not created
        self.swallow = 0  # so many patches of ConfigMaps are carried out without an answer
        self.slow_answers = 0  # so many of them are carried out, and answered when `release` is set
        self.release = threading.Event()
        self.late = {}  # plural -> delay of its watches in seconds
        self.sent = {}  # plural -> the newest version that a watch sent
        self.page = 500  # objects in a page of a list, at most
        self.between_pages = None  # called before every page but the first
        self.bulk = {}  # plural -> bytes of padding in every object
        self.stale_lists = 0  # so many lists show the state before the last change
        # (verb, plural, name) of requests whose sender identifies itself: Helios' programs
        self.requests = []
        self.patched = []  # (name, text) of every accepted patch of a ConfigMap
        self.generation = 0  # a change ends the watches of before
        self.silent = False  # watches are not answered
        self.nonsense = b""  # what a watch that accepts Protocol Buffers gets instead
        self.amnesia = False  # every version that a watch asks for is too old
        self.open = set()

    # ---- what is stored ----

    def _note(self, plural, before, after):
        self.version += 1
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
        else:
            before = clone(before)
            before["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, plural, before, after, time.monotonic()))
        self.news[plural].notify_all()

    def _end_watches(self):
        self.generation += 1
        for news in self.news.values():
            news.notify_all()

    def put(self, plural, obj):
        """Create or replace, whatever the version."""
        with self.lock:
            meta = obj["metadata"]
            key = (plural, meta.get("namespace"), meta["name"])
            before = self.objects.get(key)
            self.uids += 1
            meta.setdefault("uid", f"uid-{self.uids}")
            meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            if before is None and plural in self.bulk:
                meta.setdefault("annotations", {})["padding"] = "x" * self.bulk[plural]
            obj = clone(obj)
            self.objects[key] = obj
            self._note(plural, before, obj)
            return clone(obj)

    def patch(self, plural, namespace, name, patch):
        with self.lock:
            key = (plural, namespace, name)
            if key not in self.objects:
                raise Refused(404, "NotFound", f"{plural} {name} not found")
            before = self.objects[key]
            wanted = patch.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "the object has been modified")
            after = clone(before)
            merge(after, patch)
            self.objects[key] = after
            self._note(plural, before, after)
            if plural == "configmaps":
                self.patched.append((name, after["data"].get("hccl.json")))
            return clone(after)

    def delete(self, plural, namespace, name, grace=0):
        """A pod on a node stays until its kubelet reports its end, unless the grace is 0."""
        with self.lock:
            there = self.objects.get((plural, namespace, name), {})
            if plural == "pods" and grace > 0 and "nodeName" in there.get("spec", {}):
                self.patch(
                    plural,
                    namespace,
                    name,
                    {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
                )
                return
            before = self.objects.pop((plural, namespace, name), None)
            if before is None:
                raise Refused(404, "NotFound")
            self._note(plural, before, None)

    def get(self, plural, namespace, name):
        with self.lock:
            if (plural, namespace, name) not in self.objects:
                raise Refused(404, "NotFound")
            return clone(self.objects[plural, namespace, name])

    def forget(self):
        """All versions before this one are too old; watches end."""
        with self.lock:
            self.oldest = self.version
            self._end_watches()

    def cut_watches(self):
        with self.lock:
            self._end_watches()

    def kubeconfig(self, path, **cluster):
        """Any token is accepted."""
        path.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {"server": f"http://127.0.0.1:{self.port}", **cluster},
                        }
                    ],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            ),
            encoding="utf-8",
        )
        return path

    # ---- serving ----

    def __enter__(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_any(self):
                server.handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

        class Http(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def process_request(self, request, address):
                server.open.add(request)
                super().process_request(request, address)

            def handle_error(self, *_):
                pass  # clients that disconnect

        self.http = Http(("127.0.0.1", getattr(self, "port", 0)), Handler)
        self.port = self.http.server_port
        self.thread = threading.Thread(target=self.http.serve_forever, args=(STEP_S,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        """As if killed: connections break."""
        self.http.shutdown()
        self.http.server_close()
        for s in list(self.open):
            try:
                s.shutdown(2)
            except OSError:
                pass
        self.open.clear()
        self.cut_watches()

    def _resources(self, base):
        """What discovery answers for a group's version."""
        names = [
            CALLED.get(p, p) for p, of in PLURALS.items() if of == base and p not in self.absent
        ]
        if not names:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return {
            "kind": "APIResourceList",
            "groupVersion": base.split("/", 2)[2],
            "resources": [{"name": n} for n in names],
        }

    def _parse(self, path):
        for plural, base in PLURALS.items():
            if not path.startswith(base + "/"):
                continue
            rest = path[len(base) + 1 :].split("/")
            namespace = None
            if rest[0] == "namespaces" and len(rest) > 2:
                namespace, rest = rest[1], rest[2:]
            if rest[0] == CALLED.get(plural, plural):
                return plural, namespace, rest[1] if len(rest) > 1 else None
        raise Refused(404, "NotFound", path)

    def handle(self, h):
        url = urllib.parse.urlsplit(h.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        length = int(h.headers.get("content-length") or 0)
        body = json.loads(h.rfile.read(length)) if length else None
        try:
            if url.path in PLURALS.values():
                self._send(h, 200, self._resources(url.path))
                return
            plural, namespace, name = self._parse(url.path)
            verb = (
                "WATCH"
                if "watch" in query
                else "LIST"
                if h.command == "GET" and name is None
                else h.command
            )
            query["ours"] = (h.headers.get("user-agent") or "").startswith("helios/")
            if query["ours"]:
                with self.lock:
                    self.requests.append((verb, plural, name))
            self._refuse(plural, verb)
            if verb == "POST" and name is None:
                self._check_quota(plural, body["metadata"].get("name", ""))
            if verb == "WATCH":
                self._watch(h, plural, {**query, "namespace": namespace})
                return
            answer = self._answer(
                verb, plural, namespace, name, {**query, "namespace": namespace}, body, h
            )
        except Refused as r:
            self._send(h, r.code, r.status(), r.retry_after)
            return
        with self.lock:
            swallowed = verb == "PATCH" and plural == "configmaps" and self.swallow > 0
            self.swallow -= swallowed
            slow = verb == "PATCH" and plural == "configmaps" and self.slow_answers > 0
            self.slow_answers -= slow
        if slow:
            self.release.wait(60)
        if swallowed:
            h.close_connection = True
            h.connection.shutdown(2)
            return
        self._send(h, 200, self._as_asked(h, answer))

    @staticmethod
    def _as_asked(h, obj):
        if (
            "as=PartialObjectMetadata" not in (h.headers.get("accept") or "")
            or "metadata" not in obj
        ):
            return obj
        return {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": obj["metadata"],
        }

    def _refuse(self, plural, verb):
        with self.lock:
            if plural in self.absent:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            for r in self.refusals:
                if r[0] == plural and r[1] == verb and r[2] > 0:
                    r[2] -= 1
                    raise r[3]

    def _check_quota(self, plural, name):
        with self.lock:
            used, most = sum(key[0] == plural for key in self.objects), self.quotas.get(plural)
            if most is not None and used >= most:
                raise Refused(
                    403,
                    "Forbidden",
                    (
                        f'{plural} "{name}" is forbidden: exceeded quota: team, requested: '
                        f'{plural}=1, used: {plural}={used}, limited: {plural}={most}'
                    ),
                )

    @staticmethod
    def _send(h, code, doc, retry_after=0):
        data = json.dumps(doc).encode()
        h.send_response(code)
        h.send_header("Content-Type", "application/json")
        h.send_header("Content-Length", str(len(data)))
        if retry_after:
            h.send_header("Retry-After", str(retry_after))
        h.end_headers()
        h.wfile.write(data)

    def _answer(self, verb, plural, namespace, name, query, body, h):
        if verb == "LIST":
            return self._list(plural, query)
        if verb == "GET":
            return self.get(plural, namespace, name)
        if verb == "POST" and name is not None:  # a binding
            return self.patch(
                plural, namespace, name, {"spec": {"nodeName": body["target"]["name"]}}
            )
        if verb == "POST":
            meta = body["metadata"]
            if namespace is not None:
                meta.setdefault("namespace", namespace)
            with self.lock:
                meta.setdefault("name", f"{meta.get('generateName', 'x')}{self.version}")
                if (plural, namespace, meta["name"]) in self.objects:
                    raise Refused(409, "AlreadyExists")
                return self.put(plural, body)
        if verb == "PATCH":
            if h.headers.get("content-type") != "application/merge-patch+json":
                raise Refused(415, "UnsupportedMediaType")
            return self.patch(plural, namespace, name, body)
        if verb == "PUT":
            with self.lock:
                old = self.get(plural, namespace, name)
                if body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                    raise Refused(409, "Conflict")
                body["metadata"]["uid"] = old["metadata"]["uid"]
                return self.put(plural, body)
        self.delete(plural, namespace, name, (body or {}).get("gracePeriodSeconds", 30))
        return {"kind": "Status", "status": "Success"}

    @staticmethod
    def _matches(obj, selector):
        selector, namespace = selector
        if obj is None or namespace not in (None, obj["metadata"].get("namespace")):
            return False
        labels = obj["metadata"].get("labels", {})
        return all(
            labels.get(k) == v for k, _, v in (s.partition("=") for s in selector.split(",") if s)
        )

    def _list(self, plural, query):
        selector, limit = (query.get("labelSelector", ""), query["namespace"]), min(
            self.page, int(query.get("limit", 500))
        )
        with self.lock:
            if "continue" in query and query["ours"] and self.between_pages is not None:
                self.between_pages()
            version, objects = self.version, dict(self.objects)
            if self.stale_lists > 0 and self.history:
                self.stale_lists -= 1
                last, last_plural, before, after, _ = self.history[-1]
                version = last - 1
                meta = (after or before)["metadata"]
                key = (last_plural, meta.get("namespace"), meta["name"])
                if before is None:
                    objects.pop(key, None)
                else:
                    objects[key] = before
            found = sorted(
                (k, v) for k, v in objects.items() if k[0] == plural and self._matches(v, selector)
            )
            at = int(query.get("continue", "0/").split("/")[0])
            if at and int(query["continue"].split("/")[1]) < self.oldest:
                raise Refused(410, "Expired", "the continue token is too old")
            more = {"continue": f"{at + limit}/{version}"} if at + limit < len(found) else {}
            # stored objects are never changed in place
            return {
                "metadata": {"resourceVersion": str(version), **more},
                "items": [v for _, v in found[at : at + limit]],
            }

    def _watch(self, h, plural, query):
        selector, at = (query.get("labelSelector", ""), query["namespace"]), int(
            query["resourceVersion"]
        )
        until = time.monotonic() + min(float(query.get("timeoutSeconds", 300)), self.window_s)
        while self.silent:
            time.sleep(STEP_S)
        nonsense = self.nonsense if PROTOBUF in h.headers.get("Accept", "") else b""
        h.send_response(200)
        h.send_header(
            "Content-Type", f"{PROTOBUF};stream=watch" if nonsense else "application/json"
        )
        h.send_header("Transfer-Encoding", "chunked")
        h.end_headers()
        if nonsense:
            self._piece(h, nonsense)
        with self.lock:
            generation = self.generation
            if at < self.oldest or self.amnesia:
                self._chunk(
                    h, {"type": "ERROR", "object": Refused(410, "Expired", "too old").status()}
                )
                until = 0
        bookmark = time.monotonic() + self.bookmark_s
        while time.monotonic() < until:
            with self.lock:
                happened = time.monotonic() - self.late.get(plural, 0)
                news = [
                    e
                    for e in self.history[max(at - FIRST, 0) :]
                    if e[1] == plural and e[4] <= happened
                ]
                if not news and generation == self.generation:
                    self.news[plural].wait(
                        STEP_S * 5
                        if plural in self.late
                        else min(until, bookmark) - time.monotonic()
                    )
                if generation != self.generation:
                    h.close_connection = True
                    h.connection.shutdown(2)  # in the middle, without an end
                    return
            for version, _, before, after, _ in news:
                was, is_now = self._matches(before, selector), self._matches(after, selector)
                kind = "MODIFIED" if was and is_now else "ADDED" if is_now else "DELETED"
                if was or is_now:
                    self._chunk(
                        h,
                        {
                            "type": kind,
                            "object": self._as_asked(h, after if after is not None else before),
                        },
                    )
                at = self.sent[plural] = version
            if time.monotonic() > bookmark:
                bookmark += self.bookmark_s
                self._chunk(
                    h, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(at)}}}
                )
        h.wfile.write(b"0\r\n\r\n")

    def _chunk(self, h, event):
        line = json.dumps(event).encode() + b"\n"
        step = self.cut or len(line)
        for i in range(0, len(line), step):
            self._piece(h, line[i : i + step])

    @staticmethod
    def _piece(h, piece):
        h.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        h.wfile.flush()


class Client:
    """What a test does at any API server, over HTTP. `keep`: each thread keeps its connection; with
    TLS a new one costs both ends more than the request."""

    def __init__(self, connect, token=None, keep=False):
        self.connect, self.token, self.keep, self.own = connect, token, keep, threading.local()
        self.all = set()  # kept connections, also of threads that have ended

    def _take(self):
        kept, self.own.kept = getattr(self.own, "kept", None), None
        self.all.discard(kept)
        return kept

    def connection(self):
        kept = self._take()
        if kept is not None and not select.select([kept.sock], [], [], 0)[0]:
            return kept
        if kept is not None:  # its server has closed it
            kept.close()
        return self.connect()

    def close(self):
        """This thread's connection."""
        kept = self._take()
        if kept is not None:
            kept.close()

    def close_all(self):
        """Call it when no thread has a request any more."""
        while self.all:
            self.all.pop().close()

    def text(self, verb, path, text=None, kind="application/json"):
        c = self.connection()
        headers = {"Content-Type": kind}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            c.request(verb, path, text, headers)
            r = c.getresponse()
            answer = r.read()
            if self.keep and not r.will_close:
                self.own.kept, c = c, None
                self.all.add(self.own.kept)
        finally:
            if c is not None:
                c.close()
        if r.status >= 300:
            try:
                doc = json.loads(answer)
            except ValueError:
                doc = {}
            raise Refused(
                r.status,
                doc.get("reason", ""),
                f"{verb} {path}: {doc.get('message', answer[:300])}",
            )
        return answer

    def call(self, verb, path, body=None, kind="application/json"):
        return json.loads(
            self.text(verb, path, json.dumps(body) if body is not None else None, kind) or b"null"
        )

    def create(self, plural, obj):
        return self.call("POST", path_of(plural, obj["metadata"].get("namespace")), obj)

    def patch(self, plural, namespace, name, patch, status=False):
        path = path_of(plural, namespace, name) + ("/status" if status else "")
        return self.call("PATCH", path, patch, "application/merge-patch+json")

    def bind(self, namespace, pod, node):
        """Binds the pod, as a scheduler does."""
        return self.call(
            "POST",
            path_of("pods", namespace, pod) + "/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod},
                "target": {"kind": "Node", "name": node},
            },
        )

    def get(self, plural, namespace, name):
        return self.call("GET", path_of(plural, namespace, name))

    def list(self, plural, namespace):
        items, more = [], ""
        while True:
            page = self.call(
                "GET",
                path_of(plural, namespace)
                + (f"?continue={urllib.parse.quote(more)}" if more else ""),
            )
            items += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return items

    def has(self, plural, namespace, selector):
        """Whether there is one with these labels; the server sends at most one."""
        query = f"?limit=1&labelSelector={urllib.parse.quote(selector)}"
        return bool(self.call("GET", path_of(plural, namespace) + query)["items"])

    def delete(self, plural, namespace, name, grace=0):
        return self.call(
            "DELETE",
            path_of(plural, namespace, name),
            {
                "kind": "DeleteOptions",
                "apiVersion": "v1",
                "gracePeriodSeconds": grace,
                "propagationPolicy": "Background",
            },
        )


def client_of(server):
    return Client(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=10))

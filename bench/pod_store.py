"""Writes pods directly into etcd, in the form in which kube-apiserver stores them.

The server reports every change in etcd to its watches, whichever client made it. A request that
changes a pod costs the server six times as much as reporting the change, so on a small machine
requests would limit how many events a watch can deliver."""
import base64
import http.client
import itertools
import json
import time
import uuid

PATH = "/registry/pods/{}/{}"
MAGIC = b"k8s\0"
# Numbers of fields in k8s.io.api.core.v1.Pod, in what is in it, and in the Unknown around it.
RAW = 2
METADATA, SPEC, STATUS = 1, 2, 3
NAME, NAMESPACE, UID, CREATED, LABELS, ANNOTATIONS, OWNERS = 1, 3, 5, 8, 11, 12, 13
PHASE = 1


def varint(n):
    out = b""
    while n >= 0x80:
        out, n = out + bytes((n & 0x7F | 0x80,)), n >> 7
    return out + bytes((n,))


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def entries(number, texts):
    return b"".join(field(number, field(1, key) + field(2, value)) for key, value in texts.items())


def take_varint(data, at):
    value = 0
    for shift in itertools.count(0, 7):
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """[(number, bytes or a number)]; other kinds are in no pod."""
    out, at = [], 0
    while at < len(data):
        key, at = take_varint(data, at)
        value, at = take_varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        elif key & 7 != 0:
            raise AssertionError(f"kind {key & 7} of a field")
        out.append((key >> 3, value))
    return out


class PodStore:
    """Changes are gathered until flush(), or there are `most`: one transaction of etcd."""

    def __init__(self, port, most=100):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.most, self.waiting, self.uids, self.rest = most, {}, {}, {}

    def call(self, what, request):
        self.connection.request(
            "POST", f"/v3/kv/{what}", json.dumps(request), {"Content-Type": "application/json"}
        )
        r = self.connection.getresponse()
        answer = r.read()
        if r.status != 200:
            raise AssertionError(f"etcd: {r.status} {answer[:300]}")
        return json.loads(answer)

    def learn(self, namespace, name):
        """What all pods have in common, of one that the server has written."""
        key = base64.b64encode(PATH.format(namespace, name).encode()).decode()
        value = base64.b64decode(self.call("range", {"key": key})["kvs"][0]["value"])
        if value[: len(MAGIC)] != MAGIC:
            raise AssertionError("the server does not store Protocol Buffers")
        unknown = fields(value[len(MAGIC) :])
        pod = fields(dict(unknown)[RAW])
        self.rest = {
            "unknown": b"".join(field(n, v) for n, v in unknown if n != RAW),
            "spec": field(SPEC, dict(pod)[SPEC]),
            "status": b"".join(field(n, v) for n, v in fields(dict(pod)[STATUS]) if n != PHASE),
            "owner": [
                (n, v)
                for n, v in fields(dict(fields(dict(pod)[METADATA]))[OWNERS])
                if n not in (3, 4)
            ],
        }

    def put(self, pod, job, is_new):
        """`pod`: its metadata and phase as JSON would say them; `job` owns it."""
        meta = pod["metadata"]
        key = PATH.format(meta["namespace"], meta["name"])
        if is_new:
            self.uids[key] = str(uuid.uuid4()), int(time.time())
        uid, born = self.uids[key]
        owner = (
            b"".join(field(n, v) for n, v in self.rest["owner"])
            + field(3, job["metadata"]["name"])
            + field(4, job["metadata"]["uid"])
        )
        data = field(
            METADATA,
            field(NAME, meta["name"])
            + field(NAMESPACE, meta["namespace"])
            + field(UID, uid)
            + field(CREATED, field(1, born))
            + entries(LABELS, meta["labels"])
            + entries(ANNOTATIONS, meta["annotations"])
            + field(OWNERS, owner),
        )
        data += self.rest["spec"] + field(
            STATUS, field(PHASE, pod["status"]["phase"]) + self.rest["status"]
        )
        self.add(
            key,
            {
                "requestPut": {
                    "value": base64.b64encode(
                        MAGIC + self.rest["unknown"] + field(RAW, data)
                    ).decode()
                }
            },
        )

    def delete(self, namespace, name):
        self.add(PATH.format(namespace, name), {"requestDeleteRange": {}})

    def add(self, key, request):
        if key in self.waiting or len(self.waiting) == self.most:
            self.flush()
        next(iter(request.values()))["key"] = base64.b64encode(key.encode()).decode()
        self.waiting[key] = request

    def flush(self):
        if self.waiting:
            self.call("txn", {"success": list(self.waiting.values())})
        self.waiting = {}

"""What a kubelet does for gangs: pods whose containers are processes of this machine, with the
environment, the expansion of $(NAME) and the ConfigMap that a kubelet would give them."""
from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

TELL_S = 0.4  # a kubelet does not report each container of a pod that succeeds separately
LOG = re.compile(
    r"^/api/v1/namespaces/[^/]+/pods/(?P<pod>[^/]+)/log$"
    r"|^/containerLogs/[^/]+/(?P<kpod>[^/]+)/(?P<name>[^/]+)$"
)


def now():
    return (
        datetime.datetime.now(datetime.timezone.utc)
        .strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        .replace("Z", "000Z")
    )


def expand(text, env):
    """Kubernetes' rule: $$ is a $, $(NAME) the variable if there is one, anything else itself."""

    def one(match):
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", one, text)


class Container:
    """One process; its output as lines with arrival times. There is no mount namespace: words of
    the command that are paths in the container become paths in the pod's directory. `ended` is
    called in a thread of its own.
    """

    def __init__(self, spec, env, directory, pod_dir, ended):
        self.name, self.ended = spec["name"], ended
        self.lines = []
        self.killed = False
        self.last_words = pod_dir / f"last-words-{self.name}"
        here = {
            m["mountPath"]: str(pod_dir) for m in spec.get("volumeMounts", []) if m["name"] == "shm"
        }
        here[spec.get("terminationMessagePath", "/dev/termination-log")] = str(self.last_words)
        words = [here.get(w, expand(w, env)) for w in spec.get("command", [])]
        self.process = subprocess.Popen(
            words,
            env={"PATH": os.environ["PATH"], **env},
            cwd=spec.get("workingDir", pod_dir),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.directory = directory

    def _read(self):
        with self.process.stdout as out:
            for line in out:
                self.lines.append((now(), line.decode(errors="replace").rstrip("\n")))
        self.process.wait()
        self.ended()

    def state(self):
        code = self.process.poll()
        if code is None:
            return {"running": {"startedAt": now()}}
        self.reader.join()
        said = {"message": self.last_words.read_text()} if self.last_words.exists() else {}
        return {
            "terminated": {
                "exitCode": code if code >= 0 else 128 - code,
                "reason": "Completed" if code == 0 else "Error",
                **said,
            }
        }

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()


class Pods:
    """The pods of Volcano, for which this is a mixin."""

    def _env(self, spec, pod, dirs):
        env = dict(self.image_env)
        for source in spec.get("envFrom", []):
            if "configMapRef" in source:
                env.update(self.data[source["configMapRef"]["name"]])
        for var in spec.get("env", []):
            if "secretKeyRef" in var.get("valueFrom", {}):
                value = "secret"
            elif "value" in var:
                value = expand(var["value"], env)
            else:
                value = {
                    "spec.nodeName": pod["spec"]["nodeName"],
                    "metadata.name": pod["metadata"]["name"],
                    "status.podIP": "127.0.0.1",
                }[var["valueFrom"]["fieldRef"]["fieldPath"]]
            env[var["name"]] = value
        for mount in spec.get("volumeMounts", []):  # replaces a mount namespace
            for name, value in env.items():
                if mount["name"] in dirs and value.startswith(mount["mountPath"] + "/"):
                    env[name] = f"{dirs[mount['name']]}{value[len(mount['mountPath']):]}"
        return env

    def _tell_missing_image(self, pod):
        meta, spec = pod["metadata"], pod["spec"]
        self._patch_status(
            "pods",
            meta["name"],
            {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "name": c["name"],
                        "ready": False,
                        "restartCount": 0,
                        "image": c["image"],
                        "imageID": "",
                        "state": {
                            "waiting": {
                                "reason": "ImagePullBackOff",
                                "message": f"Back-off pulling image {c['image']}",
                            }
                        },
                    }
                    for c in spec["containers"]
                ],
            },
        )

    def _tell_states(self, name, phase, containers, states):
        self._patch_status(
            "pods",
            name,
            {
                "phase": phase,
                "podIP": "127.0.0.1",
                "containerStatuses": [
                    {
                        "name": c.name,
                        "state": s,
                        "ready": "running" in s,
                        "restartCount": 0,
                        "image": "i",
                        "imageID": "i",
                    }
                    for c, s in zip(containers, states)
                ],
            },
        )

    def _keep_pod(self, pod):
        meta, spec = pod["metadata"], pod["spec"]
        known = self.pods.get(meta["uid"])
        if (
            "nodeName" not in spec
            or spec["nodeName"] in self.dead
            or (known is not None and known["over"])
        ):
            return
        if known is not None and not known["news"].is_set():
            self._write_maps(known)
            return
        if known is None and (
            pod.get("status", {}).get("phase", "Pending") != "Pending" or not self._has_maps(spec)
        ):
            return
        if known is None and self.missing_images:
            if "containerStatuses" not in pod.get("status", {}):
                self._tell_missing_image(pod)
            return
        if known is None:
            known = self._start(pod)
        known["news"].clear()
        states = [c.state() for c in known["containers"]]
        if any("running" in s for s in states):
            self._write_maps(known)
        codes = [s["terminated"]["exitCode"] for s in states if "terminated" in s]
        ended = len(codes) == len(states)
        phase = "Running" if not ended else "Failed" if any(codes) else "Succeeded"
        told = [
            (c.name, "terminated" in s and s["terminated"]["exitCode"])
            for c, s in zip(known["containers"], states)
        ]
        if (
            phase == "Running"
            and known["told"] is not None
            and not any(codes)
            and time.monotonic() < known["told_s"] + TELL_S
        ):
            known["news"].set()  # reported together with what ends meanwhile
        elif known["told"] != (phase, told):
            known["news"].set()  # until it is reported
            self._tell_states(meta["name"], phase, known["containers"], states)
            known["told"], known["over"], known["told_s"] = (phase, told), ended, time.monotonic()
        assert len(spec["containers"]) == len(states)

    def _has_maps(self, spec):
        """A kubelet starts nothing before these exist."""
        names = [v["configMap"]["name"] for v in spec.get("volumes", []) if "configMap" in v]
        names += [
            e["configMapRef"]["name"]
            for c in spec["containers"]
            for e in c.get("envFrom", [])
            if "configMapRef" in e
        ]
        return all(name in self.data for name in names)

    def _start(self, pod):
        directory = tempfile.TemporaryDirectory(prefix="helios-pod-")
        root = pathlib.Path(directory.name)
        maps, dirs = {}, {}
        for volume in pod["spec"].get("volumes", []):
            if "configMap" in volume:
                dirs[volume["name"]] = root / volume["name"]
                dirs[volume["name"]].mkdir()
                maps[volume["configMap"]["name"]] = dirs[volume["name"]]
        known = {
            "name": pod["metadata"]["name"],
            "dir": directory,
            "maps": maps,
            "containers": [],
            "told": None,
            "over": False,
            "written": {},
            "news": threading.Event(),
        }
        known["news"].set()

        def ended():
            known["news"].set()
            self.news.set()

        self._write_maps(known)
        for spec in pod["spec"]["containers"]:
            container = Container(spec, self._env(spec, pod, dirs), directory, root, ended)
            known["containers"].append(container)
            self.logs[known["name"], container.name] = container
        self.pods[pod["metadata"]["uid"]] = known
        return known

    def _write_maps(self, known):
        for name, folder in known["maps"].items():
            data = self.data.get(name, {})
            if known["written"].get(name) is data:
                continue
            known["written"][name] = data
            for key, text in data.items():
                (folder / f".{key}").write_text(text, encoding="utf-8")
                os.replace(folder / f".{key}", folder / key)

    def _stop(self, known):
        for container in known["containers"]:
            container.kill()
        known["dir"].cleanup()

    def log(self, path):
        """Answer to a request for a log: (code, bytes). The kubelet's own path or the API
        server's."""
        url = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(url.query))
        match = LOG.match(url.path)
        name = query.get("container", match["name"])
        container = self.logs.get((match["pod"] or match["kpod"], name))
        if container is None:
            return (
                400,
                json.dumps(
                    {"code": 400, "reason": "BadRequest", "message": f"{name} is waiting to start"}
                ).encode(),
            )
        since = query.get("sinceTime", "")[:19]
        lines = [(stamp, text) for stamp, text in list(container.lines) if stamp[:19] >= since]
        stamps = query.get("timestamps") == "true"
        data = "".join(
            f"{stamp} {text}\n" if stamps else f"{text}\n" for stamp, text in lines
        ).encode()
        return 200, data[: int(query.get("limitBytes", 1 << 30))]

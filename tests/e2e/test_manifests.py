"""The manifests of deploy/k8s render as with kubectl, and the programs accept their flags. That an
API server accepts them is tested in tests/k8s/test_ranktable.py."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True
from support import kube_api, kustomize  # noqa: E402
from support.cluster import BUILD, ROOT, wait_for  # noqa: E402
from support.ports import free_port  # noqa: E402

OVERLAYS = sorted((ROOT / "deploy" / "k8s" / "overlays").iterdir())
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")


def old_kubectl():
    """Why it can't render our manifests; "" = it can."""
    if shutil.which("kubectl") is None:
        return "kubectl is not installed"
    done = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    version = re.search(r'"minor": "(\d+)', done.stdout)
    return (
        ""
        if version and int(version[1]) >= 21
        else "kubectl is older than 1.21, whose kustomize has no components"
    )


def workloads():
    for overlay in OVERLAYS:
        for o in kustomize.render(overlay):
            if o["kind"] in WORKLOADS:
                yield f"{overlay.name}: {o['metadata']['name']}", o["spec"]["template"]["spec"]


class Manifests(unittest.TestCase):
    maxDiff = None

    @unittest.skipIf(old_kubectl(), old_kubectl())
    def test_kubectl_renders_the_same(self):
        for overlay in OVERLAYS:
            done = subprocess.run(
                ["kubectl", "kustomize", overlay],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            theirs = [o for o in kustomize.yaml.safe_load_all(done.stdout) if o]
            by_key = {kustomize.key_of(o): o for o in theirs}
            self.assertEqual(
                {kustomize.key_of(o): o for o in kustomize.render(overlay)}, by_key, overlay.name
            )
            self.assertEqual(len(theirs), len(by_key))

    def test_another_key_is_refused(self):
        with self.assertRaisesRegex(kustomize.Wrong, "commonLabels"):
            kustomize.only("x", {"commonLabels": {}}, kustomize.KEYS)

    def test_one_namespace_means_no_right_outside_of_it(self):
        for overlay in OVERLAYS:
            kinds = {o["kind"] for o in kustomize.render(overlay)}
            self.assertEqual(
                "ClusterRole" in kinds, not overlay.name.endswith("one-namespace"), overlay.name
            )

    def test_programs_take_their_flags_and_are_what_probes_ask(self):
        seen = set()
        for name, pod in workloads():
            (c,) = pod["containers"]
            program = pathlib.Path(c["command"][0]).name
            known = re.findall(
                r"^  (--[\w-]+)",
                subprocess.run(
                    [str(BUILD / "bin" / program), "--help"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout,
                re.M,
            )
            flags = [re.match(r"--(no-)?([\w-]+)", a)[2] for a in c["args"]]
            self.assertEqual([f for f in flags if f"--{f}" not in known], [], name)
            (port,) = [p["containerPort"] for p in c["ports"] if p["name"] == "metrics"]
            self.assertIn(f"--metrics-listen=0.0.0.0:{port}", c["args"], name)
            for probe in ("readinessProbe", "livenessProbe"):
                self.assertEqual(c[probe]["httpGet"], {"path": "/healthz", "port": "metrics"}, name)
            listening = {
                int(m[1])
                for a in c["args"]
                if (m := re.match(r"--(?:data-|migrate-|metrics-)?listen=.*:(\d+)$", a))
            }
            self.assertEqual(listening, {p["containerPort"] for p in c["ports"]}, name)
            mounted = {m["name"] for m in c.get("volumeMounts", ())}
            self.assertEqual(
                mounted,
                {v["name"] for v in pod.get("volumes", ())} | mounted & {"state", "archive"},
                name,
            )
            seen.add(program)
        self.assertEqual(
            seen, {"helios-ranktable", "helios-controller", "helios-l3d", "helios-agent"}
        )

    def test_services_and_policies_are_about_pods_that_exist(self):
        for overlay in OVERLAYS:
            objects = kustomize.render(overlay)
            pods = {
                o["metadata"]["name"]: o["spec"]["template"]
                for o in objects
                if o["kind"] in WORKLOADS
            }
            ports = {
                name: {
                    p["name"]: p["containerPort"]
                    for c in t["spec"]["containers"]
                    for p in c["ports"]
                }
                for name, t in pods.items()
            }
            for o in objects:
                name, spec = o["metadata"]["name"], o.get("spec")
                if o["kind"] == "Service":
                    self.assertEqual({p["name"]: p["port"] for p in spec["ports"]}, ports[name])
                    self.assertEqual(
                        spec["selector"].items() & pods[name]["metadata"]["labels"].items(),
                        spec["selector"].items(),
                    )
                elif o["kind"] == "NetworkPolicy":
                    self.assertEqual(
                        {p["port"] for i in spec["ingress"] for p in i["ports"]},
                        set(ports[name].values()),
                    )
                if o["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
                    labels = spec["podSelector" if o["kind"] == "NetworkPolicy" else "selector"][
                        "matchLabels"
                    ]
                    self.assertEqual(
                        labels.items() & pods[name]["metadata"]["labels"].items(),
                        labels.items(),
                        json.dumps(o),
                    )


class Programs(unittest.TestCase):
    """The programs, started as the manifests say, except for addresses, directories and sizes."""

    def start(self, spec, ports, pod):
        """`pod`: what its environment and its volumes are here."""
        (c,) = spec["containers"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("HELIOS_")}
        said = {}
        for e in c["env"]:
            said[e["name"]] = e.get(
                "value", pod.get(e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"))
            )

        def here(text):
            text = re.sub(r"\$\((\w+)\)", lambda m: said[m[1]], text)
            text = re.sub(
                r"[\w.-]+\.svc\.cluster\.local:(\d+)",
                lambda m: f"127.0.0.1:{ports[int(m[1])]}",
                text,
            )
            for path, folder in pod["volumes"].items():
                text = text.replace(path, str(folder))
            return re.sub(
                r"=\d+GiB$", "=32MiB", re.sub(r"=(?:0\.0\.0\.0)?:\d+$", "=127.0.0.1:0", text)
            )

        env.update({k: here(v) for k, v in said.items() if k.startswith("HELIOS_")})
        name = pathlib.Path(c["command"][0]).name
        ready = self.dir / f"{name}.ready"
        log = open(self.dir / f"{name}.log", "wb")  # noqa: SIM115
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [
                BUILD / "bin" / name,
                *map(here, c["args"]),
                "--ready-file",
                ready,
                *pod.get("more", ()),
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.terminate)
        wait_for(f"{name} serves", lambda: ready.exists() or process.poll() is not None)
        self.assertIsNone(process.poll(), (self.dir / f"{name}.log").read_text())
        metrics = json.loads(ready.read_text())["metrics"]
        with urllib.request.urlopen(f"http://{metrics}/healthz", timeout=10) as answer:
            self.assertEqual(answer.status, 200)
        return env

    def test_they_find_each_other(self):
        folder = tempfile.TemporaryDirectory(prefix="helios-manifests-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        server = kube_api.Server()
        server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)
        config = server.kubeconfig(self.dir / "kubeconfig")
        (self.dir / "secret").write_text("a secret of this test alone\n")
        (self.dir / "secret").chmod(0o440)
        ports = {port: free_port() for port in (7400, 7402)}
        specs = dict(w for w in workloads() if w[0].startswith("cluster: "))
        for name, more in (
            ("helios-l3", ("--pool", self.dir / "pool")),
            ("helios-controller", ("--kubeconfig", config)),
            ("helios-agent", ("--l2-pool", self.dir / "l2")),
        ):
            (self.dir / name).mkdir()
            env = self.start(
                specs[f"cluster: {name}"],
                ports,
                {
                    "metadata.namespace": "helios",
                    "status.podIP": "127.0.0.1",
                    "spec.nodeName": "worker-7",
                    "more": more,
                    "volumes": {"/etc/helios-secret": self.dir, "/var/lib/helios": self.dir / name},
                },
            )
        env["HELIOS_CONTROLLER"] = f"127.0.0.1:{ports[7400]}"

        def nodes():
            done = subprocess.run(
                [BUILD / "bin" / "helios", "nodes", "-o", "json"],
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            return [(n["node"]["name"], n["state"]) for n in json.loads(done.stdout)["items"]]

        wait_for("the Agent is a node", lambda: nodes() == [("worker-7", "ready")])


if __name__ == "__main__":
    unittest.main()

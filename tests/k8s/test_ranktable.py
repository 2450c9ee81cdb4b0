"""helios-ranktable against a real API server, with the manifests of deploy/k8s:
TLS, RBAC, service accounts."""
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
sys.dont_write_bytecode = True

from support import kube_api, kustomize  # noqa: E402
from support.apiserver import COLLECTIONS, RIGHTS, shared_server  # noqa: E402
from support.cluster import wait_for  # noqa: E402
from support.ranktable_scenarios import WAIT_S, Controller, Scenarios, World  # noqa: E402
from support.side_by_side import SideBySide  # noqa: E402

AT_ONCE = 7  # scenarios; they mostly wait

ACCOUNT = ("helios", "helios-ranktable")
OVERLAYS = ROOT / "deploy" / "k8s" / "overlays"
# The least that Prometheus' operator has of it.
MONITOR_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {
            "kind": "ServiceMonitor",
            "plural": "servicemonitors",
            "singular": "servicemonitor",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "selector": {
                                        "type": "object",
                                        "properties": {
                                            "matchLabels": {
                                                "type": "object",
                                                "additionalProperties": {"type": "string"},
                                            }
                                        },
                                    },
                                    "endpoints": {
                                        "type": "array",
                                        "items": {
                                            "type": "object",
                                            "properties": {
                                                key: {"type": "string"}
                                                for key in ("port", "path", "interval")
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


def lost(sent, got, at=""):
    """Paths of what was sent and did not come back."""
    if isinstance(sent, dict):
        return [
            p
            for k, v in sent.items()
            for p in (lost(v, got[k], f"{at}.{k}") if k in got else [f"{at}.{k}"])
        ]
    if isinstance(sent, list):
        return [
            p
            for i, v in enumerate(sent)
            for p in (lost(v, got[i], f"{at}[{i}]") if i < len(got) else [f"{at}[{i}]"])
        ]
    return []


def rights_of(objects):
    """What accounts may do, Leases for another label value included."""
    for o in objects:
        if o["kind"] in RIGHTS:
            for rule in o.get("rules", ()):
                if "resourceNames" in rule:
                    rule["resourceNames"].append("helios-ranktable-ascend-910b")
            yield o


class Real(World):
    """Every test has a namespace and a controller of its own,
    which is the service account of the manifests."""

    lease_ns = "helios"
    numbers = itertools.count(1)

    @classmethod
    def setUpClass(cls):
        cls.server = shared_server()
        cls.api = cls.server.admin
        if not cls.server.has_namespace("helios"):
            cls.server.namespace("helios")
            for o in rights_of(kustomize.render(OVERLAYS / "ranktable")):
                cls.server.put(o)

    def setUp(self):
        self.ns = self.another_namespace()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def another_namespace(self):
        name = f"t{next(self.numbers)}"
        self.server.namespace(name)
        self.addCleanup(self.empty, name)
        return name

    def empty(self, ns):
        for plural in ("vcjobs", "jobs", "deployments", "pods", "configmaps"):
            for o in self.api.list(plural, ns):
                try:
                    self.api.delete(plural, ns, o["metadata"]["name"])
                except kube_api.Refused:
                    pass  # went with its owner

    def token(self):
        return self.server.account_token(*ACCOUNT)

    def controller(self, *flags, user=None, **how):
        config = self.server.kubeconfig(
            self.dir / f"kubeconfig{time.monotonic_ns()}", user or {"token": self.token()}, "helios"
        )
        return self.run_controller(config, *flags, **how)

    def run_controller(self, config, *flags, **how):
        c = Controller(config, *flags, **how)
        self.addCleanup(c.end)
        return c

    def kill_server(self):
        self.server.kill()

    def start_server(self):
        self.server.start()


class Scoped(Real):
    """With rights in the test's namespace alone, and a Lease there:
    such controllers don't meet, so tests may run side by side."""

    def setUp(self):
        super().setUp()
        self.lease_ns = self.ns
        for o in rights_of(kustomize.render(OVERLAYS / "ranktable-one-namespace", self.ns)):
            self.server.put(o)

    def token(self):
        return self.server.account_token(self.ns, "helios-ranktable")

    def run_controller(self, config, *flags, **how):
        return super().run_controller(
            config, "--namespace", self.ns, "--lease-namespace", self.ns, *flags, **how
        )


class Common(Scoped, Scenarios, unittest.TestCase):
    """What holds with every API server."""


class InAll(Real, unittest.TestCase):
    """Those of them that are about several namespaces, or end the server."""

    test_one_name_in_two_namespaces = Scenarios.test_one_name_in_two_namespaces
    test_the_jobs_of_one_namespace_alone = Scenarios.test_the_jobs_of_one_namespace_alone
    test_the_api_server_is_killed = Scenarios.test_the_api_server_is_killed


class Manifests(Real, unittest.TestCase):
    """deploy/k8s, rendered."""

    def test_every_object_is_taken_as_it_is(self):
        self.server.call("POST", COLLECTIONS["CustomResourceDefinition"], MONITOR_CRD)
        wait_for(
            "ServiceMonitors are known",
            lambda: self.server.answers("/apis/monitoring.coreos.com/v1/servicemonitors"),
            WAIT_S,
        )
        kinds = set()
        for overlay in OVERLAYS.iterdir():
            for o in kustomize.render(overlay, self.ns):
                self.assertEqual(
                    lost({**o, "apiVersion": ""}, self.server.put(o, dry_run=True)),
                    [],
                    f"{overlay.name}: {o['kind']}",
                )
                kinds.add(o["kind"])
        self.assertEqual(
            kinds,
            {
                "Namespace",
                "Deployment",
                "StatefulSet",
                "DaemonSet",
                "Service",
                "ServiceMonitor",
                "NetworkPolicy",
                "PodDisruptionBudget",
                *RIGHTS,
            },
        )

    def test_rights_in_one_namespace_are_enough_there(self):
        objects = kustomize.render(OVERLAYS / "ranktable-one-namespace", self.ns)
        for o in rights_of(objects):
            self.server.put(o)
        (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
        pod = deployment["spec"]["template"]["spec"]
        flags = [
            a.replace("$(NAMESPACE)", self.ns)
            for a in pod["containers"][0]["args"]
            if not a.startswith("--metrics-listen")
        ]
        token = self.server.account_token(self.ns, pod["serviceAccountName"])
        _, c = self.two(
            self.run_controller(
                self.server.kubeconfig(self.dir / "config", {"token": token}, self.ns), *flags
            )
        )
        self.assertTrue(c.leads())
        with self.assertRaises(kube_api.Refused) as refused:
            self.server.client(token).call("GET", "/api/v1/pods")
        self.assertEqual(refused.exception.code, 403)


class Rights(Real, unittest.TestCase):
    """Of an account for all namespaces."""

    def test_a_right_that_is_missing(self):
        """The role is what it needs, and not more;
        without a part of it, it says what is missing."""
        role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/helios-ranktable"
        rules = self.api.call("GET", role)["rules"]
        less = [r for r in rules if "configmaps" not in r["resources"]]
        job = self.job()
        c = self.controller()
        self.pod(job, 0, server=1)
        self.api.call(
            "PATCH",
            role,
            {
                "rules": [
                    *less,
                    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]},
                ]
            },
            "application/merge-patch+json",
        )
        self.addCleanup(
            self.api.call, "PATCH", role, {"rules": rules}, "application/merge-patch+json"
        )
        self.pod(job, 1, server=2)
        wait_for("it says so", lambda: 'cannot patch resource "configmaps"' in c.text(), WAIT_S)
        self.assertEqual(self.table()["status"], "initializing")
        self.api.call("PATCH", role, {"rules": rules}, "application/merge-patch+json")
        self.ranks()
        mine = self.server.client(self.token())
        for verb, path in (
            ("DELETE", kube_api.path_of("configmaps", self.ns, "rings-config-j")),
            ("GET", f"/api/v1/namespaces/{self.ns}/secrets"),
            ("DELETE", kube_api.path_of("pods", self.ns, "j-w-0")),
        ):
            with self.assertRaises(kube_api.Refused) as refused:
                mine.call(verb, path)
            self.assertEqual(refused.exception.code, 403)


class Access(Scoped, unittest.TestCase):
    """Each with an account of its own."""

    def test_a_client_certificate_and_relative_paths(self):
        certificate, key = self.server.authority.certificate("rank-tables")
        self.server.bind_user("rank-tables", self.ns, "helios-ranktable", "helios-ranktable-jobs")
        for name, path in (
            ("user.pem", certificate),
            ("user.key", key),
            ("ca.pem", self.server.authority.ca),
        ):
            shutil.copy(path, self.dir / name)
        config = self.server.kubeconfig(
            self.dir / "config",
            {"client-certificate": "user.pem", "client-key": "user.key"},
            "helios",
            **{"certificate-authority": "ca.pem"},
        )
        self.two(self.run_controller(config))

    def test_a_server_that_is_not_trusted_and_one_by_another_name(self):
        other = subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                "/CN=other",
                "-keyout",
                "/dev/null",
            ],
            capture_output=True,
            check=True,
            cwd=self.dir,
        )
        (self.dir / "other.pem").write_bytes(other.stdout)
        user = {"token": self.token()}
        config = self.server.kubeconfig(
            self.dir / "c1", user, "helios", **{"certificate-authority": "other.pem"}
        )
        c = self.run_controller(config)
        wait_for("it says so", lambda: "can't be trusted" in c.text(), WAIT_S)
        config = self.server.kubeconfig(
            self.dir / "c2", user, "helios", **{"tls-server-name": "kubernetes"}
        )
        self.two(self.run_controller(config))

    def test_a_token_that_is_replaced(self):
        """The account is made again: the old token ends with it."""
        file = self.dir / "token"
        file.write_text(self.token() + "\n")
        job, c = self.two(self.controller(user={"tokenFile": str(file)}))
        self.server.remake_account(self.ns, ACCOUNT[1])
        wait_for(
            "the old token is refused", lambda: "401" in c.text() or "nauthorized" in c.text(), 90
        )
        file.write_text(self.token() + "\n")
        self.delete("pods", "j-w-1")
        wait_for("the table is initializing", lambda: self.table()["status"] == "initializing", 60)
        self.pod(job, 1, server=5)
        self.assertEqual(self.ranks(), {"1": 0, "5": 2})

    def test_a_program_says_the_token_and_a_new_one_when_that_is_refused(self):
        """As on managed clusters; the account is made again, and the old token ends with it."""
        file, program, calls = self.dir / "token", self.dir / "login", self.dir / "calls"
        file.write_text(self.token())
        program.write_text(
            f"""#!/bin/sh
echo >>{calls}
printf '{{"kind":"ExecCredential","status":{{"token":"%s"}}}}' "$(cat {file})"
"""
        )
        program.chmod(0o755)
        job, c = self.two(
            self.controller(
                user={
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": str(program),
                        "interactiveMode": "Never",
                    }
                }
            )
        )
        self.assertEqual(len(calls.read_text()), 1)  # for all requests
        self.server.remake_account(self.ns, ACCOUNT[1])
        file.write_text(self.token())
        self.delete("pods", "j-w-1")
        wait_for("the table is initializing", lambda: self.table()["status"] == "initializing", 60)
        self.pod(job, 1, server=5)
        self.assertEqual(self.ranks(), {"1": 0, "5": 2})

    def test_config_maps_that_do_not_take_a_table(self):
        """Immutable, or full of something else: its job's owner is told."""
        jobs = {"immutable": self.job("fixed"), "must have at most": self.job("full")}
        self.api.patch("configmaps", self.ns, "rings-config-fixed", {"immutable": True})
        self.api.patch(
            "configmaps", self.ns, "rings-config-full", {"data": {"other": "x" * ((1 << 20) - 100)}}
        )
        c = self.controller()
        for job in jobs.values():
            for i in range(2):
                self.pod(job, i, server=1 + i)
        for word, job in jobs.items():
            wait_for(
                f"an event says {word}",
                lambda w=word, j=job: [
                    e
                    for e in self.api.list("events", self.ns)
                    if w in e["message"] and e["involvedObject"]["uid"] == j["metadata"]["uid"]
                ],
                WAIT_S,
            )
        self.assertEqual(len(self.api.list("events", self.ns)), 2)
        wait_for(
            "both jobs are counted",
            lambda: c.metric('helios_ranktable_jobs{state="unable"}') == 2,
            WAIT_S,
        )
        self.api.patch("configmaps", self.ns, "rings-config-full", {"data": {"other": None}})
        self.ranks(name="full")

    @unittest.skipUnless(os.geteuid() == 0, "a file system of its own needs root")
    def test_what_a_pod_is_given(self):
        """In-cluster configuration, in a mount namespace; the token there is replaced, too."""
        given = self.dir / "given"
        given.mkdir()
        shutil.copy(self.server.authority.ca, given / "ca.crt")
        (given / "token").write_text(self.token())
        (given / "namespace").write_text(self.ns)
        place = "/run/secrets/kubernetes.io/serviceaccount"
        script = (
            f'mount -t tmpfs none /run && mkdir -p {place} && cp {given}/* {place} && exec "$@"'
        )
        env = {k: v for k, v in os.environ.items() if k not in ("HOME", "KUBECONFIG")}
        env.update(
            KUBERNETES_SERVICE_HOST="127.0.0.1", KUBERNETES_SERVICE_PORT=str(self.server.port)
        )
        c = self.run_controller(None, before=("unshare", "-m", "sh", "-c", script, "sh"), env=env)
        _, c = self.two(c)
        self.server.remake_account(self.ns, ACCOUNT[1])
        pathlib.Path(f"/proc/{c.process.pid}/root{place}/token").write_text(self.token())
        self.delete("pods", "j-w-1")
        self.wait_status("initializing")
        wait_for("the lease is held", c.leads, WAIT_S)


class Time(Scoped, unittest.TestCase):
    def version(self):
        return self.api.get("configmaps", self.ns, "rings-config-j")["metadata"]["resourceVersion"]

    def test_quiet_while_watches_end_and_begin(self):
        _, c = self.two(self.controller("--watch-window", "1s"))
        self.settle(c)
        version, writes = self.version(), c.writes()
        lists = c.metric('helios_ranktable_lists_total{kind="pods"}')
        cpu = c.cpu_s()
        c.let_decide(60)  # each 0.1 s at least: six watches of each kind
        self.assertEqual((self.version(), c.writes()), (version, writes))
        self.assertEqual(c.metric('helios_ranktable_lists_total{kind="pods"}'), lists)
        self.assertLess(c.cpu_s() - cpu, 1)
        self.delete("pods", "j-w-0")
        self.wait_status("initializing")

    def test_the_leader_is_killed(self):
        """Its lease runs out, and the other one goes on and writes."""
        first = self.controller("--lease-duration", "3s")
        wait_for("the lease is held", first.leads, WAIT_S)
        second = self.controller("--lease-duration", "3s")
        self.two(first)
        first.kill()
        self.delete("pods", "j-w-1")
        self.wait_status("initializing")
        self.assertTrue(second.leads())
        first.end()


def load_tests(loader, _tests, _pattern):
    """Those that wait longest begin first."""
    beside = [
        t
        for kind in (Access, Time, Common)
        for t in loader.loadTestsFromTestCase(kind)
        if not hasattr(InAll, t.id().rpartition(".")[2])
    ]
    beside.sort(
        key=lambda t: not t.id().endswith(
            ("token_that_is_replaced", "while_watches_end_and_begin", "leader_is_killed")
        )
    )
    others = [loader.loadTestsFromTestCase(kind) for kind in (InAll, Manifests, Rights)]
    return unittest.TestSuite([SideBySide(beside, AT_ONCE), *others])


if __name__ == "__main__":
    unittest.main()

"""helios-controller --executor kubernetes against a real API server, with the rights of deploy/k8s.
Volcano and the kubelet, which the API server asks for logs, are played
(tests/support/volcano.py)."""
import base64
import contextlib
import itertools
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
sys.dont_write_bytecode = True

from support import volcano  # noqa: E402
from support.apiserver import NO_MANAGED_FIELDS, shared_server  # noqa: E402
from support.cluster import wait_for  # noqa: E402
from support.gang_recovery import Recovery  # noqa: E402
from support.gang_scenarios import Engines, Gangs  # noqa: E402
from support.gang_wide import WideGangs  # noqa: E402
from support.side_by_side import SideBySide  # noqa: E402

AT_ONCE = 3  # scenarios; what they wait for is mostly each other's turn at two processors
NUMBERS = itertools.count(1)


class OnServer(unittest.TestCase):
    """A namespace and a Volcano of one's own, at a server of all."""

    @classmethod
    def setUpClass(cls):
        cls.server = shared_server(*NO_MANAGED_FIELDS)
        cls.api = cls.server.admin

    def setUp(self):
        number = next(NUMBERS)
        self.namespace = f"gangs{number}"
        self.server.namespace(self.namespace)
        for rights in ("base/controller/rbac.yaml", "components/nodes/rbac.yaml"):
            self.server.apply(
                ROOT / "deploy/k8s" / rights,
                **{
                    "namespace: helios": f"namespace: {self.namespace}",
                    "helios-controller-nodes": f"helios-controller-{self.namespace}",
                },
            )
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        token = self.server.account_token(self.namespace, "helios-controller")
        self.kubeconfig = self.server.kubeconfig(
            pathlib.Path(folder.name) / "kubeconfig", {"token": token}, self.namespace
        )
        node = f"worker-{number}"
        self.volcano = volcano.Volcano(self.api, self.namespace, node)
        kubelet = volcano.Kubelet(self.volcano, self.server.server_pair)
        self.addCleanup(kubelet.close)
        self.join(node, kubelet.port)
        self.volcano.__enter__()
        self.addCleanup(self.empty)
        self.addCleanup(self.volcano.__exit__)

    def join(self, node, port):
        self.api.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
        self.api.call(
            "PATCH",
            f"/api/v1/nodes/{node}/status",
            {
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                }
            },
            "application/merge-patch+json",
        )

    def allow_pod_groups(self):
        self.server.apply(
            ROOT / "deploy/k8s/components/pod-groups/rbac.yaml",
            **{"namespace: helios": f"namespace: {self.namespace}"},
        )

    @contextlib.contextmanager
    def refuse_jobs(self, why, code=400):
        webhook = volcano.Webhook(self.server.server_pair, why, code)
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        authority = base64.b64encode(pathlib.Path(self.server.authority.ca).read_bytes()).decode()
        self.api.call(
            "POST",
            path,
            {
                "metadata": {"name": self.namespace},
                "webhooks": [
                    {
                        "name": "validatejob.volcano.sh",
                        "namespaceSelector": {"matchLabels": {"name": self.namespace}},
                        "sideEffects": "None",
                        "admissionReviewVersions": ["v1"],
                        "failurePolicy": "Fail",
                        "clientConfig": {
                            "url": f"https://localhost:{webhook.port}/jobs/validate",
                            "caBundle": authority,
                        },
                        "rules": [
                            {
                                "apiGroups": ["batch.volcano.sh"],
                                "apiVersions": ["v1alpha1"],
                                "operations": ["CREATE"],
                                "resources": ["jobs"],
                            }
                        ],
                    }
                ],
            },
        )
        try:
            wait_for("the webhook to be asked", lambda: self.is_refused(why))
            yield
        finally:
            self.api.call("DELETE", f"{path}/{self.namespace}")
            webhook.close()

    def is_refused(self, why):
        """The API server takes a moment to know of a webhook;
        until then nothing may be made, for Volcano would see it."""
        probe = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "spec": {"minAvailable": 0, "tasks": []},
            "metadata": {"name": "probe", "namespace": self.namespace},
        }
        try:
            self.api.call(
                "POST", volcano.kube_api.path_of("vcjobs", self.namespace) + "?dryRun=All", probe
            )
        except volcano.kube_api.Refused as refused:
            return why in refused.message or why in str(refused)
        return False

    def empty(self):
        for plural in ("vcjobs", "gangs", "pods", "services", "configmaps"):
            for o in self.api.list(plural, self.namespace):
                self.api.delete(plural, self.namespace, o["metadata"]["name"])
        self.api.call("DELETE", f"/api/v1/nodes/{self.volcano.node}")


class OnRealServer(Gangs, Recovery, WideGangs, OnServer):
    """What holds with every API server, beside each other."""

    def test_nothing_else_may_be_done_with_these_rights(self):
        token = self.server.account_token(self.namespace, "helios-controller")
        mine = self.server.client(token)
        for verb, path in (
            ("GET", "/api/v1/pods"),
            ("GET", f"/api/v1/namespaces/{self.namespace}/secrets"),
            ("GET", f"/api/v1/namespaces/{self.namespace}/pods/x"),
            ("DELETE", "/api/v1/nodes/x"),
            ("GET", f"/api/v1/namespaces/{self.namespace}/configmaps"),
            ("GET", "/apis/batch.volcano.sh/v1alpha1/jobs"),
        ):
            with self.assertRaises(volcano.kube_api.Refused) as refused:
                mine.call(verb, path)
            self.assertEqual(refused.exception.code, 403, path)
        wait_for(
            "what may be",
            lambda: mine.call("GET", f"/api/v1/namespaces/{self.namespace}/pods")["kind"]
            == "PodList",
        )


class OnServerThatGoes(Engines, OnServer):
    """Alone, for it is everybody's."""

    def serve(self, *engines):
        self.addCleanup(self.server.serve, "gangs", "vcjobs")
        self.server.serve(*engines)

    def test_a_server_that_is_killed_takes_no_gang_with_it(self):
        c = self.start_cluster()
        job = c.submit(self.text())
        self.loaded()
        c.wait_job(job, "running")
        self.server.kill()
        self.assertEqual(c.job(job)["state"], "running")
        self.server.start()
        self.end_ranks()
        c.wait_job(job, "succeeded")
        self.assertEqual(self.kinds(job), ["submitted", "placed", "running", "succeeded"])


def load_tests(loader, _tests, _pattern):
    """Those that take longest begin first."""
    beside = sorted(
        loader.loadTestsFromTestCase(OnRealServer),
        key=lambda t: ("thousand" not in t.id(), "two_dead" not in t.id()),
    )
    return unittest.TestSuite(
        [SideBySide(beside, AT_ONCE), loader.loadTestsFromTestCase(OnServerThatGoes)]
    )


if __name__ == "__main__":
    unittest.main()

"""A mixin that gives the scenarios of gang_scenarios.py a scripted API server, which a test can
break."""
from __future__ import annotations

import contextlib
import pathlib
import tempfile

from support import kube_api, volcano


class Scripted:
    namespace = "train"

    def setUp(self):
        self.server = volcano.Server()
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.api = kube_api.client_of(self.server)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.kubeconfig = self.server.kubeconfig(pathlib.Path(folder.name) / "kubeconfig")
        self.volcano = volcano.Volcano(self.api, self.namespace)
        self.server.volcano = self.volcano
        self.volcano.__enter__()
        self.addCleanup(self.volcano.__exit__)

    def allow_pod_groups(self):
        """Any token allows everything here."""

    def serve(self, *engines):
        """Serve only these of "vcjobs" and "gangs"."""
        self.server.absent = {"vcjobs", "gangs"} - set(engines)
        self.server.cut_watches()

    @contextlib.contextmanager
    def refuse_jobs(self, why, code=400):
        self.server.refusals = [
            [
                "vcjobs",
                "POST",
                1000,
                kube_api.Refused(
                    code,
                    "",
                    f'admission webhook "validatejob.volcano.sh" denied the request: {why}',
                ),
            ]
        ]
        yield
        self.server.refusals.clear()

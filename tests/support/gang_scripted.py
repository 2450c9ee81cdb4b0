"""What the scenarios of gang_scenarios.py need, around an API server that a test can break: a mixin."""
from __future__ import annotations

import json
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
        self.kubeconfig = pathlib.Path(folder.name) / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}]}), encoding="utf-8")
        self.volcano = volcano.Volcano(self.api, self.namespace)
        self.server.volcano = self.volcano
        self.volcano.__enter__()
        self.addCleanup(self.volcano.__exit__)

"""A real Kubernetes API server for tests: kube-apiserver and etcd on loopback, with TLS, tokens,
client certificates and RBAC. No kubelet, no scheduler, no controller: a test that needs pods
creates them and writes their status.

    with ApiServer(apiserver_build.folder()) as server:
        server.apply(ROOT / "deploy/k8s/base/controller/rbac.yaml")
        server.admin.create("pods", {...})
        server.kubeconfig(path, {"token": server.account_token("helios", "helios-ranktable")})
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import http.client
import json
import os
import pathlib
import re
import secrets
import signal
import ssl
import subprocess
import tempfile

from support import apiserver_build, kube_api
from support.cluster import wait_for
from support.ports import free_port

READY_S = 240  # 4 to 7 s on a free machine
GOGC = "100"  # Go's own default; at a higher value it collects less often
# The minimum of Volcano's Job that its readers and writers need.
VOLCANO_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobs.batch.volcano.sh"},
    "spec": {
        "group": "batch.volcano.sh",
        "scope": "Namespaced",
        "names": {
            "kind": "Job",
            "plural": "jobs",
            "singular": "job",
            "listKind": "JobList",
            "shortNames": ["vcjob"],
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                                "properties": {
                                    "minAvailable": {"type": "integer"},
                                    "schedulerName": {"type": "string"},
                                    "queue": {"type": "string"},
                                    "maxRetry": {"type": "integer"},
                                    "tasks": {
                                        "type": "array",
                                        "items": {
                                            "type": "object",
                                            "x-kubernetes-preserve-unknown-fields": True,
                                            "properties": {
                                                "name": {"type": "string"},
                                                "replicas": {"type": "integer"},
                                            },
                                        },
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                                "properties": {"version": {"type": "integer"}},
                            },
                        },
                    }
                },
            }
        ],
    },
}
POD_GROUP_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {
            "kind": "PodGroup",
            "plural": "podgroups",
            "singular": "podgroup",
            "listKind": "PodGroupList",
        },
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            for name in ("spec", "status")
                        },
                    }
                },
            }
        ],
    },
}
# As in Kubernetes 1.37, which this server does not know; its pods have no schedulingGroup.
GANG_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": "scheduling.k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "PodGroup",
            "plural": "podgroups",
            "singular": "podgroup",
            "listKind": "PodGroupList",
        },
        "versions": [
            {
                "name": "v1alpha3",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["schedulingPolicy"],
                                "properties": {
                                    "schedulingPolicy": {
                                        "type": "object",
                                        "properties": {
                                            "basic": {"type": "object"},
                                            "gang": {
                                                "type": "object",
                                                "required": ["minCount"],
                                                "properties": {
                                                    "minCount": {"type": "integer", "minimum": 1}
                                                },
                                            },
                                        },
                                        "oneOf": [{"required": ["basic"]}, {"required": ["gang"]}],
                                    },
                                    "workloadRef": {
                                        "type": "object",
                                        "required": ["workloadName", "templateName"],
                                        "properties": {
                                            "workloadName": {"type": "string"},
                                            "templateName": {"type": "string"},
                                        },
                                    },
                                    "schedulingConstraints": {
                                        "type": "object",
                                        "properties": {
                                            "topology": {
                                                "type": "array",
                                                "maxItems": 1,
                                                "items": {
                                                    "type": "object",
                                                    "required": ["key"],
                                                    "properties": {"key": {"type": "string"}},
                                                },
                                            }
                                        },
                                    },
                                    "disruptionMode": {
                                        "type": "object",
                                        "properties": {
                                            "single": {"type": "object"},
                                            "all": {"type": "object"},
                                        },
                                    },
                                    "priorityClassName": {"type": "string"},
                                    "priority": {"type": "integer"},
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "conditions": {
                                        "type": "array",
                                        "items": {
                                            "type": "object",
                                            "required": [
                                                "type",
                                                "status",
                                                "lastTransitionTime",
                                                "reason",
                                                "message",
                                            ],
                                            "properties": {
                                                "type": {"type": "string"},
                                                "status": {
                                                    "type": "string",
                                                    "enum": ["True", "False", "Unknown"],
                                                },
                                                "observedGeneration": {"type": "integer"},
                                                "reason": {"type": "string"},
                                                "lastTransitionTime": {
                                                    "type": "string",
                                                    "format": "date-time",
                                                },
                                                "message": {"type": "string"},
                                            },
                                        },
                                    }
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
# As Node Feature Discovery installs it, without the schema of zones.
TOPOLOGY_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "noderesourcetopologies.topology.node.k8s.io",
        "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"
        },
    },
    "spec": {
        "group": "topology.node.k8s.io",
        "scope": "Cluster",
        "names": {
            "kind": "NodeResourceTopology",
            "plural": "noderesourcetopologies",
            "singular": "noderesourcetopology",
            "listKind": "NodeResourceTopologyList",
            "shortNames": ["node-res-topo"],
        },
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["zones"],
                        "properties": {
                            "topologyPolicies": {"type": "array", "items": {"type": "string"}},
                            "attributes": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["name", "value"],
                                    "properties": {
                                        "name": {"type": "string"},
                                        "value": {"type": "string"},
                                    },
                                },
                            },
                            "zones": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["name", "type"],
                                    "properties": {
                                        "name": {"type": "string"},
                                        "type": {"type": "string"},
                                    },
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
CRDS = (VOLCANO_CRD, POD_GROUP_CRD, GANG_CRD, TOPOLOGY_CRD)
# The paths of the kinds that our manifests use.
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{ns}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{ns}/configmaps",
    "Service": "/api/v1/namespaces/{ns}/services",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
    "StatefulSet": "/apis/apps/v1/namespaces/{ns}/statefulsets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
    "PodDisruptionBudget": "/apis/{api}/namespaces/{ns}/poddisruptionbudgets",
    "ServiceMonitor": "/apis/{api}/namespaces/{ns}/servicemonitors",
    "Deployment": "/apis/apps/v1/namespaces/{ns}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{ns}/daemonsets",
    "Job": "/apis/{api}/namespaces/{ns}/jobs",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}


RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
# The server is 1.21; the fields that our manifests use are the same.
SINCE = {"policy/v1": "policy/v1beta1"}


def die_with_parent():
    # PR_SET_PDEATHSIG: nothing is left behind by a killed test
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Authority:
    """A CA in a directory, by openssl."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._run(
            *"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(),
            *("-subj", "/CN=test-ca", "-keyout", folder / "ca.key", "-out", self.ca),
        )

    def _run(self, *words):
        done = subprocess.run(
            ["openssl", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"openssl {words[0]}: {done.stderr}")

    def key(self, name, kind=("EC", "ec_paramgen_curve:P-256")):
        self._run("genpkey", "-algorithm", kind[0], "-pkeyopt", kind[1], "-out", f"{name}.key")
        return self.folder / f"{name}.key"

    def certificate(self, name, organization=None, hosts="", days=1):
        """(certificate, key) for CN `name`, which is the user to Kubernetes; `organization` is its
        group."""
        file = re.sub(r"\W", "_", name)
        key, extensions = self.key(file), self.folder / f"{file}.ext"
        usage = "serverAuth" if hosts else "clientAuth"
        extensions.write_text(
            f"extendedKeyUsage={usage}\n" + (f"subjectAltName={hosts}\n" if hosts else "")
        )
        subject = (f"/O={organization}" if organization else "") + f"/CN={name}"
        self._run("req", "-new", "-key", key, "-subj", subject, "-out", f"{file}.csr")
        self._run(
            *("x509", "-req", "-in", f"{file}.csr", "-CA", self.ca, "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", days, "-extfile", extensions, "-out", f"{file}.pem"),
        )
        return self.folder / f"{file}.pem", key


# The server does not record who set each field of an object; the record takes four fifths of a
# write to a pod of eight containers. Without it put() does not work.
NO_MANAGED_FIELDS = ("--feature-gates", "ServerSideApply=false")


@functools.lru_cache(maxsize=None)
def shared_server(*flags):
    """One server for all tests of a process; started by the first call, ends with the process."""
    server = ApiServer(apiserver_build.folder(), flags)
    server.__enter__()
    atexit.register(server.__exit__)
    return server


class ApiServer:
    """`programs`: the folder of kube-apiserver and etcd."""

    def __init__(self, programs, flags=()):
        self.programs, self.flags = programs, flags
        self.temporary = tempfile.TemporaryDirectory(prefix="helios-kube-")
        self.dir = pathlib.Path(self.temporary.name)
        self.processes, self.clients = {}, []

    def __enter__(self):
        self.port, self.etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.authority = Authority(self.dir)
        self.server_pair = self.authority.certificate(
            "kube-apiserver", hosts="DNS:kubernetes,DNS:localhost,IP:127.0.0.1"
        )
        # it reads no public EC key
        self.account_key = self.authority.key("accounts", ("RSA", "rsa_keygen_bits:2048"))
        self.admin_token = secrets.token_hex(16)
        (self.dir / "tokens.csv").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        self.admin = self.client(self.admin_token)
        try:
            self.start_etcd()
            self.start()
            for crd in CRDS:
                self.call("POST", COLLECTIONS["CustomResourceDefinition"], crd)
            for crd in CRDS:
                self.wait_kind(crd, True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.close_all()
        for name in ("kube-apiserver", "etcd"):
            self.kill(name)
        self.temporary.cleanup()

    # ---- processes ----

    def _spawn(self, name, *flags):
        with open(self.dir / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self.programs / name), *map(str, flags)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                env={**os.environ, "GOGC": GOGC},
            )

    def start_etcd(self):
        url, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        self._spawn(
            "etcd",
            "--data-dir",
            self.dir / "etcd",
            "--listen-client-urls",
            url,
            "--advertise-client-urls",
            url,
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
            "--logger",
            "zap",
            "--log-level",
            "warn",
        )

    def start(self):
        """Waits until it answers, on the same port as before."""
        certificate, key = self.server_pair
        self._spawn(
            "kube-apiserver",
            "--etcd-servers",
            f"http://127.0.0.1:{self.etcd_port}",
            "--bind-address",
            "127.0.0.1",
            "--secure-port",
            self.port,
            "--tls-cert-file",
            certificate,
            "--tls-private-key-file",
            key,
            "--client-ca-file",
            self.authority.ca,
            "--token-auth-file",
            self.dir / "tokens.csv",
            "--authorization-mode",
            "RBAC",
            "--anonymous-auth=false",
            "--service-account-issuer",
            "https://kubernetes.default.svc",
            "--service-account-signing-key-file",
            self.account_key,
            "--service-account-key-file",
            self.account_key,
            "--service-cluster-ip-range",
            "10.96.0.0/24",
            "--endpoint-reconciler-type",
            "none",
            # no controller makes the default accounts that it would wait for; and the group of
            # priority classes is given to GANG_CRD, because no group can have both built-in kinds
            # and custom ones
            "--disable-admission-plugins",
            "ServiceAccount,Priority",
            "--runtime-config",
            "scheduling.k8s.io/v1=false,scheduling.k8s.io/v1beta1=false",
            *self.flags,
        )
        wait_for(
            f"kube-apiserver is ready, {self.dir}/kube-apiserver.log",
            lambda: self.answers("/readyz"),
            READY_S,
        )

    def kill(self, name="kube-apiserver"):
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def answers(self, path):
        process = self.processes["kube-apiserver"]
        if process.poll() is not None:
            log = (self.dir / "kube-apiserver.log").read_text(errors="replace").splitlines()[-15:]
            raise AssertionError(f"kube-apiserver ended ({process.returncode}):\n" + "\n".join(log))
        try:
            self.admin.text("GET", path)
            return True
        except (OSError, http.client.HTTPException, kube_api.Refused):
            return False

    # ---- kinds ----

    def wait_kind(self, crd, served):
        """Discovery lags behind what the server answers."""
        spec = crd["spec"]
        group = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"

        def is_said():
            try:
                said = self.call("GET", group)["resources"]
            except (OSError, http.client.HTTPException, kube_api.Refused):
                said = []
            listed = any(r["name"] == spec["names"]["plural"] for r in said)
            return listed == served and self.answers(f"{group}/{spec['names']['plural']}") == served

        wait_for(f"{group} is {'known' if served else 'gone'}", is_said, 30)

    def serve(self, *engines):
        """Serve only these of Volcano's Jobs ("vcjobs") and Kubernetes' PodGroups ("gangs")."""
        path = COLLECTIONS["CustomResourceDefinition"]
        there = {o["metadata"]["name"] for o in self.call("GET", path)["items"]}
        for name, crd in (("vcjobs", VOLCANO_CRD), ("gangs", GANG_CRD)):
            is_there = crd["metadata"]["name"] in there
            if is_there and name not in engines:
                self.call("DELETE", f"{path}/{crd['metadata']['name']}")
            elif not is_there and name in engines:
                self.call("POST", path, crd)
            self.wait_kind(crd, name in engines)

    # ---- identities ----

    def context(self):
        return ssl.create_default_context(cafile=self.authority.ca)

    def client(self, token):
        context = self.context()
        self.clients.append(
            kube_api.Client(
                lambda: http.client.HTTPSConnection(
                    "127.0.0.1", self.port, timeout=30, context=context
                ),
                token,
                keep=True,
            )
        )
        return self.clients[-1]

    def call(self, verb, path, body=None, kind="application/json"):
        return self.admin.call(verb, path, body, kind)

    def namespace(self, name):
        self.call(
            "POST", COLLECTIONS["Namespace"], {"metadata": {"name": name, "labels": {"name": name}}}
        )

    def has_namespace(self, name):
        return any(
            n["metadata"]["name"] == name
            for n in self.call("GET", COLLECTIONS["Namespace"])["items"]
        )

    def apply(self, manifest, **replace):
        """Create what one of our manifests says; `replace`: texts in it and their replacements."""
        text = pathlib.Path(manifest).read_text(encoding="utf-8")
        for old, new in replace.items():
            text = text.replace(old, new)
        for part in re.split(r"(?m)^---\s*$", text):
            word = {
                key: re.search(rf"(?m)^\s{{0,2}}{key}: *(\S+)", part)
                for key in ("apiVersion", "kind", "namespace")
            }
            if word["kind"] is None:
                continue
            path = COLLECTIONS[word["kind"][1]].format(
                ns=word["namespace"][1] if word["namespace"] else "default",
                api=word["apiVersion"][1],
            )
            self.admin.text("POST", path, part, "application/yaml")

    def put(self, o, dry_run=False):
        """Server-side apply of an object; returns what the server would store, or has stored. It
        refuses unknown fields."""
        o = {**o, "apiVersion": SINCE.get(o["apiVersion"], o["apiVersion"])}
        meta = o["metadata"]
        path = COLLECTIONS[o["kind"]].format(ns=meta.get("namespace"), api=o["apiVersion"])
        query = "?fieldManager=tests&force=true" + ("&dryRun=All" if dry_run else "")
        return self.call(
            "PATCH", f"{path}/{meta['name']}{query}", o, "application/apply-patch+yaml"
        )

    def make(self, o):
        """For servers without put(): the object must not exist yet."""
        path = COLLECTIONS[o["kind"]].format(ns=o["metadata"].get("namespace"), api=o["apiVersion"])
        return self.call("POST", path, o)

    def account_token(self, namespace, name, seconds=3600):
        """A token like the one that the kubelet gets for a pod of this service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        return self.call("POST", path, request)["status"]["token"]

    def remake_account(self, namespace, name):
        """Its earlier tokens become invalid."""
        path = COLLECTIONS["ServiceAccount"].format(ns=namespace)
        self.call("DELETE", f"{path}/{name}")
        self.call("POST", path, {"metadata": {"name": name, "namespace": namespace}})

    def bind_user(self, user, namespace, *roles):
        """Gives roles of the namespace to a user instead of a service account."""
        for role in roles:
            self.call(
                "POST",
                COLLECTIONS["RoleBinding"].format(ns=namespace),
                {
                    "metadata": {"name": f"{role}-{user}"},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "Role",
                        "name": role,
                    },
                    "subjects": [
                        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
                    ],
                },
            )

    def kubeconfig(self, path, user, namespace="default", **cluster):
        """`user`: token, tokenFile, client-certificate and so on."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority.ca), **cluster}
        pathlib.Path(path).write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [
                        {
                            "name": "c",
                            "context": {"cluster": "c", "user": "u", "namespace": namespace},
                        }
                    ],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": user}],
                }
            ),
            encoding="utf-8",
        )
        return path

"""What scenarios of gangs on Kubernetes share: their jobs, and a cluster whose executor it is."""
from __future__ import annotations

import json
import os
import shutil

from support import checkpoints
from support.cluster import BUILD, ROOT, Cluster, wait_for

LABELS = {"app.kubernetes.io/managed-by": "helios"}
SELECTOR = "app.kubernetes.io/managed-by=helios"

# Two pods of two ranks. Each waits for its rank table, reads its shards, and does `then`.
JOB = """
jobName: gpt
model: {name: tiny}
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 2}
dockerImage: registry.example/train:1
resources: {ranks_per_slot: 2, cpus_per_rank: 1, memory: 2GiB}
stopGrace: 1s
restarts: %(restarts)d
onNodeLost: %(lost)s
nodeLostAfter: 90500ms
env: {PRICE: "$5 for $(RANK) and $$"}
command: [/bin/sh, -ec, %(script)s]
"""
RANK = """
echo "rank $RANK of $WORLD_SIZE attempt $HELIOS_ATTEMPT on $HELIOS_NODE: $PRICE"
until grep -q '"completed"' "$RANK_TABLE_FILE"; do sleep 0.2; done
cp "$RANK_TABLE_FILE" %(dir)s/table.$RANK
%(helios)s --controller "$HELIOS_CONTROLLER" pull --model "$HELIOS_MODEL" \\
    --pp "$PIPELINE_PARALLEL_RANK" --tp "$TENSOR_PARALLEL_RANK" \\
    --out %(dir)s/.$RANK.$HELIOS_ATTEMPT
env > %(dir)s/env.$RANK.$HELIOS_ATTEMPT
mv %(dir)s/.$RANK.$HELIOS_ATTEMPT %(dir)s/shards.$RANK.$HELIOS_ATTEMPT
echo loaded
%(then)s
"""
# Starts no process for each check: `end` is a pipe without a writer, and later a file.
HOLD = ": <%(dir)s/end; echo bye"


class World:
    def start_cluster(self, up=(), env=None, agents=0):
        self.cluster = Cluster(
            nodes=agents,
            slots=1,
            env=env,
            up=(
                *("--executor", "kubernetes", "--kubeconfig", str(self.kubeconfig)),
                *("--kube-namespace", self.namespace),
                *up,
            ),
        )
        self.addCleanup(self.take_down)
        os.mkfifo(self.cluster.dir / "end")
        self.cluster.up()
        checkpoints.llama(self.cluster.dir / "hf")
        self.cluster.json(
            "model", "import", self.cluster.dir / "hf", "--name", "tiny", "--tp", 2, "--pp", 2
        )
        sanitizers = {
            k: v
            for k, v in os.environ.items()
            if k == "UCX_MEM_EVENTS" or k.endswith("SAN_OPTIONS")
        }
        self.volcano.image_env = {
            **sanitizers,
            "HELIOS_LIBRARY": str(BUILD / "lib" / "libhelios.so.0"),
            "PYTHONPATH": str(ROOT / "python"),
        }
        return self.cluster

    def take_down(self):
        """Adds what helps to understand a failure."""
        result = self._outcome.result  # pylint: disable=protected-access
        if any(test is self for test, _ in result.failures + result.errors):
            for log in sorted(self.cluster.state.glob("log/controllerd*")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}")
            for (pod, name), container in self.volcano.logs.items():
                print(
                    f"--- {pod} {name} {container.process.poll()}\n"
                    + "\n".join(t for _, t in container.lines[-20:])
                )
        self.cluster.run("down", "--purge")
        shutil.rmtree(self.cluster.dir, ignore_errors=True)

    def text(self, then=HOLD, restarts=0, lost="restart"):
        at = {"dir": self.cluster.dir}
        script = RANK % {**at, "helios": BUILD / "bin" / "helios", "then": then % at}
        return JOB % {"restarts": restarts, "lost": lost, "script": json.dumps(script)}

    @staticmethod
    def plain(script):
        return JOB % {"restarts": 0, "lost": "restart", "script": json.dumps(script)}

    def end_ranks(self):
        end, file = self.cluster.dir / "end", self.cluster.dir / "end.file"
        file.touch()
        waited_for = os.open(end, os.O_RDWR)  # waiting ranks go on
        file.rename(end)
        os.close(waited_for)

    def loaded(self, attempt=1):
        files = [self.cluster.dir / f"shards.{rank}.{attempt}" for rank in range(4)]
        wait_for(
            f"the ranks of attempt {attempt} have their shards",
            lambda: all(f.exists() for f in files),
            40,
        )
        return files

    def objects(self, plural):
        return {
            o["metadata"]["name"]: o
            for o in self.api.list(plural, self.namespace)
            if LABELS.items() <= o["metadata"].get("labels", {}).items()
        }

    def kinds(self, job):
        return [e["kind"] for e in self.cluster.job(job)["events"]]

    def wait_gone(self, seconds=30):
        for plural in ("vcjobs", "gangs", "pods", "services", "configmaps"):
            wait_for(
                f"no {plural} are left",
                lambda p=plural: not self.api.has(p, self.namespace, SELECTOR),
                seconds,
            )

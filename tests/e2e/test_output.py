"""The output of `-o json`: names and types of its members, on which scripts rely."""
import sys
import unittest

from support import checkpoints
from support.cluster import HELIOS, cluster


def shape(value):
    """Types instead of values; for a list, the different shapes of its elements."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        shapes = []
        for v in map(shape, value):
            if v not in shapes:
                shapes.append(v)
        return shapes
    return None if value is None else type(value)


PLANE = {
    "daemon": str,
    "plane": str,
    "address": str,
    "interface": str,
    "receivedOps": int,
    "sentOps": int,
    "receivedBytes": int,
    "sentBytes": int,
    "failed": int,
    "p50Us": float,
    "p99Us": float,
    "rateBitsPerSecond": None,
    "busyPercent": None,
}
PATH = {
    "daemon": str,
    "operation": str,
    "path": str,
    "reason": str,
    "text": str,
    "result": str,
    "ops": int,
}

CLUSTER = {
    "state": str,
    "pool": str,
    "nodes": int,
    "nodesEver": int,
    "slots": int,
    "executor": str,
    "serving": str,
    "l3": str,
    "socket": str,
    "controller": str,
}
PROCESS = {"pid": int, "start": int}
DAEMON = {**PROCESS, "ready": bool, "fills": str, "address": str, "metrics": str}
OPTION = {
    name: str for name in ("name", "value", "origin", "default", "help", "flag", "argument", "env")
}
TENSOR = {"name": str, "dtype": str, "shape": [int], "offset": int, "bytes": int, "crc32": str}
VERIFIED = {
    "tier": str,
    "node": str,
    "device": str,
    "state": str,
    "sizeBytes": int,
    "error": str,
    "badChunks": [],
}
IMPORTED = {
    "name": str,
    "version": int,
    "tp": int,
    "pp": int,
    "shards": int,
    "bytes": int,
    "seconds": float,
    "bytesPerSecond": int,
    "unsliced": bool,
    "ep": int,
    "etp": int,
    "leftOut": [],
}


class Output(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = cluster(nodes=1, slots=1, size="32MiB")
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def test_up_is_the_file_of_the_cluster_and_what_was_started(self):
        up = self.c.info
        flags = {"l3-size": str, "no-supervise": str, "nodes": str, "slots": str}
        daemons = {
            "l3d": {**DAEMON, "dataAddress": str, "socket": str, "pool": str},
            "controllerd": DAEMON,
            "node-0": {
                **DAEMON,
                "name": str,
                "dataAddress": str,
                "migrateAddress": str,
                "storeSocket": str,
                "incarnation": str,
            },
        }
        settings = up.pop("settings")
        environment = up.pop("environment")
        self.assertEqual(
            shape(up), {**CLUSTER, **daemons, "flags": flags, "started": [str], "restarted": bool}
        )
        self.assertEqual({type(v) for v in environment.values()}, {str})
        self.assertEqual(set(settings), {"l3", "controller", "agent"})
        self.assertEqual(
            {type(v) for options in settings.values() for v in options.values()}, {str}
        )
        again = self.c.json("up")
        self.assertEqual(
            (again["started"], again["restarted"], again["settings"]), ([], True, settings)
        )

    def test_down_has_counts_where_there_is_something(self):
        with cluster(nodes=1, slots=1, size="32MiB", supervise=True) as c:
            self.assertEqual(shape(c.json("up")["supervisor"]), PROCESS)
            done = {
                "stopped": [str],
                "removed": bool,
                "kept": bool,
                "state": str,
                "pool": str,
                "poolBytes": int,
                "models": int,
                "versions": int,
                "jobs": int,
            }
            self.assertEqual(shape(c.down("--keep")), done)
            self.assertEqual(shape(c.down("--purge")), {**done, "stopped": []})
            self.assertEqual(
                c.down(), {"stopped": [], "removed": False, "kept": False, "state": str(c.state)}
            )

    def test_conf_names_the_daemons_of_a_cluster_only(self):
        live = self.c.json("conf")
        self.assertEqual(shape(live), {"items": [{**OPTION, "programs": [str], "daemons": [str]}]})
        size = [o for o in live["items"] if o["name"] == "l3.size"]
        self.assertEqual(
            [(o["value"], o["origin"], o["daemons"]) for o in size],
            [(str(32 << 20), "flag --size", ["l3"])],
        )
        (self.c.dir / "empty.yaml").write_text("")
        self.assertEqual(
            shape(self.c.json("conf", "--config", self.c.dir / "empty.yaml")),
            {"items": [{**OPTION, "programs": [str]}]},
        )

    def test_net_has_planes_paths_faults_and_errors(self):
        net = self.c.json("net")
        self.assertEqual(
            shape(net), {"planes": [PLANE], "paths": [PATH], "faults": [], "errors": []}
        )
        self.assertEqual(
            {p["daemon"] for p in net["planes"]}, {"controller", "ranks", "l3", "node-0"}
        )
        inside = [p for p in net["planes"] if (p["daemon"], p["plane"]) == ("controller", "inside")]
        self.assertGreater(inside[0]["receivedOps"], 0)
        self.assertEqual(shape(self.c.json("metrics", "l3")), {"daemon": str, "text": str})
        calls = [
            p
            for p in net["paths"]
            if (p["daemon"], p["operation"], p["result"]) == ("controller", "call", "ok")
        ]
        self.assertGreater(calls[0]["ops"], 0)

    def test_a_shard_has_its_tensors_its_places_and_what_was_verified(self):
        checkpoints.llama(self.c.dir / "toy")
        done = self.c.json(
            "model", "import", self.c.dir / "toy", "--name", "toy", "--tp", 1, "--pp", 1
        )
        self.assertEqual(shape(done), IMPORTED)
        pulled = self.c.json(
            "pull", "--model", "toy", "--pp", 0, "--tp", 0, "--out", self.c.dir / "out.safetensors"
        )
        self.assertEqual(
            shape(pulled),
            {
                "model": str,
                "version": int,
                "pp": int,
                "tp": int,
                "parts": int,
                "naming": str,
                "path": str,
                "bytes": int,
                "seconds": float,
                "bytesPerSecond": int,
                "crcFailures": int,
                "retries": int,
                "skipped": str,
                "ep": int,
            },
        )
        shard = self.c.json("shard", "ls")["items"][0]["id"]
        shown = self.c.json("shard", "show", shard, "--verify")
        self.assertEqual(shape(shown["tensors"]), [TENSOR])
        self.assertRegex(shown["tensors"][0]["crc32"], "^[0-9a-f]{8}$")
        self.assertEqual(shape(shown["verify"]), {"ok": bool, "copies": [VERIFIED]})
        self.assertEqual(
            [(c["tier"], c["state"]) for c in shown["verify"]["copies"]], [("L3", "ok")]
        )
        self.assertEqual(
            set(shown),
            {
                "id",
                "offset",
                "sizeBytes",
                "crc32",
                "generation",
                "chunkCrcs",
                "tensors",
                "verify",
                "copies",
                "routes",
                "state",
                "placement",
            },
        )
        self.assertEqual(
            (shown["placement"]["state"], shown["placement"]["tier"]), ("created", "L3")
        )
        self.assertNotIn("verify", self.c.json("shard", "show", shard))

    def test_an_estimate_says_what_it_assumed_of_a_number_of_parameters(self):
        told = shape(self.c.json("mem", "estimate", "1B"))
        self.assertEqual(
            told,
            {
                "parameters": int,
                "dtype": str,
                "world": int,
                "gradients": str,
                "kinds": [{"kind": str, "perParameter": int, "bytes": int}],
                "bytes": int,
                "chunks": {"bytes": int, "count": int, "utilisation": float},
                "l2": {"bytes": int, "perProcess": int},
                "l1": {"smallest": int, "widest": str, "everything": int},
                "assumed": {"layers": int, "hidden": int},
            },
        )


if __name__ == "__main__":
    if not HELIOS.exists():
        print(f"skipped: {HELIOS} is not built")
        sys.exit(77)
    unittest.main(verbosity=2)

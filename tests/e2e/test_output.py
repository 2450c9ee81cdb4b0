"""What `-o json` prints: names and types of its members, which scripts rely on."""
import sys
import unittest

from support.cluster import HELIOS, cluster


def shape(value):
    """Types in place of values; of a list, its elements' different shapes."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        shapes = []
        for v in map(shape, value):
            if v not in shapes:
                shapes.append(v)
        return shapes
    return None if value is None else type(value)


PLANE = {"daemon": str, "plane": str, "address": str, "interface": str, "receivedOps": int, "sentOps": int, "receivedBytes": int,
         "sentBytes": int, "failed": int, "p50Us": float, "p99Us": float, "rateBitsPerSecond": None, "busyPercent": None}
PATH = {"daemon": str, "operation": str, "path": str, "reason": str, "text": str, "result": str, "ops": int}


class Output(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = cluster(nodes=1, slots=1, size="32MiB")
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def test_net_has_planes_paths_faults_and_errors(self):
        net = self.c.json("net")
        self.assertEqual(shape(net), {"planes": [PLANE], "paths": [PATH], "faults": [], "errors": []})
        self.assertEqual({p["daemon"] for p in net["planes"]}, {"controller", "ranks", "l3", "node-0"})
        inside = [p for p in net["planes"] if (p["daemon"], p["plane"]) == ("controller", "inside")]
        self.assertGreater(inside[0]["receivedOps"], 0)
        calls = [p for p in net["paths"] if (p["daemon"], p["operation"], p["result"]) == ("controller", "call", "ok")]
        self.assertGreater(calls[0]["ops"], 0)


if __name__ == "__main__":
    if not HELIOS.exists():
        print(f"skipped: {HELIOS} is not built")
        sys.exit(77)
    unittest.main(verbosity=2)

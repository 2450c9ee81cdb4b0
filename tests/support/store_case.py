"""Base class for tests of nodes' stores: self.c is a cluster whose nodes have L2 and L1, self.nodes
what they reported."""
import os
import unittest

from support import checkpoints
from support.cluster import cluster, wait_for


class StoreCase(unittest.TestCase):
    def start(self, up=(), **options):
        """Starts a cluster with the model m."""
        world = cluster(
            tcp=True, up=("--l2-size", "64MiB", "--devices", "emu:16MiB", *up), **options
        )
        self.c = world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)
        source, _ = checkpoints.llama(self.c.dir / "hf")
        self.c.json("model", "import", source, "--name", "m", "--tp", 1, "--pp", 1)
        self.nodes = {n["node"]["name"]: n["node"] for n in self.c.json("nodes")["items"]}

    def metric(self, name):
        """A number of the Controller's metrics."""
        lines = self.c.run("metrics", "controller").stdout.splitlines()
        return next((float(x.split()[1]) for x in lines if x.startswith(f"{name} ")), 0)

    def passes(self, count):
        """Waits until the policy has completed so many more passes."""
        self._more("helios_placement_passes_total", count)

    def sweeps(self, count):
        """Waits until the Controller has completed so many more sweeps."""
        self._more("helios_sweeps_total", count)

    def _more(self, name, count):
        end = self.metric(name) + 1 + count  # one may have begun before
        wait_for(f"{count} more of {name}", lambda: self.metric(name) >= end)

    def client(self, node="", **options):
        """A rank's client on `node`, or without a node's store."""
        socket = self.nodes[node]["storeSocket"] if node else ""
        os.environ.update(HELIOS_STORE_SOCKET=socket, HELIOS_NODE=node)
        from helios import _abi  # HELIOS_LIBRARY is set by then

        client = _abi.Client(self.c.info["controller"], **options)
        self.addCleanup(client.close)
        return client

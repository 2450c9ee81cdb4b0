"""Base class for tests of nodes' stores: self.c is a cluster whose nodes have L2 and L1, self.nodes what they
reported."""
import os
import unittest

from support import checkpoints
from support.cluster import cluster


class StoreCase(unittest.TestCase):
    def start(self, up=(), **options):
        """Starts a cluster with the model m."""
        world = cluster(tcp=True, up=("--l2-size", "64MiB", "--devices", "emu:16MiB", *up), **options)
        self.c = world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)
        source, _ = checkpoints.llama(self.c.dir / "hf")
        self.c.json("model", "import", source, "--name", "m", "--tp", 1, "--pp", 1)
        self.nodes = {n["node"]["name"]: n["node"] for n in self.c.json("nodes")["items"]}

    def client(self, node="", **options):
        """A rank's client on `node`, or without a node's store."""
        socket = self.nodes[node]["storeSocket"] if node else ""
        os.environ.update(HELIOS_STORE_SOCKET=socket, HELIOS_NODE=node)
        from helios import _abi  # HELIOS_LIBRARY is set by then
        client = _abi.Client(self.c.info["controller"], **options)
        self.addCleanup(client.close)
        return client

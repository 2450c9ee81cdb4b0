"""The frame of tests of models: one cluster for a class, and sessions of its ranks."""
import unittest

from support.cluster import Cluster


class ModelCase(unittest.TestCase):
    CLUSTER = {"nodes": 1, "slots": 1}  # of Cluster

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, **cls.CLUSTER)

    def session(self, **rank):
        """Of a rank, closed after the test."""
        import helios  # what only imports and exports does not need it
        made = helios.Session(self.c.info["controller"], rank=helios.Rank(**rank))
        self.addCleanup(made.close, force=True)
        return made

"""Base class for tests of models: one cluster per class, and sessions of its ranks."""
import unittest

from support.cluster import Cluster


class ModelCase(unittest.TestCase):
    CLUSTER = {"nodes": 1, "slots": 1}  # arguments of Cluster

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, **cls.CLUSTER)

    def session(self, **rank):
        """A rank's session, closed after the test."""
        import helios  # tests that only import and export do not need it

        made = helios.Session(self.c.info["controller"], rank=helios.Rank(**rank))
        self.addCleanup(made.close, force=True)
        return made

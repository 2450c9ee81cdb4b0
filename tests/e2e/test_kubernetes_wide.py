#!/usr/bin/python3
"""A gang of a thousand ranks on Kubernetes, for machines without a real API server:
tests/k8s/test_gangs.py has the same test there."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from support import apiserver_build, gang_scripted, gang_wide  # noqa: E402


@unittest.skipIf(
    apiserver_build.folder(make=False), "k8s_test_gangs does this against a real API server"
)
class OnScriptedServer(gang_scripted.Scripted, gang_wide.WideGangs, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that skips are printed

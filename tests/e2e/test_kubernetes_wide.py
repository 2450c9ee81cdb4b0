#!/usr/bin/python3
"""A gang of a thousand ranks on Kubernetes."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from support import gang_scenarios, gang_scripted  # noqa: E402


class OnScriptedServer(gang_scripted.Scripted, gang_scenarios.WideGangs, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()

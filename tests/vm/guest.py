"""Runs in the test machine as root: prepares soft-RoCE and runs this machine's tests (run.py);
prints one TAP line for each."""
import importlib
import pathlib
import sys

import prepare
from harness import run

for module in pathlib.Path("/job/modules").read_text(encoding="ascii").split():
    importlib.import_module(module)

if __name__ == "__main__":
    prepare.rxe()
    if "--prepare" not in sys.argv:
        sys.exit(run(sys.argv[1:]))

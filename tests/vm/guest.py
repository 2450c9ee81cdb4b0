"""Runs in the test machine as root: prepares soft-RoCE and runs the tests; one TAP line for each.

Under systemd it runs those that are for it (run.py), without it all others."""
import os
import sys

import prepare
from harness import run

if os.path.exists("/run/systemd/system"):
    import test_podman  # noqa: F401
    import test_systemd  # noqa: F401
else:
    import test_cluster  # noqa: F401
    import test_numa  # noqa: F401
    import test_programs  # noqa: F401
    import test_puts  # noqa: F401
    import test_verbs  # noqa: F401

if __name__ == "__main__":
    prepare.rxe()
    if "--prepare" not in sys.argv:
        sys.exit(run(sys.argv[1:]))

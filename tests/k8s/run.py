"""./run test-k8s: our programs against a real Kubernetes API server,
which is compiled the first time."""
import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
sys.dont_write_bytecode = True

from support import apiserver_build, debian  # noqa: E402


WAIT_S = 600  # for a server that is being compiled


def is_built(seconds):
    """True once the server is there; False when nobody is compiling it, or not in time."""
    deadline = time.monotonic() + seconds
    while apiserver_build.folder(make=False) is None:
        if not debian.is_making(debian.cache_folder()) or time.monotonic() > deadline:
            return apiserver_build.folder(make=False) is not None
        time.sleep(1)
    return True


def main():
    if "--if-built" in sys.argv:  # as ctest calls it
        sys.argv.remove("--if-built")
        if not is_built(WAIT_S):
            print(
                "skipped: kube-apiserver has not been compiled (build/apiserver.log says why, ./run"
                " test-k8s does it)"
            )
            sys.exit(77)
    try:
        apiserver_build.folder()
    except debian.Missing as why:
        sys.exit(f"test-k8s: {why}")
    unittest.main(
        module=None, argv=["./run test-k8s", "discover", "-v", "-s", str(HERE), *sys.argv[1:]]
    )


if __name__ == "__main__":
    main()

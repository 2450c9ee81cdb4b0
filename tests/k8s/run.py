"""./run test-k8s: our programs against a real Kubernetes API server, which is compiled the first time."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
sys.dont_write_bytecode = True

from support import apiserver_build, debian  # noqa: E402


def main():
    if "--if-built" in sys.argv:  # as ctest calls it
        sys.argv.remove("--if-built")
        if apiserver_build.folder(make=False) is None:
            print("skipped: kube-apiserver has not been compiled; ./run test-k8s does it (or what packages it needs is not known: apt-get update)")
            sys.exit(77)
    try:
        apiserver_build.folder()
    except debian.Missing as why:
        sys.exit(f"test-k8s: {why}")
    unittest.main(module=None, argv=["./run test-k8s", "discover", "-v", "-s", str(HERE), *sys.argv[1:]])


if __name__ == "__main__":
    main()

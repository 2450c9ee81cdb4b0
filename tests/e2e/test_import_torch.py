"""`helios model import` of a checkpoint that torch saved: pytorch_model.bin, whole and in files,
and one that would run a command."""
import os
import pickle
import subprocess
import sys
import unittest
import zipfile

from support import checkpoints, needs
from support.cluster import ROOT, cluster

MODEL = ("--tp", 2, "--pp", 2)


def to_torch(directory):
    script = ROOT / "tests" / "support" / "torch_files.py"
    subprocess.run(needs.command(script, directory, "bin"), check=True)


class Hostile:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


class ImportTorch(unittest.TestCase):
    def pulled(self, c, name):
        """The bytes of every rank's tensors."""
        ranks = {}
        for pp in range(2):
            for tp in range(2):
                out = c.dir / f"{name}-{pp}-{tp}.safetensors"
                c.json("pull", "--model", name, "--pp", pp, "--tp", tp, "--out", out)
                ranks[pp, tp] = checkpoints.read(out)[1]
        return ranks

    def test_it_gives_what_safetensors_give(self):
        with cluster() as c:
            directory, _ = checkpoints.llama(c.dir / "hf")
            c.json("model", "import", directory, "--name", "a", *MODEL)
            to_torch(directory)
            self.assertTrue((directory / "pytorch_model.bin").exists())
            self.assertEqual(list(directory.glob("*.safetensors*")), [])
            c.json("model", "import", directory, "--name", "b", *MODEL)
            self.assertEqual(self.pulled(c, "a"), self.pulled(c, "b"))

    def test_a_hostile_pickle_is_refused_and_not_run(self):
        with cluster() as c:
            directory, _ = checkpoints.llama(c.dir / "hf")
            to_torch(directory)
            mark = c.dir / "ran"
            for name, value in (
                ("root", Hostile(mark)),
                ("entry", {"model.norm.weight": Hostile(mark)}),
            ):
                with zipfile.ZipFile(directory / "pytorch_model.bin", "w") as out:
                    out.writestr("archive/data.pkl", pickle.dumps(value, 2))
                text = c.refuse("model", "import", directory, "--name", name, *MODEL)
                self.assertIn("an object of class posix.mkdir", text)
            self.assertFalse(mark.exists())
            self.assertEqual(c.json("model", "ls")["items"], [])


if __name__ == "__main__":
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        sys.exit(77)
    unittest.main()

#!/usr/bin/python3
"""`helios model import` of Megatron checkpoints: what comes out as a Hugging Face checkpoint is the original, the iteration is
the one that was asked for, and what did not come along is said."""
from __future__ import annotations

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import ROOT, cluster  # noqa: E402

SOURCES = {"llama": ("torch-2", "dist-2"), "gpt2": ("torch-4", "dist-2"), "mixtral": ("torch-6", "dist-3"),
           "deepseek_v3": ("torch-5", "dist-1")}


def plain(tensors):
    """GPT-2's tensors are called with or without a prefix; an export has it."""
    return {name.removeprefix("transformer."): data for name, data in tensors.items()}


class ImportMegatron(unittest.TestCase):
    def test_a_hugging_face_checkpoint_comes_out_as_the_original(self):
        with cluster() as c:
            script = ROOT / "tests" / "support" / "megatron_checkpoints.py"
            subprocess.run([sys.executable, "-W", "ignore", script, c.dir / "m", *SOURCES], check=True)
            for family, sources in SOURCES.items():
                original = plain(checkpoints.read(c.dir / "m" / family / "hf" / "model.safetensors")[1])
                for source in sources:
                    name = f"{family}-{source}"
                    done = c.json("model", "import", c.dir / "m" / family / source, "--name", name, "--tp", 2)
                    self.assertTrue(any("optimizer" in text for text in done["leftOut"]), done)
                    c.json("model", "export", name, "--format", "hf", "--out", c.dir / name)
                    out = plain(checkpoints.read(c.dir / name / "model.safetensors")[1])
                    self.assertEqual(sorted(out), sorted(original), name)
                    self.assertEqual([key for key in out if out[key] != original[key]], [], name)
            self.say_what_was_taken(c)

    def say_what_was_taken(self, c):
        directory = c.dir / "m" / "llama" / "torch-2"
        text = c.run("model", "import", directory, "--name", "asked", "--iteration", 10).stdout
        self.assertIn("left out: the optimizer state\n", text)
        self.assertIn("left out: the state of random numbers\n", text)
        text = c.refuse("model", "import", directory, "--name", "other", "--iteration", 11)
        self.assertIn("iter_0000011 holds no checkpoint; there is iter_0000010: give one of them as --iteration", text)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
"""`helios model import` of checkpoints as users have them: one file of a checkpoint, links into a
cache, incomplete directories. What can't be imported is refused with the path and the remedy."""
from __future__ import annotations

import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints, dense_models, needs  # noqa: E402

needs.programs()

from support.model_case import ModelCase  # noqa: E402


class ModelImport(ModelCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source, cls.tensors = dense_models.checkpoint(cls.c.dir / "llama", "llama")
        cls.c.json("model", "import", cls.source, "--name", "whole")

    def directory(self, name, *files):
        """A directory with these of the checkpoint's files."""
        made = self.c.dir / name
        made.mkdir()
        for file in files:
            shutil.copy(self.source / file, made)
        return made

    def refuse(self, source, *options):
        return self.c.refuse("model", "import", source, "--name", "refused", *options)

    def in_pieces(self, name):
        """The checkpoint as two files without an index."""
        made = self.directory(name, "config.json")
        header, data = checkpoints.read(self.source / "model.safetensors")
        for number, names in enumerate((list(data)[::2], list(data)[1::2]), 1):
            checkpoints.write(
                made / f"model-0000{number}-of-00002.safetensors",
                {n: (header[n]["shape"], data[n]) for n in names},
            )
        return made

    def test_one_file_is_its_model_where_config_json_is_beside_it(self):
        done = self.c.json("model", "import", self.source / "model.safetensors", "--name", "file")
        self.assertFalse(done["unsliced"])
        self.assertEqual(self.c.run("model", "diff", "whole", "file").returncode, 0)

    def test_one_file_alone_is_stored_unsliced(self):
        home = self.directory("alone", "model.safetensors")
        checkpoints.write(home / "other.safetensors", {"x": ([1], b"1234")})
        done = self.c.json("model", "import", home / "model.safetensors", "--name", "alone")
        self.assertEqual(done["unslicedBecause"], "there is no config.json")
        self.assertEqual(self.c.run("model", "diff", "whole", "alone").returncode, 0)

    def test_a_file_that_holds_no_tensors_is_refused(self):
        said = self.refuse(self.source / "config.json")
        self.assertIn("config.json is neither a directory nor a file of tensors", said)
        self.assertIn("give the directory", said)

    def test_one_file_of_several_lacks_tensors(self):
        home = self.in_pieces("pieces-one")
        self.assertIn(
            "is missing, config.json asks for it",
            self.refuse(home / "model-00001-of-00002.safetensors"),
        )

    def test_pieces_without_their_index_are_refused(self):
        said = self.refuse(self.in_pieces("pieces"))
        self.assertIn("holds 2 *.safetensors, and nothing says which of them are the model", said)
        self.assertIn("model.safetensors.index.json", said)

    def test_a_tensor_that_stands_in_two_files_is_refused(self):
        home = self.in_pieces("twice")
        header, data = checkpoints.read(home / "model-00001-of-00002.safetensors")
        twice = next(iter(data))
        _, more = checkpoints.read(home / "model-00002-of-00002.safetensors")
        checkpoints.write(
            home / "model-00002-of-00002.safetensors",
            {
                n: (checkpoints.read(self.source / "model.safetensors")[0][n]["shape"], d)
                for n, d in {**more, twice: data[twice]}.items()
            },
        )
        index = {n: "model-00001-of-00002.safetensors" for n in data} | {
            n: "model-00002-of-00002.safetensors" for n in more
        }
        (home / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        self.assertIn(f"tensor '{twice}' is in two files: remove one of them", self.refuse(home))

    def test_links_are_followed_and_a_broken_one_is_named(self):
        home = self.directory("links")
        for file in ("config.json", "model.safetensors"):
            (home / file).symlink_to(self.source / file)
        self.c.json("model", "import", home, "--name", "links")
        self.assertEqual(self.c.run("model", "diff", "whole", "links").returncode, 0)
        for file in ("config.json", "model.safetensors"):
            (home / file).unlink()
            (home / file).symlink_to("/nothing/is/here")
            with self.subTest(file=file):
                self.assertIn(f"{file} is a link to a missing file", self.refuse(home))
            (home / file).unlink()
            (home / file).symlink_to(self.source / file)

    def test_no_directory_and_an_empty_one_are_refused(self):
        self.assertIn("No such file or directory", self.refuse(self.c.dir / "nothing"))
        self.assertIn("holds none of model.safetensors", self.refuse(self.directory("empty")))

    def test_sizes_of_experts_have_no_meaning_for_a_model_without_any(self):
        home = self.directory("unknown", "model.safetensors")
        for option in ("ep", "etp"):
            self.assertIn(f"where '{option}' does not apply", self.refuse(home, f"--{option}", 2))
        self.assertIn(
            "a llama model has no experts: leave out ep and etp",
            self.refuse(self.source, "--ep", 2),
        )

    def test_an_iteration_is_a_number_or_release(self):
        home = self.c.dir / "megatron"
        (home / "iter_0000007").mkdir(parents=True)
        (home / "latest_checkpointed_iteration.txt").write_text("7")
        (self.c.dir / "iter_0000009").mkdir()
        for wrong in ("x", "../iter_0000009", "/etc", "7x", "-7", "1.5", " 7", "9" * 40):
            with self.subTest(iteration=wrong):
                said = self.c.refuse(
                    "model", "import", home, "--name", "refused", f"--iteration={wrong}", code=2
                )
                self.assertIn("is neither the number of an iteration nor 'release'", said)
                self.assertIn("--iteration", said)
                self.assertIn(wrong[:30], said)
        self.assertIn(
            "iter_0000008 holds no checkpoint; there is iter_0000007",
            self.refuse(home, "--iteration", 8),
        )
        (home / "latest_checkpointed_iteration.txt").write_text("../iter_0000009\n")
        self.assertIn(
            "latest_checkpointed_iteration.txt: '../iter_0000009' is neither", self.refuse(home)
        )

    def test_a_file_of_an_adapter_is_not_taken_for_a_model(self):
        home = self.directory("adapter")
        (home / "adapter_config.json").write_text("{}")
        checkpoints.write(home / "adapter_model.safetensors", {"x": ([1], b"1234")})
        self.assertIn(
            "belongs to a LoRA adapter: give its directory",
            self.refuse(home / "adapter_model.safetensors"),
        )


if __name__ == "__main__":
    unittest.main()

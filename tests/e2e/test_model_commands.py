#!/usr/bin/python3
"""`helios model`: what it says of a model and makes from it: slices in plain words,
layouts of experts computed ahead."""
from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints, dense_models, needs, tiny_mixtral  # noqa: E402

needs.programs()

from support.cluster import HELIOS  # noqa: E402
from support.model_case import ModelCase  # noqa: E402
from support.terminal import on_terminal  # noqa: E402

SIZE_LIMIT = 4096  # of a file: less than any here


class ModelCommands(ModelCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        tiny_mixtral.checkpoint(cls.c.dir / "mixtral")
        cls.c.json("model", "import", cls.c.dir / "mixtral", "--name", "moe")
        cls.source, _ = dense_models.checkpoint(cls.c.dir / "llama", "llama")

    def slices(self, name):
        (line,) = [
            x
            for x in self.c.run("model", "show", name).stdout.splitlines()
            if x.startswith("slices")
        ]
        return line.removeprefix("slices").strip()

    def test_slices_are_said_with_what_matters(self):
        self.c.json("model", "import", self.source, "--name", "plain")
        self.c.json(
            "model",
            "import",
            self.source,
            "--name",
            "chunks",
            "--tp",
            2,
            "--pp",
            2,
            "--virtual-stages",
            2,
        )
        done = self.c.run(
            "model",
            "import",
            self.c.dir / "mixtral",
            "--name",
            "shares",
            "--tp",
            2,
            "--ep",
            2,
            "--etp",
            1,
        )
        self.assertIn("imported shares@1 as TP2 x PP1 x EP2, ETP1:", done.stdout)
        self.assertEqual(
            [self.slices(name) for name in ("plain", "chunks", "shares")],
            ["TP1 x PP1", "TP2 x PP2, 2 virtual stages", "TP2 x PP1 x EP2, ETP1"],
        )

    def test_an_adapter_names_its_base(self):
        home = self.c.dir / "adapter"
        home.mkdir()
        config = {
            "peft_type": "LORA",
            "r": 2,
            "lora_alpha": 4,
            "target_modules": ["q_proj"],
            "base_model_name_or_path": "who/ever",
        }
        (home / "adapter_config.json").write_text(json.dumps(config))
        checkpoints.write(
            home / "adapter_model.safetensors",
            {
                f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight": (
                    shape,
                    bytes(256),
                )
                for x, shape in (("A", [2, 32]), ("B", [32, 2]))
            },
        )
        self.c.json("model", "import", self.source, "--name", "base")
        self.c.json("model", "import", home, "--name", "tuned", "--base", "base")
        self.assertIn(
            "adapter       LoRA, of the base model base\n",
            self.c.run("model", "show", "tuned").stdout,
        )
        self.assertNotIn("adapter ", self.c.run("model", "show", "base").stdout)

    def test_a_layout_of_experts_is_made_ahead_of_time(self):
        made = self.c.json(
            "model", "reshard", "moe", "--tp-size", 2, "--ep-size", 4, "--etp-size", 1
        )
        self.assertEqual([made["split"][size] for size in ("tp", "ep", "etp")], [2, 4, 1])
        cuts = self.c.json("model", "show", "moe")["versions"][0]["cuts"]
        self.assertIn(made["shards"], [cut["shards"] for cut in cuts])
        self.assertEqual(
            self.c.json("model", "reshard", "moe", "--tp-size", 2, "--ep-size", 4, "--etp-size", 1)[
                "shards"
            ],
            made["shards"],
        )
        self.assertEqual(len(self.c.json("model", "show", "moe")["versions"][0]["cuts"]), len(cuts))
        self.assertIn(
            "ep 3 does not divide the 4 experts",
            self.c.refuse("model", "reshard", "moe", "--ep-size", 3),
        )
        self.assertIn("give the layout", self.c.refuse("model", "reshard", "moe", code=2))

    def test_what_takes_long_draws_its_progress_on_a_terminal_and_json_stays_clean(self):
        self.c.json("model", "import", self.c.dir / "mixtral", "--name", "twin", "--tp", 2)
        out = self.c.dir
        for title, *command in (
            (
                "exporting",
                "model",
                "export",
                "moe",
                "--format",
                "hf",
                "--replace",
                "--out",
                out / "drawn-hf",
            ),
            (
                "exporting",
                "model",
                "export",
                "moe",
                "--tp-size",
                2,
                "--replace",
                "--out",
                out / "drawn-ranks",
            ),
            (
                "exporting",
                "model",
                "export",
                "moe",
                "--format",
                "torch",
                "--replace",
                "--out",
                out / "drawn-torch",
            ),
            ("pulling", "pull", "--model", "moe", "--out", out / "drawn-rank"),
            ("verifying", "model", "verify", "moe"),
            ("comparing", "model", "diff", "moe", "twin"),
        ):
            with self.subTest(command=command):
                command = [HELIOS, "--state", self.c.state, *command, "-o", "json"]
                code, shown = on_terminal(command, env=self.c.env, stream="stderr")
                self.assertEqual(code, 0, shown)
                self.assertIn(f"{title} [", shown)
                self.assertRegex(shown, r"100%.*\r\x1b\[K$")
                code, shown = on_terminal(command, env=self.c.env)
                self.assertEqual(code, 0, shown)
                self.assertIsInstance(json.loads(shown), dict)
                done = subprocess.run(
                    [*map(str, command)],
                    env=self.c.env,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_pipe_is_written_to_and_not_replaced(self):
        pipe, file = self.c.dir / "pipe", self.c.dir / "file"
        os.mkfifo(pipe)
        with subprocess.Popen(["timeout", "60", "cat", pipe], stdout=subprocess.PIPE) as reader:
            done = self.c.run("pull", "--model", "moe", "--out", pipe)
            self.assertTrue(stat.S_ISFIFO(pipe.lstat().st_mode), done.stderr)
            got, _ = reader.communicate(timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.c.json("pull", "--model", "moe", "--out", file)
        self.assertEqual(got, file.read_bytes())
        self.assertEqual([path for path in self.c.dir.iterdir() if path.suffix == ".tmp"], [])

    def test_a_killed_export_leaves_no_half_file_and_what_an_older_one_left_goes(self):
        for number, (file, *command) in enumerate(
            (
                ("rank", "pull", "--model", "moe", "--out"),
                ("model.safetensors", "model", "export", "moe", "--format", "hf", "--out"),
                (
                    "release/mp_rank_00/model_optim_rng.pt",
                    "model",
                    "export",
                    "moe",
                    "--format",
                    "torch",
                    "--out",
                ),
            )
        ):
            with self.subTest(command=command):
                home = self.c.dir / f"killed-{number}"
                target = home / file
                target.parent.mkdir(parents=True)
                command = [
                    HELIOS,
                    "--state",
                    self.c.state,
                    *command,
                    target if command[0] == "pull" else home,
                ]
                limits = (SIZE_LIMIT, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
                done = subprocess.run(
                    [*map(str, command)],
                    env=self.c.env,
                    capture_output=True,
                    timeout=60,
                    check=False,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
                )
                # as with kill -9: nothing was cleaned up
                self.assertEqual(done.returncode, -signal.SIGXFSZ, done)
                self.assertEqual([path for path in home.rglob("*") if path.is_file()], [])
                left = target.with_name(f"{target.name}.{self.dead()}.tmp")
                other = target.with_name(f"{target.name}.{os.getpid()}.tmp")
                left.write_bytes(b"half")
                other.write_bytes(b"of a process that writes")
                subprocess.run(
                    [*map(str, command)],
                    env=self.c.env,
                    capture_output=True,
                    timeout=60,
                    check=True,
                )
                self.assertTrue(target.exists())
                self.assertEqual([left.exists(), other.exists()], [False, True])

    @staticmethod
    def dead():
        """The pid of a process that has ended."""
        with subprocess.Popen(["true"]) as process:
            process.wait()
        return process.pid

    def test_files_of_another_layout_are_not_mixed_with_new_ones(self):
        out = self.c.dir / "mixed"
        self.c.json("model", "export", "moe", "--tp-size", 2, "--out", out)
        self.assertIn(
            "mixed has mp_rank_00.safetensors of another export; --replace",
            self.c.refuse("model", "export", "moe", "--tp-size", 2, "--out", out),
        )
        self.c.json("model", "export", "moe", "--tp-size", 2, "--tp", 1, "--replace", "--out", out)
        for sizes in ((), ("--tp-size", 2, "--pp-size", 2), ("--ep-size", 2)):
            said = self.c.refuse("model", "export", "moe", *sizes, "--out", out)
            self.assertRegex(
                said,
                (
                    r"mixed has mp_rank_0[01]\.safetensors of (another export|an export with"
                    r" another TP, PP or EP.*); --replace"
                ),
            )
        self.assertEqual(
            sorted(path.name for path in out.iterdir()),
            ["mp_rank_00.safetensors", "mp_rank_01.safetensors"],
        )
        self.c.json("model", "export", "moe", "--replace", "--out", out)
        self.assertEqual([path.name for path in out.iterdir()], ["mp_rank_00.safetensors"])

    def test_files_of_another_checkpoint_are_refused_by_name_and_go_on_order(self):
        out = self.c.dir / "hf-mixed"
        out.mkdir()
        for name in (
            "config.json",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
        ):
            (out / name).touch()
            said = self.c.refuse("model", "export", "moe", "--format", "hf", "--out", out)
            self.assertIn(f"hf-mixed has {name} of another checkpoint; --replace", said)
            self.assertEqual([path.name for path in out.iterdir()], [name])
            (out / name).unlink()
        others = ["model-00001-of-0002.safetensors.bak", "pytorch_model.bin", "tokenizer.json"]
        old = ["model-00001-of-00002.safetensors", "model.safetensors.index.json"]
        for name in others + old:
            (out / name).touch()
        self.assertIn(
            "version 9",
            self.c.refuse("model", "export", "moe@9", "--format", "hf", "--replace", "--out", out),
        )
        # a failure removes nothing
        self.assertEqual(sorted(path.name for path in out.iterdir()), sorted(others + old))
        self.c.json("model", "export", "moe", "--format", "hf", "--replace", "--out", out)
        self.assertEqual(
            sorted(path.name for path in out.iterdir()),
            sorted(["config.json", "model.safetensors", *others]),
        )

    def test_a_model_that_is_stored_whole_is_said_to_be(self):
        home = self.c.dir / "unknown"
        home.mkdir()
        checkpoints.write(home / "model.safetensors", {"x": ([1], b"1234")})
        done = self.c.run("model", "import", home, "--name", "unknown")
        self.assertIn("imported unknown@1 unsliced: 1 shard, ", done.stdout)
        done = self.c.run(
            "pull", "--model", "unknown", "--tp-size", 2, "--tp", 1, "--out", self.c.dir / "whole"
        )
        self.assertRegex(
            done.stderr,
            "^pulled unknown@1 pp0 tp1, the whole model: path .*, 1 part, naming its own, ",
        )
        done = self.c.run("model", "export", "unknown", "--out", self.c.dir / "unknown-ranks")
        self.assertIn(", naming its own\n", done.stdout)
        done = self.c.run("model", "reshard", "unknown", "--tp-size", 2)
        self.assertIn("it is stored unsliced, every rank reads the whole model", done.stdout)
        self.assertIn(
            "read        1 shard with 1 tensor; 1 copy, ",
            self.c.run("model", "verify", "unknown").stdout,
        )
        self.assertIn("removed unknown: 1 shard, ", self.c.run("model", "rm", "unknown").stdout)

    def test_optimizer_state_that_is_not_there_is_named(self):
        said = self.c.refuse(
            "pull", "--model", "moe", "--kind", "optim", "--out", self.c.dir / "none"
        )
        self.assertIn("moe@1 has no optimizer state at pp 0, tp 0", said)
        self.assertFalse((self.c.dir / "none").exists())

    def test_a_pulled_rank_is_named_with_its_experts(self):
        done = self.c.run(
            "pull", "--model", "moe", "--ep-size", 2, "--ep", 1, "--out", self.c.dir / "rank"
        )
        self.assertIn("pulled moe@1 pp0 tp0 ep1:", done.stderr)


if __name__ == "__main__":
    unittest.main()

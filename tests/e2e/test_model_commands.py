#!/usr/bin/python3
"""What `helios model` says of a model and makes of it: slices in plain words, layouts of experts ahead of time."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints, dense_models, needs, tiny_mixtral  # noqa: E402

needs.programs()

from support.cluster import HELIOS, Cluster  # noqa: E402
from support.terminal import on_terminal  # noqa: E402


class ModelCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(nodes=1, slots=1)
        cls.addClassCleanup(shutil.rmtree, cls.c.dir, ignore_errors=True)
        cls.addClassCleanup(cls.c.run, "down")
        cls.c.up()
        tiny_mixtral.checkpoint(cls.c.dir / "mixtral")
        cls.c.json("model", "import", cls.c.dir / "mixtral", "--name", "moe")
        cls.source, _ = dense_models.checkpoint(cls.c.dir / "llama", "llama")

    def slices(self, name):
        line, = [x for x in self.c.run("model", "show", name).stdout.splitlines() if x.startswith("slices")]
        return line.removeprefix("slices").strip()

    def test_slices_are_said_with_what_matters(self):
        self.c.json("model", "import", self.source, "--name", "plain")
        self.c.json("model", "import", self.source, "--name", "chunks", "--tp", 2, "--pp", 2, "--virtual-stages", 2)
        done = self.c.run("model", "import", self.c.dir / "mixtral", "--name", "shares", "--tp", 2, "--ep", 2, "--etp", 1)
        self.assertIn("imported shares@1 as TP2 x PP1 x EP2, ETP1:", done.stdout)
        self.assertEqual([self.slices(name) for name in ("plain", "chunks", "shares")],
                         ["TP1 x PP1", "TP2 x PP2, 2 virtual stages", "TP2 x PP1 x EP2, ETP1"])

    def test_an_adapter_names_its_base(self):
        home = self.c.dir / "adapter"
        home.mkdir()
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
                  "base_model_name_or_path": "who/ever"}
        (home / "adapter_config.json").write_text(json.dumps(config))
        checkpoints.write(home / "adapter_model.safetensors", {
            f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight": (shape, bytes(256))
            for x, shape in (("A", [2, 32]), ("B", [32, 2]))})
        self.c.json("model", "import", self.source, "--name", "base")
        self.c.json("model", "import", home, "--name", "tuned", "--base", "base")
        self.assertIn("adapter       LoRA, of the base model base\n", self.c.run("model", "show", "tuned").stdout)
        self.assertNotIn("adapter ", self.c.run("model", "show", "base").stdout)

    def test_a_layout_of_experts_is_made_ahead_of_time(self):
        made = self.c.json("model", "reshard", "moe", "--tp-size", 2, "--ep-size", 4, "--etp-size", 1)
        self.assertEqual([made["split"][size] for size in ("tp", "ep", "etp")], [2, 4, 1])
        cuts = self.c.json("model", "show", "moe")["versions"][0]["cuts"]
        self.assertIn(made["shards"], [cut["shards"] for cut in cuts])
        self.assertEqual(self.c.json("model", "reshard", "moe", "--tp-size", 2, "--ep-size", 4, "--etp-size", 1)["shards"],
                         made["shards"])
        self.assertEqual(len(self.c.json("model", "show", "moe")["versions"][0]["cuts"]), len(cuts))
        self.assertIn("ep 3 does not divide the 4 experts", self.c.refuse("model", "reshard", "moe", "--ep-size", 3))
        self.assertIn("say the layout", self.c.refuse("model", "reshard", "moe", code=2))

    def test_an_export_draws_its_progress_on_a_terminal_and_json_stays_clean(self):
        for format_ in ("hf", "safetensors"):
            with self.subTest(format=format_):
                command = [HELIOS, "--state", self.c.state, "model", "export", "moe", "--format", format_, "--out",
                           self.c.dir / f"drawn-{format_}"]
                code, shown = on_terminal([*command, "-o", "json"], env=self.c.env, stream="stderr")
                self.assertEqual(code, 0, shown)
                self.assertIn("exporting [", shown)
                self.assertRegex(shown, r"100%.*\r\x1b\[K$")
                code, shown = on_terminal([*command, "-o", "json"], env=self.c.env)
                self.assertEqual(json.loads(shown)["model"], "moe")

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

    def test_a_pulled_rank_is_named_with_its_experts(self):
        done = self.c.run("pull", "--model", "moe", "--ep-size", 2, "--ep", 1, "--out", self.c.dir / "rank")
        self.assertIn("pulled moe@1 pp0 tp0 ep1:", done.stderr)


if __name__ == "__main__":
    unittest.main()

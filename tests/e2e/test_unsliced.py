#!/usr/bin/python3
"""Models that no family's table describes: stored whole, reported as such, read by every rank,
trained, saved and exported under their own names, with real daemons."""
from __future__ import annotations

import json
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

from helios import errors  # noqa: E402

# a name that Megatron's other naming spells differently
NORM = "decoder.layers.0.input_layernorm.weight"
SHAPES = {
    "net.embed": [9, 4],
    "net.layers.0.a": [3, 5],
    "net.layers.1.a": [3, 5],
    NORM: [7],
    "head": [2, 2],
}


def make(directory, config, files=("model.safetensors",)):
    """The directory, and the bytes of each tensor."""
    directory.mkdir()
    rng = random.Random(3)
    tensors = {}
    for name, shape in SHAPES.items():
        count = 4
        for extent in shape:
            count *= extent
        tensors[name] = (shape, rng.randbytes(count))
    names = list(tensors)
    for i, file in enumerate(files):
        checkpoints.write(directory / file, {n: tensors[n] for n in names[i :: len(files)]})
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory, {name: data for name, (_, data) in tensors.items()}


def plain(state):
    return {
        name: tensor.contiguous().view(torch.uint8).numpy().tobytes()
        for name, tensor in state.items()
    }


class Unsliced(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 2, "size": "64MiB"}

    def imported(self, name, config, **more):
        directory, data = make(self.c.dir / name, config, **more)
        return self.c.json("model", "import", directory, "--name", name), data

    def test_what_makes_a_model_unknown_is_said_by_import_and_show(self):
        for name, config, files, why in (
            (
                "typed",
                {"model_type": "mamba9"},
                ["model.safetensors"],
                "no family is known for 'mamba9'",
            ),
            (
                "classed",
                {"architectures": ["Odd"]},
                ["model.safetensors"],
                "no family is known for 'Odd'",
            ),
            ("untyped", {"width": 3}, ["model.safetensors"], "config.json has no model_type"),
            ("bare", None, ["a.safetensors", "b.safetensors"], "there is no config.json"),
        ):
            with self.subTest(name):
                result, data = self.imported(name, config, files=files)
                self.assertEqual((result["unsliced"], result["unslicedBecause"]), (True, why))
                shown = self.c.json("model", "show", name)["config"]
                self.assertEqual(
                    (shown["unsliced"], shown["unslicedBecause"], shown.get("hf")),
                    (True, why, config),
                )
                self.assertIn(
                    f"slices        none, every rank reads the whole model: {why}",
                    self.c.run("model", "show", name).stdout,
                )
                self.assertEqual(plain(self.session().load_state_dict(name)), data)
        directory, _ = make(self.c.dir / "text", None)
        text = self.c.run("model", "import", directory, "--name", "text").stdout
        self.assertRegex(
            text,
            r"imported text@1 unsliced: .*\nevery rank reads the whole model: there is no config",
        )

    def check_proved(self, name, version):
        shown = {v["version"]: v for v in self.c.json("model", "show", name)["versions"]}[version]
        self.assertTrue(shown["proved"], shown["unproved"])
        found = self.c.json("model", "verify", f"{name}@{version}")
        self.assertTrue(found["ok"] and found["proved"], found)
        # a second version has state for each
        self.assertEqual(found["tensors"], len(SHAPES) * version)

    def test_each_tensor_of_the_files_is_proved_to_be_held_once(self):
        self.imported("once", {"model_type": "mamba9"}, files=["a.safetensors", "b.safetensors"])
        self.check_proved("once", 1)

    def test_a_family_is_still_sliced_and_its_errors_stay_errors(self):
        directory, _ = checkpoints.llama(self.c.dir / "llama")
        result = self.c.json("model", "import", directory, "--name", "llama", "--tp", 2)
        self.assertFalse(result["unsliced"])
        self.assertNotIn("unslicedBecause", result)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 90}))
        self.assertIn(
            "mlp.gate_proj", self.c.refuse("model", "import", directory, "--name", "wrong")
        )
        (directory / "config.json").write_text(json.dumps({"model_type": 7}))
        self.assertIn("model_type", self.c.refuse("model", "import", directory, "--name", "wrong"))
        (directory / "config.json").write_text("[]")
        self.assertIn(
            "not a JSON object", self.c.refuse("model", "import", directory, "--name", "wrong")
        )

    def test_options_of_slicing_are_refused_with_the_reason(self):
        directory, _ = make(self.c.dir / "options", {"model_type": "mamba9"})
        for option in (
            ["--tp", 2],
            ["--pp", 2],
            ["--naming", "te"],
            ["--pad", "zero"],
            ["--vocab-divisor", 8],
        ):
            text = self.c.refuse("model", "import", directory, "--name", "options", *option)
            self.assertIn("'mamba9', so the model can only be stored unsliced", text)
        self.assertNotIn("options", [m["name"] for m in self.c.json("model", "ls")["items"]])

    def test_every_position_of_every_split_reads_the_whole_model(self):
        _, data = self.imported("whole", {"model_type": "mamba9"})
        session = self.session(
            job="j", model="whole", tp=1, pp=1, tp_size=2, pp_size=2, world_size=4, global_rank=3
        )
        self.assertEqual(plain(session.load_state_dict()), data)
        self.assertEqual(
            plain(self.session().load_state_dict("whole", pp=2, tp=3, pp_size=3, tp_size=4)), data
        )
        out = self.c.dir / "whole.safetensors"
        self.c.json("pull", "--model", "whole", "--tp", 1, "--tp-size", 2, "--out", out)
        self.assertEqual(checkpoints.read(out)[1], data)
        with self.assertRaisesRegex(errors.NotFound, "pp 2, tp 0"):
            self.session().load_state_dict("whole", pp=2, tp=0, pp_size=2)
        with self.assertRaisesRegex(errors.NotFound, "pp 0, tp 1"):
            self.session().load_state_dict("whole", tp=1)
        with self.assertRaisesRegex(errors.InvalidArgument, "names of their own"):
            self.session().load_state_dict("whole", naming="te")

    def test_a_trained_version_is_saved_and_exported(self):
        _, data = self.imported("trained", {"model_type": "mamba9", "torch_dtype": "float32"})
        state = {n: torch.full(shape, i + 0.5) for i, (n, shape) in enumerate(SHAPES.items())}
        saver = self.session()  # has loaded nothing that would tell it the parts
        saved = saver.save_state_dict(
            state, 5, optim={f"exp_avg.{n}": t for n, t in state.items()}, model="trained"
        )
        self.assertTrue(saved.visible)
        self.check_proved("trained", 2)
        self.assertEqual(plain(self.session().load_state_dict("trained")), plain(state))
        optim = self.session().load_state_dict("trained", kind="optim")
        self.assertEqual(plain(optim), {f"exp_avg.{n}": b for n, b in plain(state).items()})
        for version, want in ((1, data), (2, plain(state))):
            for form, file in (
                ("hf", "model.safetensors"),
                ("safetensors", "mp_rank_00.safetensors"),
            ):
                out = self.c.dir / f"out-{form}-{version}"
                result = self.c.json(
                    "model", "export", f"trained@{version}", "--format", form, "--out", out
                )
                self.assertEqual(result.get("warnings", []), [])
                self.assertEqual(checkpoints.read(out / file)[1], want)
        self.assertEqual(
            json.loads((self.c.dir / "out-hf-1" / "config.json").read_text()),
            {"model_type": "mamba9", "torch_dtype": "float32"},
        )
        text = self.c.refuse(
            "model", "export", "trained", "--format", "torch", "--out", self.c.dir / "torch"
        )
        self.assertIn("stored unsliced, which Megatron can't load", text)
        text = self.c.refuse(
            "model", "export", "trained", "--naming", "te", "--out", self.c.dir / "te"
        )
        self.assertIn("leave --naming out", text)

    def test_numbers_that_only_python_takes_for_json_come_out_as_they_came_in(self):
        config = {
            "model_type": "mamba9",
            "limits": [0.0, float("inf"), float("-inf")],
            "NaN": "\\\"Infinity",
            "deep": {"a": float("nan")},
        }
        self.imported("limits", config)
        out = self.c.dir / "limits-out"
        self.c.json("model", "export", "limits", "--format", "hf", "--out", out)
        text = (out / "config.json").read_text()
        self.assertEqual(repr(json.loads(text)), repr(json.loads(json.dumps(config))))
        reader = self.session()
        reader.load_state_dict("limits")
        self.assertEqual(reader.model_config()["hf"]["limits"], config["limits"])
        directory, _ = make(self.c.dir / "broken", None)
        (directory / "config.json").write_text('{"model_type": "mamba9", "limit": InfinityX}')
        self.assertIn(
            "config.json:1:", self.c.refuse("model", "import", directory, "--name", "broken")
        )

    def test_a_model_without_config_is_exported_without_one(self):
        _, data = self.imported("plain", None)
        out = self.c.dir / "plain-out"
        self.c.json("model", "export", "plain", "--format", "hf", "--out", out)
        self.assertEqual([p.name for p in out.iterdir()], ["model.safetensors"])
        self.assertEqual(checkpoints.read(out / "model.safetensors")[1], data)

    def test_a_save_of_something_else_is_refused(self):
        self.imported("strict", {"model_type": "mamba9"})
        state = self.session().load_state_dict("strict")
        with self.assertRaisesRegex(errors.InvalidArgument, "head"):
            self.session().save_state_dict(
                {n: t for n, t in state.items() if n != "head"}, 1, model="strict"
            )
        with self.assertRaisesRegex(errors.InvalidArgument, "net.extra"):
            self.session().save_state_dict(state | {"net.extra": torch.zeros(2)}, 1, model="strict")
        rank = self.session(job="j", model="strict", tp_size=2, world_size=2)
        with self.assertRaisesRegex(
            errors.Unsupported, "stored unsliced and can't be saved as TP2 x PP1"
        ):
            rank.save_state_dict(state, 1)
        gang = [
            self.session(job="g", model="strict", tp=tp, tp_size=2, world_size=2, global_rank=tp)
            for tp in (0, 1)
        ]
        first = gang[0].save_state_dict(state, 2, tp_size=1, pp_size=1)
        self.assertFalse(first.visible)
        self.assertTrue(gang[1].save_state_dict({}, 2, tp_size=1, pp_size=1).visible)


if __name__ == "__main__":
    unittest.main()

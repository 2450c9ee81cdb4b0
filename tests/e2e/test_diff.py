#!/usr/bin/python3
"""`helios model diff`: versions at any layouts, compared by their global tensors;
exit status like that of diff(1)."""
from __future__ import annotations

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.saving_gang import SavingGang  # noqa: E402

import helios  # noqa: E402

TP, PP, NORM = 2, 2, "decoder.final_layernorm.weight"
# of a stage: its rows are gate and up of this tensor rank
FC1 = "decoder.layers.0.mlp.linear_fc1.weight"


def whole_numbers(directory):
    """Rewrites its tensors so that differences are exact."""
    path, rng = directory / "model.safetensors", torch.Generator().manual_seed(1)
    shapes = {n: t["shape"] for n, t in checkpoints.read(path)[0].items()}
    checkpoints.write(
        path,
        {
            n: (s, torch.randint(-8, 8, s, generator=rng).float().numpy().tobytes())
            for n, s in shapes.items()
        },
    )
    return directory


class Diff(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, nodes=1, slots=1, size="256MiB")
        source = whole_numbers(
            checkpoints.llama(cls.c.dir / "source", layers=4, hidden=32, ffn=48)[0]
        )
        cls.c.json("model", "import", source, "--name", "m", "--tp", TP, "--pp", PP)
        cls.c.json("model", "import", source, "--name", "one")
        cls.gang = SavingGang(cls, cls.c.info["controller"], "m", tp=TP, pp=PP)

    def save(self, change=None, **how):
        """Saves a version of m: the import, changed by change(rank, state, optim)."""
        saved = self.gang.save(change, **how)
        self.assertTrue(saved.visible)
        return f"m@{saved.version}"

    def diff(self, *args, code=0):
        done = self.c.run("model", "diff", *args)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code < 2:
            self.assertEqual(done.stderr, "")
        return done.stdout

    def found(self, *args, code=0):
        return json.loads(self.diff(*args, "-o", "json", code=code))

    def test_equal_versions_at_one_layout_are_told_by_checksums(self):
        found = self.found("m@1", self.save())
        self.assertEqual((found["equal"], found["items"], found["bytesRead"]), (True, [], 0))
        self.assertEqual((found["tensors"], found["byChecksum"]), (39, 39))
        self.assertEqual(len(found["notCompared"]), 1)
        self.assertIn("optimizer state", found["notCompared"][0])

    def test_equal_versions_at_two_layouts_are_equal(self):
        found = self.found("m@1", "one")
        self.assertEqual((found["equal"], found["tensors"], found["differing"]), (True, 39, 0))
        self.assertGreater(found["bytesRead"], 0)
        self.assertIn("m@1 and one@1 are equal: 39 tensors", self.diff("m@1", "one"))

    def test_tensors_of_several_windows(self):
        source = whole_numbers(
            checkpoints.llama(self.c.dir / "wide", layers=1, hidden=32, ffn=48, vocab=40000)[0]
        )
        self.c.json("model", "import", source, "--name", "wide")
        header, tensors = checkpoints.read(source / "model.safetensors")
        rows = bytearray(tensors["lm_head.weight"])
        for row in (3, 39999):
            rows[row * 128 : row * 128 + 8] = b"\0\0\xc8\x42" * 2  # 100
        tensors["lm_head.weight"] = bytes(rows)
        checkpoints.write(
            source / "model.safetensors",
            {n: (header[n]["shape"], data) for n, data in tensors.items()},
        )
        self.c.json("model", "import", source, "--name", "wider", "--tp", 2)
        found = self.found("wide", "wider", code=1)
        self.assertEqual(
            [(i["name"], i["differing"], i["first"]) for i in found["items"]],
            [("lm_head.weight", 4, [3, 0])],
        )
        self.assertTrue(92 <= found["items"][0]["largest"] <= 108)

    def test_elements_are_counted_and_the_first_one_is_named(self):
        def change(rank, state, optim):
            if rank == 1:  # pp 0, tp 1: rows 24..47 of gate, then of up
                state[FC1][24 + 3, 5] += 0.5
                state[FC1][24 + 3, 7] -= 2
            if NORM in state:
                state[NORM][9] = float("nan")

        other = self.save(change)
        for first in ("m@1", "one"):
            found = self.found(first, other, code=1)
            items = {i["name"]: i for i in found["items"]}
            self.assertEqual(set(items), {"model.layers.0.mlp.up_proj.weight", "model.norm.weight"})
            up, norm = items["model.layers.0.mlp.up_proj.weight"], items["model.norm.weight"]
            self.assertEqual((up["elements"], up["differing"], up["first"]), (48 * 32, 2, [27, 5]))
            self.assertEqual(up["largest"], 2)
            self.assertEqual((norm["differing"], norm["first"], norm["notFinite"]), (1, [9], 1))
        text = self.diff("m@1", other, code=1)
        self.assertRegex(
            text,
            r"up_proj.weight: 2 of 1536 elements differ, the first is \[27,5\]; max \|a-b\| 2\n",
        )
        self.assertIn("differ in 2 of 39 tensors", text)

    def test_a_window_that_checksums_decide_is_not_read(self):
        def change(rank, state, optim):
            if NORM in state:
                state[NORM] += 1

        found = self.found("m@1", self.save(change), code=1)
        self.assertEqual(found["bytesRead"], 2 * 32 * 4)
        self.assertEqual(found["byChecksum"], 38)

    def test_options_narrow_the_comparison_and_what_is_said(self):
        def change(rank, state, optim):
            for tensor in state.values():
                tensor += 1

        other = self.save(change)
        self.assertEqual(self.diff("m@1", other, "-q", code=1), "")
        self.assertEqual(self.diff("m@1", other, "--quiet", code=1), "")
        self.assertEqual(self.diff("m@1", "m@1", "-q"), "")
        text = self.diff("m@1", other, "--max", 2, code=1).splitlines()
        self.assertEqual(len([line for line in text if "elements differ" in line]), 2)
        self.assertIn("... and 37 more", text)
        found = self.found("m@1", other, "--tensor", "*.q_proj.weight", code=1)
        self.assertEqual(
            [i["name"] for i in found["items"]],
            [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(4)],
        )
        self.assertEqual(found["tensors"], 4)
        self.assertIn(
            "has a name that matches 'nothing'",
            self.c.refuse("model", "diff", "m@1", other, "--tensor", "nothing", code=2),
        )

    def test_optimizer_state_is_compared_on_demand(self):
        def change(rank, state, optim):
            optim[f"exp_avg.{NORM}"] = optim.get(f"exp_avg.{NORM}", torch.zeros(32)) + 4
            if NORM not in state:
                del optim[f"exp_avg.{NORM}"]

        plain, other = self.save(), self.save(change)
        self.assertTrue(self.found(plain, other)["equal"])
        found = self.found(plain, other, "--all", code=1)
        self.assertEqual([i["name"] for i in found["items"]], ["exp_avg.model.norm.weight"])
        self.assertEqual((found["items"][0]["differing"], found["items"][0]["largest"]), (32, 4))
        self.assertEqual((found["tensors"], found["notCompared"]), (78, []))
        only = self.found("m@1", plain, "--all", code=1)
        self.assertEqual(len(only["items"]), 39)
        self.assertTrue(all("a" not in i and i["b"]["dtype"] == "F32" for i in only["items"]))

    def test_other_dtypes_and_other_models_are_differences_of_form(self):
        other = self.save(
            lambda rank, state, optim: {n: t.bfloat16() for n, t in state.items()}, any_dtype=True
        )
        text = self.diff("m@1", other, "--tensor", "model.norm.weight", code=1)
        self.assertIn(f"model.norm.weight: F32 [32] in m@1, BF16 [32] in {other}", text)
        small = checkpoints.llama(self.c.dir / "small", layers=2, hidden=32, ffn=48, vocab=50)[0]
        self.c.json("model", "import", small, "--name", "small")
        items = {i["name"]: i for i in self.found("one", "small", code=1)["items"]}
        self.assertEqual(items["lm_head.weight"]["b"]["shape"], [50, 32])
        self.assertNotIn("b", items["model.layers.3.self_attn.q_proj.weight"])
        self.assertIn(
            "model.layers.3.input_layernorm.weight: only in one@1, F32 [32]",
            self.diff("one", "small", code=1),
        )

    def test_a_model_without_a_config_is_compared_by_place(self):
        gang = [
            helios.Session(
                self.c.info["controller"],
                rank=helios.Rank(job="g", tp=tp, tp_size=2, world_size=2, global_rank=tp),
            )
            for tp in range(2)
        ]
        for rank in gang:
            self.addCleanup(rank.close, force=True)
        for step in (1, 2):
            for tp, rank in enumerate(gang):
                rank.save_state_dict(
                    {"decoder.layers.0.a": torch.full((3, 2), float(tp * step))}, step, model="mine"
                )
        found = self.found("mine@1", "mine@2", code=1)
        self.assertEqual(
            [(i["name"], i["largest"]) for i in found["items"]],
            [("pp0/tp1/layer-0000: decoder.layers.0.a", 1)],
        )
        self.assertIn("no Hugging Face config", found["byPlace"])
        self.assertTrue(self.found("mine@2", "mine@2")["equal"])
        self.assertIn(
            "compare versions with the same split",
            self.c.refuse("model", "diff", "mine", "m@1", code=2),
        )

    def test_what_is_not_there_has_no_result(self):
        self.assertIn("does not exist", self.c.refuse("model", "diff", "m", "nobody", code=2))
        self.assertIn("99", self.c.refuse("model", "diff", "m@99", "m@1", code=2))
        self.c.refuse("model", "diff", "m", code=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/python3
"""A version is proved before it becomes visible, and again by `helios model verify`."""
from __future__ import annotations

import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.saving_gang import SavingGang  # noqa: E402

from helios import errors  # noqa: E402

TP, PP = 2, 2
REPLICAS = [
    "decoder.final_layernorm.weight",
    "decoder.layers.0.input_layernorm.weight",
    "decoder.layers.1.pre_mlp_layernorm.weight",
]


class Proof(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, nodes=1, slots=1, size="256MiB")
        cls.c.json(
            "model",
            "import",
            checkpoints.llama(cls.c.dir / "source", layers=4, hidden=32, ffn=48)[0],
            "--name",
            "m",
            "--tp",
            TP,
            "--pp",
            PP,
        )
        cls.gang = SavingGang(cls, cls.c.info["controller"], "m", tp=TP, pp=PP)

    def versions(self):
        return {v["version"]: v for v in self.c.json("model", "show", "m")["versions"]}

    def test_a_correct_save_is_proved_at_once_and_by_its_bytes(self):
        saved = self.gang.save()
        self.assertTrue(saved.visible)
        self.assertTrue(self.versions()[saved.version]["proved"])
        found = self.c.json("model", "verify", f"m@{saved.version}")
        self.assertTrue(found["ok"] and found["proved"], found)
        self.assertEqual(found["shards"], self.versions()[saved.version]["shards"])
        self.assertGreaterEqual(found["copies"], found["shards"])

    def test_an_import_is_proved_at_once_and_by_its_bytes(self):
        self.assertEqual((self.versions()[1]["proved"], self.versions()[1]["unproved"]), (True, ""))
        self.assertTrue(self.c.json("model", "verify", "m@1")["proved"])

    def test_dozens_of_damaged_saves_are_refused(self):
        rng = random.Random(7)
        before = self.c.json("shard", "ls")["items"]
        for turn in range(36):
            tp, name, state_too = rng.randrange(TP), rng.choice(REPLICAS), rng.random() < 0.5

            def damage(rank, state, optim, tp=tp, name=name, key="exp_avg." if state_too else ""):
                target = optim if key else state
                if rank % TP == tp and key + name in target:
                    flat = target[key + name].view(torch.uint8)
                    flat[rng.randrange(flat.numel())] ^= 1 << rng.randrange(8)

            with self.subTest(turn=turn, tp=tp, name=name), self.assertRaises(
                errors.HeliosError
            ) as caught:
                self.gang.save(damage)
            text = str(caught.exception)
            self.assertIn("replicas differ in", text)
            self.assertIn("norm", text)
            self.assertIn("of rank", text)
        self.assertEqual(
            {s["id"] for s in self.c.json("shard", "ls")["items"]}, {s["id"] for s in before}
        )

    def test_ranks_that_had_committed_hear_why(self):
        def damage(rank, state, optim):
            if rank == TP * PP - 1:
                state[REPLICAS[0]] += 1

        with self.assertRaises(errors.HeliosError):
            self.gang.save(damage)
        state = self.gang.sessions[0].load_state_dict(version=1)
        with self.assertRaises(errors.Canceled) as caught:
            self.gang.sessions[0].save_state_dict(dict(state), self.gang.step)
        self.assertIn("model.norm.weight", str(caught.exception))

    def test_verify_names_what_an_unchecked_save_broke(self):
        def damage(rank, state, optim):
            if rank == TP * PP - 1:
                state[REPLICAS[0]] += 1

        saved = self.gang.save(damage, strict=False)
        self.assertIn("strict=False", self.versions()[saved.version]["unproved"])
        text = self.c.refuse("model", "verify", f"m@{saved.version}")
        self.assertIn("model.norm.weight", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)

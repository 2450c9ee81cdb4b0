#!/usr/bin/python3
"""The L3 daemon, the Controller and the calling process are killed at many moments of a save with
pieces, an import, the cut of a model with experts and its export. Afterwards what is visible is
right, nothing else is left, and the next call works. HELIOS_KILLS=N: N kills of each at random
moments (docs/testing.md)."""
from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints, kill_case, tiny_mixtral  # noqa: E402
from support.cluster import wait_for  # noqa: E402
from support.kill_case import poolfile  # noqa: E402

import helios  # noqa: E402

KILLS = int(os.environ.get("HELIOS_KILLS", "0"))
WHO = ("l3d", "controllerd", "caller")
SAVER = """
import sys, torch, helios
controller, dp = sys.argv[1], int(sys.argv[2])
rank = helios.Session(controller, rank=helios.Rank(
    job="pieces" + sys.argv[3], model="saved", dp=dp, dp_size=2, world_size=2, global_rank=dp))
state = rank.load_state_dict(version=1)
half = {n: (t.numel() // 2 * dp, t.numel() // 2 if dp == 0 else t.numel())
        for n, t in state.items()}
optim = {"exp_avg." + n: helios.Piece(t.reshape(-1)[half[n][0]:half[n][1]], t.shape, half[n][0])
         for n, t in state.items()}
print(rank.save_state_dict(state, 1, optim=optim).visible)
"""


def moments():
    """Fractions of the time that a call takes without a kill,
    chosen while most of its bytes are in flight."""
    rng = random.Random(1)
    return [rng.uniform(0, 1.1) for _ in range(KILLS)] or [0.6]


class KillMoments(kill_case.KillCase):
    GRACE = "8s"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.dense, _ = checkpoints.llama(
            cls.c.dir / "dense", layers=4, hidden=256, ffn=768, vocab=1024
        )
        cls.experts, _ = tiny_mixtral.checkpoint(cls.c.dir / "experts")
        cls.turn = 0

    def strike(self, start, took, share, who):
        """start(), then kill `who` at that fraction of the time;
        returns the results of the processes."""
        processes = start()
        time.sleep(took * share)
        if who == "caller":
            processes[-1].kill()
        else:
            self.c.kill(who)
            self.c.up()
        return self.finish(processes)

    def each(self, start, check, reset):
        """Kill every process at every moment; check(results) after each, then reset()."""
        began = time.monotonic()
        results = self.finish(start())
        took = time.monotonic() - began
        self.assertEqual({code for code, _, _ in results}, {0}, results)
        check(results)
        reset()
        for who in WHO:
            for share in moments():
                with self.subTest(who=who, share=round(share, 2)):
                    check(self.strike(start, took, share, who))
                    self.check_nothing_left()
                    reset()
                    self.check_nothing_left()

    # ---- invariants, whichever process died ----

    def models(self):
        return {
            m["name"]: {
                v["version"]: v for v in self.c.json("model", "show", m["name"])["versions"]
            }
            for m in self.c.json("model", "ls")["items"]
        }

    def leftovers(self):
        return [
            p
            for p in self.c.dir.rglob("*")
            if p.name.endswith(".tmp") or ".tmp." in p.name or p.name.endswith(".part")
        ]

    def check_nothing_left(self):
        wait_for(
            "versions that were not finished to go",
            lambda: all(
                v["state"] == "visible"
                for versions in self.models().values()
                for v in versions.values()
            ),
        )
        wait_for("what nobody knows to leave the pool", lambda: not self.orphans())
        self.assertLessEqual(self.known(), set(poolfile.sealed(self.pool)))
        for name, versions in self.models().items():
            for version in versions:
                found = self.c.json("model", "verify", f"{name}@{version}")
                self.assertTrue(found["ok"] and found["proved"], found)

    # ---- operations that are hit ----

    def test_a_save_with_pieces(self):
        self.c.json("model", "import", self.dense, "--name", "saved")
        first = helios.Session(self.c.info["controller"], rank=helios.Rank()).load_state_dict(
            "saved", copy=True
        )

        def start():
            KillMoments.turn += 1
            return [self.python(SAVER, self.c.info["controller"], dp, self.turn) for dp in range(2)]

        def check(results):
            said = "True" in [out.strip() for _, out, _ in results]
            versions = wait_for(
                "the saves to end",
                lambda: (v := self.models()["saved"])
                and all(x["state"] == "visible" for x in v.values())
                and v,
            )
            if said:  # an answer "visible" is kept
                self.assertGreater(len(versions), 1, results)
            for number in versions:
                reader = helios.Session(self.c.info["controller"], rank=helios.Rank())
                state = reader.load_state_dict(f"saved@{number}", copy=True)
                self.assertEqual(state.keys(), first.keys())
                for name, tensor in state.items():
                    self.assertTrue(
                        torch.equal(tensor.view(torch.uint8), first[name].view(torch.uint8)), name
                    )
                if number > 1:
                    moments_ = reader.load_state_dict(f"saved@{number}", kind="optim", copy=True)
                    for name, tensor in first.items():
                        self.assertTrue(
                            torch.equal(
                                moments_["exp_avg." + name].view(torch.uint8),
                                tensor.view(torch.uint8),
                            ),
                            name,
                        )
                reader.close(force=True)

        def reset():
            for number in self.models()["saved"]:
                if number > 1:
                    self.c.json("model", "rm", f"saved@{number}", "--force")

        self.each(start, check, reset)
        self.c.json("model", "rm", "saved")

    def test_an_import(self):
        def start():
            return [self.helios("model", "import", self.dense, "--name", "taken", "--tp", 2)]

        def check(results):
            wait_for(
                "the import to end",
                lambda: not any(
                    m["state"] == "importing" for m in self.c.json("model", "ls")["items"]
                ),
            )
            if results[0][0] == 0:
                self.assertIn("taken", self.models())

        def reset():
            if "taken" in self.models():
                self.c.json("model", "rm", "taken")

        self.each(start, check, reset)
        self.assertEqual(
            self.c.json("model", "import", self.dense, "--name", "taken", "--tp", 2)["version"], 1
        )
        self.c.json("model", "rm", "taken")

    def test_a_cut_of_experts(self):
        def take():
            self.c.json("model", "import", self.experts, "--name", "moe", "--ep", 2)

        def start():
            return [
                self.helios(
                    "model", "reshard", "moe", "--tp-size", 2, "--ep-size", 4, "--etp-size", 1
                )
            ]

        def check(results):
            if results[0][0] == 0:
                self.assertEqual(len(self.models()["moe"][1]["cuts"]), 1)

        def reset():
            self.c.json("model", "rm", "moe")
            take()

        take()
        self.each(start, check, reset)
        self.c.json("model", "rm", "moe")

    def test_an_export_of_experts(self):
        self.c.json(
            "model", "import", self.experts, "--name", "out", "--ep", 2, "--tp", 2, "--etp", 1
        )
        out = self.c.dir / "exported"
        source = checkpoints.read(self.experts / "model.safetensors")[1]

        def start():
            return [self.helios("model", "export", "out", "--format", "hf", "--out", out)]

        def whole():
            return {
                n: b
                for file in out.glob("*.safetensors")
                for n, b in checkpoints.read(file)[1].items()
            }

        def check(results):
            if results[0][0] == 0:
                self.assertEqual(whole(), source)
            for file in out.glob("*.safetensors"):  # a file under its final name is whole
                for name, data in checkpoints.read(file)[1].items():
                    self.assertEqual(data, source[name])
            for file in out.glob("*.json"):
                json.loads(file.read_text())
            self.c.json("model", "export", "out", "--format", "hf", "--replace", "--out", out)
            self.assertEqual(whole(), source)
            self.assertEqual(self.leftovers(), [])

        self.each(start, check, lambda: shutil.rmtree(out, ignore_errors=True))
        self.c.json("model", "rm", "out")


if __name__ == "__main__":
    unittest.main(verbosity=2)

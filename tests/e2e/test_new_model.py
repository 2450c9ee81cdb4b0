#!/usr/bin/python3
"""Models that a save makes, with real daemons: by one rank, by a gang, by two gangs at once,
and by a save that fails."""
from __future__ import annotations

import json
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

from helios import errors  # noqa: E402


def state(rank=0):
    names = ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "decoder.layers.1.a", "head")
    return {name: torch.full((3, 2), rank + i + 0.5) for i, name in enumerate(names)}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


class NewModel(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 2, "size": "64MiB"}

    def gang(self, job, tp_size, pp_size=1):
        return [
            self.session(
                job=job,
                pp=pp,
                tp=tp,
                pp_size=pp_size,
                tp_size=tp_size,
                world_size=tp_size * pp_size,
                global_rank=tp_size * pp + tp,
            )
            for pp in range(pp_size)
            for tp in range(tp_size)
        ]

    def models(self):
        return [m["name"] for m in self.c.json("model", "ls")["items"]]

    def test_a_save_of_nothing_is_refused_and_makes_no_model(self):
        for strict in (True, False):
            with self.assertRaisesRegex(
                errors.InvalidArgument, "would be empty: none of its 1 ranks has saved a tensor"
            ):
                self.session().save_state_dict({}, 1, model="nothing", strict=strict)
            self.assertNotIn("nothing", self.models())

    def test_a_session_that_read_a_removed_model_saves_it_anew(self):
        session = self.session()
        session.save_state_dict(state(), 1, model="removed")
        session.load_state_dict("removed")
        self.assertEqual(self.c.run("model", "rm", "removed").returncode, 0)
        self.assertTrue(session.save_state_dict(state(3), 1, model="removed").visible)
        self.assertTrue(same(session.load_state_dict("removed"), state(3)))

    def test_a_tensor_named_as_a_piece_keeps_its_name(self):
        values = {"w.at0of6": torch.arange(6.0), "head": torch.ones(2)}
        session = self.session()
        session.save_state_dict(values, 1, model="named")
        self.assertTrue(same(session.load_state_dict("named", kind="all"), values))

    def test_one_rank_makes_a_model_and_goes_on_with_it(self):
        saved = self.session().save_state_dict(state(), 1, model="mine", meta={"step": 1})
        self.assertEqual((saved.version, saved.visible), (1, True))
        reader = self.session()
        self.assertTrue(same(reader.load_state_dict("mine"), state()))
        self.assertEqual(reader.meta(), {"step": 1})
        again = self.session().save_state_dict(
            state(7), 2, model="mine", optim={f"exp_avg.{n}": t for n, t in state(7).items()}
        )
        self.assertEqual((again.version, again.visible), (2, True))
        self.assertTrue(same(self.session().load_state_dict("mine"), state(7)))
        with self.assertRaisesRegex(errors.InvalidArgument, "missing|expected"):
            self.session().save_state_dict({"head": torch.zeros(3, 2)}, 3, model="mine")
        self.assertEqual(len(self.c.json("model", "show", "mine")["versions"]), 2)

    def test_a_gang_makes_one_at_its_sizes_which_are_the_only_ones(self):
        gang = self.gang("g1", tp_size=2, pp_size=2)
        saves = [rank.save_state_dict(state(i), 1, model="sliced") for i, rank in enumerate(gang)]
        self.assertEqual([s.visible for s in saves], [False, False, False, True])
        shown = self.c.json("model", "show", "sliced")
        self.assertEqual((shown["tp"], shown["pp"], shown["config"]["asSaved"]), (2, 2, True))
        text = self.c.run("model", "show", "sliced").stdout
        self.assertIn("only so, as it was saved without a config", text)
        self.assertIn(
            "source        saved by a client, not imported\narchitecture  unknown\n", text
        )
        for i, rank in enumerate(gang):
            self.assertTrue(same(rank.load_state_dict("sliced"), state(i)))
        for sizes in ({"tp_size": 4}, {"pp_size": 1}):
            with self.assertRaisesRegex(
                errors.Unsupported, "only be read as it was saved, TP2 x PP2"
            ):
                gang[0].load_state_dict("sliced", **sizes)
        with self.assertRaisesRegex(errors.Unsupported, "can't be saved as TP1 x PP2"):
            gang[0].save_state_dict(state(), 2, model="sliced", tp_size=1)
        out = self.c.dir / "sliced"
        self.c.json("model", "export", "sliced", "--out", out)
        self.assertEqual(set(checkpoints.read(out / "mp_rank_01_001.safetensors")[1]), set(state()))
        self.assertIn(
            "no Hugging Face config",
            self.c.refuse(
                "model", "export", "sliced", "--format", "hf", "--out", self.c.dir / "sliced-hf"
            ),
        )

    def test_a_save_that_fails_leaves_no_model(self):
        gang = self.gang("g2", tp_size=2)
        gang[0].save_state_dict(state(), 1, model="never")
        self.assertEqual(self.models().count("never"), 1)  # it is there, without a version to read
        with self.assertRaises(errors.NotFound):
            self.session().load_state_dict("never")
        with self.assertRaisesRegex(errors.InvalidArgument, "b"):
            gang[1].save_state_dict(
                {"b": torch.zeros(2), "module.b": torch.zeros(2)}, 1, model="never"
            )
        broken = state(1) | {"b": Unreadable()}
        with self.assertRaisesRegex(RuntimeError, "gone"):
            gang[1].save_state_dict(broken, 1, model="never")
        self.assertNotIn("never", self.models())
        self.assertEqual(
            [s for s in self.c.json("shard", "ls")["items"] if s["model"] == "never"], []
        )

    def test_two_gangs_at_once_make_one_model(self):
        gangs = [self.gang("g3", tp_size=1)[0], self.gang("g4", tp_size=1)[0]]
        results, start = [], threading.Barrier(2)

        def save(i, rank):
            start.wait(30)
            results.append(rank.save_state_dict(state(i), 1, model="both"))

        threads = [threading.Thread(target=save, args=item) for item in enumerate(gangs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(sorted((s.version, s.visible) for s in results), [(1, True), (2, True)])
        self.assertEqual(self.models().count("both"), 1)

    def test_two_gangs_of_other_sizes_do_not_mix(self):
        first = self.gang("g5", tp_size=2)
        first[0].save_state_dict(state(), 1, model="mixed")
        with self.assertRaisesRegex(
            errors.Conflict, "is being created as TP2 x PP1, .* as TP1 x PP1: save under"
        ):
            self.session().save_state_dict(state(), 1, model="mixed")
        self.assertTrue(first[1].save_state_dict(state(1), 1, model="mixed").visible)

    def test_a_config_makes_it_like_an_imported_one(self):
        source, data = checkpoints.llama(self.c.dir / "llama", layers=4)
        # no JSON, but Python's
        config = json.loads((source / "config.json").read_text()) | {"limit": [0.0, float("inf")]}
        (source / "config.json").write_text(json.dumps(config))
        for naming in ("local", "te"):
            old, new = f"in-{naming}", f"out-{naming}"
            self.c.json(
                "model", "import", source, "--name", old, "--tp", 2, "--pp", 2, "--naming", naming
            )
            gang = self.gang(new, tp_size=2, pp_size=2)
            states = [
                {n: t.clone() for n, t in r.load_state_dict(old, pp_size=2, tp_size=2).items()}
                for r in gang
            ]
            saves = [
                r.save_state_dict(s, 1, model=new, config=config) for r, s in zip(gang, states)
            ]
            self.assertTrue(saves[-1].visible)
            shown = [self.c.json("model", "show", name)["config"] for name in (old, new)]
            self.assertEqual(shown[0], shown[1])
            reader = self.session()
            for pp in range(4):
                a, b = (reader.load_state_dict(name, pp=pp, tp=1, pp_size=4) for name in (old, new))
                self.assertEqual(
                    {n: t.view(torch.uint8).tolist() for n, t in a.items()},
                    {n: t.view(torch.uint8).tolist() for n, t in b.items()},
                )
            out = self.c.dir / f"hf-{naming}"
            self.c.json("model", "export", new, "--format", "hf", "--out", out)
            self.assertEqual(checkpoints.read(out / "model.safetensors")[1], data)
            again = [
                r.save_state_dict(s, 2, model=new, config=config) for r, s in zip(gang, states)
            ]
            self.assertTrue(again[-1].visible)
            self.assertEqual(reader.model_config()["hf"]["limit"], config["limit"])
        with self.assertRaisesRegex(errors.Conflict, "differs from the given one"):
            gang[0].save_state_dict(states[0], 3, model=new, config=config | {"vocab_size": 60})
        for change, error, text in (
            ({"intermediate_size": 64}, errors.InvalidArgument, "mlp.linear_fc"),
            ({"vocab_size": 9000}, errors.InvalidArgument, "can't be padded"),
            ({"model_type": "mamba9"}, errors.Unsupported, "mamba9"),
            ({"num_hidden_layers": 0}, errors.InvalidArgument, "num_hidden_layers"),
        ):
            wrong = self.gang("wrong", tp_size=2, pp_size=2)
            with self.assertRaisesRegex(error, text):
                for r, s in zip(wrong, states):
                    r.save_state_dict(s, 1, model="wrong", config=config | change)
            self.assertNotIn("wrong", self.models())

    def test_only_a_model_that_is_named_is_made(self):
        with self.assertRaises(errors.NotFound):
            self.session(model="gone").save_state_dict(state(), 1)
        with self.assertRaisesRegex(errors.InvalidArgument, "name"):
            self.session().save_state_dict(state(), 1, model="a/b")
        self.assertFalse({"gone", "a/b"} & set(self.models()))


class Unreadable:
    """A tensor that is lost while the shard is written."""

    shape, dtype = (2,), torch.float32

    def read_into(self, address, size):
        raise RuntimeError("gone")

    def test_one_version_is_shown_and_what_is_not_proved_has_a_line(self):
        for step in (1, 2):
            self.session().save_state_dict(state(), step, model="two")
        whole, one = self.c.json("model", "show", "two"), self.c.json("model", "show", "two@1")
        self.assertEqual([v["version"] for v in whole["versions"]], [2, 1])
        self.assertEqual([v["version"] for v in one["versions"]], [1])
        self.assertIn("has no version 9", self.c.refuse("model", "show", "two@9"))
        self.assertIn("a version number from 1", self.c.refuse("model", "show", "two@0", code=2))
        shown = self.c.run("model", "show", "two").stdout
        self.assertNotIn("ERROR", shown)  # there is none
        (row,) = [line for line in shown.splitlines() if line.strip().startswith("2 ")]
        self.assertTrue(row.rstrip().endswith("not proved"), row)
        for version in whole["versions"]:
            self.assertIn(
                f"\nversion {version['version']} is not proved: {version['unproved']}\n", shown
            )
        self.assertNotIn("version 2", self.c.run("model", "show", "two@1").stdout)


if __name__ == "__main__":
    unittest.main()

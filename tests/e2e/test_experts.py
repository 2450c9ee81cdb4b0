#!/usr/bin/python3
"""Models with experts and with latent attention, with real daemons: ranks load what the checkpoint
says at every layout, and an export equals the imported checkpoint."""
from __future__ import annotations

import itertools
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.expert_case import (  # noqa: E402
    E,
    FAMILIES,
    FFN,
    LAYERS,
    SPLITS,
    VIRTUAL,
    ExpertCase,
    layout,
    places,
)

import helios  # noqa: E402
from helios import errors  # noqa: E402


class Experts(ExpertCase):
    def test_every_family_comes_out_as_it_came_in_from_every_split(self):
        for family in FAMILIES:
            for split in SPLITS + VIRTUAL[:1]:
                with self.subTest(family=family, split=split):
                    name, numbers = self.load(family, split)
                    self.check_exported(name, numbers)

    def check_reads_as_imported(self, family, pairs):
        """Every rank of each pair's second split reads the same from a
        model stored at the first."""
        names = {
            split: self.load(family, split)[0] for split in sorted(set(itertools.chain(*pairs)))
        }
        with self.session() as me:
            for stored, wanted in pairs:
                for place in places(wanted):
                    with self.subTest(family=family, stored=stored, wanted=wanted, **place):
                        got = me.load_state_dict(names[stored], **place, **layout(wanted))
                        own = me.load_state_dict(names[wanted], **place)
                        self.assertEqual(got.keys(), own.keys())
                        self.assertEqual([n for n in got if not torch.equal(got[n], own[n])], [])
                        self.assertEqual(any(n.startswith("model1.") for n in got), len(wanted) > 4)

    def test_every_layout_reads_what_an_import_at_it_would_have_made(self):
        for family in FAMILIES:
            self.check_reads_as_imported(family, list(itertools.permutations(SPLITS, 2)))

    def test_virtual_stages_read_what_an_import_with_them_would_have_made(self):
        pairs = (
            [(SPLITS[0], v) for v in VIRTUAL]
            + [(v, SPLITS[1]) for v in VIRTUAL[:2]]
            + [VIRTUAL[:2], VIRTUAL[:0:-1]]
        )
        for family in FAMILIES:
            self.check_reads_as_imported(family, pairs)

    def test_gate_and_up_in_turns_are_taken_apart(self):
        for split in SPLITS:
            name, numbers = self.load("gpt_oss", split)
            tp_size, pp_size, ep_size, etp = split
            layers, count, width = LAYERS // pp_size, E // ep_size, FFN // etp
            for pp, tp, ep in itertools.product(range(pp_size), range(tp_size), range(ep_size)):
                cut = slice(tp % etp * width, (tp % etp + 1) * width)
                with self.session() as me:
                    state = me.load_state_dict(model=name, pp=pp, tp=tp, ep=ep)
                for layer, n in itertools.product(range(layers), range(count)):
                    at, e = f"model.layers.{pp * layers + layer}.mlp.experts.", ep * count + n
                    base = f"decoder.layers.{layer}.mlp.experts.local_experts.{n}."
                    both = numbers[at + "gate_up_proj"][e].T
                    self.assertTrue(
                        torch.equal(
                            state[base + "linear_fc1.weight"],
                            torch.cat([both[0::2][cut], both[1::2][cut]]),
                        )
                    )
                    self.assertTrue(
                        torch.equal(
                            state[base + "linear_fc2.weight"],
                            numbers[at + "down_proj"][e].T[:, cut],
                        )
                    )
                    self.assertTrue(
                        torch.equal(
                            state[base + "linear_fc2.bias"], numbers[at + "down_proj_bias"][e]
                        )
                    )

    def test_layers_that_predict_more_tokens_stand_on_the_last_stage(self):
        split = (2, 2, 2, 2)
        name, numbers = self.load("deepseek_v3+mtp", split)
        self.save(name, split, 4, lambda _, t: t + 1)
        with self.session() as me:
            for tp, ep in itertools.product(range(2), range(2)):
                state = me.load_state_dict(model=name, pp=1, tp=tp, ep=ep)
                self.assertTrue(
                    torch.equal(
                        state["mtp.layers.0.eh_proj.weight"],
                        numbers["model.layers.4.eh_proj.weight"][tp * 4 : tp * 4 + 4] + 1,
                    )
                )
                (expert,) = (
                    n
                    for n in state
                    if n.startswith("mtp.") and n.endswith("local_experts.1.linear_fc2.weight")
                )
                want = numbers[f"model.layers.4.mlp.experts.{ep * 2 + 1}.down_proj.weight"][
                    :, tp * 2 : tp * 2 + 2
                ]
                self.assertTrue(torch.equal(state[expert], want + 1))
            self.assertFalse(
                [n for n in me.load_state_dict(model=name, pp=0, tp=0) if n.startswith("mtp.")]
            )
        said = self.c.json("model", "verify", f"{name}@2")
        self.assertTrue(said["proved"], said)

    def test_a_job_may_train_without_the_layers_that_predict_more_tokens(self):
        name, numbers = self.load("deepseek_v3+mtp", (1, 1, 1, 1))
        with helios.Session(
            self.c.info["controller"], rank=helios.Rank(job="no-mtp", model=name)
        ) as me:
            state = me.load_state_dict()
            me.save_state_dict(
                {n: t for n, t in state.items() if not n.startswith("mtp.")}, step=1, strict=False
            )
            self.assertEqual(
                {n for n in me.load_state_dict(name, tp=1, tp_size=2, ep_size=2) if "mtp" in n},
                set(),
            )
        self.check_exported(
            name, {n: t for n, t in numbers.items() if f"layers.{LAYERS}." not in n}
        )

    def test_a_layout_with_more_predicted_tokens_is_cut_ahead_of_time_and_leaves_as_files(self):
        name, _ = self.load("glm4_moe+mtp", (1, 1, 1, 1))
        self.c.json("model", "reshard", name, "--tp-size", 2, "--pp-size", 2)
        out = self.c.dir / "mtp-ranks"
        said = self.c.json(
            "model",
            "export",
            name,
            "--format",
            "torch",
            "--out",
            out,
            "--tp-size",
            2,
            "--pp-size",
            2,
            "--ep-size",
            2,
        )
        self.assertIn("--use-checkpoint-args", said["megatron"])
        self.assertFalse([text for text in said["warnings"] if "embedding" in text])
        copy = "embedding.word_embeddings.weight"  # Megatron also has it on the last stage
        with self.session() as me:
            for pp, tp, ep in itertools.product(range(2), range(2), range(2)):
                file = out / "release" / f"mp_rank_{tp:02}_{pp:03}_{ep:03}" / "model_optim_rng.pt"
                checkpoint = torch.load(file, weights_only=False)
                args, state = checkpoint["args"], checkpoint["model"]
                self.assertEqual(
                    (
                        args.tensor_model_parallel_size,
                        args.pipeline_model_parallel_size,
                        args.expert_model_parallel_size,
                    ),
                    (2, 2, 2),
                )
                self.assertEqual(
                    (args.num_experts, args.mtp_num_layers, args.moe_layer_freq),
                    (E, 1, [0, 1, 1, 1]),
                )
                own = me.load_state_dict(name, pp=pp, tp=tp, ep=ep, tp_size=2, pp_size=2, ep_size=2)
                own[copy] = me.load_state_dict(
                    name, pp=0, tp=tp, ep=ep, tp_size=2, pp_size=2, ep_size=2
                )[copy]
                self.assertEqual(state.keys(), own.keys())
                self.assertEqual([n for n in state if not torch.equal(state[n], own[n])], [])
                self.assertEqual(any(n.startswith("mtp.layers.0.") for n in state), pp == 1)

    def test_the_copy_of_the_embedding_is_in_the_chunk_of_those_layers_and_has_optimizer_state(
        self,
    ):
        name, _ = self.load("glm4_moe+mtp", (1, 2, 1, 1), "--virtual-stages", 2)
        word = "embedding.word_embeddings.weight"
        for pp in range(2):
            place = helios.Rank(
                pp=pp, pp_size=2, world_size=2, global_rank=pp, job="mtp", model=name
            )
            with helios.Session(self.c.info["controller"], rank=place) as me:
                state = me.load_state_dict(version=1)
                me.save_state_dict(
                    state,
                    3,
                    optim={f"exp_avg.{n}": t / 2 for n, t in state.items() if "router" not in n},
                )
        out = self.c.dir / "mtp-chunks"
        said = self.c.json(
            "model", "export", name, "--format", "torch", "--optimizer", "--out", out
        )
        self.assertFalse([text for text in said["warnings"] if "embedding" in text])
        first, last = (
            torch.load(out / "iter_0000003" / f"mp_rank_00_00{pp}" / "model_optim_rng.pt")
            for pp in range(2)
        )
        self.assertTrue(torch.equal(last["model1"][word], first["model0"][word]))
        self.assertTrue(
            torch.equal(
                last["helios_optimizer"][f"exp_avg.model1.{word}"], first["model0"][word] / 2
            )
        )
        self.assertNotIn(word, last["model0"])
        self.assertNotIn(word, first["model1"])

    def test_per_rank_files_are_named_by_all_sizes(self):
        name, numbers = self.load("mixtral", (2, 2, 2, 2))
        out = self.c.dir / "ranks"
        said = self.c.json("model", "export", name, "--format", "torch", "--out", out)
        self.assertTrue(said["args"], said)
        found = sorted(f.parent.name for f in out.glob("release/*/model_optim_rng.pt"))
        self.assertEqual(
            found,
            [f"mp_rank_{t:02}_{p:03}_{e:03}" for t in range(2) for p in range(2) for e in range(2)],
        )
        checkpoint = torch.load(
            out / "release" / "mp_rank_01_001_001" / "model_optim_rng.pt", weights_only=False
        )
        args, state = checkpoint["args"], checkpoint["model"]
        self.assertEqual(
            (args.num_experts, args.moe_router_topk, args.moe_ffn_hidden_size), (E, 2, FFN)
        )
        self.assertEqual(
            (args.expert_model_parallel_size, args.expert_tensor_parallel_size), (2, 2)
        )
        self.check_mixtral(state, numbers, ((2, 2, 2, 2), (1, 1, 1)), False)
        file = self.c.dir / "pulled"
        said = self.c.json("pull", "--model", name, "--pp", 1, "--tp", 1, "--ep", 1, "--out", file)
        self.assertEqual(said["ep"], 1)
        header, data = checkpoints.read(file)
        self.assertEqual(data.keys(), state.keys())
        self.assertEqual([n for n in data if data[n] != state[n].numpy().tobytes()], [])

    def test_a_rank_has_its_experts_under_either_naming(self):
        for split in SPLITS:
            name, numbers = self.load("mixtral", split)
            for place in itertools.product(range(split[1]), range(split[0]), range(split[2])):
                with self.session() as me:
                    for te in (False, True):
                        state = me.load_state_dict(
                            model=name,
                            pp=place[0],
                            tp=place[1],
                            ep=place[2],
                            naming="te" if te else "local",
                        )
                        self.check_mixtral(state, numbers, (split, place), te)
                        self.assertEqual(
                            len([n for n in state if n.endswith("mlp.router.weight")]),
                            LAYERS // split[1],
                        )

    def test_one_naming_becomes_the_other_as_the_import_writes_it(self):
        for family in FAMILIES:
            stored = {
                naming: self.load(family, (1, 1, 1, 1), "--naming", naming)[0]
                for naming in ("local", "te")
            }
            for naming, other in (("local", "te"), ("te", "local")):
                with self.subTest(family=family, to=naming), self.session() as me:
                    own = me.load_state_dict(stored[naming])
                    got = me.load_state_dict(stored[other], naming=naming)
                    self.assertEqual(got.keys(), own.keys())
                    self.assertEqual([n for n in got if not torch.equal(got[n], own[n])], [])
                    file = self.c.dir / f"{family}-{naming}"
                    self.c.json(
                        "pull",
                        "--model",
                        stored[other],
                        "--pp",
                        0,
                        "--tp",
                        0,
                        "--naming",
                        naming,
                        "--out",
                        file,
                    )
                    self.assertEqual(checkpoints.read(file)[1].keys(), own.keys())

    def test_other_stages_show_the_same_experts(self):
        name, numbers = self.load("mixtral", (2, 2, 2, 1))
        for place in itertools.product(range(4), range(2), range(2)):
            with self.session() as me:
                state = me.load_state_dict(
                    model=name, pp=place[0], tp=place[1], ep=place[2], pp_size=4
                )
                self.check_mixtral(state, numbers, ((2, 4, 2, 1), place), False)

    def test_sizes_that_do_not_work_out_are_refused(self):
        name, _ = self.load("mixtral", (2, 1, 2, 2))
        with self.session() as me:
            with self.assertRaisesRegex(errors.InvalidArgument, "ep 3"):
                me.load_state_dict(model=name, ep_size=3)
            with self.assertRaisesRegex(errors.InvalidArgument, "etp 4"):
                me.load_state_dict(model=name, etp_size=4)
            with self.assertRaisesRegex(errors.NotFound, "ep 2"):
                me.load_state_dict(model=name, ep=2)
        self.assertIn(
            "does not divide tp",
            self.c.refuse(
                "model",
                "import",
                self.c.dir / "source-mixtral",
                "--name",
                "no",
                "--tp",
                2,
                "--etp",
                4,
            ),
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

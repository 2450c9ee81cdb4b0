#!/usr/bin/python3
"""Models with experts and with latent attention, with real daemons: ranks load what the checkpoint
says, what a gang saves is a version, and an export equals the imported checkpoint."""
from __future__ import annotations

import dataclasses
import itertools
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

import helios  # noqa: E402
from helios import errors  # noqa: E402

H, HEADS, GROUPS, D, FFN, FE, E, VOCAB, LAYERS = 8, 4, 2, 4, 16, 4, 4, 10, 4
SIZES = {
    "hidden_size": H,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": D,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
MOE = {
    "moe_intermediate_size": FE,
    "n_routed_experts": E,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
MLA = {"kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3}
NORMS = {"input_layernorm.weight": [H], "post_attention_layernorm.weight": [H]}
ATTENTION = {
    "self_attn.q_proj.weight": [HEADS * D, H],
    "self_attn.k_proj.weight": [GROUPS * D, H],
    "self_attn.v_proj.weight": [GROUPS * D, H],
    "self_attn.o_proj.weight": [H, HEADS * D],
} | NORMS
BIASES = {
    "self_attn.q_proj.bias": [HEADS * D],
    "self_attn.k_proj.bias": [GROUPS * D],
    "self_attn.v_proj.bias": [GROUPS * D],
}
QK_NORMS = {"self_attn.q_norm.weight": [D], "self_attn.k_norm.weight": [D]}
LATENT = {
    "self_attn.kv_a_proj_with_mqa.weight": [7, H],
    "self_attn.kv_a_layernorm.weight": [5],
    "self_attn.kv_b_proj.weight": [HEADS * 7, 5],
    "self_attn.o_proj.weight": [H, HEADS * 3],
} | NORMS
PLAIN_Q = {"self_attn.q_proj.weight": [HEADS * 6, H]}
LOW_Q = {
    "self_attn.q_a_proj.weight": [3, H],
    "self_attn.q_a_layernorm.weight": [3],
    "self_attn.q_b_proj.weight": [HEADS * 6, 3],
}
OSS = {
    "self_attn.o_proj.bias": [H],
    "self_attn.sinks": [HEADS],
    "mlp.router.weight": [E, H],
    "mlp.router.bias": [E],
    "mlp.experts.gate_up_proj": [E, H, 2 * FFN],
    "mlp.experts.gate_up_proj_bias": [E, 2 * FFN],
    "mlp.experts.down_proj": [E, FFN, H],
    "mlp.experts.down_proj_bias": [E, H],
}


def gated(at, ffn, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    return {
        f"{at}.{gate}.weight": [ffn, H],
        f"{at}.{up}.weight": [ffn, H],
        f"{at}.{down}.weight": [H, ffn],
    }


def experts(at, ffn, names=("gate_proj", "up_proj", "down_proj")):
    return {n: s for e in range(E) for n, s in gated(f"{at}.{e}", ffn, names).items()}


def deepseek(layer, more):
    if layer == 0:
        return gated("mlp", FFN)
    return (
        {"mlp.gate.weight": [E, H], **more}
        | experts("mlp.experts", FE)
        | gated("mlp.shared_experts", 2 * FE)
    )


BIAS = {"mlp.gate.e_score_correction_bias": [E]}
# family: (more of config.json, tensors of a layer by its number)
FAMILIES = {
    "mixtral": (
        {"num_local_experts": E, "num_experts_per_tok": 2},
        lambda n: ATTENTION
        | {"block_sparse_moe.gate.weight": [E, H]}
        | experts("block_sparse_moe.experts", FFN, ("w1", "w3", "w2")),
    ),
    "qwen3_moe": (
        {"num_experts": E, "moe_intermediate_size": FE},
        lambda n: ATTENTION | QK_NORMS | {"mlp.gate.weight": [E, H]} | experts("mlp.experts", FE),
    ),
    "qwen2_moe": (
        {
            "num_experts": E,
            "moe_intermediate_size": FE,
            "shared_expert_intermediate_size": 8,
            "decoder_sparse_step": 2,
        },
        lambda n: ATTENTION
        | BIASES
        | (
            gated("mlp", FFN)
            if n % 2 == 0
            else {"mlp.gate.weight": [E, H], "mlp.shared_expert_gate.weight": [1, H]}
            | experts("mlp.experts", FE)
            | gated("mlp.shared_expert", 8)
        ),
    ),
    "deepseek_v2": (MOE | MLA, lambda n: LATENT | PLAIN_Q | deepseek(n, {})),
    "deepseek_v3": (MOE | MLA | {"q_lora_rank": 3}, lambda n: LATENT | LOW_Q | deepseek(n, BIAS)),
    "glm4_moe": (
        MOE | {"attention_bias": True, "use_qk_norm": True},
        lambda n: ATTENTION | BIASES | QK_NORMS | deepseek(n, BIAS),
    ),
    "gpt_oss": ({"num_local_experts": E}, lambda n: ATTENTION | BIASES | OSS),
    "llama4_text": (
        {"num_local_experts": E, "intermediate_size_mlp": 32, "interleave_moe_layer_step": 2},
        lambda n: ATTENTION
        | (
            gated("feed_forward", 32)
            if n % 2 == 0
            else {
                "feed_forward.router.weight": [E, H],
                "feed_forward.experts.gate_up_proj": [E, H, 2 * FFN],
                "feed_forward.experts.down_proj": [E, FFN, H],
            }
            | gated("feed_forward.shared_expert", FFN)
        ),
    ),
}
MTP = {
    "enorm.weight": [H],
    "hnorm.weight": [H],
    "eh_proj.weight": [H, 2 * H],
    "shared_head.norm.weight": [H],
}
# With a layer that predicts one more token: its copies of the embedding and the head are as
# in the published files.
for type_ in ("deepseek_v3", "glm4_moe"):
    config_, layer_ = FAMILIES[type_]
    FAMILIES[type_ + "+mtp"] = (config_ | {"num_nextn_predict_layers": 1}, layer_)
# (tp, pp, ep, etp, virtual stages)
SPLITS = [(1, 1, 1, 1), (2, 2, 2, 2), (2, 1, 4, 1)]
VIRTUAL = [(2, 2, 2, 1, 2), (1, 2, 4, 1, 2), (2, 2, 4, 2, 2)]


def sizes(split):
    return tuple(
        itertools.chain(*zip(("--tp", "--pp", "--ep", "--etp", "--virtual-stages"), split))
    )


def places(split):
    """The positions of a split, as load_state_dict() takes them."""
    for pp, tp, ep in itertools.product(range(split[1]), range(split[0]), range(split[2])):
        yield {"pp": pp, "tp": tp, "ep": ep}


def layout(split):
    """The sizes of a split, as load_state_dict() takes them."""
    return dict(zip(("tp_size", "pp_size", "ep_size", "etp_size", "virtual_stages"), (*split, 1)))


class Experts(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 1, "size": "256MiB"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count = 0

    def checkpoint(self, family):
        """(directory, {name: tensor})"""
        more, layer = FAMILIES[family]
        type_, _, mtp = family.partition("+")
        under = "language_model." if family == "llama4_text" else ""
        shapes = {
            "model.embed_tokens.weight": [VOCAB, H],
            "model.norm.weight": [H],
            "lm_head.weight": [VOCAB, H],
        }
        shapes |= {f"model.layers.{i}.{n}": s for i in range(LAYERS) for n, s in layer(i).items()}
        if mtp:
            shapes |= {f"model.layers.{LAYERS}.{n}": s for n, s in {**layer(LAYERS), **MTP}.items()}
        shapes = {under + name: shape for name, shape in shapes.items()}
        rng, home = random.Random(family), self.c.dir / f"source-{family}"
        numbers = {
            name: (
                (
                    torch.frombuffer(
                        bytearray(rng.randbytes(4 * torch.Size(shape).numel())), dtype=torch.int32
                    )
                    & (1 << 20) - 1
                )
                .float()
                .reshape(shape)
            )
            for name, shape in shapes.items()
        }
        if mtp:
            numbers[f"model.layers.{LAYERS}.embed_tokens.weight"] = numbers[
                "model.embed_tokens.weight"
            ]
            numbers[f"model.layers.{LAYERS}.shared_head.head.weight"] = numbers["lm_head.weight"]
        if not home.exists():
            home.mkdir()
            checkpoints.write(
                home / "model.safetensors",
                {n: (list(t.shape), t.numpy().tobytes()) for n, t in numbers.items()},
            )
            (home / "config.json").write_text(json.dumps({"model_type": type_, **SIZES, **more}))
        return home, numbers

    def load(self, family, split, *more):
        Experts.count += 1
        name = f"m{Experts.count}"
        home, numbers = self.checkpoint(family)
        self.c.json("model", "import", home, "--name", name, *sizes(split), *more)
        # the pool has room for one test's models
        self.addCleanup(self.c.json, "model", "rm", name, "--force")
        return name, numbers

    def check_exported(self, name, numbers):
        Experts.count += 1
        out = self.c.dir / f"out-{Experts.count}"
        self.c.json("model", "export", name, "--format", "hf", "--out", out)
        _, data = checkpoints.read(out / "model.safetensors")
        self.assertEqual(data.keys(), numbers.keys())
        self.assertEqual([n for n in data if data[n] != numbers[n].numpy().tobytes()], [])

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

    def check_mixtral(self, state, numbers, where, te):
        """Experts of stage `pp`, each at its place by Megatron's rules."""
        split, (pp, tp, ep) = where
        t_size, p_size, e_size, slices = split
        t, count, layers, width = tp % slices, E // e_size, LAYERS // p_size, FFN // slices
        found = {n for n in state if ".mlp.experts." in n}
        for layer, n in itertools.product(range(layers), range(count)):
            at = f"model.layers.{pp * layers + layer}.block_sparse_moe.experts.{ep * count + n}"
            cut = slice(t * width, (t + 1) * width)
            base = f"decoder.layers.{layer}.mlp.experts."
            for fc, want in (
                (
                    "linear_fc1",
                    torch.cat([numbers[f"{at}.w1.weight"][cut], numbers[f"{at}.w3.weight"][cut]]),
                ),
                ("linear_fc2", numbers[f"{at}.w2.weight"][:, cut]),
            ):
                name = f"{base}{fc}.weight{n}" if te else f"{base}local_experts.{n}.{fc}.weight"
                self.assertTrue(torch.equal(state[name], want), (where, name))
                found.discard(name)
        self.assertEqual(found, set())

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

    def gang(self, split, dp_size):
        """Ranks of Megatron's order tp-cp-ep-dp-pp."""
        tp_size, pp_size, ep_size, etp, virtual_stages = (*split, 0)[:5]
        for pp, dp, tp in itertools.product(range(pp_size), range(dp_size), range(tp_size)):
            yield helios.Rank(
                global_rank=(pp * dp_size + dp) * tp_size + tp,
                pp=pp,
                tp=tp,
                dp=dp,
                pp_size=pp_size,
                tp_size=tp_size,
                dp_size=dp_size,
                ep=(dp * tp_size + tp) // etp % ep_size,
                ep_size=ep_size,
                etp_size=etp,
                virtual_stages=virtual_stages,
                world_size=pp_size * dp_size * tp_size,
            )

    def save(self, name, split, dp_size, change):
        done = []
        for rank in self.gang(split, dp_size):
            rank = helios.Rank(**{**rank.__dict__, "job": f"job-{name}", "model": name})
            with helios.Session(self.c.info["controller"], rank=rank) as me:
                state = {n: change(n, t) for n, t in me.load_state_dict().items()}
                expert = {f"exp_avg.{n}": t + 1 for n, t in state.items() if ".mlp.experts." in n}
                done.append(
                    me.save_state_dict(
                        state,
                        step=1,
                        optim=expert if rank.dp * rank.tp_size < split[2] * split[3] else None,
                    )
                )
        self.assertEqual([s.visible for s in done], [False] * (len(done) - 1) + [True])

    def test_what_a_gang_saves_of_every_family_is_a_version(self):
        for family in FAMILIES:
            for split, dp_size in (((2, 2, 2, 2), 4), ((2, 1, 2, 1), 2)):
                with self.subTest(family=family, split=split):
                    name, numbers = self.load(family, split, "--naming", "te")
                    self.save(name, split, dp_size, lambda _, t: t + 1)
                    self.check_exported(name, {n: t + 1 for n, t in numbers.items()})

    def test_the_state_of_experts_comes_back_to_every_rank_that_has_them(self):
        split = (2, 1, 2, 2)
        name, numbers = self.load("mixtral", split)
        self.save(name, split, 4, lambda _, t: t)
        for rank in self.gang(split, 4):
            with helios.Session(self.c.info["controller"], rank=rank) as me:
                optim = me.load_state_dict(model=name, kind="optim")
                plain = {n.removeprefix("exp_avg."): t - 1 for n, t in optim.items()}
                self.check_mixtral(plain, numbers, (split, (rank.pp, rank.tp, rank.ep)), False)

    def test_the_state_of_experts_follows_them_to_another_layout(self):
        for stored in ((2, 1, 2, 2), VIRTUAL[0]):
            name, numbers = self.load("mixtral", stored)
            # two data ranks: no two have the same experts
            self.save(name, stored, 2, lambda _, t: t)
            said = self.c.json("model", "verify", f"{name}@2")
            self.assertTrue(said["proved"], said)
            wanted = (1, 1, 4, 1)
            with self.session() as me:
                for ep in range(4):
                    optim = me.load_state_dict(name, ep=ep, **layout(wanted), kind="optim", dp=0)
                    plain = {n.removeprefix("exp_avg."): t - 1 for n, t in optim.items()}
                    self.check_mixtral(plain, numbers, (wanted, (0, 0, ep)), False)

    def test_pieces_of_the_state_of_experts_are_put_together(self):
        split, dp_size, job = (2, 1, 2, 2), 4, "pieces"
        name, numbers = self.load("mixtral", split)
        for rank in self.gang(split, dp_size):
            with helios.Session(
                self.c.info["controller"], rank=dataclasses.replace(rank, job=job, model=name)
            ) as me:
                state, optim = me.load_state_dict(), {}
                # the eight ranks hold each expert twice, everything else four times
                for n, t in state.items():
                    number, size = (
                        ((rank.dp * 2 + rank.tp) // 4, 2)
                        if ".mlp.experts." in n
                        else (rank.dp, dp_size)
                    )
                    start, end = (t.numel() * i // size for i in (number, number + 1))
                    optim[f"exp_avg.{n}"] = helios.Piece(
                        (t + 1).reshape(-1)[start:end], t.shape, start
                    )
                saved = me.save_state_dict(state, step=1, optim=optim)
        self.assertTrue(saved.visible)
        for wanted in (split, (1, 1, 4, 1), (2, 2, 1, 1)):
            for pp, tp, ep in itertools.product(
                range(wanted[1]), range(wanted[0]), range(wanted[2])
            ):
                with self.session() as me:
                    optim = me.load_state_dict(
                        name,
                        pp=pp,
                        tp=tp,
                        ep=ep,
                        kind="optim",
                        tp_size=wanted[0],
                        pp_size=wanted[1],
                        ep_size=wanted[2],
                        etp_size=wanted[3],
                    )
                plain = {n.removeprefix("exp_avg."): t - 1 for n, t in optim.items()}
                self.check_mixtral(plain, numbers, (wanted, (pp, tp, ep)), False)

    def test_doubled_or_missing_experts_make_no_version(self):
        split = (1, 1, 2, 1)
        name, _ = self.load("mixtral", split)
        for harm in ("drop", "double"):
            ranks = list(self.gang(split, 2))
            with self.assertRaisesRegex(errors.HeliosError, "experts-000"):
                for rank in ranks:
                    wrong = {**rank.__dict__, "job": harm, "model": name}
                    if harm == "double":
                        wrong["ep"] = 0
                    with helios.Session(self.c.info["controller"], rank=helios.Rank(**wrong)) as me:
                        state = me.load_state_dict()
                        if harm == "drop" and rank.dp == 1:
                            state = {
                                n: t for n, t in state.items() if "layers.2.mlp.experts" not in n
                            }
                        me.save_state_dict(state, step=1)
            self.assertEqual(len(self.c.json("model", "show", name)["versions"]), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Models with experts and with latent attention, of each family: made, imported, saved by gangs."""
from __future__ import annotations

import itertools
import json
import random

import torch

import helios
from support import checkpoints
from support.model_case import ModelCase

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


class ExpertCase(ModelCase):
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
        type(self).count += 1
        name = f"m{type(self).count}"
        home, numbers = self.checkpoint(family)
        self.c.json("model", "import", home, "--name", name, *sizes(split), *more)
        # the pool has room for one test's models
        self.addCleanup(self.c.json, "model", "rm", name, "--force")
        return name, numbers

    def check_exported(self, name, numbers):
        type(self).count += 1
        out = self.c.dir / f"out-{type(self).count}"
        self.c.json("model", "export", name, "--format", "hf", "--out", out)
        _, data = checkpoints.read(out / "model.safetensors")
        self.assertEqual(data.keys(), numbers.keys())
        self.assertEqual([n for n in data if data[n] != numbers[n].numpy().tobytes()], [])

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

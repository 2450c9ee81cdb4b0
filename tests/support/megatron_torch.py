"""Megatron-LM's format `torch` for megatron_checkpoints.py: how tensors are cut, the state of an
optimizer, and the files."""
import argparse
import http
import json

import torch

from megatron_models import DTYPE, LAYERS, VOCAB, rand, write_safetensors

# The state of a parameter's element; where there is an FP32 copy, its bits differ from the
# parameter's.
KINDS = {
    "exp_avg": lambda t: t.float() * 3 + 1,
    "exp_avg_sq": lambda t: t.float() ** 2 + 2,
    "param": lambda t: t.float() * 1.0001,
}
STEP = 19  # of the optimizer; one step was skipped


# ---- cutting ----


def padded(tensor, rows):
    """The padding of a trained embedding has arbitrary contents."""
    return torch.cat([tensor, rand(rows - len(tensor), *tensor.shape[1:])])


def cut(value, ranks, rank):
    tensor, rule = value
    if rule == "whole":
        return tensor.contiguous()
    if rule == "pairs":
        return torch.cat([half.chunk(ranks)[rank] for half in tensor]).contiguous()
    return tensor.chunk(ranks, dim=1 if rule == "columns" else 0)[rank].clone(
        memory_format=torch.contiguous_format
    )


def te_name(name, latent, experts):
    """Transformer Engine fuses a norm with the linear layer after it, if there is one."""
    if not latent:
        name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    else:
        name = name.replace("q_layernorm.", "linear_q_up_proj.layer_norm_").replace(
            "kv_layernorm.", "linear_kv_up_proj.layer_norm_"
        )
    if not experts:
        name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
    return name


def with_padding(m, unit):
    rows = -(-VOCAB // unit) * unit
    embedding, head = dict(m.embedding), dict(m.head)
    word, rule = embedding["embedding.word_embeddings.weight"]
    embedding["embedding.word_embeddings.weight"] = padded(word, rows), rule
    if "output_layer.weight" in head:
        head["output_layer.weight"] = padded(head["output_layer.weight"][0], rows), rule
    return embedding, head, rows


def namespace(m, split, rows, **more):
    given = dict(
        m.args,
        tensor_model_parallel_size=split["tp"],
        pipeline_model_parallel_size=split["pp"],
        expert_model_parallel_size=split["ep"],
        expert_tensor_parallel_size=split["etp"],
        padded_vocab_size=rows,
        vocab_size=VOCAB,
        make_vocab_size_divisible_by=split["unit"] // split["tp"],
        params_dtype=DTYPE,
        virtual_pipeline_model_parallel_size=split["vp"] if split["vp"] > 1 else None,
        decoder_first_pipeline_num_layers=None,
        decoder_last_pipeline_num_layers=None,
        attention_backend=http.HTTPStatus.OK,  # an enum of another module
        moe_router_load_balancing_type=["aux_loss"],
        rank=0,
        **more,
    )
    given.setdefault("mtp_num_layers", None)
    return argparse.Namespace(**given)


def split_of(**more):
    split = {
        "tp": 1,
        "pp": 1,
        "ep": 1,
        "etp": None,
        "vp": 1,
        "te": True,
        "unit": 0,
        "singles": False,
        "own": False,
        **more,
    }
    split["unit"] = split["unit"] or 8 * split["tp"]
    return split


def write_config(m, directory):
    if m.own_config:
        (directory / "config.json").write_text(json.dumps(m.config))


# ---- optimizer state ----


def trained(name):
    return "_extra_state" not in name and "expert_bias" not in name


def group_of(name, tensor, experts):
    """(experts, weight decay): how Megatron sorts parameters into groups. Experts have groups of
    their own if they are not on every rank."""
    return experts and ".mlp.experts." in name, tensor.dim() > 1 and not name.endswith(".bias")


def adam(named, number, fp32_main=True):
    """State of torch.optim.Adam for the (name, parameter) pairs of each group, numbered from 0 as
    in state_dict()."""
    state, groups, main = {}, [], []
    for (experts, decays), members in named.items():
        first = len(state)
        for _, tensor in members:
            state[len(state)] = {kind: KINDS[kind](tensor) for kind in ("exp_avg", "exp_avg_sq")}
            if number:
                state[len(state) - 1]["step"] = torch.tensor(float(STEP))
        groups.append(
            {
                "lr": 1e-4,
                "wd_mult": 1.0 if decays else 0.0,
                "lr_mult": 1.0,
                "is_expert_parallel": experts,
                "is_decoupled_lr": False,
                "betas": (0.9, 0.95),
                "step": STEP,
                "params": list(range(first, len(state))),
            }
        )
        main.append([torch.nn.Parameter(KINDS["param"](tensor)) for _, tensor in members])
    inner = {"state": state, "param_groups": groups}
    return {"optimizer": inner, "fp32_from_fp16_params": main} if fp32_main else inner


def optimizer_of(chunks, split):
    """What Float16OptimizerWithFloat16Params saves, or for FP32 parameters FP32Optimizer. With EP >
    1 there is another one for experts."""
    named = {}
    for chunk in chunks:
        for name, tensor in chunk.items():
            if tensor is not None and trained(name):
                named.setdefault(group_of(name, tensor, split["ep"] > 1), []).append((name, tensor))
    fp32 = all(tensor.dtype == torch.float32 for members in named.values() for _, tensor in members)
    each = [
        {key: members for key, members in named.items() if key[0] == experts}
        for experts in (False, True)
    ]
    each = [adam(groups, number=split["te"], fp32_main=not fp32) for groups in each if groups]
    return each if len(each) > 1 else each[0]


def write_states(m, directory):
    for kind, of in KINDS.items():
        (directory / kind).mkdir(parents=True)
        (directory / kind / "config.json").write_text(json.dumps(m.config))
        write_safetensors(
            directory / kind / "model.safetensors",
            {name: of(tensor) for name, tensor in m.hf.items()},
        )


# ---- torch ----


def add_layer(state, prefix, layer, experts, split, place):
    """Adds a layer of one rank; place is (tp, ep). In Megatron's modules the shared experts come
    after the others."""
    (tp, ep), etp, te = place, split["etp"] or split["tp"], split["te"]
    shared = {
        name: cut(value, split["tp"], tp)
        for name, value in layer.items()
        if "shared_experts" in name
    }
    for name, value in layer.items():
        if te:
            name = te_name(name, "self_attention.linear_kv_down_proj.weight" in layer, experts)
        if name not in shared:
            state[prefix + name] = cut(value, split["tp"], tp)
    count = len(experts) // split["ep"]
    for i, expert in enumerate(experts[ep * count : (ep + 1) * count]):
        for name, value in expert.items():
            name = f"mlp.experts.{name}{i}" if te else f"mlp.experts.local_experts.{i}.{name}"
            state[prefix + name] = cut(value, etp, tp % etp)
    state.update({prefix + name: part for name, part in shared.items()})
    state[prefix + "self_attention._extra_state"] = None


def add_more_tokens(m, state, split, place, embedding):
    """On the last stage, which then has the embedding, too. Newer versions name the layer
    mtp_model_layer."""
    for i, (beside, layer, experts) in enumerate(m.mtp):
        for name, value in beside.items():
            state[f"mtp.layers.{i}.{name}"] = cut(value, split["tp"], place[0])
        inner = "mtp_model_layer" if split["te"] else "transformer_layer"
        add_layer(state, f"mtp.layers.{i}.{inner}.", layer, experts, split, place)
    if m.mtp and split["pp"] > 1:
        name = "embedding.word_embeddings.weight"
        state[name] = cut(embedding[name], split["tp"], place[0])


def rank_state(m, split, place, embedding, head):
    """The chunks of one rank; place is (pp, tp, ep)."""
    (pp, tp, ep), chunks = place, split["vp"]
    each = LAYERS // split["pp"] // chunks
    state = [{} for _ in range(chunks)]
    if pp == 0:
        for name, value in embedding.items():
            state[0][name] = cut(value, split["tp"], tp)
    for chunk in range(chunks):
        for local in range(each):
            number = (chunk * split["pp"] + pp) * each + local
            layer, experts, prefix = m.layers[number], m.experts[number], f"decoder.layers.{local}."
            add_layer(state[chunk], prefix, layer, experts, split, (tp, ep))
    if pp == split["pp"] - 1:
        for name, value in head.items():
            state[-1][name] = cut(value, split["tp"], tp)
        if m.tied and split["pp"] > 1:
            state[-1]["output_layer.weight"] = cut(
                embedding["embedding.word_embeddings.weight"], split["tp"], tp
            )
        add_more_tokens(m, state[-1], split, (tp, ep), embedding)
    return state


def write_torch(m, directory, folder="iter_0000010", iteration=10, **given):
    split = split_of(**given)
    embedding, head, rows = with_padding(m, split["unit"])
    args = namespace(m, split, rows)
    etp = split["etp"] or split["tp"]
    replicas = max(1, etp * split["ep"] // split["tp"])
    # Megatron counts ranks tp first, then dp
    places = {
        (pp, tp, (tp + split["tp"] * dp) // etp % split["ep"])
        for pp in range(split["pp"])
        for tp in range(split["tp"])
        for dp in range(replicas)
    }
    for pp, tp, ep in sorted(places):
        name = (
            f"mp_rank_{tp:02}"
            + (f"_{pp:03}" if split["pp"] > 1 else "")
            + (f"_{ep:03}" if split["ep"] > 1 else "")
        )
        state = rank_state(m, split, (pp, tp, ep), embedding, head)
        chunks = (
            {"model": state[0]}
            if len(state) == 1
            else {f"model{i}": part for i, part in enumerate(state)}
        )
        into = directory / folder / name
        into.mkdir(parents=True)
        torch.save(
            {
                "args": args,
                "checkpoint_version": 3.0,
                "iteration": iteration,
                **chunks,
                "optimizer": (
                    optimizer_of(state, split) if m.with_state else {"param_groups": [{"lr": 1e-4}]}
                ),
                "opt_param_scheduler": {"max_lr": 1e-4},
                "rng_state": [{"cpu": torch.get_rng_state()}],
            },
            into / "model_optim_rng.pt",
        )
    (directory / "latest_checkpointed_iteration.txt").write_text(
        "release" if folder == "release" else str(iteration)
    )
    write_config(m, directory)

#!/usr/bin/python3
"""What ranks pull is what an independent slicer cuts."""
from __future__ import annotations

import ctypes
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support.cluster import cluster  # noqa: E402

import helios  # noqa: E402
from helios import safetensors  # noqa: E402
from support import slicer  # noqa: E402

torch.set_num_threads(1)
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def save_hf(home: pathlib.Path, config: dict, tensors: dict, files: int = 1) -> pathlib.Path:
    """A Hugging Face directory; with more than one file, tensors are distributed over them and
    indexed."""
    home.mkdir()
    (home / "config.json").write_text(json.dumps(config))
    names, weights = list(tensors), {}
    for number in range(files):
        of = f"-{number + 1:05}-of-{files:05}" if files > 1 else ""
        file = f"model{of}.safetensors"
        rows = []
        for name in names[number::files]:
            t = tensors[name].contiguous()
            data = ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())
            rows.append((name, NAMES[t.dtype], tuple(t.shape), data))
            weights[name] = file
        with open(home / file, "wb") as out:
            safetensors.write(out, rows)
    if files > 1:
        index = {"metadata": {"total_size": 0}, "weight_map": weights}
        (home / "model.safetensors.index.json").write_text(json.dumps(index))
    return home


def random_llama(
    kind: str = "llama",
    layers: int = 4,
    hidden: int = 24,
    heads: int = 6,
    groups: int = 2,
    ffn: int = 20,
    vocab: int = 51,
    head_dim: int = 0,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict, dict]:
    head = head_dim or hidden // heads
    config = {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[kind]],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
        "rope_theta": 1e4,
    }
    if head_dim:
        config["head_dim"] = head_dim
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    for n in range(layers):
        p = f"model.layers.{n}."
        shapes.update(
            {
                p + "input_layernorm.weight": (hidden,),
                p + "post_attention_layernorm.weight": (hidden,),
                p + "self_attn.o_proj.weight": (hidden, heads * head),
                p + "mlp.gate_proj.weight": (ffn, hidden),
                p + "mlp.up_proj.weight": (ffn, hidden),
                p + "mlp.down_proj.weight": (hidden, ffn),
            }
        )
        for x, count in (("q", heads), ("k", groups), ("v", groups)):
            shapes[f"{p}self_attn.{x}_proj.weight"] = (count * head, hidden)
            if kind == "qwen2":
                shapes[f"{p}self_attn.{x}_proj.bias"] = (count * head,)
    return config, {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


def random_gpt2(
    prefix: str = "", layers: int = 4, hidden: int = 24, heads: int = 4, vocab: int = 51
) -> tuple[dict, dict]:
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 16,
        "n_ctx": 16,
        "vocab_size": vocab,
        "layer_norm_epsilon": 1e-5,
    }
    shapes = {"wte.weight": (vocab, hidden), "wpe.weight": (16, hidden)}
    norms = ["ln_f"]
    for n in range(layers):
        p = f"h.{n}."
        norms += [p + "ln_1", p + "ln_2"]
        for name, inputs, outputs in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, 4 * hidden),
            ("mlp.c_proj", 4 * hidden, hidden),
        ):
            shapes[f"{p}{name}.weight"], shapes[f"{p}{name}.bias"] = (inputs, outputs), (outputs,)
        shapes[p + "attn.bias"] = (1, 1, 16, 16)  # the mask of the hub's file
    for norm in norms:
        shapes[norm + ".weight"] = shapes[norm + ".bias"] = (hidden,)
    return config, {prefix + name: torch.randn(shape) for name, shape in shapes.items()}


class Slices(unittest.TestCase):
    CASES = {
        "llama": (random_llama, {}, [(1, 1, {}), (2, 2, {}), (2, 4, {"divisor": 1})], 1),
        "tied": (
            random_llama,
            {"tied": True, "dtype": torch.bfloat16},
            [(1, 1, {}), (2, 2, {"pad": "zero"}), (2, 1, {"naming": "te"})],
            3,
        ),
        "head-dim": (random_llama, {"head_dim": 10, "dtype": torch.float16}, [(2, 1, {})], 1),
        "uneven": (random_llama, {"layers": 5}, [(2, 2, {"first": 2}), (1, 3, {"last": 1})], 1),
        "virtual": (random_llama, {"layers": 8}, [(2, 2, {"chunks": 2}), (1, 2, {"chunks": 4})], 2),
        "qwen2": (random_llama, {"kind": "qwen2", "tied": True}, [(2, 2, {}), (1, 1, {})], 1),
        "gpt2": (random_gpt2, {}, [(1, 1, {}), (2, 2, {}), (4, 1, {"naming": "te"})], 1),
        "gpt2-prefix": (random_gpt2, {"prefix": "transformer."}, [(2, 4, {"divisor": 8})], 2),
    }
    FLAGS = {
        "divisor": "--vocab-divisor",
        "pad": "--pad",
        "naming": "--naming",
        "first": "--first-stage-layers",
        "last": "--last-stage-layers",
        "chunks": "--virtual-stages",
    }

    def test_every_rank_pulls_what_the_independent_slicer_cuts(self):
        torch.manual_seed(5)
        with cluster(nodes=1, slots=1, tcp=True) as c:
            for kind, (make, options, splits, files) in self.CASES.items():
                config, tensors = make(**options)
                source = save_hf(c.dir / kind, config, tensors, files)
                for number, (tp, pp, split) in enumerate(splits):
                    with self.subTest(kind, tp=tp, pp=pp, **split):
                        name = f"{kind}-{number}"
                        flags = [x for k, v in split.items() for x in (self.FLAGS[k], v)]
                        c.json(
                            "model",
                            "import",
                            source,
                            "--name",
                            name,
                            "--tp",
                            tp,
                            "--pp",
                            pp,
                            *flags,
                        )
                        want = slicer.slice_model(tensors, config, tp, pp, **split)
                        for path in ("shm", "net") if number == 0 else ("shm",):
                            self.compare(c, name, path, want)

    def compare(self, c, name: str, path: str, want: dict) -> None:
        with helios.Session(c.info["controller"], path=path) as session:
            for (pp, tp), parts in want.items():
                got = session.load_state_dict(name, pp=pp, tp=tp)
                config = session.model_config()
                flat = {n: t for tensors in parts.values() for n, t in tensors.items()}
                self.assertEqual(set(got), set(flat))
                for tensor_name, tensor in flat.items():
                    self.assertEqual(got[tensor_name].dtype, tensor.dtype, tensor_name)
                    self.assertTrue(torch.equal(got[tensor_name], tensor), tensor_name)
                for part, tensors in parts.items():
                    self.assertEqual(set(helios.parts_of(config, list(tensors), pp)), {part})
            stats = session.stats()
            self.assertEqual(stats["crc_failures"], 0)
            self.assertEqual(stats["path"] == "shm", path == "shm", stats["path"])


if __name__ == "__main__":
    unittest.main()

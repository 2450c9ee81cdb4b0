#!/usr/bin/python3
"""`helios model import` of Megatron checkpoints: an export as a Hugging Face checkpoint equals the
original, the iteration is the requested one, and what was left out is reported."""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import ROOT, cluster  # noqa: E402
from support.megatron_optimizer import Chunk, Distributed  # noqa: E402

import helios.megatron  # noqa: E402

SOURCES = {
    "llama": ("torch-2", "dist-2"),
    "gpt2": ("torch-4", "dist-2"),
    "mixtral": ("torch-6", "dist-3"),
    "deepseek_v3": ("torch-5", "dist-1"),
}
SAID = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "num_experts_per_tok",
    "norm_topk_prob",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "scoring_func",
    "rope_scaling",
    "moe_intermediate_size",
    "num_nextn_predict_layers",
    "partial_rotary_factor",
    "first_k_dense_replace",
    "mlp_only_layers",
    "q_lora_rank",
    "kv_lora_rank",
    "n_shared_experts",
)
# State as a function of each element of a parameter, as in megatron_torch.py:
# the same at every layout.
STATE = {
    "exp_avg": lambda t: t.float() * 3 + 1,
    "exp_avg_sq": lambda t: t.float() ** 2 + 2,
    "param": lambda t: t.float() * 1.0001,
}
EXPERTS = {
    "mixtral": "te",
    "qwen2_moe": "local",
    "qwen3_moe": "te",
    "deepseek_v3_mtp": "te",
    "glm4_moe": "local",
}


def plain(tensors):
    """GPT-2's tensors are named with or without a prefix; an export has it."""
    return {name.removeprefix("transformer."): data for name, data in tensors.items()}


class ImportMegatron(unittest.TestCase):
    def test_a_hugging_face_checkpoint_comes_out_as_the_original(self):
        with cluster() as c:
            script = ROOT / "tests" / "support" / "megatron_checkpoints.py"
            subprocess.run(needs.command(script, c.dir / "m", *SOURCES), check=True)
            for family, sources in SOURCES.items():
                original = plain(
                    checkpoints.read(c.dir / "m" / family / "hf" / "model.safetensors")[1]
                )
                for source in sources:
                    name = f"{family}-{source}"
                    done = c.json(
                        "model", "import", c.dir / "m" / family / source, "--name", name, "--tp", 2
                    )
                    self.assertTrue(any("optimizer" in text for text in done["leftOut"]), done)
                    c.json("model", "export", name, "--format", "hf", "--out", c.dir / name)
                    out = plain(checkpoints.read(c.dir / name / "model.safetensors")[1])
                    self.assertEqual(sorted(out), sorted(original), name)
                    self.assertEqual([key for key in out if out[key] != original[key]], [], name)
            self.say_what_was_taken(c)

    def test_an_export_with_its_args_is_a_checkpoint_again(self):
        """The args alone give the same model: nothing else in the
        directory says which one it is."""
        with cluster() as c:
            script = ROOT / "tests" / "support" / "megatron_checkpoints.py"
            subprocess.run(needs.command(script, c.dir / "m", *EXPERTS), check=True)
            for family, naming in EXPERTS.items():
                original = checkpoints.read(c.dir / "m" / family / "hf" / "model.safetensors")[1]
                c.json("model", "import", c.dir / "m" / family / "hf", "--name", family)
                done = c.json(
                    "model",
                    "export",
                    family,
                    "--format",
                    "torch",
                    "--naming",
                    naming,
                    "--tp-size",
                    2,
                    "--ep-size",
                    2,
                    "--etp-size",
                    1,
                    "--out",
                    c.dir / family,
                )
                self.assertTrue(done["args"], family)
                c.json("model", "import", c.dir / family, "--name", family + "-again")
                c.json(
                    "model",
                    "export",
                    family + "-again",
                    "--format",
                    "hf",
                    "--out",
                    c.dir / f"{family}-hf",
                )
                out = checkpoints.read(c.dir / f"{family}-hf" / "model.safetensors")[1]
                self.assertEqual(sorted(out), sorted(original), family)
                self.assertEqual([key for key in out if out[key] != original[key]], [], family)
                self.assertEqual(
                    self.config(c.dir / f"{family}-hf"),
                    self.config(c.dir / "m" / family / "hf"),
                    family,
                )

    def test_a_training_goes_on_from_an_imported_optimizer_at_any_layout(self):
        with cluster() as c:
            script = ROOT / "tests" / "support" / "megatron_checkpoints.py"
            subprocess.run(needs.command(script, c.dir / "m", "llama", "mixtral"), check=True)
            for name, source in (
                ("a", "llama/torch-2"),
                ("b", "llama/dist-state-2"),
                ("c", "mixtral/torch-5"),
                ("d", "mixtral/dist-state-1"),
            ):
                done = c.json(
                    "model",
                    "import",
                    c.dir / "m" / source,
                    "--name",
                    name,
                    "--optimizer",
                    "--tp",
                    2,
                )
                self.assertEqual(
                    [text for text in done["leftOut"] if "random" not in text], [], source
                )
                (version,) = c.json("model", "show", name)["versions"]
                self.assertTrue(version["proved"], version)
                self.assertTrue(c.json("model", "verify", name)["proved"])
                with helios.Session(
                    c.info["controller"], rank=helios.Rank(job="j", model=name)
                ) as session:
                    for sizes in (
                        {"tp_size": 2},
                        {"tp_size": 4, "pp_size": 2},
                        {"tp_size": 1, "naming": "te"},
                    ):
                        for tp in range(sizes["tp_size"]):
                            self.check_state(
                                session, pp=sizes.get("pp_size", 1) - 1, tp=tp, **sizes
                            )
                    self.assertEqual(
                        session.meta()["megatron"]["opt_param_scheduler"], {"max_lr": 1e-4}
                    )
                    self.assertEqual(
                        {
                            group["step"]
                            for one in session.meta()["megatron"]["optimizers"]
                            for group in one["param_groups"]
                        },
                        {19},
                    )
            self.refuse_optimizers(c)

    def check_state(self, session, **where):
        state, optim = session.load_state_dict(**where), session.load_state_dict(
            kind="optim", **where
        )
        self.assertEqual(set(optim), {f"{kind}.{name}" for kind in STATE for name in state})
        for name, tensor in state.items():
            for kind, of in STATE.items():
                self.assertTrue(
                    torch.equal(optim[f"{kind}.{name}"], of(tensor)), (where, kind, name)
                )
        chunk = Chunk(state)
        for dp in range(2):
            optimizer = Distributed(chunk, dp, 2)
            helios.megatron.load_optimizer([chunk], optimizer, 19, session=session, **where)
            pieces = helios.megatron.optimizer_pieces([chunk], optimizer)
            self.assertTrue(pieces)
            for name, piece in pieces.items():
                self.assertTrue(
                    torch.equal(
                        optim[name].reshape(-1)[piece.start : piece.start + piece.tensor.numel()],
                        piece.tensor.detach(),
                    ),
                    (where, name),
                )

    def refuse_optimizers(self, c):
        text = c.refuse(
            "model", "import", c.dir / "m" / "llama" / "dist-2", "--name", "refused", "--optimizer"
        )
        self.assertIn("--dist-ckpt-optim-fully-reshardable", text)
        text = c.refuse(
            "model", "import", c.dir / "m" / "llama" / "hf", "--name", "refused", "--optimizer"
        )
        self.assertIn("is not a Megatron checkpoint", text)
        self.assertNotIn("refused", c.run("model", "ls").stdout)

    def config(self, directory):
        """What both errors say: a family with experts leaves the size of a dense
        layer open if it has none."""
        config = json.loads((directory / "config.json").read_text())
        config.get("rope_scaling", {}).pop("rope_type", None)
        return {key: config[key] for key in SAID if key in config}

    def say_what_was_taken(self, c):
        directory = c.dir / "m" / "llama" / "torch-2"
        text = c.run("model", "import", directory, "--name", "asked", "--iteration", 10).stdout
        self.assertEqual([v["step"] for v in c.json("model", "show", "asked")["versions"]], [10])
        self.assertIn("left out: the optimizer state; with --optimizer it is imported\n", text)
        self.assertIn("left out: the state of random numbers\n", text)
        text = c.refuse("model", "import", directory, "--name", "other", "--iteration", 11)
        self.assertIn(
            (
                "iter_0000011 holds no checkpoint; there is iter_0000010: give one of them as"
                " --iteration"
            ),
            text,
        )


if __name__ == "__main__":
    unittest.main()

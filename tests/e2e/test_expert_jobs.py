#!/usr/bin/python3
"""A gang of a model with experts: each rank loads its own slices at the job's sizes,
and all their saves together make a version."""
from __future__ import annotations

import json
import pathlib
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints, tiny_mixtral  # noqa: E402
from support.model_case import ModelCase  # noqa: E402
from support.tiny_mixtral import EXPERTS, GROUPS, HEAD, HEADS, LAYERS, WIDTH  # noqa: E402

# Every rank writes what it has loaded to a file, then saves it with 1 added:
# experts are saved by the first rank that has them.
RANK = """
    import os
    import torch
    import helios
    helios.init()
    me = helios.rank()
    state = helios.load_state_dict()
    names = ("PIPELINE_PARALLEL_RANK", "TENSOR_PARALLEL_RANK", "DATA_PARALLEL_RANK",
             "EXPERT_PARALLEL_RANK", "EXPERT_PARALLEL_SIZE", "EXPERT_TENSOR_PARALLEL_SIZE")
    torch.save({"place": [int(os.environ[name]) for name in names],
                "state": {n: t.clone() for n, t in state.items()}},
               os.path.join(os.environ["OUT"], f"{me.global_rank}.pt"))
    helios.save_state_dict({name: tensor + 1 for name, tensor in state.items()}, step=1)
"""


def grid_place(number, tp_size, dp_size):
    """(pp, tp, dp) of a rank in the order tp-dp-pp, the leftmost fastest."""
    return number // (tp_size * dp_size), number % tp_size, number // tp_size % dp_size


def qkv(numbers, at, tp, tp_size):
    """Rows of Megatron's fused matrix: for each query group its q heads, k, v."""
    q, k, v = (numbers[f"{at}.self_attn.{x}_proj.weight"] for x in "qkv")
    per, rows = HEADS // GROUPS, []
    for group in range(tp * GROUPS // tp_size, (tp + 1) * GROUPS // tp_size):
        rows += [
            q[group * per * HEAD : (group + 1) * per * HEAD],
            k[group * HEAD : (group + 1) * HEAD],
            v[group * HEAD : (group + 1) * HEAD],
        ]
    return torch.cat(rows)


class ExpertJobs(ModelCase):
    CLUSTER = {"nodes": 2, "slots": 2, "size": "256MiB"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source, tensors = tiny_mixtral.checkpoint(cls.c.dir / "source")
        cls.numbers = {
            n: torch.tensor(data, dtype=torch.float32).reshape(shape)
            for n, (shape, data) in tensors.items()
        }
        cls.script = cls.c.dir / "rank.py"
        cls.script.write_text(textwrap.dedent(RANK))

    def run_job(self, name, *, pp, tp, dp, ep, etp):
        """What each rank has loaded, by rank number."""
        out = self.c.dir / name
        out.mkdir()
        self.c.json("model", "import", self.source, "--name", name)
        command, env = needs.job_command(self.script)
        job = self.c.submit(
            textwrap.dedent(
                f"""
            jobName: {name}
            model: {{name: {name}}}
            command: {json.dumps(command)}
            env: {json.dumps({"OUT": str(out), **env})}
            parallelism:
              pipeline_parallel_size: {pp}
              tensor_parallel_size: {tp}
              data_parallel_size: {dp}
              expert_model_parallel_size: {ep}
              expert_tensor_parallel_size: {etp}
            resources: {{ranks_per_slot: 2}}
        """
            )
        )
        ended = self.c.wait_job(job, "succeeded", "failed", seconds=180)
        self.assertEqual(ended["state"], "succeeded", ended.get("reason"))
        return {n: torch.load(out / f"{n}.pt") for n in range(pp * tp * dp)}

    def expected(self, place, sizes):
        """A rank's tensors by Megatron's rules, computed from the checkpoint alone."""
        (pp, tp, ep, slice_), (pp_size, tp_size, ep_size, etp) = place, sizes
        numbers, layers, count, width = (
            self.numbers,
            LAYERS // pp_size,
            EXPERTS // ep_size,
            WIDTH // etp,
        )
        cut, want = slice(slice_ * width, (slice_ + 1) * width), {}
        for layer in range(layers):
            at, to = f"model.layers.{pp * layers + layer}", f"decoder.layers.{layer}"
            columns = HEADS * HEAD // tp_size
            want |= {
                f"{to}.input_layernorm.weight": numbers[f"{at}.input_layernorm.weight"],
                f"{to}.pre_mlp_layernorm.weight": numbers[f"{at}.post_attention_layernorm.weight"],
                f"{to}.mlp.router.weight": numbers[f"{at}.block_sparse_moe.gate.weight"],
                f"{to}.self_attention.linear_qkv.weight": qkv(numbers, at, tp, tp_size),
                f"{to}.self_attention.linear_proj.weight": numbers[f"{at}.self_attn.o_proj.weight"][
                    :, tp * columns : (tp + 1) * columns
                ],
            }
            for n in range(count):
                expert = f"{at}.block_sparse_moe.experts.{ep * count + n}"
                base = f"{to}.mlp.experts.local_experts.{n}"
                want[f"{base}.linear_fc1.weight"] = torch.cat(
                    [numbers[f"{expert}.{w}.weight"][cut] for w in ("w1", "w3")]
                )
                want[f"{base}.linear_fc2.weight"] = numbers[f"{expert}.w2.weight"][:, cut]
        return want

    def check(self, name, **sizes):
        pp_size, tp_size, dp_size, ep_size, etp = (
            sizes[size] for size in ("pp", "tp", "dp", "ep", "etp")
        )
        for number, loaded in self.run_job(name, **sizes).items():
            pp, tp, dp = grid_place(number, tp_size, dp_size)
            ep = (tp + tp_size * dp) // etp % ep_size
            self.assertEqual(loaded["place"], [pp, tp, dp, ep, ep_size, etp], number)
            want = self.expected((pp, tp, ep, tp % etp), (pp_size, tp_size, ep_size, etp))
            layers = {n: t for n, t in loaded["state"].items() if n.startswith("decoder.layers.")}
            self.assertEqual(layers.keys(), want.keys(), number)
            self.assertEqual([n for n in want if not torch.equal(want[n], layers[n])], [], number)
        out = self.c.dir / f"{name}-hf"
        newest = self.c.json("model", "show", name)["versions"][0]
        self.assertTrue(newest["proved"], newest)
        self.c.json(
            "model", "export", f"{name}@{newest['version']}", "--format", "hf", "--out", out
        )
        _, data = checkpoints.read(out / "model.safetensors")
        self.assertEqual(data.keys(), self.numbers.keys())
        self.assertEqual(
            [n for n in data if data[n] != (self.numbers[n] + 1).numpy().tobytes()], []
        )

    def test_experts_are_shared_out_over_data_ranks(self):
        self.check("over-data", pp=2, tp=2, dp=2, ep=2, etp=2)

    def test_experts_are_shared_out_whole_over_tensor_and_data_ranks(self):
        self.check("over-all", pp=1, tp=2, dp=2, ep=4, etp=1)

    def test_sizes_that_do_not_fit_are_refused(self):
        self.c.json("model", "import", self.source, "--name", "refused")
        text = textwrap.dedent(
            """
            jobName: refused
            model: {name: refused}
            command: ["true"]
            parallelism:
              tensor_parallel_size: 2
              data_parallel_size: %d
              expert_model_parallel_size: %d
        """
        )
        for dp, ep in ((3, 3), (1, 2)):
            with self.subTest(dp=dp, ep=ep), self.assertRaisesRegex(
                AssertionError, f"(?i)ep {ep}|expert_model_parallel_size"
            ):
                self.c.submit(text % (dp, ep))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
"""Exports for Megatron-LM on a real cluster, read by torch and by the code of Megatron."""
from __future__ import annotations

import argparse
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
ROOT = needs.ROOT

from support import checkpoints  # noqa: E402
from support.cluster import cluster  # noqa: E402

import helios  # noqa: E402
from helios import safetensors  # noqa: E402

torch.set_num_threads(1)
LAYERS, HIDDEN, VOCAB, STEP = 4, 64, 61, 20

# One layer of each naming, by hand from Megatron-core's layer specs.
LOCAL = [
    "input_layernorm.weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_proj.weight",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.weight",
]
TE = [
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_proj.weight",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.weight",
]
OUTSIDE = {
    0: ["embedding.word_embeddings.weight"],
    1: ["decoder.final_layernorm.weight", "output_layer.weight"],
}


def stage(pp: int, layer: list[str]) -> list[str]:
    """Names of a stage of two layers, in the order of `layer`."""
    return [f"decoder.layers.{n}.{name}" for n in (0, 1) for name in layer] + OUTSIDE[pp]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit: the checkpoint's random bytes hold NaNs."""
    return (a.shape, a.dtype, a.numpy().tobytes()) == (b.shape, b.dtype, b.numpy().tobytes())


def load_args_from_checkpoint(state: dict, args: argparse.Namespace) -> None:
    """What Megatron's function of that name does with a loaded file (core 0.12 to HEAD)."""
    saved = state["args"]
    args.iteration = state["iteration"]

    def take(name: str, force: bool = False) -> None:
        if not force and getattr(args, name, None) is not None:
            return
        value = getattr(saved, name, None)
        if value is not None:
            setattr(args, name, value)

    for name in (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "seq_length",
        "num_attention_heads",
        "kv_channels",
        "max_position_embeddings",
        "padded_vocab_size",
    ):
        take(name)
    for name in (
        "num_query_groups",
        "group_query_attention",
        "position_embedding_type",
        "add_position_embedding",
        "use_rotary_position_embeddings",
        "rotary_base",
        "rotary_percent",
        "rotary_interleaved",
        "add_bias_linear",
        "add_qkv_bias",
        "squared_relu",
        "swiglu",
        "untie_embeddings_and_output_weights",
        "apply_layernorm_1p",
        "normalization",
        "apply_query_key_layer_scaling",
        "attention_dropout",
        "hidden_dropout",
        "spec",
        "num_experts",
        "tokenizer_type",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
    ):
        take(name, force=True)
    take("num_layers_per_virtual_pipeline_stage")


class Exports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.context = cluster(nodes=1, slots=1, size="64MiB")
        cls.c = cls.context.__enter__()
        try:
            source = cls.c.dir / "checkpoint"
            checkpoints.llama(source, layers=LAYERS, hidden=HIDDEN, vocab=VOCAB)
            for name, more in (
                ("toy", ()),
                ("toyte", ("--naming", "te")),
                ("virtual", ("--virtual-stages", 2)),
            ):
                cls.c.json(
                    "model",
                    "import",
                    source,
                    "--name",
                    name,
                    "--tp",
                    2,
                    "--pp",
                    2,
                    "--vocab-divisor",
                    8,
                    *more,
                )
        except BaseException:
            cls.context.__exit__(*sys.exc_info())
            raise

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)

    def export(self, model: str, *flags) -> tuple[dict, pathlib.Path]:
        out = (
            self.c.dir / self.id().rsplit(".", 1)[1] / re.sub(r"\W", "-", " ".join((model, *flags)))
        )
        return self.c.json("model", "export", model, "--format", "torch", "--out", out, *flags), out

    def rank(self, pp: int, tp: int, model: str = "toy") -> helios.Session:
        place = helios.Rank(
            pp=pp,
            tp=tp,
            pp_size=2,
            tp_size=2,
            world_size=4,
            global_rank=2 * pp + tp,
            job="j",
            model=model,
        )
        return helios.Session(self.c.info["controller"], rank=place)

    def train(self, model: str, step: int, naming: str = "local") -> int:
        """Every rank saves its tensors plus the step, and moments; returns the version."""
        for pp in (0, 1):
            for tp in (0, 1):
                with self.rank(pp, tp, model) as session:
                    state = session.load_state_dict(naming=naming, version=1)
                    new = {n: t + step for n, t in state.items()}
                    optim = {
                        f"{kind}.{n}": torch.full_like(t, k + step)
                        for n, t in state.items()
                        for k, kind in ((0.25, "exp_avg"), (0.5, "exp_avg_sq"))
                    }
                    saved = session.save_state_dict(new, step, {"step": step}, optim=optim)
        self.assertTrue(saved.visible)
        return saved.version

    def file(self, out: pathlib.Path, folder: str, pp: int, tp: int) -> dict:
        return torch.load(
            out / folder / f"mp_rank_{tp:02}_{pp:03}" / "model_optim_rng.pt", weights_only=False
        )

    def test_either_naming_can_be_had_of_a_model_of_either(self):
        for model, own in (("toy@1", "local"), ("toyte@1", "te")):
            for asked in ("local", "te", None):
                done, out = self.export(model, *(("--naming", asked) if asked else ()))
                naming = asked or own
                self.assertEqual(done["naming"], naming)
                self.assertIn(
                    "--transformer-impl " + {"te": "transformer_engine"}.get(naming, naming),
                    done["megatron"],
                )
                for pp in (0, 1):
                    state = self.file(out, "release", pp, 1)
                    self.assertEqual(
                        set(state["model"]), set(stage(pp, {"te": TE}.get(naming, LOCAL)))
                    )
                    with self.rank(pp, 1, "toy") as session:
                        want = session.load_state_dict(naming="local", version=1)
                        self.assertEqual(session.naming(), "local")
                    for mine, theirs in zip(
                        stage(pp, LOCAL), stage(pp, {"te": TE}.get(naming, LOCAL))
                    ):
                        self.assertTrue(same(want[mine], state["model"][theirs]), theirs)

    def test_a_pull_says_its_naming(self):
        out = self.c.dir / "pull.safetensors"
        for model, flags, naming in (
            ("toy", (), "local"),
            ("toy", ("--naming", "te"), "te"),
            ("toyte", (), "te"),
            ("toyte", ("--naming", "local"), "local"),
        ):
            done = self.c.json("pull", "--model", model, "--out", out, *flags)
            self.assertEqual(done["naming"], naming)
            header = safetensors.read_header(out)
            self.assertEqual(header.metadata["helios.naming"], naming)
            names = stage(0, {"te": TE}.get(naming, LOCAL))
            self.assertEqual(set(header.entries), set(names))
            self.assertLessEqual({f"crc32.{name}" for name in names}, set(header.metadata))
        self.assertIn(
            "naming", self.c.refuse("pull", "--model", "toy", "--out", out, "--naming", "x", code=2)
        )

    def test_megatron_takes_the_args_over(self):
        _, out = self.export("toy@1", "--naming", "te")
        state = self.file(out, "release", 0, 0)
        self.assertIs(type(state["args"]), argparse.Namespace)
        for name in (
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            "add_position_embedding",
            "max_position_embeddings",
            "make_vocab_size_divisible_by",
            "padded_vocab_size",
            "tokenizer_type",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "fp16",
            "bf16",
            "sequence_parallel",
            "apply_query_key_layer_scaling",
        ):
            getattr(state["args"], name)  # Megatron's check and converter have no default for these
        args = argparse.Namespace(
            num_layers=None,
            rotary_base=10000,
            swiglu=False,
            kv_channels=None,
            normalization="LayerNorm",
            add_bias_linear=True,
            seq_length=64,
            hidden_dropout=0.1,
        )
        load_args_from_checkpoint(state, args)
        self.assertEqual(
            vars(args),
            dict(
                iteration=0,
                num_layers=4,
                hidden_size=64,
                ffn_hidden_size=96,
                seq_length=64,
                num_attention_heads=4,
                kv_channels=16,
                max_position_embeddings=128,
                padded_vocab_size=64,
                num_query_groups=2,
                group_query_attention=True,
                position_embedding_type="rope",
                add_position_embedding=True,
                use_rotary_position_embeddings=False,
                rotary_base=10000,
                rotary_percent=1.0,
                rotary_interleaved=False,
                add_bias_linear=False,
                add_qkv_bias=False,
                squared_relu=False,
                swiglu=True,
                untie_embeddings_and_output_weights=True,
                apply_layernorm_1p=False,
                normalization="RMSNorm",
                apply_query_key_layer_scaling=False,
                attention_dropout=0.0,
                hidden_dropout=0.0,
                tokenizer_type="HuggingFaceTokenizer",
                tensor_model_parallel_size=2,
                pipeline_model_parallel_size=2,
            ),
        )
        self.assertEqual(state["args"].params_dtype, torch.float32)
        self.assertEqual(state["args"].transformer_impl, "transformer_engine")

    def test_without_args_the_safe_unpickler_takes_it(self):
        done, out = self.export("toy@1", "--no-args")
        path = out / "release/mp_rank_00_000/model_optim_rng.pt"
        self.assertEqual(
            list(torch.load(path, weights_only=True)), ["model", "checkpoint_version", "iteration"]
        )
        self.assertFalse(done["args"])
        self.assertEqual(done["leftOut"], ["args (--no-args)"])
        self.assertNotIn("--use-checkpoint-args", done["megatron"])

    def test_a_virtual_pipeline_has_a_key_per_chunk_and_says_its_flag(self):
        done, out = self.export("virtual")
        state = self.file(out, "release", 1, 0)
        self.assertEqual(
            set(state["model1"]), {f"decoder.layers.0.{name}" for name in LOCAL} | set(OUTSIDE[1])
        )
        self.assertEqual(state["args"].virtual_pipeline_model_parallel_size, 2)
        self.assertIn("--num-layers-per-virtual-pipeline-stage 1", done["megatron"])

    def test_a_trained_version_keeps_its_iteration_and_says_what_is_left_out(self):
        version = self.train("toy", STEP)
        done, out = self.export("toy")
        self.assertEqual((done["version"], done["iteration"]), (version, STEP))
        self.assertEqual(done["warnings"], [])
        self.assertEqual((out / "latest_checkpointed_iteration.txt").read_text(), "20")
        state = self.file(out, "iter_0000020", 1, 1)
        self.assertEqual((state["iteration"], state["args"].iteration), (STEP, STEP))
        self.assertNotIn("helios_optimizer", state)
        self.assertEqual(
            [text.split()[0] for text in done["leftOut"]], ["optimizer", "learning-rate", "random"]
        )
        self.assertIn("--no-load-optim", done["megatron"])
        with self.rank(1, 1) as session:
            want = session.load_state_dict(version=1)
            self.assertTrue(
                same(state["model"]["output_layer.weight"], want["output_layer.weight"] + STEP)
            )
        text = self.c.run(
            "model", "export", "toy", "--format", "torch", "--replace", "--out", out
        ).stdout
        for word in ("iteration 20", "naming local", "--optimizer", "--no-load-optim"):
            self.assertIn(word, text)
        done, out = self.export("toy@1")  # the imported one stays a release
        self.assertEqual((out / "latest_checkpointed_iteration.txt").read_text(), "release")
        self.assertEqual((done["iteration"], done["leftOut"]), (None, []))

    def test_what_is_saved_under_one_naming_is_loaded_under_the_other(self):
        for model, naming in (("toy", "te"), ("toyte", "local")):
            version = self.train(model, 30, naming)
            for asked, layer in (
                ("local", LOCAL),
                ("te", TE),
                (None, TE if model == "toyte" else LOCAL),
            ):
                with self.rank(0, 1, model) as session:
                    both = session.load_state_dict(kind="all", version=version, naming=asked)
                names = stage(0, layer)
                self.assertEqual(
                    set(both),
                    {f"{kind}{n}" for n in names for kind in ("", "exp_avg.", "exp_avg_sq.")},
                )
            _, out = self.export(f"{model}@{version}", "--naming", "te", "--optimizer")
            state = self.file(out, "iter_0000030", 0, 1)
            self.assertEqual(set(state["model"]), set(stage(0, TE)))
            self.assertEqual(
                set(state["helios_optimizer"]),
                {f"{kind}.{n}" for n in stage(0, TE) for kind in ("exp_avg", "exp_avg_sq")},
            )

    def test_the_documented_loader_gives_an_adam_its_state(self):
        version = self.train("toy", 40)
        done, out = self.export(f"toy@{version}", "--optimizer")
        self.assertTrue(done["optimizer"])
        self.assertEqual([text.split()[0] for text in done["leftOut"]], ["learning-rate", "random"])
        self.assertIn("--no-load-optim", done["megatron"])
        state = self.file(out, "iter_0000040", 0, 0)
        self.assertNotIn("optimizer", state)  # Megatron's own key, whose form this is not
        model = torch.nn.Module()
        for name, tensor in state["model"].items():
            at = model
            *path, leaf = name.split(".")
            for word in path:
                if not hasattr(at, word):
                    at.add_module(word, torch.nn.Module())
                at = getattr(at, word)
            at.register_parameter(leaf, torch.nn.Parameter(tensor.clone()))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        text = (ROOT / "docs/megatron.md").read_text()
        code = next(
            block
            for block in re.findall(r"```python\n(.*?)```", text, re.S)
            if "def load_helios_optimizer" in block
        )
        where = {"torch": torch}
        exec(code, where)
        where["load_helios_optimizer"](
            out / "iter_0000040/mp_rank_00_000/model_optim_rng.pt", [model], optimizer, 40
        )
        for name, param in model.named_parameters():
            mine = optimizer.state[param]
            self.assertTrue(torch.equal(mine["exp_avg"], torch.full_like(param, 40.25)), name)
            self.assertTrue(torch.equal(mine["exp_avg_sq"], torch.full_like(param, 40.5)), name)
            self.assertEqual(float(mine["step"]), 40)
            param.grad = torch.ones_like(param)
        optimizer.step()

    def test_optimizer_state_that_is_not_there_is_an_error(self):
        out = self.c.dir / "no-optimizer"
        text = self.c.refuse(
            "model", "export", "virtual", "--format", "torch", "--optimizer", "--out", out
        )
        self.assertIn("optimizer state", text)
        self.assertFalse(out.exists())
        self.assertIn("version 9", self.c.refuse("model", "export", "virtual@9", "--out", out))
        self.assertFalse(out.exists())

    def test_shares_extra_state_and_missing_parts_are_said(self):
        source, sessions = self.c.dir / "checkpoint", []
        self.c.json("model", "import", source, "--name", "shared", "--vocab-divisor", 8)
        for dp in (0, 1):
            rank = helios.Rank(
                dp=dp, dp_size=2, world_size=2, global_rank=dp, job="s", model="shared"
            )
            sessions.append(helios.Session(self.c.info["controller"], rank=rank))
        state = {
            "decoder.final_layernorm.weight": torch.ones(HIDDEN),
            "output_layer.weight": torch.ones(64, HIDDEN),
            "decoder.layers.0.mlp.linear_fc1._extra_state": torch.ones(3, dtype=torch.uint8),
        }
        for dp, session in enumerate(sessions):
            with session:
                session.save_state_dict(
                    state,
                    7,
                    strict=False,
                    optim={"exp_avg.output_layer.weight": torch.full((4,), 1.0 + dp)},
                )
        done, out = self.export("shared")
        self.assertEqual(
            set(
                torch.load(out / "iter_0000007/mp_rank_00/model_optim_rng.pt", weights_only=False)[
                    "model"
                ]
            ),
            {"decoder.final_layernorm.weight", "output_layer.weight"},
        )
        self.assertEqual(
            [text.split()[0] for text in done["leftOut"]],
            ["optimizer", "extra", "learning-rate", "random"],
        )
        self.assertEqual(len(done["warnings"]), 1)
        self.assertIn("embedding", done["warnings"][0])
        text = self.c.refuse(
            "model",
            "export",
            "shared",
            "--format",
            "torch",
            "--optimizer",
            "--out",
            self.c.dir / "two-shares",
        )
        self.assertIn("2 shares", text)
        for dp in (0, 1):
            path = self.c.dir / f"share-{dp}.safetensors"
            done = self.c.run(
                "pull", "--model", "shared", "--kind", "optim", "--dp", dp, "--out", path
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(path.read_bytes()[-16:], torch.full((4,), 1.0 + dp).numpy().tobytes())
        self.assertIn(
            "2 shares", self.c.refuse("pull", "--model", "shared", "--dp", 2, "--out", path)
        )

    def test_files_of_another_layout_are_not_mixed_with(self):
        _, out = self.export("toy@1")
        tracker = out / "latest_checkpointed_iteration.txt"
        self.assertIn(
            "version 9",
            self.c.refuse("model", "export", "toy@9", "--format", "torch", "--out", out),
        )
        self.assertEqual(tracker.read_text(), "release")  # what was there is still whole
        (out / "release/mp_rank_00").mkdir()
        text = self.c.refuse("model", "export", "toy@1", "--format", "torch", "--out", out)
        self.assertIn("mp_rank_00", text)
        (out / "release/mp_rank_00").rmdir()
        tracker.write_text("")
        self.assertIn(
            "mp_rank_00_000 of another export; --replace",
            self.c.refuse("model", "export", "toy@1", "--format", "torch", "--out", out),
        )
        self.assertEqual(tracker.read_text(), "")
        self.c.json("model", "export", "toy@1", "--format", "torch", "--replace", "--out", out)
        self.assertEqual(tracker.read_text(), "release")

    def test_a_failed_export_leaves_no_tracker_of_mixed_files(self):
        _, out = self.export("toy@1")
        victim = out / "release/mp_rank_01_001/model_optim_rng.pt"
        victim.unlink()
        victim.mkdir()  # can't be removed as a file
        self.c.refuse(
            "model",
            "export",
            "toy@1",
            "--format",
            "torch",
            "--tp",
            1,
            "--pp",
            1,
            "--replace",
            "--out",
            out,
        )
        # other ranks load theirs
        self.assertTrue((out / "latest_checkpointed_iteration.txt").exists())
        self.c.refuse(
            "model",
            "export",
            "toy@1",
            "--format",
            "torch",
            "--naming",
            "te",
            "--replace",
            "--out",
            out,
        )
        self.assertFalse((out / "latest_checkpointed_iteration.txt").exists())
        self.assertEqual([path for path in out.rglob("*.pt") if path.is_file()], [])

    JOB = """\
jobName: v
model: {name: %s}
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 2, data_parallel_size: 1%s}
resources: {ranks_per_slot: 4}
command: "true"
"""

    def test_a_job_may_have_another_virtual_pipeline_if_the_layers_allow_it(self):
        path = self.c.dir / "virtual.yaml"
        for model, more in (
            ("virtual", ""),
            ("virtual", ", virtual_pipeline_parallel_size: 2"),
            ("toy", ", virtual_pipeline_parallel_size: 2"),
        ):
            path.write_text(self.JOB % (model, more))
            self.assertEqual(self.c.run("plan", path).returncode, 0, (model, more))
        path.write_text(self.JOB % ("virtual", ", virtual_pipeline_parallel_size: 7"))
        for command in ("plan", "submit"):
            text = self.c.refuse(command, path)
            for words in ("'virtual'", "7 virtual stages"):
                self.assertIn(words, text)

    def test_a_rank_of_another_virtual_pipeline_reads_nothing(self):
        out = self.c.dir / "rank.safetensors"
        env = dict(self.c.env)
        try:
            for own, job, good in (
                ("virtual", "1", False),
                ("virtual@1", "4", False),
                ("virtual", "2", True),
                ("toy", "1", True),
                ("other", "1", True),
            ):
                self.c.env.update(HELIOS_MODEL=own, VIRTUAL_PIPELINE_PARALLEL_SIZE=job)
                done = self.c.run("pull", "--model", "virtual", "--out", out)
                self.assertEqual(done.returncode, 0 if good else 1, (own, job, done.stderr))
                if not good:
                    self.assertIn(f"VIRTUAL_PIPELINE_PARALLEL_SIZE is '{job}'", done.stderr)
                    self.assertIn("--virtual-stages 2", done.stderr)
        finally:
            self.c.env = env


if __name__ == "__main__":
    unittest.main(verbosity=2)

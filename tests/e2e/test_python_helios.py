#!/usr/bin/python3
"""The Python package without daemons: its codes, its file format, its layout, its sessions."""
from __future__ import annotations

import gc
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

import helios  # noqa: E402
from helios import _abi, _naming, errors, safetensors  # noqa: E402

try:
    import torch
    from support import file_client, slicer
except ModuleNotFoundError:
    torch = None


class Abi(unittest.TestCase):
    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_codes_are_those_of_the_header(self):
        header = (ROOT / "include/helios/helios.h").read_text()
        names = re.findall(r"^    (HELIOS_E[A-Z]+) = ", header, re.M)
        with tempfile.TemporaryDirectory() as home:
            source = pathlib.Path(home, "p.c")
            source.write_text(
                '#include <helios/helios.h>\n#include <stdio.h>\nint main(void) { '
                + "".join(f'printf("%d\\n", {name}); ' for name in names)
                + "}\n"
            )
            subprocess.run(["cc", "-I", ROOT / "include", source, "-o", f"{home}/p"], check=True)
            text = subprocess.run([f"{home}/p"], check=True, capture_output=True, text=True).stdout
        self.assertEqual({int(line) for line in text.split()}, set(errors._BY_CODE))

    def test_a_missing_library_is_one_sentence(self):
        environment = dict(
            os.environ,
            HELIOS_LIBRARY="/nowhere/libhelios.so.0",
            PYTHONPATH=str(ROOT / "python"),
            PYTHONDONTWRITEBYTECODE="1",
        )
        done = subprocess.run(
            [sys.executable, "-m", "helios", "info"],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("HELIOS_LIBRARY", done.stderr)

    def test_another_library_is_refused(self):
        os.environ["HELIOS_LIBRARY"] = "libc.so.6"
        self.addCleanup(os.environ.pop, "HELIOS_LIBRARY")
        with self.assertRaises(errors.Unsupported):
            _abi.load_library()

    def test_every_code_has_its_class(self):
        for code, cls in errors._BY_CODE.items():
            error = errors.from_code(code, "why")
            self.assertIs(type(error), cls)
            self.assertEqual((error.code, str(error)), (code, "why"))
        self.assertEqual(errors.from_code(-99, "odd").code, -99)


class RankEnvironment(unittest.TestCase):
    def test_the_rank_is_what_the_environment_says(self):
        rank = helios.Rank.from_environment(
            {
                "GLOBAL_RANK": "5",
                "PIPELINE_PARALLEL_RANK": "1",
                "TENSOR_PARALLEL_RANK": "1",
                "DATA_PARALLEL_RANK": "0",
                "PIPELINE_PARALLEL_SIZE": "2",
                "TENSOR_PARALLEL_SIZE": "2",
                "DATA_PARALLEL_SIZE": "2",
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "1",
                "HELIOS_JOB": "j",
                "HELIOS_ATTEMPT": "3",
                "HELIOS_NODE": "n1",
                "HELIOS_MODEL": "llama@12",
            }
        )
        self.assertEqual((rank.global_rank, rank.pp, rank.tp, rank.dp), (5, 1, 1, 0))
        self.assertEqual((rank.world_size, rank.job, rank.attempt, rank.node), (8, "j", 3, "n1"))
        self.assertEqual((rank.model, rank.model_version), ("llama", 12))
        self.assertEqual(helios.Rank.from_environment({}), helios.Rank())

    def test_nonsense_in_the_environment_names_the_variable(self):
        for env, name in (
            ({"GLOBAL_RANK": "x"}, "GLOBAL_RANK"),
            ({"TENSOR_PARALLEL_RANK": "2", "TENSOR_PARALLEL_SIZE": "2"}, "TENSOR_PARALLEL_RANK"),
            ({"PIPELINE_PARALLEL_SIZE": "0"}, "PIPELINE_PARALLEL_SIZE"),
            ({"WORLD_SIZE": "3"}, "WORLD_SIZE"),
            ({"HELIOS_MODEL": "a@b"}, "a@b"),
        ):
            with self.assertRaisesRegex(errors.InvalidArgument, name):
                helios.Rank.from_environment(env)


def config_of(*runs):
    """A model's config of its layers: per stage its (first, count) chunks."""
    return {
        "architecture": "LlamaForCausalLM",
        "layers": sum(count for stage in runs for _, count in stage),
        "tp": 1,
        "pp": len(runs),
        "virtualStages": len(runs[0]),
        "stages": [[{"first": first, "count": count} for first, count in stage] for stage in runs],
    }


class Parts(unittest.TestCase):
    CONFIG = config_of([(0, 2), (4, 2)], [(2, 2), (6, 2)])

    def test_names_find_their_part(self):
        for name, stage, part in (
            ("model1.decoder.layers.1.mlp.linear_fc1.weight", 1, "layer-0007"),
            ("exp_avg.model0.decoder.layers.0.mlp.linear_fc1.weight", 1, "layer-0002"),
            ("decoder.layers.1.mlp.linear_fc1.weight", 0, "layer-0001"),
            ("model0.embedding.word_embeddings.weight", 0, "embedding"),
            ("model1.decoder.final_layernorm.weight", 1, "head"),
            ("exp_avg.model0.vision_tower.decoder.layers.0.input_layernorm.weight", 0, "vision"),
        ):
            self.assertEqual(helios.parts_of(self.CONFIG, [name], stage), [part])
        self.assertEqual(helios.parts_of(self.CONFIG, []), [])
        with self.assertRaisesRegex(
            errors.InvalidArgument, "tensor 'decoder.layers.2.x': stage 0 has no layer 2 in chunk 0"
        ):
            helios.parts_of(self.CONFIG, ["decoder.layers.2.x"])
        with self.assertRaisesRegex(errors.InvalidArgument, "stage 2 is out of range"):
            helios.parts_of(self.CONFIG, ["decoder.layers.0.x"], 2)
        plain = {"architecture": "unknown", "unsliced": True}
        self.assertEqual(
            helios.parts_of(plain, ["transformer.h.3.attn.w", "wte"]), ["layer-0003", "model-0000"]
        )

    def test_configs_that_say_no_layers_are_refused(self):
        for config in (
            {},
            {"tp": 1, "pp": 1},
            {"tp": 1, "pp": 2, "layers": 3},
            {"model_type": "llama"},
        ):
            with self.assertRaises(errors.HeliosError, msg=config):
                helios.parts_of(config, ["x"])


class Namings(unittest.TestCase):
    # local, te; by hand from Megatron-core's layer specs
    PAIRS = (
        (
            "decoder.layers.0.input_layernorm.weight",
            "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
        ),
        (
            "model1.decoder.layers.12.pre_mlp_layernorm.bias",
            "model1.decoder.layers.12.mlp.linear_fc1.layer_norm_bias",
        ),
        (
            "exp_avg.decoder.layers.0.pre_mlp_layernorm.weight",
            "exp_avg.decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
        ),
        ("decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight"),
        (
            "decoder.layers.0.input_layernorm._extra_state",
            "decoder.layers.0.input_layernorm._extra_state",
        ),
        ("decoder.final_layernorm.weight", "decoder.final_layernorm.weight"),
    )

    def test_each_name_becomes_the_others_and_back_and_its_own_stays(self):
        local, te = [list(names) for names in zip(*self.PAIRS)]
        for names in (local, te):
            self.assertEqual(list(_naming.rename(names, "te").values()), te)
            self.assertEqual(list(_naming.rename(names, "local").values()), local)
        with self.assertRaisesRegex(errors.InvalidArgument, "'TE'"):
            _naming.rename(local, "TE")

    def test_a_layer_with_experts_keeps_the_norm_before_its_mlp(self):
        names = [
            "decoder.layers.1.mlp.router.weight",
            "decoder.layers.1.pre_mlp_layernorm.weight",
            "decoder.layers.10.pre_mlp_layernorm.weight",
            "decoder.layers.1.input_layernorm.weight",
        ]
        self.assertEqual(
            list(_naming.rename(names, "te").values()),
            [
                "decoder.layers.1.mlp.router.weight",
                "decoder.layers.1.pre_mlp_layernorm.weight",
                "decoder.layers.10.mlp.linear_fc1.layer_norm_weight",
                "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
            ],
        )


class Format(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.path = pathlib.Path(home.name, "x.safetensors")

    def test_what_is_written_is_read_and_aligned(self):
        with open(self.path, "wb") as file:
            tensors = [
                ("b", "F32", (2, 1), b"\1" * 8),
                ("a", "BF16", (), b"ab"),
                ("none", "U8", (0, 3), b""),
            ]
            size = safetensors.write(file, tensors, {"k": "v"})
        header = safetensors.read_header(self.path)
        self.assertEqual(size, self.path.stat().st_size)
        self.assertEqual(header.data_start % 64, 0)
        self.assertEqual(header.metadata, {"k": "v"})
        self.assertEqual(
            [(e.name, e.shape, e.begin, e.end) for e in header.entries.values()],
            [("b", (2, 1), 0, 8), ("a", (), 8, 10), ("none", (0, 3), 10, 10)],
        )

    def test_hostile_headers_are_refused(self):
        good = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        cases = {
            "header claims": b"\xff" * 8 + b"{}",
            "too few": b"\0" * 7,
            "not valid JSON": self.file("{", 0),
            "not a JSON object": self.file("[]", 0),
            "appears twice": self.file('{"a":%s,"a":%s}' % ((json.dumps(good),) * 2), 4),
            "unknown dtype": self.file({"a": dict(good, dtype="X")}, 4),
            "dtype and shape need 5": self.file({"a": dict(good, shape=[5])}, 4),
            "dtype and shape need 2126": self.file({"a": dict(good, shape=[1 << 62] * 2)}, 4),
            "not a list of sizes": self.file({"a": dict(good, shape=[-4])}, 4),
            "not \\[begin, end\\]": self.file({"a": dict(good, data_offsets=[0])}, 1),
            "overlaps": self.file({"a": good, "b": dict(good, data_offsets=[2, 6])}, 6),
            "hole": self.file({"a": dict(good, data_offsets=[1, 5])}, 5),
            "end at byte 4": self.file({"a": good}, 9),
            "exactly dtype": self.file({"a": dict(good, more=1)}, 4),
            "strings to strings": self.file({"__metadata__": {"a": 1}}, 0),
        }
        for sentence, data in cases.items():
            self.path.write_bytes(data)
            with self.assertRaisesRegex(errors.Corrupt, sentence):
                safetensors.read_header(self.path)

    @staticmethod
    def file(header: str | dict, data_size: int) -> bytes:
        text = header if isinstance(header, str) else json.dumps(header)
        return struct.pack("<Q", len(text)) + text.encode() + bytes(data_size)


@unittest.skipIf(torch is None, "torch is not installed")
class Sessions(unittest.TestCase):
    CONFIG = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "vocab_size": 10,
    }

    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.root = pathlib.Path(home.name)
        random = torch.Generator().manual_seed(1)

        def tensor(*shape):
            return torch.randn(shape, generator=random).to(torch.bfloat16)

        self.hf = {
            "model.embed_tokens.weight": tensor(10, 6),
            "model.norm.weight": tensor(6),
            "lm_head.weight": tensor(10, 6),
        }
        for n in range(4):
            p = f"model.layers.{n}."
            self.hf.update(
                {
                    p + "input_layernorm.weight": tensor(6),
                    p + "post_attention_layernorm.weight": tensor(6),
                    p + "self_attn.q_proj.weight": tensor(6, 6),
                    p + "self_attn.k_proj.weight": tensor(2, 6),
                    p + "self_attn.v_proj.weight": tensor(2, 6),
                    p + "self_attn.o_proj.weight": tensor(6, 6),
                    p + "mlp.gate_proj.weight": tensor(8, 6),
                    p + "mlp.up_proj.weight": tensor(8, 6),
                    p + "mlp.down_proj.weight": tensor(6, 8),
                }
            )

    def publish(self, config=None, **options):
        config = config or config_of([(0, 2)], [(2, 2)])
        self.sliced = slicer.slice_model(self.hf, self.CONFIG, 1, 2, divisor=4, **options)
        file_client.publish(self.root, "m", {"hf": self.CONFIG, **config}, self.sliced)

    def session(self, **rank):
        rank = {"model": "m", "pp_size": 2, "world_size": 2, "job": "j", **rank}
        return helios.Session(client=file_client.FileClient(self.root), rank=helios.Rank(**rank))

    def stage(self, pp):
        return {n: t for part in self.sliced[pp, 0].values() for n, t in part.items()}

    def test_load_gives_the_slices_bit_for_bit(self):
        self.publish()
        for pp in (0, 1):
            state = self.session(pp=pp, global_rank=pp).load_state_dict()
            want = self.stage(pp)
            self.assertEqual(set(state), set(want))
            for name, tensor in want.items():
                self.assertEqual(state[name].dtype, torch.bfloat16)
                self.assertTrue(torch.equal(state[name], tensor), name)

    def test_tensors_live_longer_than_the_session_and_hold_the_mapping(self):
        self.publish()
        session = self.session()
        released = []
        session.client.unmap = released.append
        state = session.load_state_dict()
        one = state["decoder.layers.1.mlp.linear_fc2.weight"][2:4].t()
        session.close()
        count = len(self.sliced[0, 0])
        del state
        gc.collect()
        self.assertEqual(len(released), count - 1)
        want = self.stage(0)["decoder.layers.1.mlp.linear_fc2.weight"]
        self.assertTrue(torch.equal(one, want[2:4].t()))
        del one
        gc.collect()
        self.assertEqual(len(released), count)

    def test_copies_may_be_written_and_hold_nothing(self):
        self.publish()
        session = self.session()
        released = []
        session.client.unmap = released.append
        state = session.load_state_dict(copy=True)
        gc.collect()
        self.assertEqual(len(released), len(self.sliced[0, 0]))
        for tensor in state.values():
            tensor.zero_()

    def test_a_saved_version_has_the_parts_of_the_loaded_one(self):
        for name, options, config in (
            ("uneven", {"first": 1}, config_of([(0, 1)], [(1, 3)])),
            ("virtual", {"chunks": 2}, config_of([(0, 1), (2, 1)], [(1, 1), (3, 1)])),
        ):
            with self.subTest(name):
                shutil.rmtree(self.root)
                self.root.mkdir()
                self.publish(config, **options)
                for pp in (0, 1):
                    for fresh in (False, True):  # the layout alone must give the same parts
                        session = self.session(pp=pp, global_rank=pp, attempt=int(fresh))
                        state = self.stage(pp) if fresh else session.load_state_dict()
                        moments = {f"exp_avg.{n}": t.float() + 1 for n, t in state.items()}
                        saved = session.save_state_dict(state, 5, {"step": 5}, optim=moments)
                        self.assertEqual(saved.visible, pp == 1)
                        home = self.root / "m" / str(saved.version)
                        parts = {p.stem.split("-", 2)[2] for p in home.glob(f"pp{pp}-*")}
                        want = set(self.sliced[pp, 0])
                        self.assertEqual(parts, want | {f"optim-{part}" for part in want})
                again = self.session(pp=1, global_rank=1)
                both = again.load_state_dict(kind="all")
                self.assertEqual(again.meta(), {"step": 5})
                names = self.stage(1)
                self.assertEqual(set(both), {x + n for n in names for x in ("", "exp_avg.")})
                self.assertEqual(again.load_state_dict().keys(), self.stage(1).keys())

    def test_names_are_of_the_naming_asked_for_and_stored_under_the_models(self):
        local = "decoder.layers.0.input_layernorm.weight"
        te = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"
        for own in ("local", "te"):
            with self.subTest(own):
                shutil.rmtree(self.root)
                self.root.mkdir()
                # The stored names use the other naming, as an earlier Helios stored them.
                self.publish(
                    {**config_of([(0, 2)], [(2, 2)]), "naming": own},
                    naming="te" if own == "local" else "local",
                )
                session = self.session(pp_size=1, world_size=1)
                self.assertEqual(session.naming(), own)
                for step, (asked, name) in enumerate(
                    (("local", local), ("te", te), (None, {"local": local, "te": te}[own]))
                ):
                    state = session.load_state_dict(version=1, naming=asked)
                    self.assertEqual([n for n in (local, te) if n in state], [name])
                    self.assertEqual(session.naming(), asked or own)
                    self.assertEqual(len(state), 1 + 2 * 6)
                    want = self.hf["model.layers.0.input_layernorm.weight"]
                    self.assertTrue(torch.equal(state[name], want))
                    saved = session.save_state_dict(state, step, optim={f"exp_avg.{name}": want})
                    home = self.root / "m" / str(saved.version)
                    stored = {
                        n
                        for path in home.glob("*.safetensors")
                        for n in safetensors.read_header(path).entries
                    }
                    own_name = {"local": local, "te": te}[own]
                    self.assertEqual(
                        {n for n in stored if n.endswith((local, te))},
                        {own_name, f"exp_avg.{own_name}"},
                    )
                both = {local: want, te: want}
                with self.assertRaisesRegex(errors.InvalidArgument, "both namings"):
                    session.save_state_dict(both, 6)
                with self.assertRaisesRegex(errors.InvalidArgument, "naming='TE'"):
                    session.load_state_dict(naming="TE")

    def test_a_lazy_negative_is_saved_with_its_sign(self):
        self.publish()
        whole = self.stage(0)
        negative = {name: torch._neg_view(t) for name, t in whole.items()}
        name = next(iter(whole))
        part = torch._neg_view(whole[name].float().reshape(-1))
        session = self.session(pp_size=1, world_size=1)
        session.save_state_dict(
            negative, 1, optim={f"exp_avg.{name}": helios.Piece(part, whole[name].shape, 0)}
        )
        got = session.load_state_dict(kind="all")
        for name_of, tensor in whole.items():
            self.assertTrue(torch.equal(got[name_of], -tensor), name_of)
        self.assertTrue(torch.equal(got[f"exp_avg.{name}"], -whole[name].float()))

    def test_only_data_rank_0_writes_and_everyone_commits(self):
        self.publish()
        for rank, dp in ((1, 1), (0, 0)):
            session = self.session(pp_size=1, dp_size=2, dp=dp, global_rank=rank)
            saved = session.save_state_dict(self.stage(0), 1)
            self.assertEqual((saved.visible, saved.bytes > 0), (rank == 0, dp == 0))

    def test_wrong_uses_are_sentences(self):
        self.publish()
        session = self.session()
        with self.assertRaisesRegex(errors.InvalidArgument, "kind='x'"):
            session.load_state_dict(kind="x")
        with self.assertRaisesRegex(errors.NotFound, "m@9"):
            session.load_state_dict(version=9)
        with self.assertRaisesRegex(errors.NotFound, "tp 3"):
            session.load_state_dict(tp=3)
        with self.assertRaisesRegex(errors.InvalidArgument, "HELIOS_MODEL"):
            self.session(model="").load_state_dict()
        with self.assertRaisesRegex(errors.InvalidArgument, "both"):
            session.save_state_dict({"a": torch.ones(1)}, 1, optim={"a": torch.ones(1)})
        for meta in ({"a": object()}, {"loss": float("nan")}):
            with self.assertRaisesRegex(errors.InvalidArgument, "meta is not JSON"):
                session.save_state_dict({"a": torch.ones(1)}, 1, meta)
        with self.assertRaisesRegex(errors.InvalidArgument, "cannot store torch.complex64"):
            session.save_state_dict({"a": torch.ones(1, dtype=torch.complex64)}, 1)
        with self.assertRaisesRegex(errors.InvalidArgument, "not a torch tensor"):
            session.save_state_dict({"b": 3}, 1)
        with self.assertRaisesRegex(errors.InvalidArgument, "'a' is in both state and optim"):
            session.save_state_dict(
                {"a": torch.ones(1)}, 1, optim={"a": helios.Piece(torch.ones(1), (2,), 1)}
            )
        freed = torch.ones(3)
        freed.storage().resize_(0)
        for value in (freed, torch._subclasses.FakeTensorMode().from_tensor(torch.ones(3))):
            with self.assertRaisesRegex(
                errors.InvalidArgument, "'decoder.layers.0.x' .*has no memory of its own"
            ):
                session.save_state_dict({"decoder.layers.0.x": value}, 1)


if __name__ == "__main__":
    unittest.main()

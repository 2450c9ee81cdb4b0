#!/usr/bin/python3
"""examples/train_gpt.py on slices equals the unsliced model, and a resumed run equals an
undisturbed one.

Ranks are real processes over gloo; libhelios is replaced by files, the slicer is the tests' own.
"""
from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: ranks are forked from this process

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
ROOT = needs.ROOT
sys.path.insert(0, str(ROOT / "examples"))

import helios  # noqa: E402
import hf_llama  # noqa: E402
import reference_loss  # noqa: E402
import train_gpt  # noqa: E402
from support import file_client, slicer  # noqa: E402
from support.gang import Gang  # noqa: E402
from support.ranks import alone  # noqa: E402

torch.set_num_threads(1)

LR, BATCH, MICRO, SEQ, STEPS = 1e-3, 8, 2, 32, 4
TOLERANCE = 1e-4


class TrainParallel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="helios-train-")
        cls.root = pathlib.Path(cls.home.name)
        text = cls.root / "text"
        text.write_bytes(b"".join(b"the %d. quick brown fox; " % (i * i) for i in range(400)))
        cls.text = str(text)
        cls.curves = {}
        for tied in (False, True):
            model = hf_llama.Llama(
                hf_llama.Config(
                    hidden_size=32,
                    intermediate_size=48,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    max_position_embeddings=SEQ,
                    tie_word_embeddings=tied,
                )
            )
            model.init_weights(seed=3)
            with torch.no_grad():  # weights that make every tensor matter
                for p in model.parameters():
                    p.mul_(4) if p.dim() > 1 else p.add_(torch.linspace(-0.3, 0.3, len(p)))
            hf_llama.save(model, cls.hf(tied))
            cls.curves[tied] = alone(
                lambda tied=tied: reference_loss.curve(
                    cls.hf(tied), STEPS, BATCH, LR, text=[cls.text]
                )
            )

    @classmethod
    def tearDownClass(cls):
        cls.home.cleanup()

    @classmethod
    def hf(cls, which: bool | str) -> pathlib.Path:
        """Directory of the tied (True), the untied (False) or another model."""
        return cls.root / f"hf-{which}"

    def publish(
        self, name: str, pp: int, tp: int, which: bool | str = False, **options
    ) -> pathlib.Path:
        """Slice a model into a directory that a FileClient serves as model "m"."""
        config = json.loads((self.hf(which) / "config.json").read_text())
        tensors = hf_llama.load_tensors(self.hf(which))
        sliced = slicer.slice_model(tensors, config, tp, pp, **options)
        home = self.root / name
        file_client.publish(home, "m", {"hf": config}, sliced)
        return home

    def gang(
        self, home: pathlib.Path, *arguments: str, model: str = "m", attempt: int = 1, **sizes
    ) -> Gang:
        def run() -> int:
            client = file_client.FileClient(home)

            def init() -> helios.Session:
                helios._session = helios.Session(client=client)
                return helios._session

            helios.init = init
            return train_gpt.main(
                [
                    "--text",
                    self.text,
                    "--lr",
                    str(LR),
                    "--batch",
                    str(BATCH),
                    "--micro-batches",
                    str(MICRO),
                    "--timeout",
                    "30",
                    *arguments,
                ]
            )

        gang = Gang(run, model=model, attempt=attempt, **sizes)
        self.addCleanup(gang.close)
        return gang

    def finish(self, gang: Gang) -> dict[int, float]:
        codes = gang.wait()
        self.assertEqual(set(codes.values()), {0}, gang.everything())
        return gang.losses()

    def check_curve(self, losses: dict[int, float], tied: bool) -> None:
        self.assertEqual(sorted(losses), list(range(STEPS)))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, self.curves[tied][step], delta=TOLERANCE, msg=f"{step}")

    def check(
        self, tied: bool = False, divisor: int = 128, order: str = "tp-dp-pp", dp: int = 1, **sizes
    ) -> None:
        name = f"{tied}-{order}-{dp}-{sizes}"
        home = self.publish(name, which=tied, divisor=divisor, **sizes)
        losses = self.finish(
            self.gang(home, "--steps", str(STEPS), "--save-every", "0", order=order, dp=dp, **sizes)
        )
        self.check_curve(losses, tied)

    def test_one_rank_equals_the_reference(self):
        self.check(tp=1, pp=1)

    def test_two_tensor_ranks_equal_the_reference(self):
        self.check(tp=2, pp=1)

    def test_two_stages_equal_the_reference(self):
        self.check(tp=1, pp=2)

    def test_tensor_times_pipeline_equals_the_reference(self):
        self.check(tp=2, pp=2)

    def test_four_stages_and_little_padding_equal_the_reference(self):
        self.check(tp=1, pp=4, divisor=1)

    def test_all_three_dimensions_equal_the_reference(self):
        self.check(tp=2, pp=2, dp=2)

    def test_the_other_rank_order_equals_the_reference(self):
        self.check(tp=1, pp=2, dp=2, order="tp-pp-dp")

    def test_tied_embedding_on_one_stage_equals_the_reference(self):
        self.check(tied=True, tp=2, pp=1)

    def test_tied_embedding_on_two_stages_equals_the_reference(self):
        self.check(tied=True, tp=2, pp=2)

    def test_a_bf16_checkpoint_equals_the_reference(self):
        source = hf_llama.load(self.hf(False))
        hf_llama.save(source, self.hf("bf16"), torch.bfloat16)
        want = alone(lambda: reference_loss.curve(self.hf("bf16"), 0, BATCH, LR, text=[self.text]))
        home = self.publish("bf16", tp=2, pp=2, which="bf16")
        losses = self.finish(self.gang(home, "--steps", "1", "--save-every", "0", tp=2, pp=2))
        self.assertAlmostEqual(losses[0], want[0], delta=TOLERANCE)
        self.assertNotAlmostEqual(losses[0], self.curves[False][0], delta=TOLERANCE)

    def test_overlapped_sums_have_the_losses_of_the_same_chunks_in_turn(self):
        home = self.publish("overlap", tp=2, pp=2)
        curves = {}
        for how, chunks in (("maco", "4"), ("serial", "4"), ("maco", "auto")):
            curves[how, chunks] = self.finish(
                self.gang(
                    home,
                    "--steps",
                    str(STEPS),
                    "--save-every",
                    "0",
                    "--overlap",
                    how,
                    "--overlap-chunks",
                    chunks,
                    tp=2,
                    pp=2,
                )
            )
            self.check_curve(curves[how, chunks], False)
        self.assertEqual(curves["maco", "4"], curves["serial", "4"])

    def test_a_wrong_slice_is_noticed(self):
        """The comparison itself must be able to fail: swap gate and up of one layer."""
        config = json.loads((self.hf(False) / "config.json").read_text())
        tensors = hf_llama.load_tensors(self.hf(False))
        gate, up = (f"model.layers.1.mlp.{x}_proj.weight" for x in ("gate", "up"))
        tensors[gate], tensors[up] = tensors[up], tensors[gate]
        home = self.root / "swapped"
        file_client.publish(home, "m", {"hf": config}, slicer.slice_model(tensors, config, 1, 1))
        losses = self.finish(self.gang(home, "--steps", "1", "--save-every", "0"))
        self.assertGreater(abs(losses[0] - self.curves[False][0]), TOLERANCE)

    def test_a_resumed_run_continues_the_curve_bit_for_bit(self):
        home = self.publish("resume", tp=2, pp=2, which=True)
        sizes = {"tp": 2, "pp": 2}
        whole = self.gang(home, "--steps", str(STEPS), "--save-every", "2", **sizes)
        undisturbed = self.finish(whole)
        self.check_curve(undisturbed, True)
        saved = [(line["version"], line["step"]) for line in whole.lines("SAVED")]
        self.assertEqual(saved, [(2, 2), (3, 4)])
        again = self.gang(
            home, "--steps", str(STEPS), "--save-every", "2", model="m@2", attempt=2, **sizes
        )
        resumed = self.finish(again)
        self.assertEqual(resumed, {step: undisturbed[step] for step in (2, 3)})
        self.assertEqual({p["step"] for p in again.lines("PULL")}, {2})
        for pp, tp in ((0, 0), (0, 1), (1, 0), (1, 1)):  # versions 3 and 4: the same bytes
            for kind in ("model", "optim"):
                rank = helios.Rank(model="m", pp_size=2, tp_size=2)
                session = helios.Session(client=file_client.FileClient(home), rank=rank)
                one = session.load_state_dict(version=3, pp=pp, tp=tp, kind=kind)
                two = session.load_state_dict(version=4, pp=pp, tp=tp, kind=kind)
                self.assertEqual(list(one), list(two))
                self.assertTrue(all(torch.equal(one[name], two[name]) for name in one))
        done = self.gang(home, "--steps", str(STEPS), attempt=3, **sizes)  # nothing left to do
        self.assertEqual(self.finish(done), {})

    def test_a_dead_peer_fails_the_others_with_a_sentence(self):
        home = self.publish("dead", tp=1, pp=2)
        gang = self.gang(home, "--steps", "1000000", "--save-every", "0", pp=2)
        self.wait_for_progress(gang)
        gang.kill(0, signal.SIGKILL)
        codes = gang.wait(40)
        self.assertEqual(codes, {0: -9, 1: 1}, gang.everything())
        self.assertIn("train_gpt: rank 1: ", gang.output(1))
        self.assertNotIn("Traceback", gang.output(1))

    def test_sigterm_ends_every_rank_quietly(self):
        home = self.publish("term", tp=1, pp=2)
        gang = self.gang(home, "--steps", "1000000", "--save-every", "0", pp=2)
        self.wait_for_progress(gang)
        for rank in (0, 1):
            gang.kill(rank, signal.SIGTERM)
        codes = gang.wait(40)
        self.assertEqual(codes, {0: 143, 1: 143}, gang.everything())
        for rank in (0, 1):
            self.assertNotIn("rror", gang.output(rank))

    def test_a_batch_that_does_not_divide_is_refused(self):
        home = self.publish("batch", tp=1, pp=1)
        gang = self.gang(home, "--batch", "7")
        self.assertEqual(gang.wait(), {0: 1})
        self.assertIn("--batch 7 does not divide", gang.output(0))

    def wait_for_progress(self, gang: Gang) -> None:
        deadline = time.monotonic() + 30
        while not gang.lines("PROGRESS"):
            self.assertLess(time.monotonic(), deadline, gang.everything())
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
"""A model that does not fit its device learns what plain torch learns: the same bits."""
from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    print("skipped: python3-torch is not installed")
    sys.exit(77)
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "python"))
import hybridps  # noqa: E402

VOCAB, WIDTH, SEQUENCE, LAYERS, STEPS = 128, 64, 16, 4, 20
CHUNK = 64 << 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, *, causal):
        b, t, c = x.shape
        q, k, v = (h.view(b, t, 4, c // 4).transpose(1, 2) for h in self.qkv(self.ln1(x)).split(c, 2))
        scores = q @ k.transpose(2, 3) / (c // 4) ** 0.5
        scores = scores.masked_fill(causal, float("-inf")).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, c))
        h = self.up(self.ln2(x)).relu_()  # a layer's output changed in place
        return {"hidden": x + self.down(h)}


class Gpt(nn.Module):
    def __init__(self, tied=False, checkpointing=None, frozen=False):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.checkpointing = checkpointing
        if tied:
            self.head.weight = self.token.weight
        if frozen:
            self.place.weight.requires_grad_(False)
            self.blocks[1].up.weight.requires_grad_(False)
        causal = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
        self.register_buffer("causal", causal)

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                run = lambda h, block=block: block(h, causal=self.causal)["hidden"]  # noqa: E731
                x = checkpoint(run, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = block(x, causal=self.causal)["hidden"]
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return {"loss": F.cross_entropy(logits.float().view(-1, VOCAB), targets.reshape(-1))}


def batches(count):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        tokens = torch.randint(0, VOCAB, (4, SEQUENCE + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def make(seed=3, dtype=torch.float32, **shape):
    torch.manual_seed(seed)
    return Gpt(**shape).to(dtype)


def train(model, optimizer, steps=STEPS, accumulate=1, clip=None, evaluate=False, scheduler=None):
    """The loop of a user, who knows nothing of managed memory."""
    losses = []
    data = batches(steps * accumulate)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(accumulate):
            x, y = next(data)
            loss = model(x, targets=y)["loss"]
            loss.backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        if evaluate and step % 5 == 2:
            model.eval()
            with torch.no_grad():
                losses.append(model(x, targets=y)["loss"].item())
            model.train()
    return losses


def adam(model, kind=torch.optim.Adam):
    return kind(model.parameters(), lr=1e-3, weight_decay=0.01)


def model_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


class Case:
    """Plain torch's losses and end values, once; then any number of managed runs against them."""

    def __init__(self, test, optimizer=adam, native=False, dtype=torch.float32, shape=None, **loop):
        self.test, self.optimizer, self.native, self.dtype = test, optimizer, native, dtype
        self.shape, self.loop = shape or {}, loop
        model = make(dtype=dtype, **self.shape)
        self.bytes = model_bytes(model) * 4
        self.losses = train(model, optimizer(model), **loop)
        self.end = {k: v.clone() for k, v in model.state_dict().items()}

    def run(self, capacity, mode="copy", policy="opt"):
        model = make(dtype=self.dtype, **self.shape)
        optimizer = self.optimizer(model)
        with hybridps.manage(model, optimizer, device=f"emu:{int(capacity)}", mode=mode,
                             policy=policy, native=self.native, chunk_bytes=CHUNK) as client:
            losses = train(model, optimizer, **self.loop)
            state = model.state_dict()
            self.same(losses, state, f"{capacity} bytes, {mode}, {policy}")
            stats = client.stats()
        self.test.assertEqual(stats["peak_over_avail"], 0)
        self.test.assertLessEqual(stats["device_peak"], stats["capacity"])
        self.same(losses, model.state_dict(), "after the end of managing")
        return stats

    def minimum(self):
        """The most bytes that are pinned at once: a device of so many must do."""
        pinned = [0]
        model = make(dtype=self.dtype, **self.shape)
        optimizer = self.optimizer(model)
        with hybridps.manage(model, optimizer, device=f"emu:{self.bytes * 4}",
                             native=self.native, chunk_bytes=CHUNK) as client:
            access = client.pool.access

            def measured(group):
                access(group)
                pinned[0] = max(pinned[0], client.stats()["pinned"])

            client.pool.access = measured
            train(model, optimizer, **{**self.loop, "steps": 1})
        return pinned[0]

    def everywhere(self):
        for part in (1, 0.6, 0.35):
            self.run(self.bytes * part)
        minimum = self.minimum()
        self.test.assertLess(minimum, self.bytes * 0.2)
        tight = self.run(minimum)
        self.test.assertGreater(tight["last"]["evictions"], 0)
        self.run(minimum, mode="move", policy="lru")

    def same(self, losses, state, where):
        self.test.assertEqual(losses, self.losses, where)
        self.test.assertEqual(list(state), list(self.end), where)
        for name, value in state.items():
            self.test.assertTrue(torch.equal(value, self.end[name]), f"{name}: {where}")


class SameAsPlainTorch(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_torch_adam(self):
        Case(self).everywhere()

    def test_native_adam(self):
        Case(self, native=True).everywhere()

    def test_native_adamw(self):
        Case(self, lambda m: adam(m, torch.optim.AdamW), native=True).everywhere()

    def test_any_optimizer(self):
        case = Case(self, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
        case.run(case.minimum())

    def test_tied_parameters(self):
        Case(self, shape={"tied": True}, native=True).everywhere()

    def test_frozen_parameters(self):
        case = Case(self, lambda m: adam(m), shape={"frozen": True}, native=True)
        case.run(case.minimum())

    def test_reentrant_checkpointing(self):
        Case(self, shape={"checkpointing": "reentrant"}, native=True).everywhere()

    def test_checkpointing_by_saved_tensors(self):
        Case(self, shape={"checkpointing": "saved"}, native=True).everywhere()

    def test_accumulation_of_two_batches(self):
        Case(self, accumulate=2, native=True).everywhere()

    def test_clipping_by_the_norm_of_all_gradients(self):
        Case(self, clip=1.0, native=True).everywhere()

    def test_bfloat16(self):
        Case(self, dtype=torch.bfloat16).everywhere()

    def test_evaluation_between_steps(self):
        case = Case(self, evaluate=True, native=True)
        case.run(case.bytes)
        case.run(case.minimum(), policy="lru", mode="move")

    def test_learning_rates_of_a_scheduler(self):
        def run(manage):
            model = make()
            optimizer = adam(model)
            early = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)  # before managing, and after
            client = manage(model, optimizer)
            late = torch.optim.lr_scheduler.StepLR(optimizer, 3)
            losses = train(model, optimizer, 6, scheduler=early)
            late.step()
            losses += train(model, optimizer, 2, scheduler=late)
            if client:
                client.close()
            return losses, optimizer.param_groups[0]["lr"]
        plain = run(lambda *_: None)
        self.assertEqual(run(lambda m, o: hybridps.manage(m, o, device="emu:1MiB", chunk_bytes=CHUNK)), plain)

    def test_bfloat16_with_float32_masters_is_torch_adam_on_the_masters(self):
        model = make(dtype=torch.bfloat16)
        masters = [p.detach().float().requires_grad_() for p in model.parameters()]
        optimizer = torch.optim.Adam(masters, lr=1e-3, weight_decay=0.01)
        losses = []
        for x, y in batches(8):
            for p in model.parameters():
                p.grad = None
            loss = model(x, targets=y)["loss"]
            loss.backward()
            losses.append(loss.item())
            for master, p in zip(masters, model.parameters()):
                master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters()):
                    p.copy_(master)
        managed = make(dtype=torch.bfloat16)
        mine = adam(managed)
        with hybridps.manage(managed, mine, device="emu:512KiB", chunk_bytes=CHUNK):
            self.assertEqual(train(managed, mine, 8), losses)
        for a, b in zip(managed.parameters(), model.parameters()):
            self.assertTrue(torch.equal(a, b))


class Traffic(unittest.TestCase):
    def test_the_bytes_of_an_iteration_are_those_of_opt_on_its_recorded_trace(self):
        torch.set_num_threads(1)
        for capacity in (384 << 10, 512 << 10, 1 << 20):
            for mode in ("copy", "move"):
                for prefetch in (0, 2):
                    with self.subTest(capacity=capacity, mode=mode, prefetch=prefetch):
                        self.compare(capacity, mode, prefetch)

    def compare(self, capacity, mode, prefetch):
        model = make()
        optimizer = adam(model)
        with hybridps.manage(model, optimizer, device=f"emu:{capacity}", mode=mode, prefetch=prefetch,
                             chunk_bytes=CHUNK) as client, tempfile.NamedTemporaryFile("w") as file:
            for x, y in batches(4):
                optimizer.zero_grad(set_to_none=True)
                model(x, targets=y)["loss"].backward()
                optimizer.step()
            with torch.no_grad():
                model(x)  # ends the last training iteration
            trace, stats = client.trace("train"), client.stats()
            file.write(trace)
            file.flush()
            result = subprocess.run([BUILD / "bin" / "helios", "mem", "replay", file.name, "--policy", "opt",
                                     "--mode", mode, "-o", "json"], capture_output=True, text=True, check=True)
        replayed = json.loads(result.stdout)["per_iter"][-1]
        self.assertEqual({k: stats["last"][k] for k in ("h2d", "d2h")}, replayed)
        self.assertEqual(stats["peak_over_avail"], 0)


class WhatUsersDoBesides(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.model = make()
        self.optimizer = adam(self.model)

    def manage(self, device="emu:1MiB", **options):
        client = hybridps.manage(self.model, self.optimizer, device=device, chunk_bytes=CHUNK, **options)
        self.addCleanup(client.close)
        return client

    def test_a_checkpoint_is_torch_s_own_and_goes_on_in_a_plain_model(self):
        plain = make()
        theirs = adam(plain)
        for mode in ("copy", "move"):
            with self.subTest(mode):
                self.model = make()
                self.optimizer = adam(self.model)
                with self.manage(mode=mode):
                    train(self.model, self.optimizer, 3)
                    saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
                    goes_on = train(self.model, self.optimizer, 2)
                plain.load_state_dict(saved[0])
                theirs.load_state_dict(saved[1])
                self.assertEqual(train(plain, theirs, 2), goes_on)
                with self.manage(mode=mode):  # and back
                    self.model.load_state_dict(saved[0])
                    self.optimizer.load_state_dict(saved[1])
                    self.assertEqual(train(self.model, self.optimizer, 2), goes_on)

    def test_a_deep_copy_is_a_plain_model(self):
        x, y = next(batches(1))
        with self.manage():
            train(self.model, self.optimizer, 1)
            copied = copy.deepcopy(self.model)
            loss = self.model(x, targets=y)["loss"].item()
            train(self.model, self.optimizer, 1)
            self.assertEqual(copied(x, targets=y)["loss"].item(), loss)

    def test_parameters_written_in_place_between_forwards_are_used(self):
        x, _ = next(batches(1))
        with self.manage(device="emu:8MiB"), torch.no_grad():
            before = self.model(x)
            self.model.head.weight.mul_(2)
            self.assertTrue(torch.equal(self.model(x), before * 2))
            self.model.head.weight.data.mul_(0.5)
            self.client_changed()
            self.assertTrue(torch.equal(self.model(x), before))

    def client_changed(self):
        self.model.__dict__["_hybridps_unit"].client.changed()

    def test_two_losses_with_one_backward_each(self):
        def grads():
            (x, y), (u, v) = batches(2)
            first, second = self.model(x, targets=y)["loss"], self.model(u, targets=v)["loss"]
            first.backward()
            second.backward()
            return [p.grad.clone() for p in self.model.parameters()]
        plain = grads()
        self.model.zero_grad(set_to_none=True)
        with self.manage(device="emu:512KiB"):
            for mine, theirs in zip(grads(), plain):
                self.assertTrue(torch.equal(mine, theirs))

    def test_two_models_and_two_optimizers_share_a_device(self):
        def run(manage):
            pair = make(1), make(2)
            optimizers = adam(pair[0]), adam(pair[1], torch.optim.AdamW)
            client = manage(pair, optimizers)
            losses = []
            for (x, y) in batches(6):
                loss = pair[0](x, targets=y)["loss"] + pair[1](x, targets=y)["loss"]
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
            if client:
                client.close()
            return losses
        self.assertEqual(run(lambda m, o: hybridps.manage(m, o, device="emu:1MiB", chunk_bytes=CHUNK)),
                         run(lambda *_: None))

    def test_an_engine_trains_as_the_loop_does(self):
        reference = make()
        theirs = adam(reference)
        engine, _ = hybridps.initialize(self.model, self.optimizer, device="emu:1MiB", chunk_bytes=CHUNK)
        self.addCleanup(engine.close)
        for x, y in batches(4):
            theirs.zero_grad()
            loss = reference(x, targets=y)["loss"]
            loss.backward()
            theirs.step()
            mine = engine(x, targets=y)["loss"]
            engine.backward(mine)
            engine.step()
            self.assertEqual(mine.item(), loss.item())

    def test_raw_access_gives_the_device_s_values_and_pins_them(self):
        client = self.manage()
        weight = self.model.head.weight
        expected = weight.detach().clone()
        values = client.access(weight)
        self.assertTrue(torch.equal(values, expected))
        self.assertGreater(client.stats()["pinned"], 0)
        client.release(weight)
        self.assertEqual(client.stats()["pinned"], 0)

    def test_results_of_collectives_are_managed(self):
        client = self.manage()
        value = torch.arange(6.0).view(2, 3)
        for managed in (client.allreduce(value), client.allreduce(value, "mean"), client.broadcast(value)):
            self.assertTrue(torch.equal(managed.access(), value))
            managed.release()
            with self.assertRaisesRegex(hybridps.HybridPSError, "not accessed"):
                managed.release()


class BadInput(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.model = make()
        self.optimizer = adam(self.model)

    def test_a_device_below_the_largest_pinned_set_is_told_with_all_numbers_and_nothing_changed(self):
        case = Case(self, native=True, steps=2)
        minimum = case.minimum()
        before = {k: v.clone() for k, v in self.model.state_dict().items()}
        with hybridps.manage(self.model, self.optimizer, device=f"emu:{minimum - 4096}", chunk_bytes=CHUNK) as client:
            with self.assertRaisesRegex(hybridps.HybridPSError,
                                        rf"(?s)moment.*(FWD|BWD) .*tensor .*COMPUTE.*would fit a device of {minimum} "):
                train(self.model, self.optimizer, 2)
            self.assertEqual(client.stats()["pinned"], 0)
            for name, value in self.model.state_dict().items():
                self.assertTrue(torch.equal(value, before[name]), name)
        self.optimizer.zero_grad(set_to_none=True)
        with hybridps.manage(self.model, self.optimizer, device=f"emu:{minimum}", chunk_bytes=CHUNK):
            self.assertEqual(train(self.model, self.optimizer, 2), case.losses)

    def test_registrations_that_make_no_sense_are_refused(self):
        client = hybridps.manage(self.model, self.optimizer, device="emu:8MiB")
        self.addCleanup(client.close)
        for wrong, words in ((lambda: client.register_module(self.model), "registered already"),
                             (lambda: client.register_optim(self.optimizer), "registered already"),
                             (lambda: client.access(torch.zeros(3)), "not registered"),
                             (lambda: client.release(self.model.head.weight), "not accessed"),
                             (lambda: client.allreduce(torch.zeros(1), "max"), "'max'"),
                             (lambda: hybridps.manage(self.model, device="emu:8MiB"), "registered already"),
                             (lambda: hybridps.manage(make(), device="emu:"), ""),
                             (lambda: hybridps.manage(make(), device="emu:8MiB", policy="best"), "best")):
            with self.assertRaisesRegex(hybridps.HybridPSError, words):
                wrong()

    def test_mixed_devices_are_refused(self):
        self.model.head.weight = nn.Parameter(torch.empty(VOCAB, WIDTH, device="meta"))
        with self.assertRaisesRegex(hybridps.HybridPSError, "mixed devices.*cpu.*head.weight on meta"):
            hybridps.manage(self.model, device="emu:8MiB")
        self.assertNotIn("forward", self.model.__dict__)

    def test_a_child_after_fork_is_refused(self):
        with hybridps.manage(self.model, self.optimizer, device="emu:8MiB"):
            child = os.fork()
            if child == 0:
                try:
                    self.model(next(batches(1))[0])
                except hybridps.HybridPSError as error:
                    os._exit(7 if "fork" in str(error) else 8)
                os._exit(9)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)

    def test_a_read_after_release_faults_in_a_child_and_gives_no_stale_data(self):
        code = (f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\n"
                "import torch, hybridps\n"
                "m = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))\n"
                "c = hybridps.manage(m, device='emu:20KiB', chunk_bytes=4096)\n"
                "v = c.access(m[0].weight); print(v.sum().item()); c.release(m[0].weight)\n"
                "c.access(m[1].weight)\n"
                "print('alive', flush=True); v.sum().item(); print('stale')\n")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        self.assertIn("alive", done.stdout, done.stderr)
        self.assertNotIn("stale", done.stdout)
        self.assertEqual(done.returncode, -signal.SIGSEGV)

    def test_an_exception_in_forward_or_backward_leaves_a_model_that_trains_on(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise ZeroDivisionError("in backward")

        def run(model, optimizer):
            x, y = next(batches(1))
            try:
                model(x[:, :0].float())
            except Exception:
                pass
            try:
                Fails.apply(model.norm(model.blocks[0](model.token(x), causal=model.causal)["hidden"])).sum().backward()
            except Exception:
                pass
            optimizer.zero_grad(set_to_none=True)
            return train(model, optimizer, 3)
        plain = make()
        expected = run(plain, adam(plain))
        with hybridps.manage(self.model, self.optimizer, device="emu:512KiB", chunk_bytes=CHUNK):
            self.assertEqual(run(self.model, self.optimizer), expected)


if __name__ == "__main__":
    unittest.main()

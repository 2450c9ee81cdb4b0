#!/usr/bin/python3
"""What users do with a managed model besides training it, and their mistakes."""
from __future__ import annotations

import copy
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from hybridps_model import (  # noqa: E402
    CHUNK,
    ROOT,
    VOCAB,
    WIDTH,
    Case,
    adam,
    batches,
    hybridps,
    make,
    train,
)


class WhatUsersDoBesides(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.model = make()
        self.optimizer = adam(self.model)

    def manage(self, device="emu:1MiB", **options):
        client = hybridps.manage(
            self.model, self.optimizer, device=device, chunk_bytes=CHUNK, **options
        )
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
                # torch 2 keeps what it is given, and steps it
                theirs.load_state_dict(copy.deepcopy(saved[1]))
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
        self.model.__dict__["_hybridps_unit"].passes.phases.changed()

    def test_a_child_of_a_layer_can_be_used_alone_and_replaced(self):
        class Twice(nn.Linear):
            def forward(self, x):
                return super().forward(x) * 2

        def make_layers():
            torch.manual_seed(0)
            return nn.ModuleList(
                nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
                for _ in range(2)
            )

        def middle(layers, x):
            """The first layer's output is not used; the second layer replaces it on the device."""
            taken = []
            handle = layers[0].linear1.register_forward_hook(lambda _, __, out: taken.append(out))
            layers[0](x)
            handle.remove()
            return layers[1](x).mean() + taken[0]

        def replaced(layers):
            linear = Twice(32, 64)
            linear.load_state_dict(layers[0].linear1.state_dict())
            layers[0].linear1 = linear
            return layers

        def grads(layers, call):
            for _ in range(2):
                layers.zero_grad(set_to_none=True)
                torch.manual_seed(1)
                call(layers, torch.randn(2, 4, 32)).square().sum().backward()
            return [None if p.grad is None else p.grad.clone() for p in layers.parameters()]

        calls = {
            "whole": lambda m, x: m[1](m[0](x)),
            "child": lambda m, x: m[0].linear1(x),
            "both": lambda m, x: m[0](x).sum() * m[0].linear1(x).mean(),
            "middle": middle,
            "checkpointed": lambda m, x: checkpoint(m[0], x.requires_grad_(), use_reentrant=False),
        }
        for name, call in calls.items():
            for change in (lambda layers: layers, replaced):
                with self.subTest(name, replaced=change is replaced):
                    expected, layers = grads(change(make_layers()), call), change(make_layers())
                    with hybridps.manage(
                        layers, device="emu:108KiB", policy="lru", chunk_bytes=12288
                    ):
                        for want, got in zip(expected, grads(layers, call)):
                            self.assertTrue(want is got or torch.equal(want, got))

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
            for x, y in batches(6):
                loss = pair[0](x, targets=y)["loss"] + pair[1](x, targets=y)["loss"]
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
            if client:
                client.close()
            return losses

        self.assertEqual(
            run(lambda m, o: hybridps.manage(m, o, device="emu:1MiB", chunk_bytes=CHUNK)),
            run(lambda *_: None),
        )

    def test_an_engine_trains_as_the_loop_does(self):
        reference = make()
        theirs = adam(reference)
        engine, _ = hybridps.initialize(
            self.model, self.optimizer, device="emu:1MiB", chunk_bytes=CHUNK
        )
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
        for managed in (
            client.allreduce(value),
            client.allreduce(value, "mean"),
            client.broadcast(value),
        ):
            self.assertTrue(torch.equal(managed.access(), value))
            managed.release()
            with self.assertRaisesRegex(hybridps.HybridPSError, "not accessed"):
                managed.release()


class DataOfParameters(unittest.TestCase):
    """Writes through p.data, which torch does not count."""

    def setUp(self):
        torch.set_num_threads(1)
        self.model = make()
        self.x, self.y = next(batches(1))

    def managed(self, device="emu:8MiB", **options):
        client = hybridps.manage(self.model, device=device, chunk_bytes=CHUNK, **options)
        self.addCleanup(client.close)
        return client

    def test_writes_through_data_are_used_by_the_next_forward(self):
        for mode in ("copy", "move"):
            with self.subTest(mode), hybridps.manage(
                self.model, device="emu:8MiB", mode=mode
            ), torch.no_grad():
                before = self.model(self.x)
                self.model.head.weight.data.mul_(2)
                self.assertTrue(torch.equal(self.model(self.x), before * 2))
                self.model.head.weight.data = self.model.head.weight.data / 2
                self.assertTrue(torch.equal(self.model(self.x), before))
                self.model.head.weight.data[:] = 0
                self.assertEqual(self.model(self.x).abs().max(), 0)
                nn.init.ones_(self.model.head.weight)
                self.assertNotEqual(self.model(self.x).abs().max(), 0)
                self.model.load_state_dict(make().state_dict())
                self.assertTrue(torch.equal(self.model(self.x), before))

    def test_between_forward_and_backward_data_is_the_values_and_gradients_are_right(self):
        plain = make()
        plain(self.x, targets=self.y)["loss"].backward()
        self.managed("emu:384KiB")
        loss = self.model(self.x, targets=self.y)["loss"]
        self.assertTrue(torch.equal(self.model.head.weight.data, plain.head.weight.data))
        loss.backward()
        for mine, theirs in zip(self.model.parameters(), plain.parameters()):
            self.assertTrue(torch.equal(mine.grad, theirs.grad))

    def test_an_alias_of_old_is_told_by_changed(self):
        client = self.managed()
        with torch.no_grad():
            alias = self.model.head.weight.data
            before = self.model(self.x)
            alias_of_host = client.state.by_param[id(self.model.head.weight)].host
            client.phases.leave()
            self.assertEqual(alias.data_ptr(), alias_of_host.data_ptr())
            alias.zero_()
            client.changed()
            self.assertEqual(self.model(self.x).abs().max(), 0)
            self.assertNotEqual(before.abs().max(), 0)

    def test_what_data_can_not_become_is_refused_and_nothing_changed(self):
        self.managed()
        before = self.model.head.weight.detach().clone()
        for value in (torch.zeros(3), before.double(), before.to("meta")):
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "head.weight.data = .*close the client first.*emu"
            ):
                self.model.head.weight.data = value
        with self.assertRaisesRegex(hybridps.HybridPSError, "close the client first"):
            self.model.bfloat16()
        self.assertTrue(torch.equal(self.model.head.weight, before))

    def test_parameters_written_on_the_device_within_forward_are_an_error(self):
        self.managed()
        self.model.norm.register_forward_hook(lambda m, *_: m.weight.detach().mul_(2))
        with self.assertRaisesRegex(
            hybridps.HybridPSError, "norm.weight written in place between forward and"
        ):
            self.model(self.x, targets=self.y)["loss"].backward()

    def test_parameters_are_torch_s_own_type_again(self):
        weight = self.model.head.weight
        client = self.managed()
        self.assertIsInstance(weight, nn.Parameter)
        self.assertIs(type(copy.deepcopy(weight)), nn.Parameter)
        client.close()
        self.assertIs(type(weight), nn.Parameter)
        weight.data = torch.zeros(3)

    def test_16_bit_parameters_that_are_written_are_in_their_masters_too(self):
        for where in ("host", "device"):
            with self.subTest(where):
                model = make(dtype=torch.bfloat16)
                optimizer = adam(model)
                with hybridps.manage(
                    model, optimizer, device="emu:1MiB", chunk_bytes=CHUNK, optimizer_device=where
                ) as client:
                    train(model, optimizer, 2)
                    slot = client.state.by_param[id(model.head.weight)]
                    with torch.no_grad():
                        model.head.weight[0].fill_(3)
                        model.norm.weight.data.add_(0)  # noticed, and the masters lose nothing
                    optimizer.zero_grad()
                    self.model = model
                    model(self.x, targets=self.y)["loss"].backward()
                    optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
                    optimizer.step()
                    state = optimizer.state_dict()["state"]
                    master = next(
                        s["master"]
                        for s in state.values()
                        if s["master"].shape == slot.param.shape
                        and torch.equal(s["master"].bfloat16(), slot.param)
                    )
                    self.assertTrue((master[0] == 3).all())
                    self.assertFalse(torch.equal(master[1:], master[1:].bfloat16().float()))


class GradientsOnTheDevice(unittest.TestCase):
    """After backward, with steps on the device: gradients are fetched when read."""

    def setUp(self):
        torch.set_num_threads(1)
        self.model, self.plain = make(), make()
        self.optimizer = adam(self.model)
        self.client = hybridps.manage(
            self.model,
            self.optimizer,
            device="emu:8MiB",
            chunk_bytes=CHUNK,
            optimizer_device="device",
        )
        self.addCleanup(self.client.close)
        x, y = next(batches(1))
        for model in (self.model, self.plain):
            model(x, targets=y)["loss"].backward()

    def moved(self):
        total = self.client.stats()["total"]
        return total["h2d"] + total["d2h"]

    def test_dropping_them_moves_nothing(self):
        before = self.moved()
        self.optimizer.zero_grad(set_to_none=True)
        self.assertTrue(all(p.grad is None for p in self.model.parameters()))
        self.assertEqual(self.moved(), before)
        self.assertEqual(self.client.stats()["device_by_kind"]["grad"], 0)

    def test_reading_one_fetches_them_and_writing_it_is_seen_by_the_step(self):
        theirs = adam(self.plain)
        before = self.moved()
        self.assertTrue(torch.equal(self.model.head.weight.grad, self.plain.head.weight.grad))
        self.assertGreater(self.moved(), before)
        for model in (self.model, self.plain):
            model.head.weight.grad.mul_(3)
            model.norm.weight.grad = torch.ones_like(model.norm.weight)
            model.token.weight.grad = None
        self.optimizer.step()
        theirs.step()
        for mine, other in zip(self.model.parameters(), self.plain.parameters()):
            self.assertTrue(torch.equal(mine, other))
            self.assertEqual(mine.grad is None, other.grad is None)
            self.assertTrue(mine.grad is None or torch.equal(mine.grad, other.grad))

    def test_zeros_are_zeros(self):
        self.optimizer.zero_grad(set_to_none=False)
        self.assertTrue(all((p.grad == 0).all() for p in self.model.parameters()))


class BadInput(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.model = make()
        self.optimizer = adam(self.model)

    def test_a_device_below_the_largest_pinned_set_is_told_with_all_numbers_and_nothing_changed(
        self,
    ):
        case = Case(self, native=True, steps=2)
        minimum = case.minimum()
        before = {k: v.clone() for k, v in self.model.state_dict().items()}
        small = {"device": f"emu:{minimum - 4096}", "chunk_bytes": CHUNK}
        with self.assertRaisesRegex(
            hybridps.HybridPSError,
            rf"^module blocks.* needs .* KiB of device "
            rf"memory at once; .* Use at least emu:{minimum // 1024}KiB",
        ):
            hybridps.manage(self.model, self.optimizer, **small)
        self.assertNotIn("forward", self.model.__dict__)
        client = hybridps.Client(**small)  # for which nothing is requested in advance
        self.addCleanup(client.close)
        client.register_module(self.model)
        client.register_optim(self.optimizer)
        with self.assertRaisesRegex(
            hybridps.HybridPSError,
            rf"(?s)^module .*Use at least emu:{minimum // 1024}KiB\. .*moment.*(FWD|BWD) "
            r".*tensor .*COMPUTE",
        ):
            train(self.model, self.optimizer, 2)
        self.assertEqual(client.stats()["pinned"], 0)
        for name, value in self.model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        client.close()
        self.optimizer.zero_grad(set_to_none=True)
        with hybridps.manage(
            self.model, self.optimizer, device=f"emu:{minimum}", chunk_bytes=CHUNK
        ):
            self.assertEqual(train(self.model, self.optimizer, 2), case.losses)

    def test_registrations_that_make_no_sense_are_refused(self):
        client = hybridps.manage(self.model, self.optimizer, device="emu:8MiB")
        self.addCleanup(client.close)
        for wrong, words in (
            (lambda: client.register_module(self.model), "registered already"),
            (lambda: client.register_optim(self.optimizer), "registered already"),
            (lambda: client.access(torch.zeros(3)), "not registered"),
            (lambda: client.release(self.model.head.weight), "not accessed"),
            (lambda: client.allreduce(torch.zeros(1), "max"), "'max'"),
            (lambda: hybridps.manage(self.model, device="emu:8MiB"), "registered already"),
            (lambda: hybridps.manage(make(), device="emu:"), ""),
            (lambda: hybridps.manage(make(), device="emu:8MiB", policy="best"), "best"),
        ):
            with self.assertRaisesRegex(hybridps.HybridPSError, words):
                wrong()

    def test_an_error_says_what_is_where(self):
        with hybridps.manage(
            self.model, self.optimizer, device="emu:8MiB", chunk_bytes=CHUNK
        ) as client:
            client.access(self.model.head.weight)
            count = len(list(self.model.parameters()))
            some = r"[0-9]+ \(HOLD [0-9]+\)"
            facts = (
                r"device emu:8MiB: 8388608 bytes, 8388608 for chunks in moment [0-9]+; "
                rf"on it param {CHUNK} \([A-Z 0-9,]*COMPUTE [0-9]+\); "
                r"on the host param [0-9]+ \([A-Z 0-9,]+\), "
                rf"momentum {some}, variance {some}; {CHUNK} bytes pinned by head.weight; "
                f"{count} parameters of 1 modules"
            )
            for wrong in (
                lambda: client.register_module(self.model),
                lambda: client.access(torch.zeros(3)),
                lambda: client.release(self.model.norm.weight),
                lambda: client.register_optim(self.optimizer),
            ):
                with self.assertRaisesRegex(hybridps.HybridPSError, facts):
                    wrong()
            client.release(self.model.head.weight)
        with self.assertRaisesRegex(hybridps.HybridPSError, "closed"):
            client.access(self.model.head.weight)

    def test_choices_that_are_none_and_optimizers_that_can_not_are_refused_and_nothing_changed(
        self,
    ):
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        other = adam(self.model)
        other.param_groups[0]["amsgrad"] = True
        for options, optimizer, words in (
            ({"gradients": "shared"}, None, "'separate' or 'reuse'"),
            ({"optimizer_device": "gpu"}, None, "'auto', 'host' or 'device'"),
            ({"optimizer_device": "device"}, sgd, "Adam and AdamW"),
            ({"optimizer_device": "device"}, other, "amsgrad"),
        ):
            with self.assertRaisesRegex(hybridps.HybridPSError, words):
                hybridps.manage(self.model, optimizer, device="emu:8MiB", **options)
            self.assertNotIn("forward", self.model.__dict__)
            self.assertIs(type(self.model.head.weight), nn.Parameter)
        with hybridps.manage(
            self.model, self.optimizer, device="emu:8MiB", optimizer_device="device"
        ):
            self.model(next(batches(1))[0]).sum().backward()
            before = self.model.head.weight.clone()
            self.optimizer.param_groups[0]["amsgrad"] = True
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "only native Adam's own steps work"
            ):
                self.optimizer.step()
            self.assertTrue(torch.equal(self.model.head.weight, before))

    def test_a_parameter_belongs_to_one_client(self):
        with hybridps.manage(self.model, device="emu:8MiB"):
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "weight is registered already, with the client"
            ):
                hybridps.manage(nn.ModuleList([self.model.head]), device="emu:8MiB")

    def test_parameters_in_the_same_memory_are_refused(self):
        self.model.head.weight = nn.Parameter(self.model.norm.weight.data[:-1])
        with self.assertRaisesRegex(
            hybridps.HybridPSError, "norm.weight and head.weight share the same memory"
        ):
            hybridps.manage(self.model, device="emu:8MiB")
        self.model.head.weight = nn.Parameter(self.model.norm.weight.data.clone())
        hybridps.manage(self.model, device="emu:8MiB").close()

    def test_mixed_devices_are_refused(self):
        self.model.head.weight = nn.Parameter(torch.empty(VOCAB, WIDTH, device="meta"))
        with self.assertRaisesRegex(
            hybridps.HybridPSError, "mixed devices.*cpu.*head.weight on meta"
        ):
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

    def test_a_read_after_release_gives_the_content_and_no_stale_data(self):
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\n"
            "import torch, hybridps\n"
            "m = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))\n"
            "c = hybridps.manage(m, device='emu:20KiB', chunk_bytes=4096)\n"
            "v = c.access(m[0].weight); print(v.sum().item()); c.release(m[0].weight)\n"
            "c.access(m[1].weight)\n"
            "print(v.sum().item(), c.stats()['faults'])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second, faults = done.stdout.split()
        self.assertEqual((second, int(faults)), (first, 1))

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
                Fails.apply(
                    model.norm(model.blocks[0](model.token(x), causal=model.causal)["hidden"])
                ).sum().backward()
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

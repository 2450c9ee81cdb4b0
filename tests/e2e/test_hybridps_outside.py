#!/usr/bin/python3
"""Parameters that are used where hybridps does not expect it give what plain torch gives, bit for
bit, or an exception that names them. The device has room for barely more than one layer."""
from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
ROOT = needs.ROOT
import torch.nn as nn
import torch.nn.functional as F

from hybridps_model import hybridps  # noqa: E402

WIDTH = 32
TIGHT = {"device": "emu:56KiB", "chunk_bytes": 4096}
WAYS = (
    TIGHT,
    {**TIGHT, "mode": "move"},
    {**TIGHT, "optimizer_device": "device", "device": "emu:96KiB"},
    {"device": "emu:1MiB"},
)


def data(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator))
        for _ in range(count)
    ]


def layers():
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, 2 * WIDTH),
        nn.Tanh(),
        nn.Linear(2 * WIDTH, WIDTH),
    )


def bits(value):
    if isinstance(value, torch.Tensor):
        return (
            value.dtype,
            tuple(value.shape),
            value.detach().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    return [bits(v) for v in value] if isinstance(value, (list, tuple)) else value


class Pair(nn.Module):
    """Two stacks; the second one does not depend on what is trained through the first."""

    def __init__(self):
        super().__init__()
        self.one, self.two = layers(), layers()
        for p in self.two.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        return self.one(x)


class Uses(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def same(self, make, loss_of=lambda model, x, y: F.mse_loss(model(x), y), steps=4, ways=WAYS):
        """Losses, parameters and what was left in `model.seen` equal plain torch's."""

        def run(way):
            torch.manual_seed(1)
            model = make()
            model.seen = []
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            client = hybridps.manage(model, optimizer, **way) if way else None
            try:
                losses = []
                for x, y in data(steps):
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_of(model, x, y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.detach().clone())
                if client and way is not WAYS[-1]:
                    self.faults = client.stats()["faults"]
            finally:
                if client:
                    client.close()
            return bits(losses), bits(list(model.parameters())), bits(model.seen)

        plain = run(None)
        for way in ways:
            with self.subTest(**way):
                got = run(way)
                for part, want in zip(got, plain):
                    self.assertEqual(part, want)


class Read(Uses):
    def test_a_penalty_from_before_the_forward(self):
        self.same(
            layers,
            lambda model, x, y: sum(p.abs().sum() + p.pow(2).sum() for p in model.parameters())
            * 1e-3
            + F.mse_loss(model(x), y),
        )
        self.assertGreater(self.faults, 0)

    def test_a_penalty_and_a_norm_within_the_forward(self):
        class Model(Pair):
            def forward(self, x):
                self.seen.append(
                    torch.stack([p.detach().norm() for p in self.parameters()]).clone()
                )
                return self.one(x), sum(
                    p.abs().sum() + p.pow(2).sum() for p in self.one.parameters()
                )

        def loss_of(model, x, y):
            out, penalty = model(x)
            return F.mse_loss(out, y) + 1e-3 * penalty

        self.same(Model, loss_of)

    def test_a_penalty_between_forward_and_backward(self):
        def loss_of(model, x, y):
            out = model(x)
            kept = [p for p in model.parameters()]
            return F.mse_loss(out, y) + 1e-3 * sum(p.abs().sum() for p in kept)

        self.same(layers, loss_of)

    def test_state_dict_within_a_forward_is_a_copy_of_the_values(self):
        class Model(Pair):
            def forward(self, x):
                hidden = self.one[:2](x)
                self.seen.append([t.clone() for t in self.state_dict().values()])
                return self.one[2:](hidden)

        self.same(Model)

    def test_parameters_that_are_kept_in_a_list_or_a_closure(self):
        class Model(Pair):
            def __init__(self):
                super().__init__()
                self.kept = [self.one[2].weight, self.two[0].weight]
                weight = self.one[0].weight
                self.__dict__["also"] = lambda x: F.linear(x, weight)

            def forward(self, x):
                hidden = torch.relu(self.also(x))
                hidden = F.linear(hidden, self.kept[0])
                return self.one[4](hidden) + F.linear(x, self.kept[1])[:, :WIDTH]

        self.same(Model)

    def test_a_parameter_that_a_forward_returns(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

            def forward(self):
                return self.weight

        class Model(Pair):
            def __init__(self):
                super().__init__()
                self.scale = Scale()

            def forward(self, x):
                scale = self.scale()
                return F.linear(self.one(x), scale) + scale.sum(0)

        self.same(Model)

    def test_a_result_in_an_object_that_hybridps_can_not_look_into(self):
        class Out:
            __slots__ = ("value",)

        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layers()

            def forward(self, x):
                out = Out()
                out.value = torch.tanh(self.layer(x) @ self.layer[4].weight[:, :WIDTH].t())
                return out

        class Model(Pair):
            def __init__(self):
                super().__init__()
                self.inner = Inner()

            def forward(self, x):
                return self.one(self.inner(x).value)

        self.same(Model)

    def test_parameters_tied_while_they_are_managed(self):
        def loss_of(model, x, y):
            if model.two[2].weight is not model.one[2].weight:
                model.two[2].weight = model.one[2].weight
            return F.mse_loss(model(x) + model.two(x), y)

        self.same(Pair, loss_of)

    def test_a_hook_in_backward_reads_parameters_of_others(self):
        class Model(Pair):
            def __init__(self):
                super().__init__()
                self.kept = [self.two[2].weight, self.one[0].weight]

            def forward(self, x):
                out = self.one(x)
                out.register_hook(
                    lambda g: self.seen.append([w.detach().clone() for w in self.kept])
                )
                return out

        self.same(Model)

    def test_another_thread_reads_while_one_trains(self):
        torch.manual_seed(1)
        model = Pair()
        params = list(model.two.parameters())
        want = [p.detach().clone() for p in params]
        optimizer = torch.optim.Adam(model.one.parameters())
        wrong, reads, over = [], [0], threading.Event()

        def read():
            while not over.is_set():
                for p, value in zip(params, want):
                    if not torch.equal(p.detach(), value):
                        wrong.append(p.shape)
                    reads[0] += 1

        with hybridps.manage(model, optimizer, **TIGHT):
            threads = [threading.Thread(target=read) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                for x, y in data(20):
                    optimizer.zero_grad()
                    loss = F.mse_loss(model.one(x), y)
                    loss.backward()
                    optimizer.step()
            finally:
                over.set()
                for thread in threads:
                    thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(reads[0], 0)


class Write(Uses):
    """A moving average of one stack in another, as in the forward of MoCo,
    BYOL and mean teachers."""

    def test_by_assigning_data(self):
        class Model(Pair):
            def forward(self, x):
                with torch.no_grad():
                    for one, two in zip(self.one.parameters(), self.two.parameters()):
                        two.data = two.data * 0.9 + one.data * 0.1
                return self.one(x) + self.two(x)

        self.same(Model)

    def test_in_place_through_data(self):
        class Model(Pair):
            def forward(self, x):
                hidden = self.one(x)
                for one, two in zip(self.one.parameters(), self.two.parameters()):
                    two.data.mul_(0.9).add_(one.data, alpha=0.1)
                return hidden + self.two(x)

        self.same(Model)

    def test_in_place_on_a_parameter_is_refused_by_name(self):
        class Model(Pair):
            def forward(self, x):
                with torch.no_grad():
                    self.two[2].weight.mul_(0.9)
                return self.one(x)

        model = Model()
        optimizer = torch.optim.Adam(model.one.parameters())
        with hybridps.manage(model, optimizer, **TIGHT):
            with self.assertRaisesRegex(hybridps.HybridPSError, "two.2.weight.*access"):
                x, y = data(1)[0]
                F.mse_loss(model(x), y).backward()

    def test_load_state_dict_within_a_forward_is_refused(self):
        class Model(Pair):
            def forward(self, x):
                self.load_state_dict(self.given)
                return self.one(x)

        model = Model()
        model.given = {k: v.clone() for k, v in model.state_dict().items()}
        with hybridps.manage(model, None, **TIGHT):
            with self.assertRaisesRegex(hybridps.HybridPSError, "load_state_dict"):
                model(data(1)[0][0])


class Frozen(Uses):
    def test_a_parameter_that_is_unfrozen_while_it_is_managed_is_trained(self):
        def make():
            model = layers()
            model.train_later = [model[0].weight, model[0].bias]
            for p in model.train_later:
                p.requires_grad_(False)
            return model

        def loss_of(model, x, y):
            model.steps = getattr(model, "steps", 0) + 1
            if model.steps == 2:
                for p in model.train_later:
                    p.requires_grad_(True)
            return F.mse_loss(model(x), y)

        self.same(make, loss_of, ways=WAYS[:2])


class Lost(Uses):
    def test_content_that_has_ended_is_named_and_the_model_is_given_back(self):
        torch.manual_seed(1)
        model = layers()
        before = [p.detach().clone() for p in model.parameters()]
        x, y = data(1)[0]
        client = hybridps.manage(model, None, **TIGHT)
        F.mse_loss(model(x), y).backward()
        # Not reachable for users: a gradient that was read stays as long as it is referenced.
        kept = torch.Tensor.grad.__get__(model[2].weight)  # fills whole chunks of its own
        for p in model.parameters():
            p.grad = None
        out = model(x)  # the content of the gradient ends
        self.assertTrue(torch.isnan(kept).all())
        with self.assertRaisesRegex(hybridps.HybridPSError, '"2.weight.grad" was used after'):
            client.close()
        del out
        for p, want in zip(model.parameters(), before):
            self.assertIs(type(p), nn.Parameter)
            self.assertTrue(torch.equal(p, want))


class Others(unittest.TestCase):
    """A failure that is not managed memory's ends the process as before."""

    def python(self, code):
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'support'}"},
        )

    def test_another_fault_ends_the_process_and_its_handler_runs_first(self):
        for handler in ("", "import faulthandler; faulthandler.enable()"):
            done = self.python(
                f"""
                {handler}
                import ctypes, torch
                from hybridps_model import hybridps
                model = torch.nn.Linear(8, 8)
                with hybridps.manage(model, None, device="emu:64KiB"):
                    model(torch.ones(1, 8))
                    ctypes.string_at(64)
            """
            )
            self.assertIn(done.returncode, (-signal.SIGSEGV, -signal.SIGABRT, 128 + signal.SIGSEGV))
            self.assertEqual("Current thread" in done.stderr, bool(handler))

    def test_a_signal_that_was_sent_ends_the_process(self):
        done = self.python(
            """
            import os, signal, torch
            from hybridps_model import hybridps
            with hybridps.manage(torch.nn.Linear(8, 8), None, device="emu:64KiB"):
                os.kill(os.getpid(), signal.SIGSEGV)
                import time
                time.sleep(5)
        """
        )
        self.assertIn(done.returncode, (-signal.SIGSEGV, -signal.SIGABRT, 128 + signal.SIGSEGV))


if __name__ == "__main__":
    unittest.main()

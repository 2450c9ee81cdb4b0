#!/usr/bin/python3
"""Code of users who know nothing of managed memory does what it does on plain torch, bit for bit, with
less device memory than the model has parameters, or is refused by name."""
from __future__ import annotations

import pathlib
import sys
import unittest

try:
    import torch
except ImportError:
    print("skipped: python3-torch is not installed")
    sys.exit(77)
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from hybridps_model import hybridps  # noqa: E402

WIDTH = 32
# One chunk a page: hardly more fits than one layer and its gradients.
TIGHT = {"device": "emu:56KiB", "chunk_bytes": 4096}
WAYS = (TIGHT, {**TIGHT, "mode": "move"}, {**TIGHT, "optimizer_device": "device", "device": "emu:96KiB"})


def data(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator))
            for _ in range(count)]


def layers(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(inplace=True), nn.Linear(2 * WIDTH, 2 * WIDTH),
                         nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


def bits(value):
    """Tensors as their bytes, in lists of any depth."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return [bits(v) for v in value] if isinstance(value, (list, tuple)) else value


def train(model, optimizer, batches):
    losses = []
    for x, y in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Code(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def same(self, use, make=layers, optimizer=torch.optim.Adam, ways=WAYS):
        """`use(model, optimizer)` gives the same list, and leaves the same parameters."""
        def run(way):
            model = make()
            chosen = optimizer(model.parameters())
            client = hybridps.manage(model, chosen, **way) if way else None
            try:
                out = use(model, chosen)
            finally:
                if client:
                    client.close()
            return bits(out), bits(list(model.parameters()))
        plain = run(None)
        for way in ways:
            with self.subTest(**way):
                self.assertEqual(run(way), plain)


class Gradients(Code):
    def test_zero_grad_between_forward_and_backward(self):
        for zero in (lambda m, o: o.zero_grad(), lambda m, o: o.zero_grad(set_to_none=True),
                     lambda m, o: m.zero_grad(), lambda m, o: m.zero_grad(set_to_none=True)):
            def use(model, optimizer):
                losses = []
                for x, y in data(5):
                    loss = F.mse_loss(model(x), y)
                    zero(model, optimizer)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                return losses
            self.same(use)

    def test_zero_grad_between_forward_and_backward_moves_nothing(self):
        model = layers()
        optimizer = torch.optim.Adam(model.parameters())
        with hybridps.manage(model, optimizer, **TIGHT) as client:
            for x, y in data(3):
                loss = F.mse_loss(model(x), y)
                before = client.stats()["total"]
                optimizer.zero_grad(set_to_none=True)
                after = client.stats()["total"]
                self.assertEqual((after["h2d"], after["d2h"]), (before["h2d"], before["d2h"]))
                loss.backward()
                optimizer.step()

    def test_gradients_are_read_between_forward_and_backward(self):
        def use(model, optimizer):
            seen = []
            for x, y in data(4):
                loss = F.mse_loss(model(x), y)
                seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                loss.backward()  # adds to those of the last batch
                optimizer.step()
            return seen
        self.same(use)

    def test_gradients_are_written_through_their_data(self):
        def use(model, optimizer):
            for i, (x, y) in enumerate(data(6)):
                F.mse_loss(model(x), y).backward()
                for p in model.parameters():
                    p.grad.data.mul_(0.5)
                if i % 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
        self.same(use)

    def test_gradients_that_a_failed_backward_left_are_those_of_torch(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, error):
                ctx.error = error
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                if ctx.error:
                    raise ctx.error
                return gradient, None

        class Step(nn.Module):
            error = None

            def forward(self, x):
                return Fails.apply(x, self.error)

        def make():
            return nn.Sequential(layers()[0], Step(), layers()[4])

        def use(model, optimizer):
            out = []
            for number, (x, y) in enumerate(data(6)):
                model[1].error = (None, ZeroDivisionError(), KeyboardInterrupt())[number % 3]
                try:
                    F.mse_loss(model(x), y).backward()
                except (ZeroDivisionError, KeyboardInterrupt):
                    out += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                    if number > 3:
                        optimizer.zero_grad(set_to_none=True)
                    continue
                optimizer.step()
            return out
        self.same(use, make)


if __name__ == "__main__":
    unittest.main()

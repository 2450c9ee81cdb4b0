#!/usr/bin/python3
"""A model that does not fit its device learns the same bits as with plain torch."""
from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from hybridps_model import CHUNK, Case, Watch, adam, batches, hybridps, make, train  # noqa: E402


class SameAsPlainTorch(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_native_adam_on_the_device_at_low_tide(self):
        case = Case(self, native=True, where="device", clip=1.0)
        room = int(case.bytes * 0.5) & -4096
        # in forward and backward, other programs take all but the minimum
        high = room - case.minimum()
        case.run(room, reserved_bytes=lambda client: high if client.state.inside else 0)

    def test_gradients_that_are_zeroed_and_not_dropped(self):
        for where in ("host", "device"):
            case = Case(self, native=True, where=where, zeros=True, steps=6)
            case.run(case.minimum())
            case.run(case.bytes)

    def test_any_optimizer(self):
        case = Case(self, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
        case.run(case.minimum())

    def test_frozen_parameters(self):
        case = Case(self, lambda m: adam(m), shape={"frozen": True}, native=True)
        case.run(case.minimum())

    def test_evaluation_between_steps(self):
        case = Case(self, evaluate=True, native=True)
        case.run(case.bytes)
        case.run(case.minimum(), policy="lru", mode="move")

    def test_learning_rates_of_a_scheduler(self):
        def run(manage):
            model = make()
            optimizer = adam(model)
            # before managing, and after
            early = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            client = manage(model, optimizer)
            late = torch.optim.lr_scheduler.StepLR(optimizer, 3)
            losses = train(model, optimizer, 6, scheduler=early)
            late.step()
            losses += train(model, optimizer, 2, scheduler=late)
            if client:
                client.close()
            return losses, optimizer.param_groups[0]["lr"]

        plain = run(lambda *_: None)
        self.assertEqual(
            run(lambda m, o: hybridps.manage(m, o, device="emu:1MiB", chunk_bytes=CHUNK)), plain
        )

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
    def test_the_bytes_of_iterations_are_those_of_opt_with_and_without_prefetch(self):
        torch.set_num_threads(1)
        for where in ("host", "device"):
            for capacity in (384 << 10, 1 << 20, 3 << 20):
                for mode in ("copy", "move"):
                    moved = []
                    for prefetch in (0, 2):
                        with self.subTest(
                            where=where, capacity=capacity, mode=mode, prefetch=prefetch
                        ):
                            moved.append(self.train(capacity, mode, prefetch, where))
                    self.assertEqual(*moved)

    def train(self, capacity, mode, prefetch, where):
        model = make()
        optimizer = adam(model)
        watch = Watch(self)
        with hybridps.manage(
            model,
            optimizer,
            device=f"emu:{capacity}",
            mode=mode,
            prefetch=prefetch,
            chunk_bytes=CHUNK,
            optimizer_device=where,
            reserved_bytes=watch.moment,
        ) as watch.client:
            train(model, optimizer, 7)
            watch.compare(mode)
        return watch.bytes


if __name__ == "__main__":
    unittest.main()

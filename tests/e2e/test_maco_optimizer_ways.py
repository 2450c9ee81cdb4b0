#!/usr/bin/python3
"""MacoOptimizer where one graph stands for one path through forward: arguments, modes, buffers,
attributes, copies and threads."""
from __future__ import annotations

import copy
import pathlib
import pickle
import sys
import threading
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from maco import _dynamo, functional  # noqa: E402
from maco._capture import capture  # noqa: E402
from maco.errors import DTypeError, MacoError  # noqa: E402
from maco.optimizer import MacoOptimizer, mark  # noqa: E402
from maco_ranks import fill, in_place, numbers, on_ranks  # noqa: E402

WORLD, WIDTH = 2, 8


class RowParallel(nn.Module):
    def __init__(self, reduce=None):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH, bias=False)
        self.reduce = reduce

    def forward(self, x):
        return self.reduce(self.outer(F.relu(self.inner(x))))


class Inner(RowParallel):
    def __init__(self):
        super().__init__(in_place)


class Optional(Inner):
    def forward(self, x, mask=None, *, double=False, **more):
        y = super().forward(x)
        if mask is not None:
            y = y * mask
        return y * 2 if double else y


class Attending(Inner):
    """Unpacks shapes and chunks; at one place two graphs have different groups."""

    def __init__(self):
        super().__init__()
        groups = [dist.new_group([r]) for r in range(WORLD)]
        self.alone = [groups[dist.get_rank()]]

    def forward(self, x, alone=False):
        rows, width = x.shape
        a, b = (part * 2 for part in self.inner(x).chunk(2, -1))
        y = F.linear(torch.cat([a + torch.arange(rows)[:, None], b], -1), self.outer.weight)
        dist.all_reduce(y, group=self.alone[0] if alone else None)
        return y * width


class Modes(Inner):
    """Its control flow depends on something that is not an argument."""

    def __init__(self):
        super().__init__()
        self.part, self.factor, self.steps = Dependent(), 1.0, torch.zeros(())
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(super().forward(self.part(x))) * self.factor + self.steps


class Dependent(nn.Module):
    def forward(self, x):
        return x * 3 if self.training else x


class Averaging(Inner):
    """Changes buffers in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        y = super().forward(x)
        self.steps.add_(1)
        self.mean.mul_(0.5).add_(y.detach().sum(0))
        return y - self.mean


class Counting(Inner):
    """Changes attributes."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.last = 0, [], None
        self.cache = [torch.zeros(WIDTH)]

    def forward(self, x):
        self.calls += 1
        self.cache[0] += 1
        self.last = super().forward(x) * self.calls + self.cache[0]
        self.seen.append(float(self.calls))
        return self.last


class Rounding(nn.Module):
    """Converts to a type that gloo lacks."""

    def forward(self, x):
        return x.short()


class Frozen(Inner):
    """One part has no gradients, another one its own precision."""

    def __init__(self):
        super().__init__()
        self.teacher, self.mixed = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.no_grad():
            y = self.teacher(x)
        with torch.autocast("cpu", torch.bfloat16):
            z = self.mixed(x)
        return super().forward(x + y + z.float())


def outcome(model, *args, **kwargs):
    """Result, gradients, buffers and counters of a call."""
    model.zero_grad(set_to_none=True)
    value = model(*args, **kwargs)
    value.sum().backward()
    return (
        [value.detach()],
        [p.grad for p in model.parameters()],
        [b.clone() for b in model.buffers()],
        [getattr(model, name, None) for name in ("calls", "seen")],
    )


def alike(a, b):
    return all(
        (
            (x is y is None) or x == y
            if not isinstance(x, torch.Tensor)
            else y is not None and torch.allclose(x, y, 1e-5, 1e-4)
        )
        for one, other in zip(a, b)
        for x, y in zip(one, other)
    )


class Ways(unittest.TestCase):
    """A graph stands for only one path through forward."""

    def compared(self, make, calls, taken=True):
        """calls(model): results of some calls. They must equal those of the optimized model."""

        def child(rank):
            out = []
            for example in (None, numbers(1, 4, WIDTH)):
                plain, twin = fill(make(), rank), fill(make(), rank)
                made = MacoOptimizer(twin, example, chunks=2)
                model = made.optimize()
                out.append(all(alike(a, b) for a, b in zip(calls(plain), calls(model))))
                out.append(any(c.taken for c in made.report()))
            return out

        self.assertEqual(on_ranks(child), [[True, taken] * 2] * WORLD)

    def test_arguments_that_may_be_left_out(self):
        x, mask = numbers(2, 4, WIDTH), numbers(3, 4, WIDTH)
        self.compared(
            Optional,
            lambda m: [
                outcome(m, x),
                outcome(m, x, mask),
                outcome(m, x, double=True),
                outcome(m, x=x),
                outcome(m, x, mask=mask, double=True),
                outcome(m, x, unknown=mask),
                outcome(m, x),
            ],
        )

    def test_two_graphs_with_another_group_in_one_place(self):
        x = numbers(2, 4, WIDTH)
        self.compared(Attending, lambda m: [outcome(m, x), outcome(m, x, True), outcome(m, x)])

        def child(rank):
            optimizer = MacoOptimizer(nn.Sequential(Attending()), chunks=2)
            optimizer.optimize()
            return [c.where for c in optimizer.report()]

        self.assertEqual(on_ranks(child), [["0.linear -> all_reduce_0"]] * WORLD)

    def test_modes_of_parts_and_attributes(self):
        x = numbers(2, 4, WIDTH)

        def calls(m):
            out = [outcome(m, x)]
            m.part.eval()
            out.append(outcome(m, x))
            m.factor = 2.0
            m.steps += 1
            out.append(outcome(m, x))
            out.append(outcome(m.eval(), x))
            m.steps = torch.ones(WIDTH)
            m.part.register_forward_hook(lambda _, given, y: y * 5)
            out.append(outcome(m, x))
            return out

        self.compared(Modes, calls)

    def test_what_forward_changes_is_changed_at_each_call(self):
        for make in (Averaging, Counting, Frozen):
            self.compared(
                make,
                lambda m: [outcome(m, numbers(i, 4, WIDTH)) for i in range(3)],
                make is Averaging or _dynamo.usable(),
            )

    def test_the_example_leaves_no_trace(self):
        def child(rank):
            model = fill(Counting(), rank)
            model.norm, before = nn.BatchNorm1d(WIDTH), model.cache[0].clone()
            state = copy.deepcopy(model.state_dict())
            random = torch.get_rng_state()
            made = MacoOptimizer(model, numbers(1, 4, WIDTH), chunks=2).optimize()
            return (
                alike([model.state_dict().values()], [state.values()]),
                model.calls,
                made.calls,
                model.seen,
                torch.equal(model.cache[0], before),
                torch.equal(torch.get_rng_state(), random),
            )

        self.assertEqual(on_ranks(child), [(True, 0, 0, [], True, True)] * WORLD)

    def test_copies_and_pickles_choose_again(self):
        def child(rank):
            model = nn.Sequential(
                fill(Inner(), rank), mark(fill(nn.Linear(WIDTH, WIDTH), rank), chunks=2)
            )
            made, x = MacoOptimizer(model, chunks=2).optimize(), numbers(2, 4, WIDTH)
            value = made(x)
            twins = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
            same = [torch.equal(t(x), value) for t in twins]
            for t in twins:
                with torch.no_grad():
                    t[0].outer.weight.mul_(2)
                    t[1].weight.zero_()
                    t[1].bias.zero_()
            return same, [t(x).abs().sum().item() for t in twins], torch.equal(made(x), value)

        self.assertEqual(on_ranks(child), [([True, True], [0.0, 0.0], True)] * WORLD)

    def test_a_forward_that_somebody_has_replaced_stays(self):
        def child(rank):
            model = fill(Inner(), rank)
            own, x = model.forward, numbers(2, 4, WIDTH)
            model.forward = lambda x: own(x) * 3
            optimizer = MacoOptimizer(model, x)
            return (
                torch.equal(optimizer.optimize()(x), own(x) * 3),
                [(c.taken, "another forward" in c.reason) for c in optimizer.report()],
            )

        self.assertEqual(on_ranks(child), [(True, [(False, True)])] * WORLD)

    def test_inference_no_rows_and_types_that_gloo_has_not(self):
        def child(rank):
            model = fill(Inner(), rank)
            made, x = MacoOptimizer(model, chunks=2).optimize(), numbers(2, 4, WIDTH)
            with torch.inference_mode():
                same = torch.equal(made(x), model(x))
            rounding = nn.Sequential(mark(Rounding(), chunks=2))
            with self.assertRaises(DTypeError) as raised:
                MacoOptimizer(rounding).optimize()(x)
            return same, made(x[:0]).shape == (0, WIDTH), "gloo" in raised.exception.hint

        self.assertEqual(on_ranks(child), [(True, True, True)] * WORLD)

    def test_another_thread_makes_tensors_meanwhile(self):
        made = []

        class Threaded(RowParallel):
            def forward(self, x):
                thread = threading.Thread(target=lambda: made.append(torch.zeros(2)))
                thread.start()
                thread.join()
                return super().forward(x)

        capture(Threaded(in_place))
        self.assertIs(type(made[0]), torch.Tensor)

    def test_what_is_no_group_or_no_example(self):
        for wrong in (dict(group=5), dict(example_inputs="x"), dict(strict="yes")):
            with self.assertRaises(MacoError) as raised:
                MacoOptimizer(Inner(), **wrong)
            self.assertTrue(raised.exception.hint)
        with self.assertRaises(MacoError):
            MacoOptimizer(RowParallel(functional.all_reduce), (numbers(1, 2, WIDTH), 1)).optimize()

        def child(rank):
            group = dist.new_group([0])
            try:
                MacoOptimizer(Inner(), group=group)
            except MacoError as error:
                return error.hint

        self.assertEqual(on_ranks(child), [None, "only its ranks call this"])


if __name__ == "__main__":
    unittest.main(verbosity=1)

#!/usr/bin/python3
"""MacoOptimizer through torch.compile (torch 2): models that torch.fx can't trace,
with real graphs from torch, in inference and in training."""
from __future__ import annotations

import copy
import pathlib
import pickle
import sys
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
if not hasattr(torch, "compile"):
    needs.skip(f"torch {torch.__version__} has no torch.compile")
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn

from maco import overlap_comm  # noqa: E402
from maco.errors import NothingToOptimizeError  # noqa: E402
from maco.optimizer import MacoOptimizer, mark  # noqa: E402
from maco_ranks import ReduceBoth, fill, in_place, numbers, on_ranks  # noqa: E402

WIDTH, HEADS = 8, 4


warnings.simplefilter("ignore")  # of gradients that torch lets through
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # once here instead of in each rank


# ---- collectives with gradients, as Megatron has them ----


def summed(x, group):
    dist.all_reduce(x.contiguous(), group=group)
    return x


def gathered(x, group):
    out = torch.empty([x.size(0) * dist.get_world_size(group), *x.shape[1:]], dtype=x.dtype)
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


class Reduce(torch.autograd.Function):
    """Sum forward, identity backward."""

    @staticmethod
    def forward(ctx, x, group):
        return summed(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Copy(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient.clone(), ctx.group), None


def scattered(x, group):
    out = torch.empty([x.size(0) // dist.get_world_size(group), *x.shape[1:]], dtype=x.dtype)
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


class Gather(torch.autograd.Function):
    """Enters a region in which rows are distributed over all ranks."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.group), None


class Scatter(torch.autograd.Function):
    """And leaves it."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, ctx.group), None


class Doubled(torch.autograd.Function):
    """A sum, and something else."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def listed(x, dim=0):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts, dim)


# ---- models ----


class Straight(nn.Module):
    """torch.fx could trace it, except for its functions."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH, bias=False)

    def forward(self, x):
        x = Gather.apply(x, dist.group.WORLD)
        return Scatter.apply(self.down(F.relu(self.up(x))), dist.group.WORLD)


class Wayward(nn.Module):
    """Its control flow depends on values, and it takes any arguments."""

    def forward(self, x, **more):
        if x.sum() > 1e6:
            x = x * 2
        return self.way(x, **more)


class Mlp(Wayward):
    """Column-parallel, then row-parallel."""

    def __init__(self, reduce, enter=lambda x: x):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH, bias=False)
        self.reduce, self.enter = reduce, enter

    def way(self, x, scale=1.0, **_):
        return self.reduce(self.down(F.relu(self.up(self.enter(x))))) * scale


class Attention(Wayward):
    """Heads are split over ranks."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def way(self, x):
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, HEADS, -1).transpose(1, 2)
            for y in self.qkv(Copy.apply(x, dist.group.WORLD)).chunk(3, -1)
        )
        # With whole numbers, so that any order of sums gives the same.
        h = (q @ k.transpose(2, 3)).tril() @ v
        return Reduce.apply(self.out(h.transpose(1, 2).reshape(b, t, c)), dist.group.WORLD)


class Enters(Wayward):
    """A gather, then a linear layer."""

    def __init__(self, gather, width=WIDTH):
        super().__init__()
        self.layer, self.gather = nn.Linear(width, 4), gather

    def way(self, x):
        return self.layer(self.gather(x))


class Beside(Wayward):
    """A sum that is not needed at once."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def way(self, x):
        y = self.b(x) * 2
        dist.all_reduce(y)
        return self.a(x) + y


def stepped(model, *args, **kwargs):
    """Result and gradients of a call, the first argument's gradient first."""
    model.zero_grad(set_to_none=True)
    first = args[0].clone().requires_grad_()
    value = model(first, *args[1:], **kwargs)
    (value * numbers(50, *value.shape)).sum().backward()
    return [value.detach(), first.grad, *(p.grad for p in model.parameters())]


def alike(a, b):
    return len(a) == len(b) and all(
        (x is y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(a, b)
    )


class Models(unittest.TestCase):
    def check(self, make, shape, *kinds, world=2, chunks=2, train=stepped):
        """Values without and with gradients, and the gradients, equal the model's; returns what was
        optimized."""

        def child(rank):
            out = []
            for example in (None, numbers(1, *shape)):
                model, twin = fill(make(), rank), fill(make(), rank)
                optimizer = MacoOptimizer(twin, example, chunks=chunks)
                made = optimizer.optimize()
                x, y = numbers(1, *shape), numbers(2, *shape)
                with torch.no_grad():
                    out += [torch.equal(made(v), model(v)) for v in (x, y)]
                out += [alike(train(made, v), train(model, v)) for v in (x, y)]
                more = numbers(3, 2 * shape[0], *shape[1:])  # another shape
                out.append(alike(train(made, more), train(model, more)))
                report = optimizer.report()
                out.append([c.kind for c in report if c.taken])
                self.assertEqual(report[0].kind, "module")
                self.assertIn("torch.compile", report[0].reason)
            return out

        for result in on_ranks(child, world):
            self.assertEqual(result, [*[True] * 5, list(kinds)] * 2)

    def test_a_row_parallel_layer_however_its_sum_is_written(self):
        for name, reduce in (
            ("in place", in_place),
            ("Megatron", lambda y: Reduce.apply(y, dist.group.WORLD)),
            ("both ways", lambda y: ReduceBoth.apply(y)),
        ):
            with self.subTest(name):
                self.check(lambda: Mlp(reduce), (6, WIDTH), "linear -> allreduce")

    def test_functional_collectives_without_a_gradient(self):
        @torch.inference_mode()
        def inferred(model, x):
            return [model(x)]

        self.check(
            lambda: Mlp(lambda y: functional.all_reduce(y, "sum", dist.group.WORLD)),
            (6, WIDTH),
            "linear -> allreduce",
            train=inferred,
        )

    def test_sequence_parallel_layers(self):
        self.check(
            lambda: Mlp(
                lambda y: Scatter.apply(y, dist.group.WORLD),
                lambda x: Gather.apply(x, dist.group.WORLD),
            ),
            (6, 2, WIDTH),
            "allgather -> linear",
            "linear -> reduce_scatter",
            world=4,
        )
        self.check(Straight, (6, 2, WIDTH), "allgather -> linear", "linear -> reduce_scatter")

    def test_groups_of_some_ranks(self):
        def make():
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            mine = pairs[dist.get_rank() // 2]
            return Mlp(lambda y: Reduce.apply(y, mine))

        self.check(make, (6, WIDTH), "linear -> allreduce", world=4)

    def test_a_function_that_does_more_is_told_of(self):
        def child(rank):
            model, x = fill(Mlp(lambda y: Doubled.apply(y)), rank), numbers(2, 4, WIDTH)
            optimizer = MacoOptimizer(model)
            same = alike(stepped(optimizer.optimize(), x), stepped(model, x))
            return same, [(c.kind, c.reason) for c in optimizer.report()][1:]

        self.assertEqual(
            on_ranks(child),
            [(True, [("function", "an autograd function that does more than to sum")])] * 2,
        )

    def test_a_megatron_like_block_on_four_ranks(self):
        self.check(
            lambda: Mlp(
                lambda y: Reduce.apply(y, dist.group.WORLD),
                lambda x: Copy.apply(x, dist.group.WORLD),
            ),
            (2, 5, WIDTH),
            "linear -> allreduce",
            world=4,
            chunks=3,
        )
        self.check(Attention, (2, 5, WIDTH), "linear -> allreduce", world=4, chunks=3)

    def test_gathers_before_a_layer(self):
        world = dist.group
        for name, gather in (
            ("into a tensor", lambda x: gathered(x.detach(), None)),
            ("into a list", listed),
            ("functional", lambda x: functional.all_gather_tensor(x.detach(), 0, world.WORLD)),
            ("differentiable", lambda x: functional.all_gather_tensor_autograd(x, 0, world.WORLD)),
            ("Megatron", lambda x: Gather.apply(x, world.WORLD)),
        ):
            with self.subTest(name):
                self.check(lambda: Enters(gather), (6, WIDTH), "allgather -> linear")

    def test_gathers_along_another_dimension(self):
        for gather in (
            lambda x: listed(x, 1),
            lambda x: functional.all_gather_tensor(x.detach(), 1, dist.group.WORLD),
        ):
            self.check(lambda: Enters(gather), (2, 6, WIDTH), "allgather -> linear")

    def test_a_sum_that_is_not_needed_at_once(self):
        def child(rank):
            out, x = [], numbers(2, 4, WIDTH)
            for example in (None, numbers(1, 4, WIDTH)):
                model = fill(Beside(), rank)
                optimizer = MacoOptimizer(model, example)
                made = optimizer.optimize()
                out += [
                    alike(stepped(made, x), stepped(model, x)),
                    [c.kind for c in optimizer.report()],
                    "gains" in optimizer.report()[-1].reason,
                ]
            return out

        kinds = ["module", "independent"]
        self.assertEqual(on_ranks(child), [[True, kinds, False, True, kinds, True]] * 2)

    def test_scattered_sums(self):
        class Scatters(Wayward):
            def __init__(self, scatter):
                super().__init__()
                self.layer, self.scatter = nn.Linear(WIDTH, 4), scatter

            def way(self, x):
                return self.scatter(self.layer(x))

        def into(y):
            out = torch.empty(y.shape[0] // 2, 4)
            dist.reduce_scatter_tensor(out, y.detach())
            return out + y.sum() * 0

        for name, scatter in (
            ("into a tensor", into),
            (
                "functional",
                lambda y: functional.reduce_scatter_tensor(y.detach(), "sum", 0, dist.group.WORLD)
                + y.sum() * 0,
            ),
            (
                "differentiable",
                lambda y: functional.reduce_scatter_tensor_autograd(y, "sum", 0, dist.group.WORLD),
            ),
        ):
            with self.subTest(name):
                self.check(
                    lambda: Scatters(scatter),
                    (8, WIDTH),
                    *["linear -> reduce_scatter"][: name == "differentiable"],
                )

    def test_a_gather_along_what_the_product_sums_over_stays(self):
        self.check(lambda: Enters(lambda x: listed(x, -1), 2 * WIDTH), (6, WIDTH))
        self.check(lambda: Enters(lambda x: listed(x, 1), 2 * WIDTH), (6, WIDTH))

    def test_training_goes_as_without(self):
        def child(rank):
            losses = []
            for optimized in (False, True):
                model = fill(
                    nn.Sequential(Mlp(lambda y: Reduce.apply(y, None)), nn.Linear(WIDTH, 4)), rank
                )
                if optimized:
                    model = MacoOptimizer(model, numbers(1, 6, WIDTH), chunks=3).optimize()
                trainer, mine = torch.optim.SGD(model.parameters(), 2.0**-14), []
                for step in range(6):
                    trainer.zero_grad()
                    loss = model(numbers(step, 6, WIDTH)).square().mean()
                    loss.backward()
                    trainer.step()
                    mine.append(loss.item())
                losses.append(mine)
            return losses

        for plain, optimized in on_ranks(child):
            for a, b in zip(plain, optimized):
                self.assertAlmostEqual(a, b, delta=1e-4 * abs(a))
            self.assertLess(plain[-1], plain[0])

    def test_what_gains_too_little_goes_back(self):
        def child(rank):
            model, x = fill(Mlp(in_place), rank), numbers(2, 6, WIDTH)
            optimizer = MacoOptimizer(model, numbers(1, 6, WIDTH))
            with unittest.mock.patch("maco._cost.LEAST_GAIN", 2.0):
                made = optimizer.optimize()
            report = optimizer.report()
            graphs = []
            with unittest.mock.patch("maco.decorators.start", side_effect=graphs.append):
                same = alike(stepped(made, x), stepped(model, x))
            return (
                same,
                graphs,
                [(c.kind, c.taken) for c in report],
                "less than 200" in report[-1].reason,
            )

        self.assertEqual(
            on_ranks(child),
            [(True, [], [("module", False), ("linear -> allreduce", False)], True)] * 2,
        )

    def test_measured_choices_are_the_same_on_all_ranks(self):
        def child(rank):
            optimizer = MacoOptimizer(fill(Mlp(in_place), rank), numbers(1, 64, WIDTH))
            optimizer.optimize()
            return [(c.kind, c.where, c.taken, c.reason) for c in optimizer.report()]

        first, second = on_ranks(child)
        self.assertEqual(first, second)
        self.assertIn("down.", first[1][1])

    def test_copies_and_pickles_choose_again(self):
        def child(rank):
            made = MacoOptimizer(fill(Plain(), rank), chunks=2).optimize()
            x = numbers(2, 4, WIDTH)
            value = made(x)
            twins = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
            same = [torch.equal(t(x), value) for t in twins]
            for t in twins:
                with torch.no_grad():
                    t.down.weight.zero_()
            return same, [t(x).abs().sum().item() for t in twins], torch.equal(made(x), value)

        self.assertEqual(on_ranks(child), [([True, True], [0.0, 0.0], True)] * 2)

    def test_many_of_one_class(self):
        def child(rank):
            x, taken = numbers(2, 4, WIDTH), 0
            for i in range(12):
                model = fill(Plain(), 10 * i + rank)
                optimizer = MacoOptimizer(model, chunks=2)
                made = optimizer.optimize()
                assert alike(stepped(made, x), stepped(model, x)), i
                taken += any(c.taken for c in optimizer.report())
            return taken

        self.assertEqual(on_ranks(child), [12, 12])

    def test_gradients_and_autocast_that_are_switched_between_the_two(self):
        class Switching(Plain):
            def way(self, x, how="gradients"):
                if how == "gradients":
                    with torch.no_grad():
                        y = self.down(self.up(x))
                    return in_place(y) + self.up(x).sum()
                with torch.autocast("cpu", torch.bfloat16):
                    y = self.down(self.up(x))
                return in_place(y.float())

        def child(rank):
            model, x = fill(Switching(), rank), numbers(2, 4, WIDTH)
            optimizer = MacoOptimizer(model, chunks=2)
            made = optimizer.optimize()
            same = [
                alike(stepped(made, x, how=how), stepped(model, x, how=how))
                for how in ("gradients", "autocast")
            ]
            return (
                same,
                any(c.taken for c in optimizer.report()),
                any("are switched" in c.reason for c in optimizer.report()),
            )

        self.assertEqual(on_ranks(child), [([True, True], False, True)] * 2)

    def test_what_torch_s_compiler_stumbles_over_runs_as_it_is(self):
        class Stumbles(Plain):
            def way(self, x):
                y = super().way(x)
                return type(self.up).forward.__get__(self.up)(y)

        def child(rank):
            model, x = fill(Stumbles(), rank), numbers(2, 4, WIDTH)
            optimizer = MacoOptimizer(model, chunks=2)
            made = optimizer.optimize()
            with self.assertNoLogs("torch._dynamo", "WARNING"):  # the report says it
                same = alike(stepped(made, x), stepped(model, x))
            return same, {
                (
                    c.kind,
                    c.where.split(":")[0],
                    "runs as it is" in c.reason and "Error: " in c.reason,
                )
                for c in optimizer.report()
                if "torch.compile fails" in c.reason
            }

        self.assertEqual(
            on_ranks(child),
            [
                (
                    True,
                    {
                        ("function", f"{name} (test_maco_compile.py", True)
                        for name in ("forward", "way")
                    },
                )
            ]
            * 2,
        )

    def test_nothing_found_raises_with_strict(self):
        class Nothing(Wayward):
            def way(self, x):
                return x * 2

        def child(rank):
            try:
                MacoOptimizer(Nothing(), numbers(1, 4, WIDTH), strict=True).optimize()
            except NothingToOptimizeError as error:
                return "torch.compile finds its graphs" in str(error)

        self.assertEqual(on_ranks(child), [True, True])

    def test_a_marked_part(self):
        class Around(Wayward):
            def __init__(self):
                super().__init__()
                self.part = mark(nn.Linear(WIDTH, 4, bias=False), chunks=2)

            def way(self, x):
                return self.part(x + 1) * 2

        def child(rank):
            optimizer = MacoOptimizer(fill(Around(), rank), numbers(1, 4, WIDTH))
            made, x = optimizer.optimize(), numbers(2, 4, WIDTH).requires_grad_()
            total = ((x + 1) @ made.part.weight.t()).detach()
            dist.all_reduce(total)
            value = made(x)
            value.sum().backward()
            return (
                torch.equal(value, total * 2),
                x.grad is not None,
                [(c.kind, c.taken) for c in optimizer.report()],
            )

        self.assertEqual(
            on_ranks(child), [(True, True, [("module", False), ("marked allreduce", True)])] * 2
        )


class Plain(Mlp):
    """A module that can be pickled."""

    def __init__(self):
        super().__init__(in_place, nn.Identity())


class Traced(nn.Module):
    """What torch.fx can trace."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4, bias=False)

    def forward(self, x):
        return in_place(self.layer(x)) * 2


class WithinCompile(unittest.TestCase):
    """The user's own torch.compile around what maco has made."""

    def test_the_decorator_and_an_optimized_model(self):
        @overlap_comm(chunks=2)
        def product(x, w):
            return x @ w

        def child(rank):
            out = []
            w = numbers(10 + rank, WIDTH, 4)
            for name in ("decorator", "traced", "compiled"):
                model = fill(Traced() if name == "traced" else Plain(), rank)
                inner = MacoOptimizer(model, chunks=2).optimize()

                def call(x, inner=inner, name=name):
                    return product(x + 1, w) if name == "decorator" else inner(x + 1)

                whole = torch.compile(call, backend="eager")
                results = []
                for f in (call, whole, whole):
                    x = numbers(2, 6, WIDTH).requires_grad_()
                    y = f(x)
                    y.sum().backward()
                    results.append([y.detach(), x.grad])
                out.append(alike(results[0], results[1]) and alike(results[0], results[2]))
            return out

        self.assertEqual(on_ranks(child), [[True] * 3] * 2)


if __name__ == "__main__":
    unittest.main(verbosity=1)

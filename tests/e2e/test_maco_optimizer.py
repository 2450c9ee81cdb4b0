#!/usr/bin/python3
"""MacoOptimizer: what it finds in models, what it leaves alone and why, and that values, gradients,
signatures and state_dict stay the same."""
from __future__ import annotations

import copy
import inspect
import pathlib
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import all_reduce as named_all_reduce

from maco import _dynamo, _match, functional  # noqa: E402
from maco._capture import Untraceable, capture  # noqa: E402
from maco._cost import Decision  # noqa: E402
from maco.errors import MacoError, NothingToOptimizeError, SelfCheckError  # noqa: E402
from maco.optimizer import Candidate, MacoOptimizer, Report, _Compiled, mark  # noqa: E402
from maco_ranks import ReduceBoth, fill, in_place, numbers, on_ranks  # noqa: E402
from ranks import ranks  # noqa: E402

WORLD, WIDTH = 2, 8


class Reduce(torch.autograd.Function):
    """Like Megatron's: sum forward, identity backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Doubled(torch.autograd.Function):
    """A sum and something else: not a plain sum."""

    @staticmethod
    def forward(ctx, x):
        out = x.clone()
        dist.all_reduce(out)
        return out * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def elsewhere(x):
    out = torch.empty([len(x), *x.shape[1:]])  # fx can't trace it
    dist.all_gather_into_tensor(out, x)
    return out


class Elsewhere(Doubled):
    @staticmethod
    def forward(ctx, x):
        return elsewhere(x)


class RowParallel(nn.Module):
    def __init__(self, reduce=None):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH, bias=False)
        self.reduce = reduce

    def forward(self, x):
        return self.reduce(self.outer(F.relu(self.inner(x))))


def by_name(y):
    named_all_reduce(y)
    return y


class Sites(unittest.TestCase):
    """What is found in the graph, without running it."""

    def found(self, module):
        return [(m.kind, isinstance(m, _match.Match)) for m in _match.find(capture(module), module)]

    def test_sums_after_a_linear_layer_are_found_however_they_are_written(self):
        for reduce in (
            in_place,
            by_name,
            functional.all_reduce,
            lambda y: ReduceBoth.apply(y),
            lambda y: Reduce.apply(y, None),
        ):
            self.assertEqual(self.found(RowParallel(reduce)), [("linear -> allreduce", True)])

    def test_other_products_too(self):
        class Products(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(WIDTH, WIDTH))

            def forward(self, x):
                return (
                    in_place(x @ self.w),
                    in_place(torch.matmul(x, self.w)),
                    in_place(F.linear(x, self.w)),
                    in_place(x.matmul(self.w)),
                    functional.reduce_scatter(torch.mm(x, self.w)),
                )

        self.assertEqual(
            self.found(Products()),
            [("linear -> allreduce", True)] * 4 + [("linear -> reduce_scatter", True)],
        )

    def test_gathers_before_a_linear_layer(self):
        class Gathers(nn.Module):
            def __init__(self, how):
                super().__init__()
                self.layer, self.how = nn.Linear(WIDTH, WIDTH), how

            def forward(self, x):
                if self.how == "own":
                    return self.layer(functional.all_gather(x))
                if self.how == "base":
                    out = torch.empty(2 * 4, WIDTH)
                    dist._all_gather_base(out, x)
                    return self.layer(out)
                parts = [torch.empty_like(x) for _ in range(WORLD)]
                dist.all_gather(parts, x)
                return (
                    self.layer(torch.cat(parts, 0))
                    if self.how == "list"
                    else self.layer(torch.cat(parts, 0)) + parts[0].sum()
                )

        for how in ("own", "base", "list"):
            self.assertEqual(self.found(Gathers(how)), [("allgather -> linear", True)], how)
        self.assertEqual(self.found(Gathers("used twice")), [("allgather", False)])

        class Changes(Gathers):
            def forward(self, x):
                h = x * 2
                whole = functional.all_gather(h)
                h.add_(1)
                return self.layer(whole) + h.sum()

        self.assertEqual(self.found(Changes("own")), [("allgather", False)])

    def test_what_can_not_be_cut_is_named_with_a_reason(self):
        class Early(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                y = self.a(x)
                z = y.relu()
                dist.all_reduce(y)
                return y + z

        class Changed(Early):
            def forward(self, x):
                h = x * 2
                y = self.a(h)
                h.add_(1)
                dist.all_reduce(y)
                return y + h

        class Own(Early):
            def forward(self, x):
                y = self.a(x)
                work = dist.all_reduce(y, async_op=True)
                work.wait()
                return y

        class Input(Early):
            def forward(self, x):
                dist.all_reduce(x)
                return self.a(x)

        for module, words in (
            (Early(), "uses it before"),
            (Changed(), "changes what"),
            (Own(), "waits for it itself"),
            (Input(), "the caller's"),
        ):
            (refusal,) = _match.find(capture(module), module)
            self.assertIsInstance(refusal, _match.Refusal)
            self.assertIn(words, refusal.reason)
        for function in (Doubled, Elsewhere):
            self.assertEqual(
                self.found(RowParallel(lambda y: function.apply(y))), [("function", False)]
            )
        with self.assertRaisesRegex(Untraceable, "its backward can't be seen"):
            capture(RowParallel(ReduceBoth.apply))

    def test_a_layer_that_somebody_else_has_changed_is_left_alone(self):
        model = RowParallel(in_place)
        model.outer.register_forward_hook(lambda *_: None)
        self.assertEqual(self.found(model), [("allreduce", False)])
        model = RowParallel(in_place)
        model.outer.forward = model.outer.forward
        self.assertEqual(self.found(model), [("allreduce", False)])

    def test_independent_sums_are_waited_for_later(self):
        self.assertEqual(self.found(Beside()), [("independent", True)])

        def child(rank):
            optimizer = MacoOptimizer(fill(Beside(), rank))
            made, x = optimizer.optimize(), numbers(1, 4, WIDTH)
            before = [c.taken for c in optimizer.report()]
            made(x)
            return before, [c.taken for c in optimizer.report()]

        self.assertEqual(on_ranks(child), [([False], [True])] * WORLD)

    def test_tracing_leaves_torch_as_it_was(self):
        before = (dist.all_reduce, named_all_reduce, torch.autograd.Function.apply)
        capture(RowParallel(by_name))
        with self.assertRaises(Untraceable):
            capture(Branches())
        self.assertEqual(before, (dist.all_reduce, named_all_reduce, torch.autograd.Function.apply))

        def child(rank):  # autograd's threads can't be forked
            x = torch.ones(2, requires_grad=True)
            Reversed.apply(x).sum().backward()
            return torch.equal(x.grad, -torch.ones(2))

        self.assertEqual(ranks(child, 1), [True])


class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        y = self.b(x)
        dist.all_reduce(y)
        return self.a(x) + y


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Branches(nn.Module):
    """Its control flow depends on values: it has no graph, but a part of it has."""

    def __init__(self):
        super().__init__()
        self.part = RowParallel(in_place)

    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return self.part(x)


class Everything(nn.Module):
    """One module of each kind."""

    def __init__(self):
        super().__init__()
        self.mlp, self.second = RowParallel(in_place), RowParallel(lambda y: Reduce.apply(y, None))
        self.gate, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, scale: float = 1.0):
        h = self.mlp(x)
        late = h * 2
        dist.all_reduce(late)
        h = self.second(self.gate(h))
        parts = [torch.empty_like(h) for _ in range(WORLD)]
        dist.all_gather(parts, h)
        scattered = functional.reduce_scatter(self.gate(torch.cat([h, h], 0)))
        return {"y": self.head(torch.cat(parts, 0)) * scale, "late": late, "s": scattered}


class CompiledGraphs(unittest.TestCase):
    """Graphs in torch.compile's form, with functions instead of its operators: for torch 1.13, too.
    Real ones are in test_maco_compile.py."""

    class Operator:
        def __init__(self, name, function):
            self.__name__, self.__module__, self.function = name, __name__, function

        def __str__(self):
            return f"_c10d_functional.{self.__name__}.default"

        def __call__(self, *args):
            return self.function(*args)

    def graph(self, in_place, root):
        """linear, sum, + 1; the sum doubles, as with two ranks that hold the same."""
        reduce = self.Operator("all_reduce", lambda x, op, group: x * 2)
        wait = self.Operator("wait_tensor", lambda x: x)
        g = torch.fx.Graph()
        y = g.call_module("layer", (g.placeholder("x"),))
        total = g.call_function(wait, (g.call_function(reduce, (y, "sum", "0")),))
        if in_place:
            g.call_method("copy_", (y, total))
        g.output(g.call_function(torch.add, (y if in_place else total, 1)))
        return torch.fx.GraphModule(root, g)

    def test_a_collective_and_its_wait_become_one_node(self):
        root = nn.Module()
        root.layer = nn.Linear(WIDTH, WIDTH)
        x = torch.randn(3, WIDTH)
        for in_place in (False, True):
            graph = self.graph(in_place, root)
            expected = graph(x)
            self.assertEqual(_dynamo.adopt(graph, lambda name: f"group {name}"), 1)
            graph.graph.lint()
            graph.recompile()
            self.assertTrue(torch.equal(graph(x), expected))
            (match,) = _match.find(graph, root)
            self.assertEqual(
                (match.kind, match.collective.op, match.collective.group),
                ("linear -> allreduce", "sum", "group 0"),
            )

    def test_what_is_seen_through_a_view_is_still_written(self):
        root = nn.Module()
        root.layer = nn.Linear(WIDTH, WIDTH)
        x = torch.randn(3, WIDTH)
        for early in (False, True):  # the view is summed; the sum is read through a view
            graph = self.graph(True, root)
            (y,) = [n for n in graph.graph.nodes if n.op == "call_module"]
            with graph.graph.inserting_after(y):
                view = graph.graph.call_method("view", (y, -1, WIDTH))
            (end,) = [n for n in graph.graph.nodes if n.target is torch.add]
            if early:
                end.replace_input_with(y, view)
            else:
                for node in [u for u in y.users if u not in (view, end)]:
                    node.replace_input_with(y, view)
            graph.recompile()
            expected = graph(x)
            self.assertEqual(_dynamo.adopt(graph, lambda name: name), 1)
            graph.recompile()
            self.assertTrue(torch.equal(graph(x), expected))

    def test_operators_without_a_groups_name_stay(self):
        root = nn.Module()
        root.layer = nn.Linear(WIDTH, WIDTH)
        graph = self.graph(False, root)
        for node in graph.graph.nodes:
            if str(node.target).endswith("all_reduce.default"):
                node.args = (*node.args[:2], "", [0, 1], 2)
        self.assertEqual(_dynamo.adopt(graph, lambda name: name), 0)

    def test_what_compile_calls_cuts_it_with_gradients_too(self):
        def child(rank):
            root = nn.Module()
            root.layer = fill(nn.Linear(WIDTH, WIDTH), 0)
            optimizer = MacoOptimizer(root, chunks=2)
            compiled = _Compiled(optimizer.choices, root, "")
            with unittest.mock.patch.object(_dynamo, "_group", lambda name: None):
                run = compiled.graphs(self.graph(True, root), [])
            x = numbers(1, 4, WIDTH)
            with torch.no_grad():
                cut = run(x)
            again = run(x)
            again.sum().backward()
            taken = [s.candidate.taken for s in compiled.steps.values()]
            return torch.equal(cut, again), taken, torch.equal(root.layer.weight.grad[0], x.sum(0))

        self.assertEqual(on_ranks(child), [(True, [True], True)] * WORLD)


class Models(unittest.TestCase):
    def test_values_gradients_and_keys_stay_whatever_is_cut(self):
        def child(rank):
            out = []
            for make, shape in (
                (lambda: RowParallel(in_place), (5, WIDTH)),
                (lambda: RowParallel(in_place), (2, 3, WIDTH)),
                (lambda: RowParallel(lambda y: ReduceBoth.apply(y)), (6, WIDTH)),
                (lambda: RowParallel(functional.all_reduce), (6, WIDTH)),
                (Everything, (6, WIDTH)),
            ):
                model = fill(make(), rank)
                optimizer = MacoOptimizer(model, example_inputs=numbers(rank, *shape), chunks=3)
                made = optimizer.optimize()
                results = []
                for m in (model, made):
                    x = numbers(10 + rank, *shape).requires_grad_()
                    value = m(x)
                    value = value if isinstance(value, dict) else {"y": value}
                    sum((v * numbers(7, *v.shape)).sum() for v in value.values()).backward()
                    grads = [x.grad] + [
                        p.grad.clone() for p in m.parameters() if p.grad is not None
                    ]
                    m.zero_grad(set_to_none=True)
                    results.append(([v.detach() for v in value.values()], grads))
                same = all(
                    torch.equal(a, b)
                    for one in (0, 1)
                    for a, b in zip(results[0][one], results[1][one])
                )
                shared = all(p is q for p, q in zip(model.parameters(), made.parameters()))
                out.append(
                    (
                        same,
                        len(results[0][1]) == len(results[1][1]),
                        shared,
                        list(model.state_dict()) == list(made.state_dict()),
                        sorted({c.kind for c in optimizer.report() if c.taken}),
                        type(made) is type(model),
                    )
                )
            return out

        for result in on_ranks(child):
            kinds = [["linear -> allreduce"]] * 4
            for row, expected in zip(result, kinds):
                self.assertEqual(row, (True, True, True, True, expected, True))
            self.assertEqual(result[4][:4], (True, True, True, True))
            for kind in ("linear -> allreduce", "allgather -> linear", "linear -> reduce_scatter"):
                self.assertIn(kind, result[4][4])

    def test_columns_are_not_cut_and_nothing_is_gathered_twice(self):
        class Columns(nn.Module):
            def __init__(self, dim, width):
                super().__init__()
                self.layer, self.dim = nn.Linear(width, 4), dim

            def forward(self, x):
                return self.layer(functional.all_gather(x, self.dim)), functional.reduce_scatter(
                    self.layer.weight.sum() * self.layer(functional.all_gather(x, self.dim)),
                    self.dim,
                )

        def child(rank):
            out = []
            for dim, width in ((1, 2 * WIDTH), (-1, 2 * WIDTH), (0, WIDTH)):
                model = fill(Columns(dim, width), rank)
                made = MacoOptimizer(model, chunks=2).optimize()
                x = numbers(rank, 6, WIDTH)
                out += [torch.equal(a, b) for a, b in zip(made(x), model(x))]
                graph = made.forward.runs[0][2].__globals__
                out.append(any("allgather" in name for name in graph))
            return out

        self.assertEqual(on_ranks(child), [[True, True, False] * 3] * WORLD)

    def test_dropout_follows_the_mode_and_keywords_their_names(self):
        class Dropping(RowParallel):
            def forward(self, x, scale: float = 1.0):
                return F.dropout(in_place(self.outer(x)), 0.5, self.training) * scale

        def child(rank):
            model = fill(Dropping(), rank)
            made = MacoOptimizer(model, chunks=2).optimize()
            x = numbers(3, 4, 16)
            with torch.no_grad():
                made.eval()
                quiet = [made(x, scale=2.0), made(x, scale=2.0), model.eval()(x, scale=2.0)]
                made.train()
                torch.manual_seed(1)
                loud = made(x)
                torch.manual_seed(1)
                again = model.train()(x)
            return (
                [torch.equal(quiet[0], q) for q in quiet[1:]],
                torch.equal(loud, again),
                bool((loud == 0).any()),
            )

        for result in on_ranks(child):
            self.assertEqual(result, ([True, True], True, True))

    def test_parts_of_a_model_without_a_graph_are_optimized_by_themselves(self):
        """As on torch 1.13, and when torch 2 can't compile."""

        def child(rank):
            model = fill(Branches(), rank)
            optimizer = MacoOptimizer(model, numbers(1, 6, WIDTH), chunks=2)
            with unittest.mock.patch.object(_dynamo, "usable", lambda: False):
                made = optimizer.optimize()
            x = numbers(2, 6, WIDTH)
            own = "forward" in model.part.__dict__
            return (
                torch.equal(made(x), model(x)),
                own,
                [(c.kind, c.taken, c.where) for c in optimizer.report()],
            )

        for same, own, report in on_ranks(child):
            self.assertTrue(same)
            self.assertFalse(own)  # the original's parts are unchanged
            self.assertEqual(
                [r[:2] for r in report], [("module", False), ("linear -> allreduce", True)]
            )
            self.assertTrue(report[1][2].startswith("part: "))

    def test_measured_choices_are_the_same_on_all_ranks(self):
        def child(rank):
            optimizer = MacoOptimizer(fill(Everything(), rank), numbers(1, 64, WIDTH))
            optimizer.optimize()
            return [(c.kind, c.where, c.taken, c.reason) for c in optimizer.report()]

        first, second = on_ranks(child)
        self.assertEqual(first, second)
        self.assertEqual(len(first), 5)
        self.assertTrue(all(reason for *_, reason in first))

    def test_a_report_promises_no_slower_run_than_the_measured_one(self):
        for comm, now, said in ((5.0, 2.0, "2e+03 ms, 1.00 x"), (1.5, 2.0, "1.5e+03 ms, 1.33 x")):
            candidate = Candidate("linear, all-reduce", "fc", False, "")
            candidate.tell(Decision(1, "", compute=0.5, comm=comm, plain=now, overlapped=now + 1))
            self.assertTrue(
                str(Report([candidate])).endswith(f"with everything hidden that can be, {said}")
            )

    def test_nothing_found_is_said_and_strict_raises(self):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        optimizer = MacoOptimizer(model)
        x = numbers(1, 3, WIDTH)
        self.assertTrue(torch.equal(optimizer.optimize()(x), model(x)))
        self.assertEqual(str(optimizer.report()), "no collective was found")
        with self.assertRaises(NothingToOptimizeError):
            MacoOptimizer(model, strict=True).optimize()
        with self.assertRaises(NothingToOptimizeError) as raised:
            MacoOptimizer(RowParallel(functional.all_reduce), x, strict=True).optimize()
        self.assertIn("one rank has nothing to wait for", str(raised.exception))
        for wrong in (dict(model=3), dict(model=model, chunks=0)):
            with self.assertRaises(MacoError):
                MacoOptimizer(**wrong)

    def test_a_marked_module_is_reduced(self):
        def child(rank):
            layer = fill(nn.Linear(WIDTH, 4, bias=False), rank)
            model = nn.Sequential(nn.ReLU(), mark(layer, chunks=2))
            x = numbers(5, 6, WIDTH)
            total, out = model(x).detach(), []
            dist.all_reduce(total)
            for example in (None, x):
                optimizer = MacoOptimizer(model, example)
                out += [
                    torch.equal(optimizer.optimize()(x), total),
                    [c.taken for c in optimizer.report()],
                ]
            return out

        for result in on_ranks(child):
            self.assertEqual(result, [True, [True]] * 2)

    def test_a_model_that_comes_out_otherwise_is_noticed(self):
        """Forward depends on a counter: the second call differs from the first."""

        class Counting(RowParallel):
            calls = 0

            def forward(self, x):
                Counting.calls += 1
                return super().forward(x) * Counting.calls

        def child(rank):
            try:
                MacoOptimizer(
                    fill(Counting(in_place), rank), numbers(1, 4, WIDTH), chunks=2
                ).optimize()
            except SelfCheckError as error:
                return "Hint:" in str(error)

        self.assertEqual(on_ranks(child), [True, True])

    def test_the_signature_is_the_models(self):
        def child(rank):
            model = Everything()
            made = MacoOptimizer(model, chunks=2).optimize()
            twin = copy.deepcopy(made)
            x = numbers(1, 4, WIDTH)
            return (
                str(inspect.signature(made.forward)) == str(inspect.signature(model.forward)),
                torch.equal(twin(x)["y"], made(x)["y"]),
                twin.head.weight is made.head.weight,
            )

        self.assertEqual(on_ranks(child), [(True, True, False)] * WORLD)


if __name__ == "__main__":
    unittest.main(verbosity=1)

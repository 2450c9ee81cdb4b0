#!/usr/bin/python3
"""@overlap_comm on ranks of gloo and of shared memory: the values of the uncut call, the bits of
the same chunks run one after the other, gradients, and failures."""
from __future__ import annotations

import datetime
import gc
import itertools
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.distributed as dist

import hybridps  # noqa: E402
from maco import MacoOptimizer, _comm, _cost, mark  # noqa: E402
from maco.decorators import bounds, overlap_comm  # noqa: E402
from maco.errors import (  # noqa: E402
    CollectiveFailedError,
    DimensionError,
    DTypeError,
    LayoutError,
    MacoError,
    NotRowSeparableError,
    NullInputError,
    OrderMismatchError,
    ShapeMismatchError,
)
from ranks import ranks  # noqa: E402

WORLD = 2
ROWS, INNER, OUTER = 12, 5, 4  # of each rank


def whole(seed, *shape):
    """Small whole numbers: sums of their products are exact in whatever order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


class Ranks:
    """run(rank, group) on ranks of both kinds of groups."""

    def __init__(self, kind, world=WORLD, timeout=20.0):
        self.kind, self.world, self.timeout = kind, world, timeout

    def __call__(self, run, **options):
        with tempfile.TemporaryDirectory() as folder:
            return ranks(lambda rank: self.one(run, rank, folder), self.world, **options)

    def one(self, run, rank, folder):
        torch.set_num_threads(1)
        if self.kind == "gloo":
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=self.world,
                timeout=datetime.timedelta(seconds=self.timeout),
            )
            return run(rank, None)
        name = f"helios-test-overlap-{os.getppid()}"
        with hybridps.Group.shm(name, rank, self.world, self.timeout) as group:
            return run(rank, group)


def both(test):
    """Runs the test on each kind of group."""

    def run(self):
        for kind in ("gloo", "shm"):
            with self.subTest(kind=kind):
                test(self, Ranks(kind))

    return run


def product(x, w):
    return x @ w


class Values(unittest.TestCase):
    """Compares with one process that has everything."""

    def shape(self, dim, rows):
        return (rows, INNER) if dim == 0 else (3, rows, INNER)

    @both
    def test_the_sum_of_all_ranks_whatever_the_chunks(self, run):
        cases = list(itertools.product((0, 1), (1, 3, 5), ("sum", "avg", "max")))

        def child(rank, group):
            out = []
            for dim, chunks, op in cases:
                f = overlap_comm("allreduce", chunks, split_dim=dim, op=op, group=group)(product)
                x, w = whole(rank, *self.shape(dim, ROWS)), whole(10 + rank, INNER, OUTER)
                with torch.no_grad():
                    out.append(f(x, w))
            return out

        results = run(child)
        for i, (dim, chunks, op) in enumerate(cases):
            parts = torch.stack(
                [
                    whole(r, *self.shape(dim, ROWS)) @ whole(10 + r, INNER, OUTER)
                    for r in range(WORLD)
                ]
            )
            expected = {"sum": parts.sum(0), "avg": parts.mean(0), "max": parts.max(0)[0]}[op]
            for rank in range(WORLD):
                self.assertTrue(torch.equal(results[rank][i], expected), (dim, chunks, op, rank))

    @both
    def test_each_rank_gets_its_rows_of_the_sum(self, run):
        cases = list(itertools.product((0, 1), (1, 3, 4)))

        def child(rank, group):
            out = []
            for dim, chunks in cases:
                f = overlap_comm("reduce_scatter", chunks, split_dim=dim, group=group)(product)
                x, w = whole(rank, *self.shape(dim, ROWS)), whole(10 + rank, INNER, OUTER)
                out.append(f(x, w))
            return out

        results = run(child)
        for i, (dim, chunks) in enumerate(cases):
            total = sum(
                whole(r, *self.shape(dim, ROWS)) @ whole(10 + r, INNER, OUTER) for r in range(WORLD)
            )
            for rank, expected in enumerate(total.chunk(WORLD, dim)):
                self.assertTrue(torch.equal(results[rank][i], expected), (dim, chunks, rank))

    @both
    def test_rows_of_all_ranks_are_computed_in_their_order(self, run):
        cases = list(itertools.product((0, 1), (1, 3, 4)))

        def child(rank, group):
            out = []
            for dim, chunks in cases:
                f = overlap_comm("allgather", chunks, split_dim=dim, group=group)(product)
                out.append(f(whole(rank, *self.shape(dim, ROWS)), whole(10 + rank, INNER, OUTER)))
            return out

        results = run(child)
        for i, (dim, chunks) in enumerate(cases):
            x = torch.cat([whole(r, *self.shape(dim, ROWS)) for r in range(WORLD)], dim)
            for rank in range(WORLD):
                expected = x @ whole(10 + rank, INNER, OUTER)
                self.assertTrue(torch.equal(results[rank][i], expected), (dim, chunks, rank))

    @both
    def test_the_bits_are_those_of_the_same_chunks_in_turn(self, run):
        def child(rank, group):
            torch.manual_seed(rank)
            x, w = torch.randn(64, 33), torch.randn(33, 17)
            out = []
            for comm_op in ("allreduce", "reduce_scatter", "allgather"):
                for schedule in ("overlap", "serial"):
                    f = overlap_comm(comm_op, 4, group=group, schedule=schedule)(product)
                    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
                    y = f(a, b)
                    y.square().sum().backward()
                    out.append((y.detach(), a.grad, b.grad))
            return out

        for result in run(child):
            for overlap, serial in zip(result[::2], result[1::2]):
                for a, b in zip(overlap, serial):
                    self.assertTrue(torch.equal(a, b))

    def test_deterministic_bits_do_not_depend_on_the_chunks(self):
        def child(rank, group):
            torch.manual_seed(rank)
            x, w = torch.randn(300, 257), torch.randn(257, 65)
            return [
                overlap_comm(chunks=n, group=group, deterministic=True)(product)(x, w)
                for n in (1, 2, 3, 5, 100)
            ]

        for first, *others in Ranks("shm", 3)(child):
            for other in others:
                self.assertTrue(torch.equal(first, other))

    def test_bounds_leave_nothing_out(self):
        for rows, chunks in itertools.product(range(1, 40), range(1, 40)):
            cuts = bounds(rows, min(rows, chunks))
            self.assertEqual([r for a, n in cuts for r in range(a, a + n)], list(range(rows)))
            sizes = [n for _, n in cuts]
            self.assertLessEqual(max(sizes) - min(sizes), 1)
            self.assertGreater(min(sizes), 0)
            cuts = bounds(rows, chunks, 8)
            self.assertEqual([r for a, n in cuts for r in range(a, a + n)], list(range(rows)))
            self.assertTrue(all(a % 8 == 0 and n > 0 for a, n in cuts))

    def test_one_rank_alone_makes_a_plain_call(self):
        x, w = whole(0, ROWS, INNER), whole(1, INNER, OUTER)
        self.assertTrue(torch.equal(overlap_comm()(product)(x, w), x @ w))


class Gradients(unittest.TestCase):
    """Gradients of loss = sum of y times a weight that differs from row to row (and from rank to
    rank)."""

    def child(self, comm_op, grad, dim, chunks, own):
        def run(rank, group):
            f = overlap_comm(comm_op, chunks, "x", dim, group=group, grad=grad)(product_by_name)
            shape = (ROWS, INNER) if dim == 0 else (3, ROWS, INNER)
            x = whole(rank, *shape).requires_grad_()
            w = whole(10 + rank, INNER, OUTER).requires_grad_()
            y = f(w=w, x=x)
            (y * whole(20 + (rank if own else 0), *y.shape)).sum().backward()
            return x.grad, w.grad

        return run

    def expected(self, comm_op, grad, dim, own):
        """The same from one graph over all ranks."""
        shape = (ROWS, INNER) if dim == 0 else (3, ROWS, INNER)
        xs = [whole(r, *shape).requires_grad_() for r in range(WORLD)]
        ws = [whole(10 + r, INNER, OUTER).requires_grad_() for r in range(WORLD)]
        if comm_op == "allgather":
            full = torch.cat(xs, dim)
            ys = [full @ w for w in ws]
        else:
            total = sum(x @ w for x, w in zip(xs, ws))
            ys = total.chunk(WORLD, dim) if comm_op == "reduce_scatter" else [total] * WORLD
        losses = [(y * whole(20 + (r if own else 0), *y.shape)).sum() for r, y in enumerate(ys)]
        # With "tp" all ranks have the same loss, and it counts once.
        (losses[0] if comm_op == "allreduce" and grad == "tp" else sum(losses)).backward()
        return [(x.grad, w.grad) for x, w in zip(xs, ws)]

    @both
    def test_they_are_those_of_one_graph_over_all_ranks(self, run):
        for comm_op, grad, own in (
            ("allreduce", "tp", False),
            ("allreduce", "sum", True),
            ("reduce_scatter", "tp", True),
            ("allgather", "tp", True),
        ):
            for dim, chunks in ((0, 1), (0, 4), (1, 3)):
                got = Ranks(run.kind)(self.child(comm_op, grad, dim, chunks, own))
                # Not in this process: autograd's threads don't survive a fork.
                (wanted,) = ranks(lambda _: self.expected(comm_op, grad, dim, own), 1)
                for rank, expected in enumerate(wanted):
                    for a, b in zip(got[rank], expected):
                        self.assertTrue(torch.equal(a, b), (comm_op, grad, dim, chunks, rank))

    @both
    def test_measuring_under_autocast_costs_no_gradient(self, run):
        def child(rank, group):
            w, out = whole(10 + rank, INNER, OUTER).requires_grad_(), []

            # the first call of a shape tries it without gradients
            @overlap_comm(group=group, check=True)
            def f(x):
                return (x @ w).float()  # gloo has no bfloat16

            for _ in range(2):
                w.grad = None
                with torch.autocast("cpu", torch.bfloat16):
                    y = f(whole(rank, 64, INNER))
                out.append(y.requires_grad)
                y.sum().backward()
                out.append(w.grad is not None)
            return out

        self.assertEqual(run(child), [[True] * 4] * WORLD)


def product_by_name(x, w):
    return x @ w


class Refusals(unittest.TestCase):
    def raised(self, run, function, **options):
        """Each rank's exception and its text."""

        def child(rank, group):
            begun = time.monotonic()
            try:
                function(rank, group)
            except Exception as error:
                return type(error), str(error), time.monotonic() - begun
            return None

        return run(child, **options)

    @both
    def test_what_mixes_rows_is_noticed_where_all_rows_are_alike(self, run):
        for value in (0.0, 2.0):

            def child(rank, group):
                f = overlap_comm(chunks=2, group=group)(lambda x: x.log() if value else x * 2)
                f(torch.full((4, 2), value))  # by itself a row has a logarithm
                f = overlap_comm(chunks=2, group=group)(lambda x: x - x.mean(0))
                f(torch.full((4, 2), value))

            for kind, *_ in self.raised(run, child):
                self.assertEqual(kind, NotRowSeparableError)

    @both
    def test_what_mixes_rows_is_noticed(self, run):
        def child(rank, group):
            f = overlap_comm(chunks=2, group=group)(lambda x: x - x.mean(0))
            # rank 0's rows are alike: it fails with the other
            f(torch.arange(8.0).view(4, 2) * rank)

        for kind, text, _ in self.raised(run, child):
            self.assertEqual(kind, NotRowSeparableError)
            self.assertIn("check=False", text)

    @both
    def test_what_mixes_rows_is_cut_where_that_is_asked_for(self, run):
        def child(rank, group):
            f = overlap_comm(chunks=2, group=group, check=False)(lambda x: x - x.mean(0))
            return f(torch.arange(8.0).view(4, 2))

        halves = torch.tensor([[-1.0, -1.0], [1.0, 1.0]] * 2) * WORLD
        for got in run(child):
            self.assertTrue(torch.equal(got, halves))

    @both
    def test_ranks_that_do_different_things_are_told(self, run):
        def child(rank, group):
            f = overlap_comm(chunks=2, group=group)(product)
            f(whole(0, 8 + rank, INNER), whole(1, INNER, OUTER))

        for kind, text, _ in self.raised(run, child):
            self.assertEqual(kind, OrderMismatchError)
            self.assertIn("(8, 5)", text)
            self.assertIn("(9, 5)", text)

    @both
    def test_so_are_those_that_do_so_later(self, run):
        """Shapes and two functions that every rank has called before."""

        def child(rank, group):
            w, out = whole(1, INNER, OUTER), []
            f, g = (overlap_comm(chunks=n, group=group)(product) for n in (2, 1))
            for rows in (8, 6):
                f(whole(0, rows, INNER), w)
                g(whole(0, rows, INNER), w)
            for first, rows in ((f, 8 - 2 * rank), (f, 8 + rank), ((f, g)[rank], 8)):
                try:
                    first(whole(0, rows, INNER), w)
                except OrderMismatchError as error:
                    out.append("Hint:" in str(error))
            return out, f(whole(0, 8, INNER), w).shape

        self.assertEqual(run(child), [([True] * 3, (8, OUTER))] * WORLD)

    @both
    def test_a_killed_rank_ends_the_wait_of_the_others(self, run):
        def child(rank, group):
            calls = []

            def f(x):
                calls.append(1)
                if rank == 1 and len(calls) == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                return x * 2

            overlap_comm(chunks=4, group=group)(f)(whole(0, 8, INNER))

        result = self.raised(run, child, dies=(1,))[0]
        self.assertIsNotNone(result)
        self.assertTrue(issubclass(result[0], (CollectiveFailedError, TimeoutError)), result)
        self.assertLess(result[2], 60)

    def test_a_forked_child_is_refused_instead_of_left_waiting(self):
        def child(rank, group):
            twice = overlap_comm(chunks=2, group=group)(lambda x: x * 2)
            twice(whole(0, 8, INNER))
            pid = os.fork()
            if pid == 0:
                try:
                    twice(whole(0, 8, INNER))
                except CollectiveFailedError:
                    os._exit(7)
                finally:
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        self.assertEqual(Ranks("shm")(child), [7] * WORLD)

    def test_a_rank_that_drops_its_group_ends_the_wait_of_the_others(self):
        name = f"helios-test-overlap-{os.getpid()}"
        waited, tell = os.pipe()

        def work(rank):
            group = hybridps.Group.shm(name, rank, WORLD, 40)
            twice = overlap_comm(chunks=2, group=group)(lambda x: x * 2)
            twice(whole(0, 8, INNER))
            if rank:
                raise KeyError("mine")
            twice(whole(0, 8, INNER))

        def child(rank):
            try:
                work(rank)
            except (KeyError, MacoError) as error:
                said = type(error).__name__
            gc.collect()  # a group and what carries its collectives refer to each other
            if rank:
                for thread in threading.enumerate():
                    if thread.name == "maco-proxy":
                        thread.join(20)
                        said += " and a thread" if thread.is_alive() else ""
                os.read(waited, 1)  # it lives on, and calls nothing more
            else:
                os.write(tell, b"x")
            return said

        self.assertEqual(ranks(child, WORLD), ["CollectiveFailedError", "KeyError"])
        os.close(waited), os.close(tell)

    @both
    def test_arguments_that_do_not_fit_say_why(self, run):
        def child(rank, group):
            x = whole(0, 6, INNER)
            kinds = []
            for make, call in (
                ((), lambda f: f("text")),
                (dict(split_dim=2), lambda f: f(x)),
                (dict(comm_op="reduce_scatter"), lambda f: f(whole(0, 7, INNER))),
                (dict(grad="none"), lambda f: f(x.clone().requires_grad_())),
                (dict(op="max"), lambda f: f(x.clone().requires_grad_())),
            ):
                f = overlap_comm(chunks=2, group=group, **dict(make))(lambda t: t * 2)
                try:
                    call(f)
                except MacoError as error:
                    kinds.append((type(error), "Hint:" in str(error)))
            try:
                overlap_comm(chunks=2, group=group)(lambda t: t[:1])(x)
            except MacoError as error:
                kinds.append((type(error), "Hint:" in str(error)))
            return kinds

        for kinds in run(child):
            self.assertEqual(
                kinds,
                [
                    (DTypeError, True),
                    (DimensionError, True),
                    (DimensionError, True),
                    (MacoError, True),
                    (MacoError, True),
                    (ShapeMismatchError, True),
                ],
            )

    def test_an_argument_is_found_by_number_and_name(self):
        def child(rank, _):
            x, w = whole(rank, 6, INNER), whole(10 + rank, INNER, OUTER)
            expected = overlap_comm(chunks=2)(product)(x, w)
            good = [
                torch.equal(
                    overlap_comm(chunks=2, split_arg=at)(product)(*args, **kwargs), expected
                )
                for at in (0, -2, "x")
                for args, kwargs in (((x, w), {}), ((x,), dict(w=w)), ((), dict(w=w, x=x)))
                if at != -2 or not kwargs
            ]
            wrong = []
            for at, value in ((3, x), ("y", x), (0, x.to_sparse())):
                try:
                    overlap_comm(chunks=2, split_arg=at)(product)(value, w)
                except MacoError as error:
                    wrong.append(type(error))
            try:
                overlap_comm(chunks=2)(lambda x: x.short())(x)
            except DTypeError:  # gloo can add none of them
                wrong.append(DTypeError)
            good.append(torch.equal(overlap_comm(chunks=2)(product)(x, w), expected))
            return good, wrong

        self.assertEqual(
            Ranks("gloo")(child),
            [([True] * 8, [NullInputError, NullInputError, LayoutError, DTypeError])] * WORLD,
        )

    def test_options_that_mean_nothing_are_refused(self):
        for options in (
            dict(comm_op="alltoall"),
            dict(chunks=0),
            dict(chunks="many"),
            dict(op="median"),
            dict(grad="yes"),
            dict(comm_op="allgather", deterministic=True),
            dict(schedule="later"),
            dict(chunks=True),
            dict(split_arg=None),
            dict(split_dim="rows"),
            dict(check="always"),
        ):
            with self.assertRaises(MacoError):
                overlap_comm(**options)


class Choice(unittest.TestCase):
    def test_the_model_finds_its_own_minimum(self):
        """Searches all numbers of chunks, not only powers of two."""
        for compute, comm, per_chunk in ((10.0, 5.0, 0.1), (1.0, 8.0, 0.02), (3.0, 3.0, 0.5)):
            best = min(range(1, 65), key=lambda n: _cost.expected(compute, comm, per_chunk, n))
            found = _cost.best_chunks(compute, comm, per_chunk, 64)
            ratio = _cost.expected(compute, comm, per_chunk, found) / _cost.expected(
                compute, comm, per_chunk, best
            )
            self.assertLess(ratio, 1.1, (compute, comm, per_chunk, found, best))

    def test_what_is_too_small_is_left_alone(self):
        self.assertEqual(_cost.best_chunks(1e-3, 1e-6, 1e-4, 64), 1)
        self.assertEqual(_cost.best_chunks(1.0, 1.0, 1e-3, 1), 1)

    def test_chunks_that_cost_nothing_or_are_few_are_not_refused(self):
        self.assertEqual(_cost.best_chunks(0.0508, 0.0433, 1e-6, 64), 64)
        self.assertEqual(_cost.best_chunks(0.03, 0.03, 50e-6, 8), 8)

    def test_a_wrong_estimate_is_left_by_measuring(self):
        for first, seconds, wanted in (
            (64, {64: 9, 32: 5, 16: 3, 8: 2, 4: 2.5}, [8, 4, 16]),
            (4, {4: 5, 2: 6, 8: 4, 16: 3, 32: 3.5}, [16, 32, 8]),
            (8, {8: 1, 4: 2, 16: 3}, [8, 4, 16]),
            (2, {2: 3, 4: 2}, [4, 2]),
        ):
            self.assertEqual(_cost.fastest(first, max(seconds), seconds.__getitem__), wanted)

    def slow_link(self):
        """A group and a function, on a clock that only computing and waiting advance:
        20 ms and 20 ms for (40, 500)."""
        now = [0.0]

        class Arrival:
            def __init__(self, at):
                self.at = at

            def wait(self):
                now[0] = max(now[0], self.at)

        class Link(_comm.Alone):
            world = 2
            free = 0.0

            def all_reduce(self, tensor, op="sum"):
                self.free = max(self.free, now[0]) + (
                    tensor.numel() * 1e-6 if op == "sum" or tensor.numel() > 4 else 0
                )
                return Arrival(self.free)

            def all_gather(self, out, tensor):
                out.copy_(tensor.expand_as(out))
                return Arrival(0)

        def slow(x):
            now[0] += len(x) * 5e-4 + 1e-4
            return x * 2

        return now, Link(), slow

    def test_the_report_tells_the_speed_up_of_all_that_was_measured(self):
        now, link, slow = self.slow_link()

        class Slow(torch.nn.Module):
            def forward(self, x):
                return slow(x)

        class Quick(torch.nn.Module):  # 20 ms of the link, and no computation to hide it behind
            def forward(self, x):
                return x + 1

        model = torch.nn.Sequential(mark(Slow(), group=link), mark(Quick(), group=link))
        with unittest.mock.patch.object(_cost.time, "perf_counter", lambda: now[0]):
            optimizer = MacoOptimizer(model, torch.zeros(40, 500))
            optimizer.optimize()
            report = optimizer.report()
        first, second = report
        self.assertEqual([first.taken, second.taken], [True, False])
        self.assertAlmostEqual(first.plain, 0.0401)
        self.assertLess(first.overlapped, 0.024)
        self.assertAlmostEqual(second.plain, 0.02)
        self.assertEqual(second.overlapped, second.plain)  # it runs as before
        self.assertAlmostEqual(report.speedup, 0.0601 / (first.overlapped + 0.02))
        self.assertRegex(
            str(report),
            r"(?m)^all +1\.[34]\d x: 60.1 ms one after the other, 4\d(\.\d)? "
            r"ms as it runs now; .* 40.1 ms, 1.50 x$",
        )

    def test_a_link_that_takes_time_but_no_processor_is_hidden(self):
        now, link, slow = self.slow_link()
        f = overlap_comm(group=link)(slow)
        with unittest.mock.patch.object(_cost.time, "perf_counter", lambda: now[0]):
            f(torch.zeros(40, 500))
        (decision,) = f.overlap.decisions.values()
        self.assertEqual(decision.chunks, 16, decision)  # sqrt(20 ms / 0.1 ms) = 14.1
        self.assertAlmostEqual(decision.compute, 0.0201)
        self.assertAlmostEqual(decision.comm, 0.02)
        self.assertAlmostEqual(decision.plain, 0.0401)
        self.assertAlmostEqual(decision.per_chunk, 1e-4)
        # Rows and bytes of all but the last chunk (of 3 rows) overlap with the computation.
        self.assertAlmostEqual(decision.overlapped, 40 * 5e-4 + 16 * 1e-4 + 3 * 500 * 1e-6)

    def test_chunks_that_seemed_dear_are_run_all_the_same(self):
        """Another process used the CPU while the cost of a chunk was measured."""
        now, link, slow = self.slow_link()
        chunks = []

        def disturbed(x):
            if len(x) == 10 and len(chunks) < _cost.PROBE * (_cost.REPEATS + 1):
                chunks.append(now[0])
                now[0] += 0.02
            return slow(x)

        f = overlap_comm(group=link)(disturbed)
        with unittest.mock.patch.object(_cost.time, "perf_counter", lambda: now[0]):
            f(torch.zeros(40, 500))
        (decision,) = f.overlap.decisions.values()
        self.assertGreater(decision.per_chunk, 0.02)
        self.assertEqual(decision.chunks, 16, decision)

    def test_one_chunk_that_seemed_slow_promises_nothing(self):
        """Another process used the CPU during the first measurement."""
        now, link, slow = self.slow_link()
        whole_ones = []

        def dear(x):
            now[0] += 0.02  # a cost of each call, so that chunks gain nothing
            if len(x) == 40:
                whole_ones.append(x)
                if _cost.REPEATS + 1 < len(whole_ones) <= 2 * (_cost.REPEATS + 1):
                    now[0] += 0.1
            return slow(x)

        f = overlap_comm(group=link, check=False)(dear)
        with unittest.mock.patch.object(_cost.time, "perf_counter", lambda: now[0]):
            f(torch.zeros(40, 500))
        (decision,) = f.overlap.decisions.values()
        self.assertEqual(decision.chunks, 1, decision)
        self.assertAlmostEqual(decision.plain, 0.0601)

    @both
    def test_all_ranks_choose_alike_and_say_why(self, run):
        def child(rank, group):
            f = overlap_comm(group=group)(product)
            y = f(whole(rank, 256, 64), whole(9, 64, 64))
            (decision,) = f.overlap.decisions.values()
            return decision, y

        (a, x), (b, y) = run(child)
        self.assertEqual(a, b)
        self.assertTrue(a.reason)
        self.assertTrue(torch.equal(x, y))

    @both
    def test_a_result_can_be_waited_for_later(self, run):
        def child(rank, group):
            f = overlap_comm(chunks=3, group=group, async_result=True)(product)
            pending = f(whole(rank, ROWS, INNER), whole(9, INNER, OUTER))
            return pending.wait(), pending.wait()

        expected = sum(whole(r, ROWS, INNER) for r in range(WORLD)) @ whole(9, INNER, OUTER)
        for first, again in run(child):
            self.assertTrue(torch.equal(first, expected))
            self.assertTrue(torch.equal(again, expected))


if __name__ == "__main__":
    unittest.main(verbosity=1)

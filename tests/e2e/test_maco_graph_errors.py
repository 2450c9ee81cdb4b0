#!/usr/bin/python3
"""TaskGraph: every error, runs that fail or are cancelled, and that a graph can run afterwards."""
from __future__ import annotations

import os
import pathlib
import random
import signal
import sys
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

import hybridps  # noqa: E402
import maco  # noqa: E402
from maco import TaskGraph, TaskType, _abi, errors, task_graph  # noqa: E402

POLICIES = ("direct", "scheduler", "static")


def rand(*shape):
    return torch.randn(*shape)


class Errors(unittest.TestCase):
    def refused(self, kind, text, call, *args, **options):
        with self.assertRaisesRegex(kind, text) as caught:
            call(*args, **options)
        self.assertRegex(str(caught.exception), r"\nHint: .")
        return caught.exception

    def test_what_a_task_can_t_take(self):
        g, a = TaskGraph(), rand(4, 3)
        add, T = g.add_task, TaskType
        self.refused(errors.NullInputError, "has 1 inputs", add, T.MATMUL, [a], [rand(4, 4)])
        self.refused(errors.NullInputError, "is None", add, T.MATMUL, [a, None], [rand(4, 4)])
        self.refused(errors.NullInputError, "is a list", add, T.GELU, [[1.0]], [a])
        self.refused(errors.NullInputError, "no function", add, T.CUSTOM_COMPUTE, [a], [a])
        self.refused(
            errors.ShapeMismatchError,
            r"A \(4, 3\), B \(4, 3\)",
            add,
            T.MATMUL,
            [a, a],
            [rand(4, 3)],
        )
        self.refused(errors.ShapeMismatchError, "bias", g.linear, a, rand(5, 3), rand(4))
        self.refused(
            errors.ShapeMismatchError,
            "K and V",
            g.attention,
            rand(1, 1, 2, 4),
            rand(1, 1, 3, 4),
            rand(1, 1, 2, 4),
        )
        self.refused(errors.DimensionError, "heads, sequence", g.attention, a, a, a)
        self.refused(
            errors.DimensionError,
            "Hint",
            g.attention,
            rand(1, 3, 2, 4),
            rand(1, 2, 2, 4),
            rand(1, 2, 2, 4),
        )
        self.refused(errors.DimensionError, "no elements", g.gelu, torch.empty(0, 3))
        self.refused(errors.DimensionError, "unknown task type", add, 77)
        self.refused(
            errors.DimensionError,
            "has no approximate",
            add,
            T.SILU,
            [a],
            [rand(4, 3)],
            approximate="tanh",
        )
        self.refused(errors.DimensionError, "op is 'max'", g.elementwise, "max", a, a)
        self.refused(errors.LayoutError, "evenly", g.gelu, rand(4, 6)[:, ::2])
        self.refused(errors.LayoutError, "evenly", g.gelu, rand(1, 3).expand(4, 3))
        self.refused(errors.LayoutError, "contiguous", g.allreduce, a.t())
        self.refused(errors.DTypeError, "float64", g.gelu, a.double())
        self.refused(errors.DTypeError, "same dtype", g.linear, a, rand(5, 3).half())
        self.refused(errors.DTypeError, "requires grad", g.gelu, a, out=rand(4, 3).requires_grad_())
        self.refused(errors.LayoutError, "no memory", g.copy, a, out=a.to("meta"))
        self.refused(errors.OverlapError, "overlap", g.linear, a, rand(3, 3), out=a)
        self.refused(errors.ShapeMismatchError, "ranks", add, T.ALLGATHER, [a], [rand(3, 3)])
        self.refused(errors.DimensionError, "rank 1 of 1", g.broadcast, a, 1)
        self.assertEqual(g.tasks, [])

    def test_whatever_is_given_is_run_or_refused(self):
        """Thousands of tasks on random tensors: each raises an error of ours, or runs."""
        dice = random.Random(11)
        torch.manual_seed(11)
        kinds = [t for t in TaskType if t.name not in ("SEND", "RECV")]
        ran = refused = 0

        def tensor():
            if dice.random() < 0.03:
                return dice.choice((None, 3, "x", torch.empty(0), torch.empty(2, 2).to_sparse()))
            shape = dice.choices((1, 2, 3, 4, 8), k=dice.choice((1, 2, 2, 2, 2, 3, 4)))
            t = torch.rand(shape).to(
                dice.choice(
                    (torch.float32,) * 8
                    + (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool)
                )
            )
            turn = dice.random()
            if turn < 0.1 and t.dim() > 1:
                t = t.transpose(0, 1)
            elif turn < 0.15:
                t = t[::2]
            elif turn < 0.18:
                t = t.expand(2, *t.shape)
            return t

        for _ in range(4000):
            g, pool = TaskGraph(1, timeout_s=5), [tensor() for _ in range(3)]
            kind = dice.choice(kinds)
            if dice.random() < 0.5:  # shapes that may well fit
                n = dice.choice((2, 4, 8))
                pool = [torch.rand(n, n) for _ in range(3)] + [torch.rand(1, 2, n, n)]
            attributes = dice.choice(
                ({},) * 6
                + (
                    {"op": dice.choice(_abi.ELEMENTWISE + _abi.REDUCE)},
                    {"value": dice.randint(-2, 300)},
                    {"root": 1},
                    {"eps": float("nan")},
                    {"alpha": 2.0},
                    {"causal": True},
                    {"trailing": 2},
                )
            )
            if kind in (TaskType.CUSTOM_COMPUTE, TaskType.CUSTOM_COMM):
                attributes = {"function": lambda i, o: None}
            try:
                for _ in range(2):
                    g.add_task(
                        kind,
                        dice.choices(pool, k=dice.randint(0, 4)),
                        dice.choices(pool, k=dice.randint(0, 2)),
                        worker=dice.choice((-1, -1, -1, 0, 7)),
                        **attributes,
                    )
                g.execute()
                ran += 1
            except maco.MacoError as error:
                self.assertRegex(str(error), r"\nHint: .")
                refused += 1
            g.close()
        self.assertGreater(ran, 100)
        self.assertGreater(refused, 1000)

    def test_devices(self):
        self.refused(errors.DeviceError, "unknown device .toaster.", TaskGraph, device="toaster")
        if not torch.cuda.is_available():
            self.refused(errors.DeviceError, "CUDA is not available", TaskGraph, device="cuda")
            self.assertNotEqual(_abi.cuda_available(), "")
        g = TaskGraph()
        g.gelu(rand(2, 2))
        self.refused(errors.DeviceError, "stream", g.execute, stream=object())

    def test_two_writers_without_order(self):
        with TaskGraph(infer=False) as g:
            out = torch.empty(4, 4)
            one = g.gelu(rand(4, 4), out=out, name="one")
            two = g.silu(rand(4, 4), out=out, name="two")
            self.refused(errors.OverlapError, '"two" writes what task "one" writes', g.compile)
            g.add_dependency(two, one)
            g.execute()

    def test_a_dependency_the_wrong_way_round_is_refused(self):
        g = TaskGraph()
        one = g.gelu(rand(4, 4), name="one")
        two = g.silu(one.output, name="two")
        g.add_dependency(one, two)
        self.refused(errors.OverlapError, '"two" reads what task "one" writes', g.compile)

    def test_a_cycle_is_named(self):
        g = TaskGraph()
        a, b, c = (g.nop(name=n) for n in "abc")
        for task, on in ((a, b), (b, c), (c, a)):
            g.add_dependency(task, on)
        error = self.refused(errors.CyclicDependencyError, '"[abc]" waits for "[abc]"', g.execute)
        self.assertIn(error.names, (("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")))
        self.refused(errors.CyclicDependencyError, "itself", g.add_dependency, a, a)

    def test_too_early_and_too_late(self):
        g = TaskGraph()
        self.refused(errors.NullInputError, "no tasks", g.compile)
        self.refused(errors.NotCompiledError, "no run was traced", g.save_trace, "/dev/null")
        task = g.nop()
        plan = g.compile()
        self.assertIs(g.compile(), plan)
        self.refused(errors.AlreadyCompiledError, "add_task", g.nop)
        self.refused(errors.AlreadyCompiledError, "add_dependency", g.add_dependency, task, task)
        g.execute()
        self.refused(errors.NotCompiledError, "trace=True", plan.overlap_stats)
        self.refused(
            errors.NullInputError, "a task of this graph", TaskGraph().add_dependency, task, task
        )

    def test_more_workers_than_can_be(self):
        g = TaskGraph(100_000)
        g.nop()
        self.refused(errors.NotCoResidentError, "100000 workers", g.execute)
        self.refused(errors.DimensionError, "0 workers", TaskGraph, 0)

    def test_a_deadline_names_who_waits_for_what(self):
        release = threading.Event()
        g = TaskGraph(1, timeout_s=0.2)
        slow = g.custom(lambda i, o: release.wait(30), name="slow")
        g.add_dependency(g.nop(name="after"), slow)
        begun, kept = time.monotonic(), len(task_graph._abandoned)
        error = self.refused(errors.TimeoutError, "slow", g.execute)
        self.assertLess(time.monotonic() - begun, 10)
        # its memory stays, because it is still in use
        self.assertEqual(len(task_graph._abandoned), kept + 1)
        self.assertIsInstance(error, TimeoutError)
        release.set()
        self.runs_again(g, ["slow", "after"])
        g.close()

    def test_exceptions_of_tasks_are_raised_where_the_graph_is_run(self):
        class Mine(Exception):
            pass

        ran, kept = [], len(task_graph._abandoned)

        def bad(_in, _out):
            raise Mine("as I say")

        for policy in POLICIES:
            with TaskGraph(2, policy=policy) as g:
                task = g.custom(bad, name="bad")
                g.add_dependency(g.custom(lambda i, o: ran.append(1)), task)
                with self.assertRaisesRegex(Mine, "^as I say") as caught:
                    g.execute()
                self.assertIn('task "bad" of a maco graph', str(caught.exception.__notes__))
                with self.assertRaises(Mine):
                    g.execute(wait=False).wait()
        self.assertEqual(ran, [])
        self.assertEqual(len(task_graph._abandoned), kept)

    def test_a_run_is_cancelled_from_another_thread(self):
        with TaskGraph(1) as g:
            begun, release = threading.Event(), threading.Event()
            first = g.custom(lambda i, o: (begun.set(), release.wait(20)))
            g.add_dependency(g.nop(), first)
            result = g.execute(wait=False)
            self.assertTrue(begun.wait(20))
            g.cancel()
            release.set()
            with self.assertRaises(errors.CanceledError):
                result.wait()

    def test_an_interrupt_ends_a_run(self):
        release, begun = threading.Event(), threading.Event()

        def interrupt():
            begun.wait(20)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        for wait in (True, False):
            with self.subTest(wait=wait), TaskGraph(1, timeout_s=60) as g:
                begun.clear()
                release.clear()
                slow = g.custom(lambda i, o: (begun.set(), release.wait(40)), name="slow")
                g.add_dependency(g.nop(name="after"), slow)
                other = threading.Thread(target=interrupt)
                other.start()
                start = time.monotonic()
                with self.assertRaises(KeyboardInterrupt):
                    g.execute(wait=wait).wait()
                self.assertLess(time.monotonic() - start, 20)
                other.join()
                release.set()
                self.runs_again(g, ["slow", "after"])

    def runs_again(self, g, order):
        for _ in range(1000):  # until the worker has left its task
            try:
                self.assertEqual(g.execute().order, order)
                return
            except maco.MacoError:
                time.sleep(0.01)
        self.fail("the graph did not run again")

    def test_two_graphs_over_one_group(self):
        begun, go = threading.Event(), threading.Event()
        group = hybridps.Group.shm(f"helios-test-maco-{os.getpid()}", 0, 1)
        with group, TaskGraph(group=group) as one, TaskGraph(group=group) as other:
            one.custom(lambda i, o: (begun.set(), go.wait(20)))
            one.allreduce(torch.ones(3))
            other.allreduce(torch.ones(3))
            running = one.execute(wait=False)
            self.assertTrue(begun.wait(20))
            self.refused(maco.MacoError, "another graph is running over this group", other.execute)
            go.set()
            running.wait()
            other.execute()

    def test_a_forked_child_is_refused(self):
        with TaskGraph() as g:
            g.nop()
            g.execute()
            pid = os.fork()
            if pid == 0:
                try:
                    g.execute()
                    os._exit(1)
                except maco.MacoError as error:
                    os._exit(0 if "fork" in str(error) else 2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


if __name__ == "__main__":
    unittest.main()

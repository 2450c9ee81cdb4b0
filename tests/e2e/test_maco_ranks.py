#!/usr/bin/python3
"""Graphs on several ranks: collectives whole and in waves, a rank that deviates, one that dies."""
from __future__ import annotations

import datetime
import itertools
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.distributed as dist
import torch.nn as nn

import hybridps  # noqa: E402
from maco import TaskGraph, TaskType, errors  # noqa: E402
from maco_models import SplitDit, SplitLlm, teach_gloo  # noqa: E402
from ranks import ranks  # noqa: E402

WORLD, ROWS, COLS = 2, 12, 5
names = itertools.count()


def whole(seed, *shape):
    """Small whole numbers: sums are exact in whatever order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def on(kind, run, world=WORLD, timeout=20.0, **options):
    """run(rank, group) on each rank."""
    home, number = tempfile.TemporaryDirectory(), next(names)

    def one(rank):
        torch.set_num_threads(1)
        if kind == "gloo":
            dist.init_process_group(
                "gloo",
                init_method=f"file://{home.name}/store",
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(seconds=timeout),
            )
            return run(rank, None)
        name = f"helios-test-maco-{os.getppid()}-{number}"
        with hybridps.Group.shm(name, rank, world, timeout) as group:
            return run(rank, group)

    with home:
        return ranks(one, world, **options)


class Collectives(unittest.TestCase):
    def test_each_on_both_kinds_of_groups(self):
        def run(rank, group):
            out = {}
            x = whole(rank, WORLD * 4, 3)
            with TaskGraph(group=group) as g:
                for op in ("sum", "avg", "min", "max", "prod"):
                    out[op] = g.allreduce(x, op)
                out["gather"] = g.allgather(x)
                out["scatter"] = g.reduce_scatter(x)
                out["all"] = g.all_to_all(x)
                out["broadcast"] = g.broadcast(x, 1)
                g.execute()
                return {k: t.output for k, t in out.items()}

        x = torch.stack([whole(r, WORLD * 4, 3) for r in range(WORLD)])
        for kind in ("shm", "gloo"):
            for rank, got in enumerate(on(kind, run)):
                part = slice(rank * 4, rank * 4 + 4)
                want = {
                    "sum": x.sum(0),
                    "avg": x.mean(0),
                    "min": x.amin(0),
                    "max": x.amax(0),
                    "prod": x.prod(0),
                    "gather": x.flatten(0, 1),
                    "scatter": x.sum(0)[part],
                    "all": x[:, part].flatten(0, 1),
                    "broadcast": x[1],
                }
                for name in want:
                    self.assertTrue(torch.equal(got[name], want[name]), (kind, rank, name))

    def test_what_is_sent_is_received(self):
        def run(rank, group):
            with TaskGraph(group=group) as g:
                x, y = whole(rank, 4), torch.empty(4)
                if rank == 0:
                    g.send(x, 1)
                    g.recv(y, 1, tag=3)
                else:
                    g.recv(y, 0)
                    g.send(x, 0, tag=3)
                g.execute()
                return y

        got = on("shm", run)
        self.assertTrue(torch.equal(got[0], whole(1, 4)) and torch.equal(got[1], whole(0, 4)))

    def test_a_function_in_the_turn_of_collectives(self):
        def run(rank, group):
            seen = []
            with TaskGraph(group=group) as g:
                x = torch.ones(3)
                g.allreduce(x, out=x, name="before")
                g.custom(lambda i, o: seen.append(i[0].clone()), [x], comm=True)
                g.allreduce(x, out=x, name="after")
                g.execute()
                return seen[0][0].item(), x[0].item()

        self.assertEqual(on("shm", run), [(2, 4)] * 2)


def pairs(g, kind, x, w):
    """A product beside a collective: (computes, communicates, result)."""
    if kind == "allgather":
        comm = g.allgather(x)
        compute = g.linear(comm, w)
        return compute, comm, compute.output
    compute = g.linear(x, w)
    comm = {
        "allreduce": lambda: g.allreduce(compute, out=compute.output),
        "reduce_scatter": lambda: g.reduce_scatter(compute),
        "all_to_all": lambda: g.all_to_all(compute),
    }[kind]()
    return compute, comm, comm.output


class Waves(unittest.TestCase):
    def test_waves_give_the_values_of_the_whole(self):
        kinds = ("allreduce", "reduce_scatter", "allgather", "all_to_all")

        def run(rank, group):
            x, w = whole(10 + rank, ROWS, COLS), whole(20 + rank, 4, COLS)
            out = {}
            for kind, waves in itertools.product(kinds, (1, 2, 3, 5)):
                with TaskGraph(2, group=group, trace=True) as g:
                    compute, comm, result = pairs(g, kind, x, w)
                    g.add_dependency(*((compute, comm) if kind == "allgather" else (comm, compute)))
                    g.overlap(compute, comm).with_waves(waves)
                    for _ in range(3):
                        result.fill_(float("nan"))
                        g.execute()
                    out[kind, waves] = result.clone()
                    assert g.compile().overlap_stats()["comm_before_producer"] == 0
            return out

        got = on("shm", run)
        for rank, kind in itertools.product(range(WORLD), kinds):
            for waves in (2, 3, 5):
                self.assertTrue(
                    torch.equal(got[rank][kind, waves], got[rank][kind, 1]), (rank, kind, waves)
                )
        x = [whole(10 + r, ROWS, COLS) for r in range(WORLD)]
        w = [whole(20 + r, 4, COLS) for r in range(WORLD)]
        y = torch.stack([a @ b.t() for a, b in zip(x, w)])
        for rank in range(WORLD):
            half = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
            self.assertTrue(torch.equal(got[rank]["allreduce", 5], y.sum(0)))
            self.assertTrue(torch.equal(got[rank]["reduce_scatter", 5], y.sum(0)[half]))
            self.assertTrue(torch.equal(got[rank]["allgather", 5], torch.cat(x) @ w[rank].t()))
            self.assertTrue(torch.equal(got[rank]["all_to_all", 5], y[:, half].flatten(0, 1)))

    def test_the_first_wave_communicates_while_the_last_is_computed(self):
        """Checked by the plan alone, because times on a busy machine mean nothing."""

        def run(rank, group):
            with TaskGraph(2, group=group) as g:
                compute, comm, _ = pairs(
                    g, "reduce_scatter", torch.randn(64, 32), torch.randn(16, 32)
                )
                g.overlap(compute, comm).with_waves(4)
                tasks = g.compile().describe()["tasks"]
                return [
                    sum(tasks[p]["type"] == "MEMCPY" for p in t["parents"])
                    for t in tasks
                    if t["type"] == "REDUCE_SCATTER"
                ], [len(t["parents"]) for t in tasks if t["type"] == "MEMCPY"]

        for collectives, copies in on("shm", run):
            self.assertEqual((collectives, copies), ([1] * 4, [WORLD] * 4))

    def test_chosen_waves_are_the_same_on_all_ranks(self):
        def run(rank, group):
            with TaskGraph(rank + 1, group=group) as g:  # even so
                compute, comm, result = pairs(
                    g, "allreduce", torch.randn(256, 128), torch.randn(128, 128)
                )
                overlap = g.overlap(compute, comm).auto_waves()
                g.execute()
                return overlap.waves

        got = on("shm", run)
        self.assertEqual(got[0], got[1])


class Trouble(unittest.TestCase):
    def test_other_collectives_on_one_rank(self):
        for second, told in (
            (
                lambda g, rank: g.allreduce(torch.ones(9 - rank), name="second"),
                ("of 9 F32)", "of 8 F32)"),
            ),
            (
                lambda g, rank: g.allreduce(torch.ones(8), ("min", "max")[rank], name="second"),
                ("F32, min)", "F32, max)"),
            ),
            (
                lambda g, rank: g.broadcast(torch.ones(8), rank, name="second"),
                ("root 0)", "root 1)"),
            ),
        ):

            def run(rank, group):
                with TaskGraph(group=group, timeout_s=20) as g:
                    g.allreduce(torch.ones(8), name="first")
                    second(g, rank)
                    begun = time.monotonic()
                    try:
                        g.execute()
                    except errors.OrderMismatchError as error:
                        return str(error), time.monotonic() - begun

            for text, took in on("shm", run):
                for word in ("second", "\nHint: ", *told):
                    self.assertIn(word, text)
                self.assertLess(took, 15)

    def test_alike_collectives_in_another_order_on_one_rank(self):
        def swapped(g, rank):
            for name in "ba" if rank else "ab":
                g.allreduce(torch.ones(8), name=f"sum {name}")

        def by_priority(g, rank):
            for i in range(2):
                g.allreduce(torch.ones(8), priority=i * rank)

        def by_dependency(g, rank):
            both = [g.allreduce(torch.ones(8)) for _ in range(2)]
            if rank:
                g.add_dependency(both[0], both[1])

        def by_name(g, rank):
            g.allreduce(torch.ones(8), name=f"of rank {rank}")

        for build, words in (
            (swapped, ('"sum a"', '"sum b"', "collective 0")),
            (by_priority, ("number 2 of its like) on rank 1",)),
            (by_dependency, ("number 2 of its like) on rank 1",)),
            (by_name, ('"of rank 0"', '"of rank 1"')),
        ):

            def run(rank, group):
                with TaskGraph(group=group, timeout_s=20) as g:
                    build(g, rank)
                    begun = time.monotonic()
                    try:
                        g.execute()
                    except errors.OrderMismatchError as error:
                        return str(error), time.monotonic() - begun

            for kind in ("shm", "gloo"):
                for text, took in on(kind, run):
                    for word in ("group 0: collective 0 is", "\nHint: ", "names", *words):
                        self.assertIn(word, text)
                    self.assertLess(took, 15)

    def test_alike_collectives_that_agree(self):
        def run(rank, group):
            with TaskGraph(group=group) as g:
                x = torch.tensor([1.0, 10.0, 100.0]) * (rank + 1)
                if rank:  # one more task, which changes the numbers in generated names
                    g.copy(x)
                sums = [
                    g.allreduce(x[i : i + 1], name=name) for i, name in enumerate(("a", None, None))
                ]
                # named, and ordered by priority
                b = {
                    i: g.allreduce(x[i : i + 1], name=f"sum {i}", priority=-1 - i)
                    for i in ((1, 0) if rank else (0, 1))
                }
                for _ in range(2):
                    g.execute()
                return [t.output.item() for t in (*sums, b[0], b[1])]

        for kind in ("shm", "gloo"):
            self.assertEqual(on(kind, run), [[3, 30, 300, 3, 30]] * WORLD)

    def test_a_rank_that_dies(self):
        def run(rank, group):
            x = torch.ones(1000)
            with TaskGraph(group=group, timeout_s=30) as g:
                if rank:
                    g.custom(lambda i, o: os.kill(os.getpid(), signal.SIGKILL), [], [x])
                else:
                    g.custom(lambda i, o: None, [], [x])
                g.allreduce(x, out=x, name="the sum")
                begun = time.monotonic()
                try:
                    g.execute()
                except errors.MacoError as error:
                    return type(error).__name__, str(error), time.monotonic() - begun

        kind, text, took = on("shm", run, dies=(1,))[0]
        self.assertEqual(kind, "CollectiveFailedError")
        self.assertIn("the sum", text)
        self.assertLess(took, 25)

    def test_a_rank_that_never_comes(self):
        gone, tell = os.pipe()

        def run(rank, group):
            if rank:
                return os.read(gone, 1)  # alive until the other has given up
            with TaskGraph(group=group, timeout_s=1) as g:
                g.allreduce(torch.ones(8), name="lonely")
                begun = time.monotonic()
                try:
                    g.execute()
                except (errors.TimeoutError, errors.CollectiveFailedError) as error:
                    return str(error), time.monotonic() - begun
                finally:
                    os.write(tell, b".")

        text, took = on("shm", run, timeout=8.0)[0]  # of joining, too
        os.close(gone), os.close(tell)
        self.assertLess(took, 60)
        self.assertIn("Hint", text)

    def test_what_a_task_of_one_rank_raises(self):
        def run(rank, group):
            x = torch.ones(4)

            def maybe(_in, _out):
                if rank:
                    raise KeyError("mine")

            with TaskGraph(group=group, timeout_s=5) as g:
                g.custom(maybe, [], [x])
                g.allreduce(x, out=x)
                try:
                    g.execute()
                except (KeyError, errors.MacoError) as error:
                    return type(error).__name__

        got = on("shm", run, timeout=8.0)
        self.assertEqual(got[1], "KeyError")
        self.assertIn(got[0], ("CollectiveFailedError", "TimeoutError"))

    def test_a_rank_that_drops_its_group_ends_the_wait_of_the_others(self):
        name = f"helios-test-maco-{os.getpid()}-{next(names)}"
        waited, tell = os.pipe()

        def work(rank):
            group = hybridps.Group.shm(name, rank, WORLD, 40)
            if rank:
                raise KeyError("mine")
            with TaskGraph(group=group, timeout_s=20) as g:
                g.allreduce(torch.ones(4))
                g.execute()

        def run(rank):
            try:
                work(rank)
            except (KeyError, errors.MacoError) as error:
                said = type(error).__name__
            if rank:
                os.read(waited, 1)  # it lives on, and calls nothing more
            else:
                os.write(tell, b"x")
            return said

        self.assertEqual(ranks(run, WORLD), ["CollectiveFailedError", "KeyError"])
        os.close(waited), os.close(tell)

    def test_a_rank_that_left_a_collective_out_does_not_answer_it_with_another(self):
        def run(rank, group):
            x, out = torch.full((4,), 1.0 + rank), torch.zeros(4)

            def maybe(_in, _out):
                if rank:
                    raise KeyError("mine")

            said = []
            with TaskGraph(group=group, timeout_s=20) as g:
                g.add_dependency(g.allreduce(x, out=out, name="sum"), g.custom(maybe, [], []))
                for call in (
                    g.execute,
                    lambda: group.allreduce(torch.full((4,), 100.0), name="another"),
                ):
                    try:
                        call()
                        said.append(out.tolist())
                    except (KeyError, errors.MacoError, hybridps.HybridPSError) as error:
                        said.append(str(error))
            return said

        (waited, lost), (raised, asked) = on("shm", run)
        self.assertIn("mine", raised)
        self.assertRegex(
            waited,
            (
                'rank 1 calls .*"the first call after a failed run".*'
                'rank 0 .* calls allreduce of "sum"'
            ),
        )
        self.assertIn("first call after a failed run", asked)
        self.assertIn("the group is lost", lost)

    def test_ranks_that_failed_alike_go_on(self):
        def run(rank, group):
            x, out, bad = torch.full((4,), 1.0 + rank), torch.zeros(4), [True]

            def maybe(_in, _out):
                if bad:
                    raise KeyError("alike")

            with TaskGraph(group=group, timeout_s=20) as g:
                g.add_dependency(g.allreduce(x, out=out, name="sum"), g.custom(maybe, [], []))
                with self.assertRaises(KeyError):
                    g.execute()
                bad.clear()
                g.execute()
                return out.tolist()

        self.assertEqual(on("shm", run), [[sum(1.0 + r for r in range(WORLD))] * 4] * WORLD)

    def test_a_rank_that_fails_after_its_collectives_goes_on_with_the_others(self):
        def run(rank, group):
            x, out = torch.full((4,), 1.0 + rank), torch.zeros(4)

            def maybe(_in, _out):
                if rank:
                    raise KeyError("late")

            with TaskGraph(group=group, timeout_s=20) as g:
                g.add_dependency(g.custom(maybe, [], []), g.allreduce(x, out=out, name="sum"))
                try:
                    g.execute()
                except KeyError:
                    pass
            return group.allreduce(torch.ones(1)).tolist()

        self.assertEqual(on("shm", run), [[float(WORLD)]] * WORLD)

    def test_a_collective_that_from_module_does_not_know(self):
        class Reduces(nn.Module):
            def forward(self, x):
                dist.reduce(x, 0)
                return x * 2

        class Odd(nn.Module):
            def forward(self, x):
                dist.all_reduce(x, dist.ReduceOp.BXOR)
                return x * 2

        def run(rank, _):
            refused = []
            for module in (Reduces(), Odd()):
                try:
                    TaskGraph.from_module(module, torch.ones(2, 3))
                except errors.UnsupportedError as error:
                    refused.append(str(error))
            return refused

        for reduces, odd in on("gloo", run):
            self.assertRegex(
                reduces, r"reduce\(\) in Reduces: it has no task type\nHint: .*all_gather"
            )
            self.assertRegex(odd, r"all_reduce\(\) in Odd: unknown reduction")

    def test_blocks_that_are_split_over_ranks(self):
        def run(rank, _):
            teach_gloo()
            torch.manual_seed(rank)  # parts differ
            out = []
            for module, shapes in ((SplitLlm(), [(4, 2, 32)]), (SplitDit(), [(2, 6, 32), (2, 32)])):
                with TaskGraph.from_module(
                    module, [torch.randn(s) for s in shapes], strict=True
                ) as graph:
                    for _ in range(3):
                        inputs = [torch.randn(s) for s in shapes]
                        with torch.no_grad():
                            torch.testing.assert_close(
                                graph(*inputs), module(*inputs), rtol=1e-4, atol=1e-4
                            )
                    out.append(
                        {k: n for k, n in graph.report()["types"].items() if TaskType[k].is_comm}
                    )
            return out

        for llm, dit in on("gloo", run):
            self.assertEqual(llm, {"ALLGATHER": 2, "REDUCE_SCATTER": 2})
            self.assertEqual(dit, {"BROADCAST": 1, "ALLGATHER": 1, "ALLREDUCE": 2})

    def test_each_collective_of_a_module(self):
        class All(nn.Module):
            def forward(self, x):
                parts = list(x.clone().view(WORLD, -1))
                mine = torch.empty_like(parts[0])
                dist.reduce_scatter(mine, parts, op=dist.ReduceOp.MAX)
                whole = torch.empty_like(x)
                dist._all_gather_base(whole.view(-1), mine, group=dist.group.WORLD)
                sums = torch.empty_like(mine)
                dist._reduce_scatter_base(sums, whole.view(-1), dist.ReduceOp.SUM)
                dist.broadcast(tensor=sums, src=1)
                work = dist.all_reduce(whole, op=dist.ReduceOp.MIN, async_op=True)
                work.wait()
                return whole + sums.sum()

        def run(rank, _):
            teach_gloo()

            def listed(output, input_list, op=None):
                dist._reduce_scatter_base(output, torch.cat(input_list), op)

            dist.reduce_scatter = listed
            module = All()
            with TaskGraph.from_module(module, whole(rank, 4, 3)) as graph:
                for i in range(3):
                    x = whole(2 * i + rank, 4, 3)
                    if not torch.equal(graph(x), module(x)):
                        return "differs"
                return graph.report()["types"]

        for types in on("gloo", run):
            self.assertEqual(
                [types[k] for k in ("REDUCE_SCATTER", "ALLGATHER", "BROADCAST", "ALLREDUCE")],
                [2, 1, 1, 1],
            )


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
"""TaskGraph: torch's values, the bits of the same tasks run one after the other, traces. Errors are
in test_maco_graph_errors.py."""
from __future__ import annotations

import gc
import itertools
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import threading
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
ROOT = needs.ROOT
import torch.nn.functional as F

import hybridps  # noqa: E402
import maco  # noqa: E402
from maco import TaskGraph, TaskType, _abi, _sm, errors  # noqa: E402
from maco._sm import run_sm_scheduling_demo  # noqa: E402

HEADER = (ROOT / "include" / "helios" / "maco.h").read_text()
POLICIES = ("direct", "scheduler", "static")


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def run(build, **options):
    """The result of build(graph)'s task."""
    with TaskGraph(**options) as graph:
        task = build(graph)
        graph.execute()
        return task.output


class Abi(unittest.TestCase):
    def test_numbers_are_those_of_the_header(self):
        text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
        types = {n: int(v) for n, v in re.findall(r"MACO_TASK_([A-Z_]+) =\s*(\d+)", text)}
        self.assertEqual(types, {t.name: int(t) for t in TaskType})
        self.assertEqual(types["LINEAR"], 102)

        def enum(name, prefix="MACO_"):
            body = re.search(rf"enum {name} {{(.*?)}}", text, re.S)[1]
            pairs = re.findall(prefix + r"([A-Z0-9_]+) = (\d+)", body)
            return [n.lower() for n, _ in sorted(pairs, key=lambda p: int(p[1]))]

        self.assertEqual(tuple(enum("maco_elementwise")), _abi.ELEMENTWISE)
        self.assertEqual(tuple(enum("maco_reduce")), _abi.REDUCE)
        self.assertEqual(tuple(enum("maco_policy")), _abi.POLICIES)
        self.assertEqual(tuple(enum("maco_balance")), _abi.BALANCES)
        self.assertEqual([getattr(_abi, n.upper()) for n in enum("maco_dtype")], list(range(7)))
        codes = (ROOT / "include" / "helios" / "helios.h").read_text()
        for name in (
            "EINVAL",
            "ENOSPC",
            "ETIMEDOUT",
            "EUNAVAIL",
            "EBUSY",
            "ECANCELED",
            "EPERM",
            "EUNSUPPORTED",
            "ECONFLICT",
            "EINTERNAL",
        ):
            self.assertIn(f"HELIOS_{name} = {getattr(_abi, name)}", codes)


class Tasks(unittest.TestCase):
    """Each type against torch."""

    def close(self, got, want, dtype=torch.float32):
        bits = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        self.assertEqual(got.shape, want.shape)
        self.assertLessEqual(
            (got.float() - want.float()).abs().max().item(),
            bits * max(want.float().abs().max().item(), 1),
        )

    def test_products(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            a, b, bias = rand(7, 5, dtype=dtype), rand(5, 6, dtype=dtype), rand(6, dtype=dtype)
            w, x = rand(6, 5, dtype=dtype), rand(2, 3, 5, dtype=dtype)
            want = a.float() @ b.float()
            self.close(run(lambda g: g.matmul(a, b)), want, dtype)
            self.close(run(lambda g: g.matmul(a, b, bias)), want + bias.float(), dtype)
            self.close(
                run(lambda g: g.linear(x, w, bias)),
                F.linear(x.float(), w.float(), bias.float()),
                dtype,
            )

    def test_transposed_and_strided_operands_need_no_copy(self):
        a, b = rand(5, 7).t(), rand(6, 5).t()
        self.close(run(lambda g: g.matmul(a, b)), a @ b)
        wide = rand(8, 20)
        x, out = wide[:, 3:8], torch.zeros(8, 10)
        run(lambda g: g.linear(x, rand(4, 9)[:, 2:7], out=out[:, 1:5]))
        self.assertEqual(out[:, 5:].abs().sum(), 0)
        self.close(run(lambda g: g.gelu(x)), F.gelu(x))

    def test_alpha_and_beta(self):
        a, b, c = rand(4, 3), rand(3, 5), rand(4, 5)
        want = 2 * a @ b - 0.5 * c
        self.close(run(lambda g: g.matmul(a, b, out=c, alpha=2, beta=-0.5)), want)

    def test_attention(self):
        b, h, s, d = 2, 4, 9, 8
        for kv, sk, causal, masked in itertools.product(
            (4, 2), (9, 12), (False, True), (False, True)
        ):
            q, k, v = rand(b, h, s, d), rand(b, kv, sk, d), rand(b, kv, sk, d)
            mask = rand(s, sk) if masked else None
            scores = q @ k.repeat_interleave(h // kv, 1).transpose(2, 3) * 0.3
            scores = scores + mask if masked else scores
            if causal:
                scores = scores.masked_fill(torch.ones(s, sk).triu(1 + sk - s).bool(), -torch.inf)
            lse = torch.empty(b, h, s)
            got = run(lambda g: g.attention(q, k, v, mask, causal, 0.3, lse=lse))
            self.close(got, scores.softmax(-1) @ v.repeat_interleave(h // kv, 1))
            self.close(lse, scores.logsumexp(-1))

    def test_rows(self):
        x, w, b = rand(3, 4, 10), rand(10), rand(10)
        self.close(run(lambda g: g.layernorm(x, w, b)), F.layer_norm(x, (10,), w, b))
        self.close(run(lambda g: g.layernorm(x)), F.layer_norm(x, (10,)))
        w2, b2 = rand(4, 10), rand(4, 10)
        self.close(run(lambda g: g.layernorm(x, w2, b2)), F.layer_norm(x, (4, 10), w2, b2))
        norm = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        self.close(run(lambda g: g.rmsnorm(x, w)), norm)
        self.close(run(lambda g: g.gelu(x)), F.gelu(x))
        self.close(run(lambda g: g.gelu(x, "tanh")), F.gelu(x, approximate="tanh"))
        self.close(run(lambda g: g.silu(x)), F.silu(x))
        self.close(run(lambda g: g.softmax(x)), x.softmax(-1))

    def test_elementwise_copies_and_memory(self):
        a, b = rand(5, 6), rand(5, 6)
        for op, want in (("add", a + b), ("sub", a - b), ("mul", a * b), ("scale_add", 2 * a + b)):
            self.close(run(lambda g: g.elementwise(op, a, b, alpha=2)), want)
        self.close(run(lambda g: g.elementwise("axpb", a, alpha=3, beta=1)), 3 * a + 1)
        self.assertTrue(torch.equal(run(lambda g: g.elementwise("relu", a)), a.relu()))
        half = torch.empty(5, 6, dtype=torch.float16)
        self.assertTrue(torch.equal(run(lambda g: g.elementwise("cast", a, out=half)), a.half()))
        numbers = torch.arange(24, dtype=torch.int64).view(2, 3, 4)
        out = torch.zeros(2, 3, 8, dtype=torch.int64)
        run(lambda g: g.copy(numbers, out[..., 2:6]))
        self.assertTrue(torch.equal(out[..., 2:6], numbers))
        self.assertEqual(out[..., 6:].sum(), 0)
        self.assertTrue((run(lambda g: g.fill(torch.zeros(9, dtype=torch.uint8), 7)) == 7).all())

    def test_one_rank_s_collectives(self):
        x = rand(4, 3)
        for build in (
            lambda g: g.allreduce(x),
            lambda g: g.allreduce(x, "avg"),
            lambda g: g.allgather(x),
            lambda g: g.broadcast(x),
        ):
            self.assertTrue(torch.equal(run(build), x))


def blocks(graph, x, weights):
    """Some layers, each with a residual: chains, forks and joins."""
    for w1, w2 in weights:
        norm = graph.layernorm(x)
        up = graph.linear(norm, w1)
        act, gate = graph.gelu(up), graph.silu(up)
        both = graph.elementwise("mul", act, gate)
        x = graph.elementwise("add", x, graph.linear(both, w2))
    return x


class Order(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.weights = [(rand(48, 24), rand(24, 48)) for _ in range(4)]
        self.x = rand(32, 24)

    def test_the_bits_of_the_same_tasks_one_after_the_other(self):
        serial = TaskGraph()
        last = blocks(serial, self.x, self.weights)
        for task in serial.tasks:  # each alone, in the order of adding
            with TaskGraph() as one:
                one.add_task(task.type, task.inputs, task.outputs, **task.attributes)
                one.execute()
        want = last.output.clone()
        for policy, workers in itertools.product(POLICIES, (1, 2, 4)):
            with self.subTest(policy, workers=workers), TaskGraph(
                workers, policy=policy, balance="least_loaded"
            ) as graph:
                mine = blocks(graph, self.x, self.weights)
                for _ in range(3):  # and again, without anything reset
                    mine.output.zero_()
                    order = graph.execute().order
                    self.assertTrue(torch.equal(mine.output, want))
                self.assertEqual(sorted(order), sorted(t.name for t in graph.tasks))

    def test_random_tasks_on_slices_of_shared_memory(self):
        """Dependencies are not declared: they follow from memory."""
        dice = random.Random(7)
        for round in range(25):
            begun = [rand(16, 16) for _ in range(3)]
            pool = [b.clone() for b in begun]

            def slice_of(n, m):
                i, j = dice.randint(0, 16 - n), dice.randint(0, 16 - m)
                return dice.choice(pool)[i : i + n, j : j + m]

            calls = []
            with TaskGraph(3, policy=dice.choice(POLICIES)) as g:
                while len(calls) < 30:
                    n, m, k = (dice.choice((1, 3, 8)) for _ in "nmk")
                    kind, inputs, attributes = dice.choice(
                        (
                            (TaskType.LINEAR, [slice_of(n, k), slice_of(m, k)], {}),
                            (TaskType.ELEMENTWISE, [slice_of(n, m), slice_of(n, m)], {"op": "sub"}),
                            (TaskType.SOFTMAX, [slice_of(n, m)], {}),
                            (TaskType.MEMCPY, [slice_of(n, m)], {}),
                            (TaskType.MEMSET, [], {"value": 0}),
                        )
                    )
                    out = slice_of(n, m)
                    try:
                        g.add_task(kind, inputs, [out], **attributes)
                    except errors.OverlapError:  # not in place
                        continue
                    calls.append((kind, inputs, [out], attributes))
                g.execute()
                got = [p.clone() for p in pool]
            for mine, first in zip(pool, begun):
                mine.copy_(first)
            for kind, inputs, outputs, attributes in calls:
                with TaskGraph(1) as one:
                    one.add_task(kind, inputs, outputs, **attributes)
                    one.execute()
            for mine, theirs in zip(got, pool):
                self.assertTrue(torch.equal(mine, theirs), round)

    def test_random_graphs_run_after_their_parents(self):
        dice = random.Random(5)
        for round in range(30):
            done, lock, wrong = set(), threading.Lock(), []
            with TaskGraph(dice.choice((1, 2, 3)), policy=dice.choice(POLICIES)) as graph:
                parents = []
                for i in range(dice.randint(1, 40)):
                    mine = dice.sample(range(i), min(i, dice.randint(0, 4)))
                    parents.append(mine)

                    def body(_in, _out, i=i, mine=mine):
                        with lock:
                            wrong.extend((i, p) for p in mine if p not in done)
                            done.add(i)

                    task = graph.custom(body, priority=dice.randint(-3, 3))
                    for p in mine:
                        graph.add_dependency(task, graph.tasks[p])
                order = graph.execute().order
            self.assertEqual(
                (wrong, len(done), len(order)), ([], len(parents), len(parents)), round
            )

    def test_a_second_parent_counts(self):
        first_done, second_done, early = (threading.Event() for _ in range(3))
        seen = []

        def second(_in, _out):
            first_done.wait(20)
            early.wait(0.05)  # time for a run that ignores this parent
            second_done.set()

        def last(_in, _out):
            seen.append(second_done.is_set())
            early.set()

        with TaskGraph(3) as graph:
            tasks = [graph.custom(f) for f in (lambda i, o: first_done.set(), second, last)]
            for parent in tasks[:2]:
                graph.add_dependency(tasks[2], parent)
            graph.execute()
        self.assertEqual(seen, [True])

    def test_memory_orders_readers_and_writers(self):
        a, b, c = torch.ones(4), torch.zeros(4), torch.zeros(4)
        with TaskGraph(2) as graph:
            graph.elementwise("axpb", a, alpha=2, out=b)  # b = 2
            graph.elementwise("axpb", b, alpha=3, out=c)  # c = 6, reads b
            graph.elementwise("axpb", a, alpha=5, out=b)  # b = 5, after it was read
            for _ in range(20):
                b.zero_(), c.zero_()
                graph.execute()
                self.assertEqual((b[0].item(), c[0].item()), (5, 6))

    def test_tensors_live_as_long_as_their_graph(self):
        with TaskGraph() as graph:
            task = graph.linear(rand(64, 64), rand(64, 64))
            last = graph.gelu(task)
            want = F.gelu(task.inputs[0] @ task.inputs[1].t())
            del task
            gc.collect()
            [torch.empty(64, 64).fill_(7) for _ in range(50)]
            graph.execute()
            torch.testing.assert_close(last.output, want, rtol=1e-4, atol=1e-5)

    def test_a_tensor_that_was_given_other_memory_is_refused(self):
        for move in (
            lambda t: setattr(t, "data", torch.ones(1 << 20)),  # its own is gone
            lambda t: t.resize_(1 << 24),
            lambda t: t.set_(torch.ones(1 << 20)),
        ):
            x = torch.ones(1 << 20)
            with TaskGraph(2) as graph:
                graph.elementwise("axpb", x, alpha=2.0, out=x, name="twice")
                graph.execute()
                move(x)
                with self.assertRaisesRegex(errors.MacoError, "\"twice\" has moved"):
                    graph.execute()

    def test_a_group_that_was_closed_is_refused(self):
        x = torch.ones(4)
        with hybridps.Group.shm(f"helios-test-graph-{os.getpid()}", 0, 1) as group:
            graph = TaskGraph(2, group=group)
            graph.allreduce(x, out=x)
            graph.execute()
        with graph, self.assertRaisesRegex(errors.CollectiveFailedError, "closed"):
            graph.execute()

    def test_a_thread_that_does_not_start_leaves_a_graph_that_runs(self):
        x = torch.ones(4)
        with TaskGraph(2) as graph:
            graph.elementwise("axpb", x, alpha=2.0, out=x)
            with unittest.mock.patch(
                "threading.Thread.start", side_effect=RuntimeError("no thread")
            ), self.assertRaisesRegex(RuntimeError, "no thread"):
                graph.execute(wait=False)
            graph.execute()
        self.assertEqual(x.tolist(), [2.0] * 4)

    def test_a_run_in_the_background(self):
        go = threading.Event()
        with TaskGraph() as graph:
            graph.custom(lambda i, o: go.wait(20))
            result = graph.execute(wait=False)
            self.assertFalse(result.done)
            with self.assertRaisesRegex(maco.MacoError, "is running"):
                graph.execute()
            go.set()
            self.assertEqual(result.wait().order, ["CUSTOM_COMPUTE 0"])
            self.assertTrue(result.done)


class Waves(unittest.TestCase):
    def test_pieces_have_the_whole_s_values(self):
        x, w = rand(20, 16), rand(12, 16)
        for n in (1, 2, 3, 7, 20):
            with TaskGraph(trace=True, deterministic=True) as graph:
                up = graph.linear(x, w)
                act = graph.gelu(up, name="act")
                total = graph.allreduce(act, out=act.output)
                graph.add_dependency(total, act)
                graph.overlap(compute=[up, act], comm=[total]).with_waves(n)
                order = graph.execute().order
                self.assertEqual(len(order), 3 * n)
                whole = run(lambda g: g.gelu(g.linear(x, w)), deterministic=True)
                self.assertTrue(torch.equal(total.output, whole))
                if n > 1:  # the first wave has gone before the last is computed
                    parents = {t["name"]: t["parents"] for t in graph.compile().describe()["tasks"]}
                    self.assertEqual(
                        [len(p) for name, p in parents.items() if "ALL" in name], [1] * n
                    )

    def test_auto_waves_take_the_shortest_run_on_the_virtual_clock(self):
        x, w = rand(512, 256), rand(256, 256)
        link = {"link_bytes_per_s": 10**9, "link_latency_ns": 5000, "hop_ns": 2000}

        def simulated(choose):
            graph = TaskGraph(2)
            up = graph.linear(x, w)
            choose(graph.overlap(up, graph.allreduce(up, out=up.output)))
            plan = graph.compile()
            return graph._overlaps[0].waves, plan.simulate(2, **link)

        waves, best = simulated(lambda o: o.auto_waves(**link))
        self.assertEqual(waves, simulated(lambda o: o.auto_waves(**link))[0])
        for n in (1, 2, 4, 8, 16):
            self.assertLessEqual(
                best["total_ns"], simulated(lambda o: o.with_waves(n))[1]["total_ns"]
            )
        self.assertGreater(waves, 1)

    def test_what_can_t_be_cut(self):
        graph = TaskGraph()
        custom = graph.custom(lambda i, o: None, [], [torch.zeros(4, 2)])
        total = graph.allreduce(custom)
        with self.assertRaises(errors.NotRowSeparableError):
            graph.overlap(custom, total)
        graph = TaskGraph()
        up = graph.linear(rand(4, 2), rand(3, 2))
        with self.assertRaisesRegex(errors.NotRowSeparableError, "5 waves of tasks with 4 rows"):
            graph.overlap(up, graph.allreduce(up)).with_waves(5)


class Parts(unittest.TestCase):
    def test_large_tasks_are_shared_by_workers(self):
        x, w = rand(64, 256), rand(256, 256)
        q, k, v = (rand(2, 3, 256, 16) for _ in "qkv")
        wide, grouped = rand(512, 512), rand(2, 1, 256, 16)

        def build(g):
            return [
                g.linear(x, w),
                g.attention(q, k, v, causal=True),
                g.gelu(wide),
                g.attention(q, grouped, grouped),
                g.elementwise("add", wide, wide[0]),
                g.linear(rand(2, 2), rand(2, 2)),
            ]

        with TaskGraph(deterministic=True) as g, TaskGraph(2, deterministic=True, parts=4) as cut:
            torch.manual_seed(3)
            whole = build(g)
            torch.manual_seed(3)
            pieces = build(cut)
            g.execute()
            cut.execute()
            for one, other in zip(whole, pieces):
                self.assertTrue(torch.equal(one.output, other.output), one)
            names = cut.compile().names
            self.assertEqual(
                [sum(n.startswith(t.name) for n in names) for t in pieces], [2, 4, 4, 2, 4, 1]
            )

    def test_ordered_by_memory_only(self):
        with self.assertRaisesRegex(errors.DimensionError, "infer=False"):
            TaskGraph(infer=False, parts=2)
        with self.assertRaises(errors.DimensionError):
            TaskGraph(parts=0)


def union(intervals):
    out = []
    for first, last in sorted(intervals):
        if out and first <= out[-1][1]:
            out[-1][1] = max(out[-1][1], last)
        else:
            out.append([first, last])
    return out


class Traces(unittest.TestCase):
    def test_the_numbers_can_be_computed_again_from_the_file(self):
        with TaskGraph(2, trace=True) as g, tempfile.TemporaryDirectory() as home:
            up = g.linear(rand(256, 128), rand(128, 128), name="up \"quoted\" é")
            down = g.linear(up, rand(64, 128))
            total = g.allreduce(down, out=down.output)
            g.overlap(down, total).with_waves(4)
            result = g.execute()
            stats = g.compile().overlap_stats()
            g.save_trace(f"{home}/trace.json")
            events = json.loads(pathlib.Path(home, "trace.json").read_text())["traceEvents"]
        ran = [e for e in events if e["ph"] == "X" and e["cat"] in ("compute", "comm")]
        self.assertEqual(len(ran), 9)
        self.assertEqual(sorted(e["name"] for e in ran), sorted(result.order))

        def spans(kind):
            return union(
                (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
                for e in ran
                if e["cat"] == kind
            )

        def length(spans):
            return sum(last - first for first, last in spans)

        compute, comm = spans("compute"), spans("comm")
        both = length(compute) + length(comm) - length(union(map(tuple, compute + comm)))
        every = [t for span in compute + comm for t in span]
        for mine, theirs in (
            (length(compute), "compute_ns"),
            (length(comm), "comm_ns"),
            (both, "both_ns"),
            (max(every) - min(every), "total_ns"),
        ):
            self.assertAlmostEqual(mine, stats[theirs], delta=20, msg=theirs)
        self.assertEqual(stats["comm_before_producer"], 0)
        self.assertEqual(stats["tasks"], 9)
        self.assertEqual({t.name for t in result.times}, {e["name"] for e in ran})
        self.assertEqual(
            len([e for e in events if e["ph"] == "s"]), len([e for e in events if e["ph"] == "f"])
        )

    def test_a_thread_does_one_thing_at_a_time(self):
        for policy in POLICIES:
            with TaskGraph(2, policy=policy, trace=True) as g:
                last = blocks(g, rand(64, 48), [(rand(96, 48), rand(48, 96))] * 2)
                g.allreduce(last, out=last.output)
                for _ in range(5):
                    events = [e for e in g.execute().trace.events() if e["ph"] == "X"]
                    for tid in {e["tid"] for e in events}:
                        spans = sorted(
                            (e["ts"], e["ts"] + e["dur"], e["cat"])
                            for e in events
                            if e["tid"] == tid
                        )
                        for before, after in zip(spans, spans[1:]):
                            self.assertLessEqual(
                                before[1], after[0] + 0.01, (policy, before, after)
                            )

    def test_the_virtual_clock_is_exact(self):
        def hidden(n):
            g = TaskGraph(1)
            up = g.linear(rand(64, 8), rand(8, 8), cost=8_000_000)
            total = g.allreduce(up, out=up.output, cost=8_000_000)
            g.overlap(up, total).with_waves(n)
            return g.compile().simulate(1)

        for n in (1, 2, 4, 8):  # c + (n - 1) max(c, x) + x
            self.assertEqual(hidden(n)["total_ns"], 16_000_000 - (n - 1) * 8_000_000 // n)
            self.assertAlmostEqual(hidden(n)["hidden"], 1 - 1 / n)


class Demo(unittest.TestCase):
    def test_its_contract(self):
        for policy, n, tasks, workers in (
            ("direct", 1000, 10, 4),
            ("scheduler", 37, 3, 5),
            ("scheduler", 64, 7, 2),
            ("direct", 3, 999, 3),
        ):
            start = torch.rand(n)
            data = start.clone()
            got, order = run_sm_scheduling_demo(data, tasks, workers, 128, policy)
            self.assertIs(got, data)
            self.assertEqual(order.dtype, torch.int32)
            codes = order.tolist()
            self.assertEqual(
                sorted(codes), sorted(w * 1000 + t for w in range(workers) for t in range(tasks))
            )
            rounds = [code % 1000 for code in codes]
            self.assertEqual(rounds, sorted(rounds))  # a barrier after each
            few = min(tasks, 10)
            if tasks == few:
                grown = start.double() * 1.5**tasks + 0.2 * (1.5**tasks - 1)
                torch.testing.assert_close(data.double(), grown, rtol=1e-5, atol=0)

    def test_each_step_is_rounded_once(self):
        start = torch.rand(513)
        got, _ = run_sm_scheduling_demo(start.clone(), 2, 2)
        want = start.double()
        for _ in range(2):  # 24 bits times 2 fit a double: this is an fma
            want = (want * 1.5 + float(torch.tensor(0.1))).float().double()
        self.assertTrue(torch.equal(got.double(), want))

    def test_the_graph_that_a_gpu_runs_does_the_same(self):
        start = torch.rand(101)
        got, _ = run_sm_scheduling_demo(start.clone(), 6, 3)
        for ctas in (1, 2, 50):  # of a worker; it has 33 elements
            mine = start.clone()
            codes = _sm._by_graph(mine, 6, 3, ctas, "direct").tolist()
            self.assertTrue(torch.equal(mine, got))
            self.assertEqual(
                sorted(codes), sorted(w * 1000 + t for w in range(3) for t in range(6))
            )
            rounds = [code % 1000 for code in codes]
            self.assertEqual(rounds, sorted(rounds))

    def test_threads_of_a_gpus_worker_are_whole_ctas(self):
        class OnGpu:  # the values stay here: checks what the graph is asked for
            device = torch.device("cuda", 0)

            def __getattr__(self, name):
                return getattr(data, name)

        data, asked = torch.rand(64), []
        real, checked = _sm._by_graph, _sm.checked
        _sm._by_graph = lambda data, tasks, workers, ctas, policy: asked.append(ctas)
        _sm.checked = lambda data, what: data
        try:
            for threads in (1, 128, 256, 257, 1024):
                run_sm_scheduling_demo(OnGpu(), 1, 2, threads)
        finally:
            _sm._by_graph, _sm.checked = real, checked
        self.assertEqual(asked, [1, 1, 1, 2, 4])

    def test_what_it_refuses(self):
        data = torch.rand(16)
        for bad, kind in (
            ((data.double(),), errors.DTypeError),
            ((data[::2],), errors.LayoutError),
            ((data, 1000), errors.DimensionError),
            ((data, 0), errors.DimensionError),
            ((data, 1, 17), errors.DimensionError),
            ((data, 1, 0), errors.DimensionError),
            ((data, 1, 1, 0), errors.DimensionError),
            ((data, 1, 1, 1, "static"), errors.DimensionError),
            ((None,), errors.NullInputError),
            ((torch.empty(0),), errors.DimensionError),
        ):
            with self.subTest(str(bad)), self.assertRaises(kind):
                run_sm_scheduling_demo(*bad)


if __name__ == "__main__":
    unittest.main()

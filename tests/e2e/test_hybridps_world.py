#!/usr/bin/python3
"""Ranks that train one model together: the bits of plain torch that sums gradients in rank order."""
from __future__ import annotations

import copy
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import time
import unittest

try:
    import torch
except ImportError:
    print("skipped: python3-torch is not installed")
    sys.exit(77)
import torch.distributed as dist
import torch.nn as nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from hybridps_model import CHUNK, adam, batches, hybridps, make  # noqa: E402

STEPS, WORLD = 6, 2


def ranks(run, world=WORLD):
    """Results of run(rank) in one process each; it is forked, as torch is imported once."""
    torch.set_num_threads(1)
    readers, pids = [], []
    for rank in range(world):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(200)
                with os.fdopen(writer, "wb") as out:
                    pickle.dump(run(rank), out)
                code = 0
            except BaseException as error:  # a child must never run the parent's code
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        os.close(writer)
        readers.append(os.fdopen(reader, "rb"))
        pids.append(pid)
    data = [reader.read() for reader in readers]
    for reader in readers:
        reader.close()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * world, codes
    return [pickle.loads(d) if d else None for d in data]


def name():
    return f"helios-test-world-{os.getppid()}"


def data_of(rank, steps=STEPS):
    for i, (x, y) in enumerate(batches(steps * WORLD)):
        if i % WORLD == rank:
            yield x, y


def plain(dtype=torch.float32, clip=None, optimizer=adam, accumulate=1):
    """All ranks in one process: gradients of each, added in their order, halved."""
    models = [make(dtype=dtype) for _ in range(WORLD)]
    steps = [optimizer(m) for m in models]
    losses = [[] for _ in models]
    streams = [data_of(r, STEPS * accumulate) for r in range(WORLD)]
    for _ in range(STEPS):
        sums = None
        for _ in range(accumulate):
            for r, m in enumerate(models):
                x, y = next(streams[r])
                loss = m(x, targets=y)["loss"]
                loss.backward()
                losses[r].append(loss.item())
            grads = [[p.grad for p in m.parameters()] for m in models]
            means = [(a + b).div_(WORLD) for a, b in zip(*grads)]
            sums = means if sums is None else [s + m for s, m in zip(sums, means)]
            for m in models:
                m.zero_grad(set_to_none=True)
        for m, step in zip(models, steps):
            for p, g in zip(m.parameters(), sums):
                p.grad = g.clone()
            if clip:
                nn.utils.clip_grad_norm_(m.parameters(), clip)
            step.step()
            step.zero_grad(set_to_none=True)
    return losses, models[0].state_dict(), steps[0].state_dict()


def managed(rank, group, capacity=512 << 10, dtype=torch.float32, clip=None, optimizer=adam, accumulate=1,
            **options):
    model = make(seed=3 + rank, dtype=dtype)  # rank 0's values are everybody's
    step = optimizer(model)
    losses = []
    with hybridps.manage(model, step, device=f"emu:{capacity}", group=group, chunk_bytes=CHUNK,
                         **options) as client:
        stream = data_of(rank, STEPS * accumulate)
        for _ in range(STEPS):
            step.zero_grad(set_to_none=True)
            for _ in range(accumulate):
                x, y = next(stream)
                loss = model(x, targets=y)["loss"]
                loss.backward()
                losses.append(loss.item())
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            step.step()
        states = sum(len(s.states) for s in client.slots)
        whole, kept = copy.deepcopy((model.state_dict(), step.state_dict()))
        return losses, dict(whole), kept, states, client.stats()["peak_over_avail"]


class World(unittest.TestCase):
    def compare(self, run, expected):
        losses, parameters, optimizer = expected
        for rank, (mine, state, whole, states, over) in enumerate(ranks(run)):
            self.assertEqual(mine, losses[rank])
            self.assertEqual(over, 0)
            self.assertEqual(list(state), list(parameters))
            for key, value in state.items():
                self.assertTrue(torch.equal(value, parameters[key]), key)
            self.assertEqual(whole["param_groups"], optimizer["param_groups"])
            self.assertEqual(list(whole["state"]), list(optimizer["state"]))
            for number, entries in optimizer["state"].items():
                for key, value in entries.items():
                    self.assertTrue(torch.equal(whole["state"][number][key], value), (number, key))
            yield states

    def test_two_ranks_on_host_and_device_at_several_sizes(self):
        expected = plain()
        for capacity in (384 << 10, 1 << 20, 8 << 20):
            for where in ("host", "device"):
                with self.subTest(capacity=capacity, where=where):
                    def run(rank, capacity=capacity, where=where):
                        with hybridps.Group.shm(name(), rank, WORLD) as group:
                            return managed(rank, group, capacity, optimizer_device=where)
                    mine = list(self.compare(run, expected))
                    self.assertEqual(sum(mine), 2 * len(expected[2]["state"]))  # each state once
                    self.assertLess(max(mine), sum(mine))

    def test_clipping_and_accumulation(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(rank, group, clip=1.0, accumulate=2)
        list(self.compare(run, plain(clip=1.0, accumulate=2)))

    def test_torch_s_own_adam_and_state_on_every_rank(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(rank, group, native=False, shard=rank < 0)
        mine = list(self.compare(run, plain()))
        self.assertEqual(mine[0], mine[1])

    def test_torch_distributed_carries_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            def run(rank):
                dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
                with hybridps.Group.torch() as group:
                    return managed(rank, group)
            list(self.compare(run, plain()))

    def test_bfloat16(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(rank, group, dtype=torch.bfloat16, native=False)
        list(self.compare(run, plain(dtype=torch.bfloat16)))

    def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_back(self):
        losses, parameters, state = plain()

        def one():
            model = make(seed=9)
            step = adam(model)
            model.load_state_dict(parameters)
            step.load_state_dict(state)
            return model, step

        def go_on(model, step):
            out = []
            for x, y in batches(2):
                step.zero_grad(set_to_none=True)
                loss = model(x, targets=y)["loss"]
                loss.backward()
                step.step()
                out.append(loss.item())
            return out

        def run(rank):
            model, step = make(seed=9 + rank), None
            step = adam(model)
            with hybridps.Group.shm(name(), rank, WORLD) as group, \
                    hybridps.manage(model, step, device="emu:512KiB", group=group, chunk_bytes=CHUNK) as client:
                model.load_state_dict(parameters)
                step.load_state_dict(state)
                assert all(not s.states or s.owner == rank for s in client.slots)
                return go_on(model, step)
        expected = go_on(*one())  # the same batches on both: their mean is their own
        self.assertEqual(ranks(run), [expected, expected])


class Collectives(unittest.TestCase):
    def test_every_type_over_every_carrier(self):
        values = [torch.randn(3, 5, generator=torch.Generator().manual_seed(r)) for r in range(WORLD)]
        wide = [torch.randn(4, 7, generator=torch.Generator().manual_seed(9 + r)) for r in range(WORLD)]
        kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8)
        with tempfile.TemporaryDirectory() as folder:
            def run(rank):
                dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
                out = []
                for group in (hybridps.Group.shm(name(), rank, WORLD), hybridps.Group.torch()):
                    for kind in kinds:
                        mine = (values[rank] * 8).to(kind)
                        out.append(group.allreduce(mine))
                        out.append(group.broadcast(mine.t(), 1))
                        out += group.allgather(mine)
                        for op in ("min", "max", "prod"):
                            out.append(group.allreduce(mine, op))
                        rows = (wide[rank] * 8).to(kind)
                        out.append(group.reduce_scatter(rows))
                        out.append(group.alltoall(rows))
                        if rank == 0:
                            group.send(mine, 1, tag=3)
                        out.append(group.recv(mine, 0, tag=3) if rank == 1 else mine)
                    out.append(group.share({"from": rank}, 1))
                    group.close()
                return out
            for rank, got in enumerate(ranks(run)):
                got, part_of = iter(got), slice(rank * 2, rank * 2 + 2)
                for _ in range(2):
                    for kind in kinds:
                        all_of = [(v * 8).to(kind) for v in values]
                        self.assertTrue(torch.equal(next(got), all_of[0] + all_of[1]))
                        self.assertTrue(torch.equal(next(got), all_of[1].t()))
                        for part in all_of:
                            self.assertTrue(torch.equal(next(got), part))
                        for expected in (torch.minimum(*all_of), torch.maximum(*all_of), all_of[0] * all_of[1]):
                            self.assertTrue(torch.equal(next(got), expected))
                        rows = [(w * 8).to(kind) for w in wide]
                        self.assertTrue(torch.equal(next(got), (rows[0] + rows[1])[part_of]))
                        self.assertTrue(torch.equal(next(got), torch.cat([r[part_of] for r in rows])))
                        self.assertTrue(torch.equal(next(got), all_of[0]))
                    self.assertEqual(next(got), {"from": 1})

    def test_results_are_managed_and_their_place_is_used_again(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                client = hybridps.Client("emu:1MiB", group=group)
                sums = []
                for _ in range(20):
                    managed = client.allreduce(torch.full((4, 3), rank + 1.0), "mean")
                    sums.append(managed.access().sum().item())
                    managed.release()
                    del managed
                one = client.broadcast(torch.tensor([rank, 7]), src=1)
                sums.append(one.access(host=True).tolist())
                one.release()
                return sums, client.stats()["tensors"]
        for got in ranks(run):
            self.assertEqual(got, ([18.0] * 20 + [[1, 7]], 2))

    def test_a_rank_that_is_killed_in_training_ends_the_others_with_its_name(self):
        def run(rank):
            group = hybridps.Group.shm(name(), rank, WORLD, timeout=150)
            model = make()
            with hybridps.manage(model, adam(model), device="emu:1MiB", group=group, chunk_bytes=CHUNK):
                x, y = next(batches(1))
                if rank == 1:
                    model.head.register_full_backward_hook(lambda *_: os._exit(0))
                began = time.monotonic()
                try:
                    model(x, targets=y)["loss"].backward()
                except hybridps.HybridPSError as error:
                    return str(error), time.monotonic() - began
            return "no error", 0

        (words, seconds), nothing = ranks(run)
        self.assertIsNone(nothing)
        self.assertRegex(words, "rank 1 .process [0-9]+. has died; rank 0 of 2 waits for it in ")
        self.assertLess(seconds, 60)

    def test_what_is_wrong_is_said(self):
        with self.assertRaisesRegex(hybridps.HybridPSError, "rank 2 of 2"):
            hybridps.Group.shm("x", 2, 2)
        with self.assertRaisesRegex(hybridps.HybridPSError, "1 of 2 ranks joined within 50 ms, not 1"):
            hybridps.Group.shm(f"helios-test-alone-{os.getpid()}", 0, 2, timeout=0.05)
        with self.assertRaisesRegex(hybridps.HybridPSError, "init_process_group"):
            hybridps.Group.torch()
        group = hybridps.Group.shm(f"helios-test-one-{os.getpid()}", 0, 1)
        with self.assertRaisesRegex(hybridps.HybridPSError, "'median'"):
            group.allreduce(torch.zeros(1), "median")
        with self.assertRaisesRegex(hybridps.HybridPSError, "torch.bool"):
            group.allreduce(torch.zeros(1, dtype=torch.bool))
        with self.assertRaisesRegex(hybridps.HybridPSError, "no operation 1 for it"):
            group.allreduce(torch.zeros(1, dtype=torch.int32), "mean")
        with self.assertRaisesRegex(hybridps.HybridPSError, "as many for each"):
            group.alltoall(torch.tensor(1.0), name="x")
        with self.assertRaisesRegex(hybridps.HybridPSError, "ranks 0 to 0"):
            group.broadcast(torch.zeros(1), 1)
        group.close()
        with self.assertRaisesRegex(hybridps.HybridPSError, "closed|no group"):
            group.allreduce(torch.zeros(1))


if __name__ == "__main__":
    unittest.main()

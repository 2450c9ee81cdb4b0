#!/usr/bin/python3
"""Ranks that train one model together: the bits of a plain torch that sums
gradients in rank order."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.distributed as dist

from hybridps_model import CHUNK, adam, batches, hybridps, make  # noqa: E402
from hybridps_world import WORLD, compare, managed, name, plain  # noqa: E402
from ports import free_port  # noqa: E402
from ranks import alone, ranks  # noqa: E402

# Pairs of processes that end as any Python does; one of each pair ends midway, with its group open.
ENDS_FIRST = """
import os, sys
import torch, torch.distributed as dist
import hybridps

def end(rank, place):
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    group = hybridps.Group.torch(timeout=60)
    try:
        for step in range(20):
            group.allreduce(torch.ones(5))
            group.broadcast(torch.ones(5))
            if rank == 1 and step == 10:
                return
    except hybridps.HybridPSError:
        return
    sys.exit("the other one did not end")

children = []
for pair in range(4):
    for rank in range(2):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            end(rank, f"{sys.argv[1]}/{pair}")
            sys.exit(0)
        children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""

# torch's future refers to the tensor as a thread of gloo does.
# What is registered first is called last: after the wait.
HELD = """
import atexit, os, sys, threading
import torch, torch.distributed as dist

@atexit.register
def say():
    os.write(1, f"{len(_group._lent)} held\\n".encode())

import hybridps
from hybridps import _group

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/one", rank=0, world_size=1)
group = hybridps.Group.torch(timeout=60)
broadcast, futures, ends = dist.broadcast, [], threading.Event()

def keep(tensor, *of, **how):
    futures.append(torch.futures.Future())
    futures[-1].set_result(tensor)
    return broadcast(tensor, *of, **how)

dist.broadcast = keep
mine = torch.ones(5)
group._carrier.callbacks[1](None, b"", mine.data_ptr(), 20, 0)
if sys.argv[2] == "released":
    threading.Thread(target=lambda: (ends.wait(), futures.clear()), daemon=True).start()
atexit.register(ends.set)
"""


class World(unittest.TestCase):
    def test_clipping_and_accumulation(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(rank, group, clip=1.0, accumulate=2)

        compare(self, run, plain(clip=1.0, accumulate=2))

    def test_torch_s_own_adam_and_state_on_every_rank(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(rank, group, native=False, shard=rank < 0)

        mine = compare(self, run, plain())
        self.assertEqual(mine[0], mine[1])

    def test_torch_distributed_carries_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:

            def run(rank):
                dist.init_process_group(
                    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
                )
                with hybridps.Group.torch() as group:
                    return managed(rank, group)

            compare(self, run, plain())

    def test_helios_between_hosts_carries_the_same_bits(self):
        address = f"127.0.0.1:{free_port()}"

        def run(rank):
            with hybridps.Group.helios(address, rank, WORLD, timeout=100) as group:
                return managed(rank, group)

        compare(self, run, plain())

    def test_bfloat16_of_three_ranks_that_add_up_before_they_reduce(self):
        how = dict(dtype=torch.bfloat16, accumulate=2, no_sync=True)

        def run(rank):
            with hybridps.Group.shm(name(), rank, 3) as group:
                return managed(rank, group, native=False, policy="lru", **how)

        compare(self, run, plain(world=3, **how), world=3)

    def test_no_sync_and_steps_in_between(self):
        how = dict(clip=1.0, accumulate=3, no_sync=True)

        def refused(step):
            try:
                step.step()
            except hybridps.HybridPSError as error:
                return "this rank's alone (no_sync)" in str(error)
            return False

        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                out = managed(rank, group, **how)
                model = make()
                step = adam(model)
                with hybridps.manage(
                    model, step, device="emu:1MiB", group=group, chunk_bytes=CHUNK
                ) as client:
                    x, y = next(batches(1))
                    with client.no_sync():
                        model(x, targets=y)["loss"].backward()
                    assert refused(step)
                    p = model.head.weight
                    p.grad = p.grad * 0.5  # replaces it by a tensor of the user's
                    for q in model.parameters():
                        q.grad = p.grad if q is p else None
                    assert refused(step)
                    p.grad = None
                    p.grad = torch.ones_like(p)  # the same on all ranks, and not a sum
                    step.step()
                return out

        compare(self, run, plain(**how))

    def test_gradients_given_by_hand_within_no_sync_are_reduced_with_the_others(self):
        how = dict(accumulate=2, no_sync=True, halve="anew", steps=2)

        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(rank, group, policy="lru", **how)

        compare(self, run, plain(**how))

    def test_a_given_gradient_that_the_last_backward_does_not_reach_is_reduced_too(self):
        def run(rank):
            torch.manual_seed(0)
            model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
            step = torch.optim.SGD(model.parameters(), lr=1.0)
            with hybridps.Group.shm(name(), rank, WORLD) as group, hybridps.manage(
                model, step, device="emu:64KiB", group=group
            ) as client:
                before = model[1].weight.detach().clone()
                with client.no_sync():
                    for p in model[1].parameters():
                        p.grad = torch.full_like(p, rank + 1.0)
                model[0](torch.ones(1, 4)).sum().backward()
                step.step()
                return bool((before - model[1].weight).allclose(torch.full((4, 4), 1.5)))

        self.assertEqual(ranks(run), [True] * WORLD)

    def test_gradients_from_outside_of_a_forward_step_all_ranks_alike(self):
        def assigned(model, _):
            found = torch.autograd.grad(model(torch.ones(1, 4)).square().sum(), model.parameters())
            for p, grad in zip(model.parameters(), found):
                p.grad = grad

        def penalty(model, factors):
            for factor in factors:  # after another one, p.grad is a sum
                sum(p.square().sum() * factor for p in model.parameters()).backward()

        def train(fill, factors, **options):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            step = torch.optim.SGD(model.parameters(), lr=0.25)
            with hybridps.manage(model, step, device="emu:64KiB", **options):
                for _ in range(2):
                    step.zero_grad(set_to_none=True)
                    fill(model, factors)
                    step.step()
            return [p.detach() for p in model.parameters()]

        for fill in (assigned, penalty):
            expected = alone(lambda: train(fill, (2.0, 0.5)))
            for options in ({}, {"shard": False}, {"one_copy": True}):

                def run(rank):
                    with hybridps.Group.shm(name(), rank, WORLD) as group:
                        return train(fill, ((1.0, 0.25), (3.0, 0.75))[rank], group=group, **options)

                for rank, values in enumerate(ranks(run)):
                    with self.subTest(fill.__name__, rank=rank, **options):
                        for mine, theirs in zip(values, expected):
                            torch.testing.assert_close(mine, theirs)

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
            with hybridps.Group.shm(name(), rank, WORLD) as group, hybridps.manage(
                model, step, device="emu:512KiB", group=group, chunk_bytes=CHUNK
            ) as client:
                model.load_state_dict(parameters)
                step.load_state_dict(state)
                assert all(
                    not any(s.states.values()) or s.owner == rank for s in client.state.slots
                )
                return go_on(model, step)

        expected = alone(lambda: go_on(*one()))  # the same batches on both: their mean is their own
        self.assertEqual(ranks(run), [expected, expected])


class Collectives(unittest.TestCase):
    def test_every_type_over_every_carrier(self):
        values = [
            torch.randn(3, 5, generator=torch.Generator().manual_seed(r)) for r in range(WORLD)
        ]
        wide = [
            torch.randn(4, 7, generator=torch.Generator().manual_seed(9 + r)) for r in range(WORLD)
        ]
        kinds = (
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float64,
            torch.int64,
            torch.int32,
            torch.uint8,
        )
        address = f"127.0.0.1:{free_port()}"
        with tempfile.TemporaryDirectory() as folder:

            def run(rank):
                dist.init_process_group(
                    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
                )
                out = []
                for group in (
                    hybridps.Group.shm(name(), rank, WORLD),
                    hybridps.Group.torch(),
                    hybridps.Group.helios(address, rank, WORLD, timeout=100),
                ):
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
                    out.append(group.share({"from": rank, "has": range(rank)}, 1))
                    group.close()
                return out

            for rank, got in enumerate(ranks(run)):
                got, part_of = iter(got), slice(rank * 2, rank * 2 + 2)
                for _ in range(3):
                    for kind in kinds:
                        all_of = [(v * 8).to(kind) for v in values]
                        self.assertTrue(torch.equal(next(got), all_of[0] + all_of[1]))
                        self.assertTrue(torch.equal(next(got), all_of[1].t()))
                        for part in all_of:
                            self.assertTrue(torch.equal(next(got), part))
                        for expected in (
                            torch.minimum(*all_of),
                            torch.maximum(*all_of),
                            all_of[0] * all_of[1],
                        ):
                            self.assertTrue(torch.equal(next(got), expected))
                        rows = [(w * 8).to(kind) for w in wide]
                        self.assertTrue(torch.equal(next(got), (rows[0] + rows[1])[part_of]))
                        self.assertTrue(
                            torch.equal(next(got), torch.cat([r[part_of] for r in rows]))
                        )
                        self.assertTrue(torch.equal(next(got), all_of[0]))
                    self.assertEqual(next(got), {"from": 1, "has": range(1)})

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
            with hybridps.manage(
                model, adam(model), device="emu:1MiB", group=group, chunk_bytes=CHUNK
            ):
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

    def test_a_rank_that_ends_first_aborts_nobody(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", ENDS_FIRST, folder],
                capture_output=True,
                text=True,
                timeout=280,
            )
        self.assertEqual((done.stdout.strip(), done.returncode), (str([0] * 8), 0), done.stderr)

    def test_a_rank_waits_for_the_backend_to_release_its_tensors(self):
        for what, printed in ("released", "0 held\n"), ("kept", "1 held\n"):
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [sys.executable, "-c", HELD, folder, what],
                    capture_output=True,
                    text=True,
                    timeout=50,
                )
            self.assertEqual((done.stdout, done.returncode), (printed, 0), done.stderr)

    def test_between_hosts_too(self):
        address = f"127.0.0.1:{free_port()}"

        def run(rank):
            with hybridps.Group.helios(address, rank, WORLD, timeout=150) as group:
                group.allreduce(torch.ones(3))
                if rank == 1:
                    os._exit(0)
                began = time.monotonic()
                try:
                    group.broadcast(torch.ones(3), 1, "weights")
                except hybridps.HybridPSError as error:
                    return str(error), time.monotonic() - began
            return "no error", 0

        (words, seconds), nothing = ranks(run)
        self.assertIsNone(nothing)
        self.assertRegex(
            words, r"rank 1 \(127.0.0.1:[0-9]+\) .*; rank 0 of 2 is in broadcast of .weights"
        )
        self.assertLess(seconds, 30)

    def test_what_is_wrong_is_said(self):
        with self.assertRaisesRegex(hybridps.HybridPSError, "rank 2 of 2"):
            hybridps.Group.shm("x", 2, 2)
        with self.assertRaisesRegex(
            hybridps.HybridPSError, "1 of 2 ranks joined within 50 ms, not 1"
        ):
            hybridps.Group.shm(f"helios-test-alone-{os.getpid()}", 0, 2, timeout=0.05)
        with self.assertRaisesRegex(hybridps.HybridPSError, "init_process_group"):
            hybridps.Group.torch()
        group = hybridps.Group.shm(f"helios-test-one-{os.getpid()}", 0, 1)
        with self.assertRaisesRegex(hybridps.HybridPSError, "'median'"):
            group.allreduce(torch.zeros(1), "median")
        with self.assertRaisesRegex(hybridps.HybridPSError, "torch.bool"):
            group.allreduce(torch.zeros(1, dtype=torch.bool))
        with self.assertRaisesRegex(hybridps.HybridPSError, "has no operation 1"):
            group.allreduce(torch.zeros(1, dtype=torch.int32), "mean")
        with self.assertRaisesRegex(hybridps.HybridPSError, "as many for each"):
            group.alltoall(torch.tensor(1.0), name="x")
        with self.assertRaisesRegex(hybridps.HybridPSError, "ranks 0 to 0"):
            group.broadcast(torch.zeros(1), 1)
        for wrong in (
            torch.zeros(4, 6)[:, ::2],
            torch.zeros(1).expand(4),
            torch.zeros(4, device="meta"),
        ):
            for call in (group.allreduce_, group.broadcast_):
                with self.assertRaisesRegex(hybridps.HybridPSError, "_ of 'x'.*without holes"):
                    call(wrong, name="x")
        group.allreduce_(torch.zeros(4, 6).t())
        group.close()
        with self.assertRaisesRegex(hybridps.HybridPSError, "closed|no group"):
            group.allreduce(torch.zeros(1))


if __name__ == "__main__":
    unittest.main()

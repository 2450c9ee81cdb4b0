#!/usr/bin/python3
"""Ranks of one host that hold parameters and gradients once: plain torch's bits,
and the memory of one copy."""
from __future__ import annotations

import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from hybridps_model import CHUNK, adam, batches, hybridps, make, model_bytes  # noqa: E402
from hybridps_world import WORLD, compare, managed, name, plain  # noqa: E402
from ranks import ranks  # noqa: E402

FILE = "hybridps-one-copy"


def own_bytes():
    """This process's share of the memory of shared chunks."""
    total, ours = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-", line):
            ours = FILE in line
        elif ours and line.startswith("Anonymous:"):
            total += int(line.split()[1]) * 1024
    return total


def shared_bytes():
    """The memory of all ranks together."""
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.islink(path) and FILE in os.readlink(path):
            return os.stat(path).st_blocks * 512
    raise AssertionError("there is no shared file")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def refused(use):
    """What use(rank, group, model, optimizer) returns on each rank."""

    def run(rank):
        with hybridps.Group.shm(name(), rank, WORLD) as group:
            model = make()
            optimizer = adam(model)
            try:
                use(rank, group, model, optimizer)
            except hybridps.HybridPSError as error:
                return str(error)
        return "nothing was refused"

    return ranks(run)


def begin(group, model, optimizer, **options):
    client = hybridps.manage(
        model,
        optimizer,
        device="emu:1MiB",
        group=group,
        chunk_bytes=CHUNK,
        one_copy=True,
        **options,
    )
    x, y = next(batches(1))
    model(x, targets=y)["loss"].backward()
    return client


class OneCopy(unittest.TestCase):
    def test_two_ranks_hold_each_once_and_train_the_bits_of_plain_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            seen = pathlib.Path(folder, "seen")

            def run(rank):
                with hybridps.Group.shm(name(), rank, WORLD) as group:

                    def look():
                        own = int(group.allreduce(torch.tensor(own_bytes()), name="all are here"))
                        if rank == 0:
                            with seen.open("a") as out:
                                print(own, shared_bytes(), file=out)
                        group.allreduce(torch.zeros(1), name="rank 0 has looked")

                    return managed(rank, group, one_copy=True, look=look)

            compare(self, run, plain())
            looks = [tuple(map(int, line.split())) for line in seen.read_text().splitlines()]
        once = 2 * model_bytes(make())
        self.assertEqual(len(looks), 12)  # after each backward and each step
        for own, shared in looks:
            self.assertGreater(shared, 0.95 * once)
            self.assertLess(own + shared, 1.15 * once)

    def test_a_backward_does_not_keep_the_gradients_of_the_one_before(self):
        def run(rank):
            seen = []
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                model = make()
                optimizer = adam(model)
                last = next(model.parameters())  # the parameter whose gradient comes last
                last.register_hook(lambda _: seen.append(shared_bytes()) if rank == 0 else None)
                with hybridps.manage(
                    model,
                    optimizer,
                    device="emu:4MiB",
                    group=group,
                    chunk_bytes=CHUNK,
                    one_copy=True,
                ):
                    for x, y in batches(3):
                        optimizer.zero_grad(set_to_none=True)
                        model(x, targets=y)["loss"].backward()
                        optimizer.step()
            return seen

        seen = ranks(run)[0]
        once = model_bytes(make())
        self.assertEqual(len(seen), 3)
        self.assertLess(max(seen), 1.3 * once)  # parameters, and the last chunk of gradients

    def test_clipping_accumulation_and_no_sync(self):
        for how in (
            dict(clip=1.0, accumulate=2),
            dict(clip=1.0, accumulate=3, no_sync=True),
            # pages of its own, which are replaced
            dict(clip=0.05, accumulate=2, halve=True),
        ):
            with self.subTest(**how):

                def run(rank, how=how):
                    with hybridps.Group.shm(name(), rank, WORLD) as group:
                        return managed(rank, group, one_copy=True, **how)

                compare(self, run, plain(**how))

    def test_optimizers_of_torch_s_own(self):
        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return managed(
                    rank, group, one_copy=True, native=False, optimizer=sgd, policy="lru"
                )

        compare(self, run, plain(optimizer=sgd))

    def test_parameters_that_native_adam_leaves_to_torch_beside_others(self):
        def train(group):
            torch.manual_seed(1)
            kinds = (torch.bfloat16, torch.float64, torch.bfloat16, torch.float64)
            layers = torch.nn.ModuleList(
                torch.nn.Linear(16, 16, bias=False).to(kind) for kind in kinds
            )
            optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2)
            options = {"device": "emu:64KiB", "chunk_bytes": 4096, "group": group}
            with hybridps.manage(layers, optimizer, one_copy=group is not None, **options):
                for _ in range(3):  # of two equal gradients, the mean is the same one
                    optimizer.zero_grad(set_to_none=True)
                    ones = (torch.ones(2, 16, dtype=kind) for kind in kinds)
                    sum(m(x).square().mean().double() for m, x in zip(layers, ones)).backward()
                    optimizer.step()
                return [p.detach().clone() for p in layers.parameters()]

        def run(rank):
            with hybridps.Group.shm(name(), rank, WORLD) as group:
                return train(group)

        expected = train(None)
        for values in ranks(run):
            self.assertTrue(all(map(torch.equal, values, expected)))

    def test_what_can_t_be_is_refused_by_name(self):
        def keep(_, group, model, optimizer):
            begin(group, model, optimizer)
            kept = model.head.weight.grad
            optimizer.zero_grad(set_to_none=True)
            model(next(batches(1))[0])
            return kept

        def assign(_, group, model, optimizer):
            begin(group, model, optimizer)
            kept = model.head.weight.data
            model.head.weight.data = torch.zeros_like(kept)

        def thaw(_, group, model, optimizer):
            model.head.weight.requires_grad_(False)
            begin(group, model, optimizer)
            model.head.weight.requires_grad_(True)
            optimizer.step()
            model(next(batches(1))[0])

        def read_in_a_child(rank, group, model, optimizer):
            begin(group, model, optimizer)
            child = os.fork()
            if child == 0:
                said = 1
                try:
                    for p in model.parameters():
                        p.sum()
                except hybridps.HybridPSError as error:
                    said = 0 if "ranks have it in one copy" in str(error) else 2
                os._exit(said)
            raise hybridps.HybridPSError(
                f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"
            )

        def on_devices_that_differ(rank, group, model, optimizer):
            hybridps.manage(
                model,
                optimizer,
                device="emu:1MiB",
                group=group,
                one_copy=True,
                chunk_bytes=CHUNK * (1 + rank),
            )

        def read_in_a_backward(_, group, model, optimizer):
            next(model.parameters()).register_hook(
                lambda _: [p.grad for p in model.parameters()] and None
            )
            begin(group, model, optimizer)

        def in_mode_move(_, group, model, optimizer):
            begin(group, model, optimizer, mode="move")

        for use, words in (
            (keep, "your code still has .*grad"),
            (assign, "your code still has .*weight.data"),
            (thaw, "was frozen"),
            (read_in_a_child, "child 0$"),
            (read_in_a_backward, "another rank's until the backward has ended"),
            (on_devices_that_differ, "chunks out differently"),
            (in_mode_move, "mode=\"copy\""),
        ):
            for said in refused(use):
                with self.subTest(use.__name__):
                    self.assertRegex(said, words)


if __name__ == "__main__":
    unittest.main()

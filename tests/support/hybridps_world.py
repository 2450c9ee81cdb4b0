"""Ranks that train together, forked, and plain torch's result to compare them with."""
from __future__ import annotations

import contextlib
import copy
import os
import unittest

import torch
import torch.nn as nn

from hybridps_model import CHUNK, Watch, adam, batches, hybridps, make, model_bytes
from ranks import alone, ranks

WORLD = 2
torch.set_num_threads(1)


def name():
    return f"helios-test-world-{os.getppid()}"


def data_of(rank, steps, world=WORLD):
    for i, (x, y) in enumerate(batches(steps * world)):
        if i % world == rank:
            yield x, y


def mean(parts):
    """In the order of ranks; 16-bit tensors are summed in float32 and rounded once."""
    wide = [p.float() if p.element_size() == 2 else p for p in parts]
    return sum(wide[1:], wide[0]).div(len(wide)).to(parts[0].dtype)


def plain(**options):
    """All ranks in one process: the gradients of each, added in rank order, halved."""
    return alone(lambda: _plain(**options))


def _plain(
    dtype=torch.float32,
    clip=None,
    optimizer=adam,
    accumulate=1,
    steps=6,
    no_sync=False,
    halve=False,
    world=WORLD,
):
    models = [make(dtype=dtype) for _ in range(world)]
    optimizers = [optimizer(m) for m in models]
    losses = [[] for _ in models]
    streams = [data_of(r, steps * accumulate, world) for r in range(world)]
    for _ in range(steps):
        sums = None
        for turn in range(accumulate):
            for r, m in enumerate(models):
                x, y = next(streams[r])
                loss = m(x, targets=y)["loss"]
                loss.backward()
                losses[r].append(loss.item())
            if no_sync and turn + 1 < accumulate:
                for m in models if halve else ():
                    for p in m.parameters():
                        p.grad.mul_(0.5)
                continue
            grads = [[p.grad for p in m.parameters()] for m in models]
            means = [mean(parts) for parts in zip(*grads)]
            sums = means if sums is None else [s + m for s, m in zip(sums, means)]
            if halve and turn + 1 < accumulate:
                sums = [s * 0.5 for s in sums]
            for m in models:
                m.zero_grad(set_to_none=True)
        for m, step in zip(models, optimizers):
            for p, g in zip(m.parameters(), sums):
                p.grad = g.clone()
            if clip:
                nn.utils.clip_grad_norm_(m.parameters(), clip)
            step.step()
            step.zero_grad(set_to_none=True)
    return losses, models[0].state_dict(), optimizers[0].state_dict()


def managed(
    rank,
    group,
    capacity=512 << 10,
    dtype=torch.float32,
    clip=None,
    optimizer=adam,
    accumulate=1,
    steps=6,
    no_sync=False,
    halve=False,
    look=lambda: None,
    **options,
):
    """halve: gradients, between the backwards of a step; "anew": other tensors."""
    model = make(seed=3 + rank, dtype=dtype)  # every rank uses rank 0's values
    step = optimizer(model)
    losses = []
    watch = Watch(unittest.TestCase())
    with hybridps.manage(
        model,
        step,
        device=f"emu:{int(capacity)}",
        group=group,
        chunk_bytes=CHUNK,
        reserved_bytes=watch.moment,
        **options,
    ) as client:
        watch.client = client
        stream = data_of(rank, steps * accumulate, group.world)
        for _ in range(steps):
            step.zero_grad(set_to_none=True)
            for turn in range(accumulate):
                x, y = next(stream)
                waits = no_sync and turn + 1 < accumulate
                with client.no_sync() if waits else contextlib.nullcontext():
                    loss = model(x, targets=y)["loss"]
                    loss.backward()
                losses.append(loss.item())
                for p in model.parameters() if halve and turn + 1 < accumulate else ():
                    if halve == "anew":
                        p.grad = p.grad * 0.5
                    else:
                        p.grad.mul_(0.5)
                look()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            step.step()
            look()
        states = sum(len(held) for s in client.state.slots for held in s.states.values())
        if options.get("policy", "opt") == "opt":
            watch.compare(options.get("mode", "copy"), options.get("native", True))
        whole, kept = copy.deepcopy((model.state_dict(), step.state_dict()))
        return losses, dict(whole), kept, states, client.stats()["peak_over_avail"]


def minimum(**options):
    """The most bytes that are pinned at once, on any rank."""

    def run(rank):
        with hybridps.Group.shm(name(), rank, WORLD) as group:
            model = make()
            step = adam(model)
            most = 0
            with hybridps.manage(
                model,
                step,
                device=f"emu:{16 * model_bytes(model)}",
                group=group,
                chunk_bytes=CHUNK,
                **options,
            ) as client:
                access = client.state.pool.access

                def measured(bundle):
                    nonlocal most
                    access(bundle)
                    most = max(most, client.stats()["pinned"])

                client.state.pool.access = measured
                x, y = next(batches(1))
                model(x, targets=y)["loss"].backward()
                step.step()
            return most

    return max(ranks(run))


def compare(test, run, expected, world=WORLD):
    """Every rank's losses, parameters and optimizer equal plain torch's; returns how many states
    each rank kept."""
    losses, parameters, optimizer = expected
    kept = []
    for rank, (mine, state, whole, states, over) in enumerate(ranks(run, world)):
        test.assertEqual(mine, losses[rank])
        test.assertEqual(over, 0)
        test.assertEqual(list(state), list(parameters))
        for key, value in state.items():
            test.assertTrue(torch.equal(value, parameters[key]), key)
        test.assertEqual(whole["param_groups"], optimizer["param_groups"])
        test.assertEqual(list(whole["state"]), list(optimizer["state"]))
        for number, entries in optimizer["state"].items():
            for key, value in entries.items():
                test.assertTrue(torch.equal(whole["state"][number][key], value), (number, key))
        kept.append(states)
    return kept

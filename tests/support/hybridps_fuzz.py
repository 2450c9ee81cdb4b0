#!/usr/bin/python3
"""Random training programs, each run on plain torch and managed, and compared bit for bit.

A program is made from a seed: a model, optimizers, a device and a list of operations, which train,
and read and write parameters, gradients and optimizer state where a user might. Both runs return a
list of what they saw. The lists are equal; or the managed run ends in a HybridPSError that REFUSALS
lists; or both end in an exception. A signal is always a failure, so programs run in children.

    tests/support/hybridps_fuzz.py 100000            programs 0 to 99999
    tests/support/hybridps_fuzz.py --replay 4711     one, with what it does
    tests/support/hybridps_fuzz.py --shrink 4711     its shortest part that still fails
    --length 4                                       models and programs four times as long
    --cuda cuda:0                                    on a GPU; see CUDA_TABLE for what is left out

On a GPU the plain run keeps its parameters where a managed run has them: on the device in a pass,
on the host outside; and it steps in the same place.
"""
from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import gc
import os
import pathlib
import pickle
import random
import re
import signal
import sys
import threading
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import hybridps

WIDTH = 8
CUDA = ""  # the device
LENGTH = 1  # of models and programs; with another length a seed gives another program
LOST = 75  # the status of a child whose device is lost
REFUSALS = (  # messages that are allowed instead of a result
    "needs .* of device memory at once",
    "written in place between forward and",
    "memory of .*two parameters in the same memory",
    "this step needs all state on the host at once",
    "is requested between a backward with create_graph",
    "has no exp_avg.*, but a step",
    "was used after its content had ended",
    "native Adam counts whole ones",
)


class Wrong(Exception):
    pass


class Lost(Wrong):
    """The device's context is lost: this process can run no more programs."""


# ---- models ----


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Checkpointed(Residual):
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if x.requires_grad else self.inner(x)


class Borrower(nn.Module):
    """Uses weights without calling the module that owns them: by name, from a list, returned."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.many = nn.ParameterList([nn.Parameter(torch.randn(WIDTH) * 0.3) for _ in range(2)])
        self.kept = [self.layer.weight]

    def forward(self, x):
        if self.kind == 0:
            return F.linear(x, self.layer.weight) * self.many[0]
        if self.kind == 1:
            return F.linear(x, self.kept[0], self.layer.bias)
        return self.layer(x) + self.many[1] + 1e-2 * sum(p.sum() for p in self.parameters())


def make_block(rng, depth):
    kind = rng.randrange(8 if depth else 6)
    if kind <= 1:
        return nn.Linear(WIDTH, WIDTH, bias=rng.random() < 0.8)
    if kind == 2:
        return nn.LayerNorm(WIDTH)
    if kind == 3:
        return nn.Tanh()
    if kind == 4:
        return Borrower(rng.randrange(3))
    if kind == 5:
        return nn.Sequential(
            nn.Linear(WIDTH, 3 * WIDTH), nn.ReLU(inplace=True), nn.Linear(3 * WIDTH, WIDTH)
        )
    wrap = Residual if kind == 6 else Checkpointed
    return wrap(nn.Sequential(make_block(rng, 0), make_block(rng, 0)))


def make_model(rng):
    torch.manual_seed(rng.randrange(1 << 30))
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), *(make_block(rng, 1) for _ in range(rng.randint(1, 3 * LENGTH)))
    )
    linears = [
        m for m in model.modules() if type(m) is nn.Linear and m.in_features == m.out_features
    ]
    if len(linears) > 1 and rng.random() < 0.2:
        linears[-1].weight = linears[0].weight
    if rng.random() < 0.2:
        rng.choice(list(model.parameters())).requires_grad_(False)
    return model.to(CUDA) if CUDA else model


def make_optimizer(rng, params):
    params = list(params)
    kind = rng.randrange(6)
    if kind <= 1:
        return torch.optim.Adam(params, lr=1e-2, weight_decay=rng.choice((0, 0.1)))
    if kind == 2:
        return torch.optim.AdamW(params, lr=1e-2)
    if kind == 3:
        return torch.optim.SGD(params, lr=1e-1, momentum=rng.choice((0, 0.9)))
    if kind == 4:
        return torch.optim.RMSprop(params, lr=1e-3)
    return torch.optim.Adam(params, lr=1e-2, amsgrad=True)


def make_way(rng):
    # One chunk a page: seven pages hold barely more than a block and its gradients.
    way = {
        "device": f"emu:{rng.choice((28, 40, 56, 96, 512))}KiB",
        "mode": rng.choice(("copy", "move")),
        "policy": rng.choice(("opt", "lru", "fifo", "random")),
        "prefetch": rng.choice((0, -1)),
        "chunk_bytes": rng.choice((0, 4096)),
    }
    if rng.random() < 0.2:
        way["optimizer_device"] = "host"
    return way


def on_cuda(way, optimizers):
    """The same in the GPU's unit of memory, which is 512 pages; bits as with foreach=False."""
    size = int(way["device"][4:-3]) * 512
    host = way.pop("optimizer_device", "") == "host"
    adams = all(
        type(o) in (torch.optim.Adam, torch.optim.AdamW) and not o.defaults["amsgrad"]
        for o in optimizers
    )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["foreach"] = False
    return {
        **way,
        "device": f"{CUDA}:{size}KiB",
        "chunk_bytes": way["chunk_bytes"] * 512,
        "optimizer_device": "device" if adams and not host else "host",
        "native": adams and not host,
    }


# ---- operations: what a user does, by name ----


class Run:
    """One execution of a program."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.model = make_model(rng)
        self.optimizers = [make_optimizer(rng, self.model.parameters())]
        if rng.random() < 0.2:
            self.optimizers.append(make_optimizer(rng, self.model.parameters()))
        self.way = make_way(rng)
        if CUDA:
            self.way = on_cuda(self.way, self.optimizers)
        self.steps_there = self.way.get("optimizer_device") == "device"
        self.passes = 0  # running passes, in a plain run on CUDA
        self.seen: list[Any] = []
        self.kept: list[Any] = []
        self.hooks: list[Any] = []
        self.managed = False
        if rng.random() < 0.1 and not CUDA:
            self.op_hook(rng.randrange(30))

    def batch(self, n):
        generator = torch.Generator().manual_seed(n)
        return torch.randn(2, WIDTH, generator=generator).to(CUDA or "cpu")

    def param(self, n):
        params = list(self.model.parameters())
        found = params[n % len(params)]
        if CUDA:
            # HybridPS notices the read: in a pass the parameter is kept there
            assert found.data is not None
        return found

    @contextlib.contextmanager
    def there(self):
        """A pass; with plain torch on CUDA, parameters and gradients are on the device
        meanwhile."""
        self.passes += 1
        if self.passes == 1:
            self.move(CUDA)
        try:
            yield
        finally:
            self.passes -= 1
            if self.passes == 0:
                self.move("cpu")

    def move(self, where):
        if not CUDA or self.managed:
            return
        for p in self.model.parameters():
            grad, p.grad = p.grad, None
            p.data = p.data.to(where)
            p.grad = None if grad is None else grad.to(where)

    def step(self, who):
        optimizer = self.optimizers[who % len(self.optimizers)]
        if not self.steps_there:
            return optimizer.step()
        with self.there():
            return optimizer.step()

    def see(self, value):
        self.seen.append(bits(value))

    def do(self, op):
        getattr(self, "op_" + op[0])(*op[1:])

    # training

    def op_step(self, data, zero, extra, who):
        self.zero(zero)
        with self.there():
            loss = self.loss(data, extra)
            loss.backward()
        self.see(loss)
        self.step(who)

    def op_accumulate(self, data, extra):
        with self.there():
            self.loss(data, extra).backward()

    def op_fork(self, n):
        """A child, like a DataLoader's worker, that reads what it can."""

        def look():
            return bits(
                [
                    self.param(n),
                    [p.grad for p in self.model.parameters()],
                    self.model.state_dict(),
                    self.kept[n % len(self.kept)] if self.kept else None,
                ]
            )

        if not self.managed:
            self.seen.append(look())  # a fork would see the same
            return
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                said = pickle.dumps(look())
            except Exception as error:
                said = pickle.dumps(f"raised {error}")
            with os.fdopen(write, "wb") as file:
                file.write(said)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            said = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.seen.append(pickle.loads(said) if code == 0 else f"a child ended with {code}")

    def op_between(self, data, inner):
        """Other operations between forward and backward."""
        with self.there():
            loss = self.loss(data, 0)
            for op in inner:
                self.do(op)
            loss.backward()
        self.see(loss)

    def op_graph(self, data, how, inner):
        """A backward that builds a graph, other operations, and a backward through it."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        with self.there():
            loss = self.loss(data, 0)
            if how == 0:
                grads = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)
            else:
                loss.backward(create_graph=True)
                grads = [p.grad for p in trained]
            for op in inner:
                self.do(op)
            loss = loss + sum(
                1e-2 * g.square().sum() for g in grads if g is not None and not g.is_sparse
            )
            loss.backward()
        self.see(loss)

    def op_evaluate(self, data):
        with torch.no_grad(), self.there():
            self.see(self.model(self.batch(data)))

    def op_clip(self, _):
        if any(p.grad is not None for p in self.model.parameters()):
            self.see(nn.utils.clip_grad_norm_(self.model.parameters(), 0.05))

    def op_just_step(self, who):
        self.step(who)

    def op_zero(self, zero):
        self.zero(zero)

    def op_fail(self, data):
        """An exception in the middle of a forward."""

        def stop(*_):
            raise ZeroDivisionError

        handle = list(self.model)[-1].register_forward_hook(stop)
        try:
            with self.there():
                self.model(self.batch(data))
        except ZeroDivisionError:
            pass
        handle.remove()

    def op_fail_backward(self, data):
        def stop(_):
            raise ZeroDivisionError

        with self.there():
            out = self.model[0](self.batch(data))
            if out.requires_grad:
                out.register_hook(stop)
                try:
                    self.model[1:](out).sum().backward()
                except ZeroDivisionError:
                    pass

    def op_thread(self, data):
        thread = threading.Thread(target=self.op_evaluate, args=(data,))
        thread.start()
        thread.join()

    def zero(self, kind):
        if kind == 0:
            self.optimizers[0].zero_grad(set_to_none=True)
        elif kind == 1:
            self.optimizers[0].zero_grad(set_to_none=False)
        elif kind == 2:
            self.model.zero_grad(set_to_none=True)
        elif kind == 3:
            for p in self.model.parameters():
                p.grad = None

    def loss(self, data, extra):
        extra = 0 if CUDA else extra  # a sum on the host differs in bits from one on the device
        before = sum(p.square().sum() for p in self.model.parameters()) if extra == 1 else 0
        out = self.model(self.batch(data))
        after = sum(p.abs().sum() for p in self.model.parameters()) if extra == 2 else 0
        loss = out.square().mean() + 1e-3 * before + 1e-3 * after
        return loss if loss.requires_grad else loss + torch.zeros(1, requires_grad=True).sum()

    # parameters

    def op_read(self, n, how):
        p = self.param(n)
        self.see(
            [
                lambda: p,
                lambda: p.data,
                lambda: p.detach().cpu().numpy().copy(),
                lambda: p.detach().cpu().norm(),
                lambda: p[..., :1].contiguous(),
                lambda: list(self.model.state_dict().values()),
            ][how]()
        )

    def op_write(self, n, how):
        p = self.param(n)
        with torch.no_grad():
            if how == 0:
                p.mul_(0.9)
            elif how == 1:
                p.data.mul_(0.9)
            elif how == 2:
                p.data = p.data * 0.9
            elif how == 3:
                p.copy_(torch.full_like(p, 0.1))
            else:
                p.detach().add_(0.01)

    def op_write_data(self, n, how):
        """Also in a pass, where torch does not notice such a write."""
        self.op_write(n, 1 + how)

    def op_keep(self, n, how):
        p = self.param(n)
        makers = [
            lambda: p.data,
            lambda: p.detach(),
            lambda: p.detach().numpy(),
            lambda: p.grad,
            lambda: None if p.grad is None else p.grad.view(-1),
            lambda: self.model.state_dict(),
            lambda: self.optimizers[0].state_dict()["state"],
            lambda: dict(self.optimizers[0].state.get(p, {})),
        ]
        self.kept.append(makers[how]())

    def op_see_kept(self, n):
        if self.kept:
            self.see(self.kept[n % len(self.kept)])

    def op_forget(self, n):
        if self.kept:
            self.kept.pop(n % len(self.kept))

    def op_write_kept(self, n):
        for value in floats_of(self.kept[n % len(self.kept)] if self.kept else None):
            if isinstance(value, torch.Tensor):
                with torch.no_grad():
                    value.mul_(0.9)
            else:
                value *= value.dtype.type(0.9)

    def op_swap(self, n, data):
        """Replaces values for an evaluation and restores them, as averaged weights do."""
        p = self.param(n)
        backup = p.data
        p.data = torch.full_like(backup, 0.2)
        self.op_evaluate(data)
        p.data = backup

    def op_freeze(self, n, on):
        self.param(n).requires_grad_(bool(on))

    def op_load(self, scale):
        self.model.load_state_dict(
            {k: v * (0.5 + scale / 4) for k, v in self.model.state_dict().items()}
        )

    def op_copy(self, data):
        with torch.no_grad():
            model = copy.deepcopy(self.model)
            self.see((model.to(CUDA) if CUDA else model)(self.batch(data)))

    # gradients

    def op_grad(self, n, how):
        p = self.param(n)
        if self.steps_there and not p.requires_grad and torch.cuda.is_initialized():
            return  # torch steps it on the host, which rounds differently from the device
        if how == 0:
            self.see(p.grad)
        elif how == 1:
            p.grad = None
        elif how == 2:
            p.grad = torch.full_like(p, 0.3)
        elif how == 3 and p.grad is not None:
            p.grad.mul_(0.5)
        elif how == 4 and p.grad is not None:
            p.grad = p.grad * 2
        elif how == 5:
            p.grad = torch.full_like(p, 0.1)
            self.kept.append(p.grad)
        elif how == 6 and p.grad is not None:
            p.grad.data = p.grad.data * 0.5

    def op_hook(self, n):
        """main_grad as Megatron and apex keep it: the gradient is taken when it is complete."""
        p = self.param(n)
        if not p.requires_grad:
            return
        p.main_grad = torch.zeros_like(p, requires_grad=False)
        node = p.expand_as(p).grad_fn.next_functions[0][0]

        def take(*_):
            if p.grad is not None:
                p.main_grad.add_(p.grad.data)
                p.grad = None

        self.hooks.append((node, node.register_hook(take)))
        self.kept.append(p.main_grad)

    # optimizers

    def op_state(self, n, how, who):
        optimizer, p = self.optimizers[who % len(self.optimizers)], self.param(n)
        if CUDA and (self.steps_there or how == 3):
            return  # it has no values there
        state = optimizer.state.get(p, {})
        if how == 0:
            optimizer.state.clear()
        elif how == 1:
            optimizer.state.pop(p, None)
        elif how == 2 and state:
            optimizer.state[p] = {}
        elif how == 3:
            self.kept.append(optimizer.state)
            optimizer.state = collections.defaultdict(dict)
        elif how == 4:
            for value in floats_of(dict(state)):
                if value.dim() > 0:
                    value.mul_(0.9)
        elif how == 5:
            for key, value in list(state.items()):
                if isinstance(value, torch.Tensor) and value.dim() > 0:
                    state[key] = value * 0.8
        elif how == 8:
            for value in floats_of(dict(state)):
                if value.dim() > 0:
                    value.data = value * 0.7
        elif how == 6:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        else:
            self.see({k: v for k, v in state.items() if k != "master"})

    def op_state_back(self, _):
        for value in reversed(self.kept):
            if isinstance(value, collections.defaultdict):
                self.optimizers[0].state = value
                return

    def op_rate(self, who):
        for group in self.optimizers[who % len(self.optimizers)].param_groups:
            group["lr"] *= 0.5

    def op_head(self, seed):
        torch.manual_seed(seed)
        head = nn.Linear(WIDTH, WIDTH)
        self.model.add_module(str(len(self.model)), head)
        self.optimizers[0].add_param_group({"params": list(head.parameters())})


# Name, weight, and the range of each argument; "ops" are operations that may be nested in a pass.
TABLE = {
    "step": (14, 6, 5, 3, 2),
    "accumulate": (3, 6, 3),
    "between": (4, 6, "ops"),
    "graph": (2, 6, 2, "ops"),
    "evaluate": (3, 6),
    "write_data": (1, 30, 2),
    "clip": (1, 1),
    "fork": (1, 30),
    "just_step": (1, 2),
    "zero": (2, 4),
    "fail": (1, 6),
    "fail_backward": (1, 6),
    "thread": (1, 6),
    "read": (4, 30, 6),
    "write": (4, 30, 5),
    "keep": (5, 30, 8),
    "see_kept": (4, 9),
    "forget": (1, 9),
    "write_kept": (2, 9),
    "swap": (1, 30, 6),
    "freeze": (1, 30, 2),
    "load": (1, 3),
    "copy": (1, 6),
    "grad": (5, 30, 7),
    "hook": (1, 30),
    "state": (4, 30, 9, 2),
    "state_back": (1, 1),
    "rate": (1, 2),
    "head": (1, 5),
}
# On CUDA views end with their content, parameters outside of a pass are on the host, children
# cannot use the device, and unmanaged tensors are elsewhere than managed ones.
NOT_ON_CUDA = (
    "graph fork keep see_kept forget write_kept swap hook state_back head write_data".split()
)
CUDA_TABLE = tuple(name for name in TABLE if name not in NOT_ON_CUDA)
IN_A_PASS = "read see_kept keep evaluate grad zero copy forget fork write_data write_kept".split()


def make_op(rng, names):
    names = [n for n in names if n in CUDA_TABLE] if CUDA else names
    name = rng.choices(names, [TABLE[n][0] for n in names])[0]
    return [
        name,
        *(
            (
                ([make_op(rng, IN_A_PASS) for _ in range(rng.randint(1, 3))])
                if size == "ops"
                else rng.randrange(size)
            )
            for size in TABLE[name][1:]
        ),
    ]


def make_program(seed):
    rng = random.Random(seed + (1 << 40))
    return [["step", 0, 0, 0, 0]] + [
        make_op(rng, tuple(TABLE)) for _ in range(rng.randint(3, 10) * LENGTH)
    ]


# ---- running ----


def floats_of(value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [t for v in value.values() for t in floats_of(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in floats_of(v)]
    return [value] if hasattr(value, "dtype") else []


def bits(value):
    if isinstance(value, torch.Tensor):
        flat = (value.detach().to_dense() if value.is_sparse else value.detach()).cpu()
        if flat.dtype == torch.bfloat16:  # NumPy has no such type
            flat = flat.view(torch.int16)
        return str(value.dtype), tuple(value.shape), flat.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return [bits(v) for v in value.values()]
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    return value.tobytes() if hasattr(value, "tobytes") else value


def execute(seed, program, managed):
    """What the program saw, then how it ended."""
    run = Run(seed)
    run.managed = managed
    client, end = None, "end"
    run.move("cpu")
    try:
        if managed:
            client = hybridps.manage(
                run.model, run.optimizers, manager="none", spill="none", **run.way
            )
        for number, op in enumerate(program):
            run.seen.append(f"{number} {op[0]}")
            run.do(op)
    except hybridps.HybridPSError as error:
        end = f"HybridPSError: {error}"
    except Exception as error:  # plain torch must fail, too
        known = managed and re.match("HybridPSError: ", str(error))
        end = str(error) if known else f"raised {type(error).__name__}: {error}"
    try:
        if client is not None:
            client.close()
    except hybridps.HybridPSError as error:
        end = f"HybridPSError: {error}" if end == "end" else end
    if end == "end":
        end = look_after(run)
    return run.seen, end


def look_after(run):
    """Reads what is left after the client was closed, and trains on."""
    run.seen.append("after")
    run.see(list(run.model.parameters()))
    if CUDA:  # everything is back where it came from
        return (
            "end"
            if not run.managed or all(p.is_cuda for p in run.model.parameters())
            else "raised: not on the device"
        )
    run.see([p.grad for p in run.model.parameters()])
    for value in run.kept:
        run.see(value)
    try:
        run.op_step(0, 0, 0, 0)
    except Exception as error:
        return f"raised {type(error).__name__} after close: {error}"
    run.see(list(run.model.parameters()))
    return "end"


def check(seed, program):
    """ "same", or "refused: ..."; Wrong says what differs."""
    plain, plain_end = execute(seed, program, False)
    seen, end = execute(seed, program, True)
    if "CUDA error" in plain_end + end or "CUDA_ERROR" in end:
        raise Lost(end)
    for number, (a, b) in enumerate(zip(plain, seen)):
        if a != b:
            at = next(s for s in reversed(plain[: number + 1]) if isinstance(s, str))
            raise Wrong(f"differs from plain torch in operation {at}")
    if end.startswith("HybridPSError"):
        for known in REFUSALS:
            if re.search(known, end, re.S):
                return f"refused: {known}"
        if not plain_end.startswith("raised"):
            raise Wrong(end)
    elif end.split(":")[0] != plain_end.split(":")[0]:
        raise Wrong(f"ends in {end}, plain torch in {plain_end}")
    elif len(plain) != len(seen):
        raise Wrong(f"saw {len(seen)} things, plain torch {len(plain)}")
    return "same" if plain_end == "end" else "both raised"


def text_of(seed, program):
    run = Run(seed)
    lines = [
        f"seed {seed}: {run.way}",
        (
            f"  {', '.join(type(o).__name__ for o in run.optimizers)};"
            f" {sum(p.numel() for p in run.model.parameters())} parameters; {len(run.hooks)} hooks"
            " from before"
        ),
    ]
    return "\n".join(lines + [f"  {n} {op}" for n, op in enumerate(program)])


def in_child(seeds, program=None):
    """{seed: result}, each run in one child; a run that a signal ended is reported."""
    results: dict[int, str] = {}
    seeds = list(seeds)
    gc.freeze()  # collections in children skip torch's million objects
    while seeds:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(seeds, program, write)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            data = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = _parse(data)
        results.update(done)
        seeds = seeds[len(done) :]
        if code not in (0, LOST) and seeds:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
            results[seeds.pop(0)] = f"WRONG: the process ended by {how}"
    return results


def _child(seeds, program, write):
    torch.set_num_threads(1)
    code = 0
    for seed in seeds:
        signal.alarm(300)  # this process waits for itself
        try:
            result = check(seed, program or make_program(seed))
        except Wrong as wrong:
            result, code = f"WRONG: {wrong}", LOST if isinstance(wrong, Lost) else 0
        line = pickle.dumps((seed, result))
        os.write(write, len(line).to_bytes(4, "little") + line)
        if code != 0:
            break
    os._exit(code)


def _parse(data):
    out = {}
    while data:
        size = int.from_bytes(data[:4], "little")
        seed, result = pickle.loads(data[4 : 4 + size])
        out[seed] = result
        data = data[4 + size :]
    return out


def shrink(seed):
    """The shortest part of the program that still fails."""
    program = make_program(seed)
    worse = True
    while worse:
        worse = False
        for at in reversed(range(len(program))):
            shorter = program[:at] + program[at + 1 :]
            if shorter and in_child([seed], shorter)[seed].startswith("WRONG"):
                program, worse = shorter, True
    return program


def fuzz(first, count, batch=1000, tell=None):
    """Counts of results, and the failed seeds with the reason. tell: called with the number of
    programs that have run and with what failed in the last batch."""
    counts: collections.Counter = collections.Counter()
    wrong: dict[int, str] = {}
    for start in range(first, first + count, batch):
        for seed, result in in_child(range(start, min(start + batch, first + count))).items():
            counts[result.split(": ")[0]] += 1
            if result.startswith("WRONG"):
                wrong[seed] = result
        if tell is not None:
            tell(sum(counts.values()), {s: w for s, w in wrong.items() if s >= start})
    return counts, wrong


def on_this_gpu():
    """As many parameters in a unit of the GPU's memory as in a page elsewhere."""
    global WIDTH
    WIDTH = 181
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=2000, help="programs (2000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    parser.add_argument("--length", type=int, default=1, help="times the blocks and operations (1)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one, here")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="shorten one that goes wrong")
    parser.add_argument("--cuda", default="", metavar="DEVICE", help="on a GPU, as cuda:0")
    args = parser.parse_args()
    global LENGTH, CUDA
    LENGTH, CUDA = args.length, args.cuda
    if CUDA:
        on_this_gpu()
    torch.set_num_threads(1)
    if args.replay is not None or args.shrink is not None:
        seed = args.replay if args.replay is not None else args.shrink
        program = make_program(seed) if args.replay is not None else shrink(seed)
        print(text_of(seed, program), flush=True)
        print(
            (check(seed, program) if args.replay is not None else in_child([seed], program)[seed])
        )
        return 0
    began = time.process_time()

    def tell(done, wrong):
        for seed, result in wrong.items():
            print(f"{seed}: {result[:300]}")
        if args.count > done:
            print(f"{done} of {args.count}", flush=True)

    counts, wrong = fuzz(args.seed, args.count, batch=max(200 // args.length, 1), tell=tell)
    print(
        f"{dict(counts)}; {os.times().children_user + os.times().children_system:.0f} s of CPU, "
        f"{time.process_time() - began:.0f} s here"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

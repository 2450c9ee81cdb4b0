"""Random training programs for hybridps_fuzz.py: their models and operations."""
from __future__ import annotations

import collections
import contextlib
import copy
import os
import pickle
import random
import threading
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

WIDTH = 8
CUDA = ""  # the device
LENGTH = 1  # of models and programs; with another length a seed gives another program


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


# ---- what is seen ----


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

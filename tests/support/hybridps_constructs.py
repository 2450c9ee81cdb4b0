"""What users write around a model, each as a function of a world, and what it does there: the rows of
the table in docs/hybridps.md.

A row trains as plain torch does, to the bit, or is refused by a message. What it returns is compared;
so is what it returns from a function that it returns, which is called when the client is closed.
"""
from __future__ import annotations

import collections
import copy
import os
import threading
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

import hybridps

WIDTH = 32
CAPACITIES = ("emu:60KiB", "emu:96KiB", "emu:1MiB")  # of 131 KiB of parameters, gradients and state
EQUAL = "equal"
ROWS: list[tuple[str, str, Callable, Callable]] = []


def row(text: str, outcome: str = EQUAL, make: Callable | None = None) -> Callable:
    """outcome: EQUAL, or what the error says."""
    def add(use: Callable) -> Callable:
        ROWS.append((text, outcome, use, make or layers))
        return use
    return add


def layers(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Tanh(),
                         nn.Linear(2 * WIDTH, WIDTH))


class World:
    """A model with its optimizer, on plain torch or managed."""

    def __init__(self, make: Callable, device: str | None) -> None:
        self.model, self.device, self.client = make(), device, None
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def manage(self) -> None:
        if self.device:
            self.client = hybridps.manage(self.model, self.optimizer, device=self.device,
                                          chunk_bytes=4096)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()

    def register(self, optimizer: torch.optim.Optimizer, **options: Any) -> torch.optim.Optimizer:
        if self.client is not None:
            self.client.register_optim(optimizer, **options)
        return optimizer

    def batches(self, count: int, first: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out = []
        for number in range(first, first + count):
            generator = torch.Generator().manual_seed(number)
            out.append((torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator)))
        return out

    def train(self, count: int, first: int = 0, optimizer: Any = None, penalty: Any = None) -> list[float]:
        losses, optimizer = [], optimizer or self.optimizer
        for x, y in self.batches(count, first):
            optimizer.zero_grad(set_to_none=True)
            before = penalty(self.model) if penalty else 0
            loss = F.mse_loss(self.model(x), y) + before
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def backward(self, number: int = 0) -> None:
        x, y = self.batches(1, number)[0]
        F.mse_loss(self.model(x), y).backward()

    def evaluate(self, number: int = 0) -> torch.Tensor:
        with torch.no_grad():
            return self.model(self.batches(1, number)[0][0])

    def params(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


class Student(nn.Module):
    """A model and its moving average, made in forward as MoCo and BYOL do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = layers(1), layers(2)
        for p in self.two.parameters():
            p.requires_grad_(False)
        self.inner: Callable[[Any], None] = lambda model: None
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner(self)
        with torch.no_grad():
            target = self.two(x)
        return self.one(x) + target


class Listed(nn.Module):
    """Weights in a plain list, in a closure, and returned by a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = layers(), Returned()
        weight = self.layer[0].weight
        self.kept = [self.layer[2].weight]
        self.__dict__["first"] = lambda x: F.linear(x, weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(torch.tanh(self.first(x)), self.kept[0]).tanh()
        return self.layer[4](hidden) @ self.scale()


class Returned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))

    def forward(self) -> torch.Tensor:
        return self.weight


# ---- parameters that are read ----

@row("penalty of parameters before the forward")
def penalty(w):
    return w.train(4, penalty=lambda m: 1e-3 * sum(p.abs().sum() for p in m.parameters()))


@row("norm, `state_dict()` and `parameters()` within a forward", make=Student)
def within(w):
    w.model.inner = lambda m: m.seen.append([p.norm() for p in m.two.parameters()] +
                                            [v.clone() for v in m.state_dict().values()])
    return w.train(3) + w.model.seen


@row("moving average of another network within a forward, by `p.data`", make=Student)
def average(w):
    def update(m):
        for one, two in zip(m.one.parameters(), m.two.parameters()):
            two.data = two.data * 0.9 + one.data * 0.1
    w.model.inner = update
    return w.train(4)


@row("parameters from a list, a closure, a forward's result", make=Listed)
def listed(w):
    return w.train(4)


@row("a second thread evaluates while one trains")
def threads(w):
    over, wrong = threading.Event(), []

    def evaluate():
        while not over.is_set():
            if not w.evaluate().isfinite().all() or not sum(p.sum() for p in w.params()).isfinite():
                wrong.append(1)
    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        losses = w.train(12)
    finally:
        over.set()
        thread.join()
    return losses + wrong


@row("a forked child reads parameters")
def child_reads(w):
    losses = w.train(2)
    read, write = os.pipe()
    if os.fork() == 0:
        total = torch.stack([p.sum() for p in w.params()]).sum().item()
        os.write(write, repr(total).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    os.wait()
    return losses + [told]


@row("a forked child uses the model", "is used after a fork, in process")
def child_uses(w):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            w.evaluate()
            said = "nothing"
        except hybridps.HybridPSError as error:
            said = str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.wait()
    if said != "nothing":
        raise hybridps.HybridPSError(said)
    return []


@row("a child forked between forward and backward, or within a forward, reads what was there then")
def child_of_a_pass(w):
    children = []

    def fork(*_):
        go, told = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(go[1])
            os.read(go[0], 1)  # until the parent has gone on
            seen = [w.params(), [p.grad for p in w.params()], w.model.state_dict()]
            flat = [t for v in seen for t in (v.values() if isinstance(v, dict) else v) if t is not None]
            os.write(told[1], repr([t.double().sum().item() for t in flat]).encode())
            os._exit(0)
        os.close(go[0])
        os.close(told[1])
        children.append((go[1], told[0]))
    losses = w.train(2)
    w.optimizer.zero_grad()
    w.backward(2)  # the next one accumulates
    x, y = w.batches(1, 3)[0]
    hook = w.model[2].register_forward_hook(fork)
    loss = F.mse_loss(w.model(x), y)
    hook.remove()
    fork()
    loss.backward()
    w.optimizer.step()
    losses += w.train(2, 4)
    for go, _ in children:  # all at once: the second child has the first one's pipe too
        os.close(go)
    for _, told in children:
        with os.fdopen(told) as file:
            losses.append(file.read())
        os.wait()
    return losses


# ---- what is kept ----

@row("`state_dict()`, gradients, arrays, `optimizer.state_dict()` read after `close()`")
def after_close(w):
    losses = w.train(3)
    kept = [w.model.state_dict(), [p.grad for p in w.params()], w.params()[0].detach().numpy(),
            w.optimizer.state_dict()["state"]]
    return lambda: losses + kept


@row("`loss.backward()` after `close()`")
def backward_after(w):
    losses = w.train(2)
    w.optimizer.zero_grad(set_to_none=True)
    x, y = w.batches(1)[0]
    loss = F.mse_loss(w.model(x), y)

    def later():
        loss.backward()
        return losses + [p.grad for p in w.params()]
    return later


@row("best `state_dict()` kept while another model is managed")
def best(w):
    losses = w.train(3)
    kept = w.model.state_dict()

    def later():
        other = World(lambda: layers(7), w.device)
        other.manage()
        other.train(2)
        other.close()
        return losses + [kept]
    return later


@row("gradients kept over `zero_grad(set_to_none=True)`")
def gradients(w):
    kept = []
    for number in range(4):
        w.optimizer.zero_grad(set_to_none=True)
        w.backward(number)
        kept.append([p.grad if number % 2 else p.grad.view(-1) for p in w.params()])
        w.optimizer.step()
    return kept


@row("a tensor assigned to `p.grad` and kept")
def assigned(w):
    kept = [torch.full_like(p, 0.1) for p in w.params()]
    for p, grad in zip(w.params(), kept):
        p.grad = grad
    out = []
    for number in range(3):
        w.backward(number)
        w.optimizer.step()
        out.append([grad.clone() for grad in kept])
        for grad in kept:
            grad.mul_(0.5)
    return out


@row("writes through `p.data` and NumPy arrays from before")
def aliases(w):
    data, arrays = [p.data for p in w.params()], [p.detach().numpy() for p in w.params()]
    out = []
    for number in range(4):
        out += w.train(1, number) + [w.evaluate()]
        for alias in (data, arrays)[number % 2]:
            alias *= 0.9
        out.append(w.evaluate())
    return out


@row("`backup = p.data; p.data = average; ...; p.data = backup`")
def swapped(w):
    out = []
    for number in range(3):
        out += w.train(1, number)
        backup = [p.data for p in w.params()]
        for p in w.params():
            p.data = p.data * 0.5
        out.append(w.evaluate())
        for p, data in zip(w.params(), backup):
            p.data = data
    return out


@row("`p.data = q.data` of another parameter", "two parameters in the same memory")
def shared(w):
    w.model[1] = nn.Tanh()
    w.params()[1].data = w.params()[3].data
    return []


# ---- optimizers ----

@row("`optimizer.state` cleared, popped, replaced, put back; `optimizer.__init__` again")
def cleared(w):
    out, state = w.train(2), w.optimizer.state
    w.optimizer.state = collections.defaultdict(dict)
    out += w.train(2, 2)
    w.optimizer.state = state
    out += w.train(1, 4)
    w.optimizer.state.pop(w.params()[0])
    w.optimizer.state[w.params()[1]] = {}
    out += w.train(1, 5)
    w.optimizer.state.clear()
    out += w.train(1, 6)
    w.optimizer.__init__(w.params(), lr=1e-3)
    return out + w.train(2, 7)


@row("`optimizer.state[p]` read and written, at every capacity")
def entries(w):
    out = w.train(2)
    for p in w.params():
        out.append(w.optimizer.state[p]["exp_avg"].clone())
        w.optimizer.state[p]["exp_avg"].mul_(0.5)
        w.optimizer.state[p]["exp_avg_sq"] = w.optimizer.state[p]["exp_avg_sq"] * 2
    return out + w.train(2, 2)


@row("two optimizers over the same parameters")
def two(w):
    second = w.register(torch.optim.Adam(w.model.parameters(), lr=1e-3))
    third = w.register(torch.optim.SGD(w.model.parameters(), lr=1e-3, momentum=0.9))
    out = []
    for number in range(3):
        for optimizer in (w.optimizer, second, third):
            out += w.train(1, number, optimizer)
    return out


@row("two native Adams over the same 16-bit parameters", "register the second one with native=False",
     make=lambda: layers().bfloat16())
def two_of_16_bits(w):
    w.register(torch.optim.Adam(w.model.parameters(), lr=1e-3))
    return []


@row("state that is `p.grad` itself, as in MARS")
def same_memory(w):
    for p in w.params():
        p.grad = torch.zeros_like(p)
    out = []
    for number in range(3):
        w.model.zero_grad(set_to_none=False)
        w.backward(number)
        for p in w.params():
            w.optimizer.state.setdefault(p, {})
            if number == 0:
                w.optimizer.state[p] = {}
        w.optimizer.step()
        out.append([w.optimizer.state[p].setdefault("last", p.grad).clone() for p in w.params()])
    return out


@row("a state dict of a model of other shapes", "the state is another model's")
def foreign(w):
    w.train(1)
    state = copy.deepcopy(w.optimizer.state_dict())
    for entry in state["state"].values():
        entry["exp_avg"] = torch.zeros(3)
    w.optimizer.load_state_dict(state)
    return []


@row("part of a parameter's state removed", "clear all of it or nothing")
def removed(w):
    w.train(1)
    del w.optimizer.state[w.params()[0]]["exp_avg"]
    return w.train(1)


@row("a new head with a group of its own")
def head(w):
    out = w.train(2)
    torch.manual_seed(5)
    w.model[4] = nn.Linear(2 * WIDTH, WIDTH)
    w.optimizer.add_param_group({"params": list(w.model[4].parameters())})
    return out + w.train(3, 2)


@row("parameters frozen and thawed")
def thawed(w):
    for p in w.params()[:2]:
        p.requires_grad_(False)
    out = w.train(2)
    for p in w.params()[:2]:
        p.requires_grad_(True)
    return out + w.train(2, 2)


# ---- hooks, copies, writes ----

@row("hooks of AccumulateGrad nodes (`main_grad` of Megatron and apex)")
def main_grad(w):
    nodes, out = [], []

    def hook(p):
        def take(*_):
            if p.grad is not None:
                p.main_grad.add_(p.grad.data)
            p.grad = None
        return take
    for p in w.params():
        p.main_grad = torch.zeros_like(p, requires_grad=False)
        nodes.append(p.expand_as(p).grad_fn.next_functions[0][0])
        nodes[-1].register_hook(hook(p))
    for number in range(2):
        w.backward(2 * number)
        w.backward(2 * number + 1)
        out.append([p.grad is None for p in w.params()])
        for p in w.params():
            p.grad = p.main_grad.clone()
            p.main_grad.zero_()
        w.optimizer.step()
    return out


@row("modules made of a copy of `module.__dict__` (MAML)")
def maml(w):
    def patched(module):
        kind = type("Patched", (type(module),), {"__init__": nn.Module.__init__})
        out = kind()
        for name, value in module.__dict__.items():
            if name not in ("_parameters", "_buffers", "_modules"):
                setattr(out, name, value)
        for name, child in module._modules.items():
            out._modules[name] = patched(child)
        for name, p in module._parameters.items():
            out._parameters[name] = None if p is None else nn.Parameter(p.detach() * 2)
        return out
    losses = w.train(2)
    fast = patched(w.model)
    out = fast(w.batches(1)[0][0])
    out.sum().backward()
    return losses + [out, [p.grad for p in fast.parameters()], [p.grad for p in w.params()]] + w.train(1)


@row("a parameter written in place within a forward", "written in place between forward and", make=Student)
def in_place(w):
    def update(m):
        with torch.no_grad():
            m.two[0].weight.mul_(0.9)
    w.model.inner = update
    return w.train(1)


@row("`load_state_dict()` within a forward", "load_state_dict in a forward or a backward", make=Student)
def load_within(w):
    w.model.inner = lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()))
    return w.train(1)


def table() -> str:
    """As docs/hybridps.md has it."""
    lines = ["| construct | is |", "| --- | --- |"]
    lines += [f"| {text} | {'equal' if outcome == EQUAL else 'refused: ' + chr(34) + '… ' + outcome + ' …' + chr(34)} |"
              for text, outcome, _, _ in ROWS]
    return "\n".join(lines) + "\n"

"""Optimizers and their state: rows of the table in docs/hybridps.md (see
hybridps_constructs.py)."""
from __future__ import annotations

import collections
import copy
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from hybridps_constructs import WIDTH, Student, World, layers, row


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


@row("a tensor put into `optimizer.state` and kept")
def put(w):
    sgd = w.register(torch.optim.SGD(w.model.parameters(), lr=1e-2, momentum=0.9))
    out, kept = w.train(2) + w.train(2, 2, sgd), []
    for optimizer, key in ((w.optimizer, "exp_avg"), (sgd, "momentum_buffer")):
        for p in w.params():
            kept.append(optimizer.state[p][key] * 0.5)
            optimizer.state[p][key] = kept[-1]
    out += w.train(2, 4) + w.train(2, 6, sgd) + [k.clone() for k in kept]
    for k in kept:
        k.mul_(0.5)
    return out + w.train(2, 8) + w.train(2, 10, sgd) + kept


@row("other memory for a tensor of `optimizer.state` (`state[p][\"exp_avg\"].data = values`)")
def moved_state(w):
    sgd = w.register(torch.optim.SGD(w.model.parameters(), lr=1e-2, momentum=0.9))
    out = w.train(2) + w.train(2, 2, sgd)
    for optimizer, key in ((w.optimizer, "exp_avg"), (sgd, "momentum_buffer")):
        for p in w.params():
            optimizer.state[p][key].data = optimizer.state[p][key] * 0.5
    return out + w.train(2, 4) + w.train(2, 6, sgd)


@row("state of another type put there for native Adam", "put one of its type and shape there")
def other_type(w):
    w.train(1)
    if w.client is not None:  # plain torch can fail an assertion of its own
        state = w.optimizer.state[w.params()[0]]
        state["exp_avg"] = state["exp_avg"].double()
    return w.train(1)


@row("two optimizers over the same parameters")
def two(w):
    second = w.register(torch.optim.Adam(w.model.parameters(), lr=1e-3))
    third = w.register(torch.optim.SGD(w.model.parameters(), lr=1e-3, momentum=0.9))
    out = []
    for number in range(3):
        for optimizer in (w.optimizer, second, third):
            out += w.train(1, number, optimizer)
    return out


@row(
    "two native Adams over the same 16-bit parameters",
    "register the second one with native=False",
    make=lambda: layers().bfloat16(),
)
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


@row("a state dict of a model of other shapes", "the state belongs to another model")
def foreign(w):
    w.train(1)
    state = copy.deepcopy(w.optimizer.state_dict())
    for entry in state["state"].values():
        entry["exp_avg"] = torch.zeros(3)
    w.optimizer.load_state_dict(state)
    return []


@row("a state dict of an earlier manager, or from before it was managed")
def earlier(w):
    w.train(2)
    kept = w.optimizer.state_dict()
    w.close()
    other = World(lambda: layers(3), w.device)
    before = copy.deepcopy(other.optimizer.state_dict())
    other.manage()
    # a copy: torch 2 would step the kept tensors themselves
    other.optimizer.load_state_dict(copy.deepcopy(kept))
    out = other.train(2)
    other.optimizer.load_state_dict(before)
    out += other.train(2, 2)
    other.close()
    return out + [kept["state"], other.params()]


class Cautious(torch.optim.Optimizer):
    """Adam that omits the steps against the gradient; its state has names of its own."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(count=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["count"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                state["square"].lerp_(p.grad.square(), 0.01)
                agrees = (state["mean"] * p.grad > 0).to(p.dtype)
                p.addcdiv_(
                    state["mean"] * agrees, state["square"].sqrt() + 1e-8, value=-group["lr"]
                )


class Mars(torch.optim.Optimizer):
    """Corrects each gradient by the previous one, which it keeps as the object p.grad itself."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("last", torch.zeros_like(p))
                p.add_(p.grad + 0.5 * (p.grad - state["last"]), alpha=-group["lr"])
                state["last"] = p.grad


@row("an optimizer of one's own, with state of its own (cautious Adam)")
def cautious(w):
    optimizer = w.register(Cautious(w.params()))
    out = w.train(3, optimizer=optimizer)
    return out + [optimizer.state[p]["mean"].clone() for p in w.params()] + w.train(2, 3, optimizer)


@row("`optimizer.step` replaced before the optimizer is managed")
def replaced(w):
    optimizer = torch.optim.Adam(w.params(), lr=1e-2)
    step = optimizer.step

    def clipped(closure=None):
        torch.nn.utils.clip_grad_norm_(w.params(), 0.05)
        return step(closure)

    optimizer.step = clipped
    return w.train(3, optimizer=w.register(optimizer)) + [optimizer.state_dict()["state"]]


@row("an optimizer that keeps `p.grad` as its state (MARS)")
def mars(w):
    optimizer, out = w.register(Mars(w.params(), {"lr": 1e-2})), []
    for number in range(5):
        w.model.zero_grad(set_to_none=number < 3)
        w.backward(number)
        optimizer.step()
        out.append([p.detach().clone() for p in w.params()])
    return out


@row("`torch.compile(optimizer.step)`, which runs uncompiled", needs="compile")
def compiled(w):
    torch.compiler.reset()
    optimizer = w.register(torch.optim.SGD(w.params(), lr=1e-2, momentum=0.9))
    step = torch.compile(optimizer.step, backend="eager") if w.client else optimizer.step
    out = []
    for number in range(3):
        optimizer.zero_grad()
        w.backward(number)
        step()
        out.append([p.detach().clone() for p in w.params()])
    return out


@row("AdamW over bfloat16 parameters with `native=False`", make=lambda: layers().bfloat16())
def bfloat16(w):
    optimizer = w.register(torch.optim.AdamW(w.params(), lr=1e-2), native=False)
    out = []
    for number in range(4):
        x, y = (t.bfloat16() for t in w.batches(1, number)[0])
        optimizer.zero_grad(set_to_none=True)
        loss = (w.model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


@row("a teacher that follows after each step, and a center in a buffer (DINO)", make=Student)
def dino(w):
    student, teacher = w.model.one, w.model.two
    w.model.register_buffer("center", torch.zeros(WIDTH))
    out = []
    for x, _ in w.batches(4):
        w.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            target = teacher(x)
        loss = F.mse_loss(student(x), target - w.model.center)
        loss.backward()
        w.optimizer.step()
        with torch.no_grad():
            w.model.center.mul_(0.9).add_(target.mean(0), alpha=0.1)
            for one, two in zip(student.parameters(), teacher.parameters()):
                two.data.mul_(0.9).add_(0.1 * one.detach().data)
        out += [loss.item(), w.model.center.clone()]
    return out


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

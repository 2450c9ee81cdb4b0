"""Graphs, of gradients too: rows of the table in docs/hybridps.md (see hybridps_constructs.py)."""
from __future__ import annotations

import re

import torch
import torch.nn as nn
import torch.nn.functional as F

import hybridps
from hybridps_constructs import WIDTH, Student, World, layers, row


@row(
    "`create_graph=True`: penalty of a slope, `zero_grad()`, `p.grad` and `p.data` before its"
    " backward (R1, WGAN-GP)"
)
def slope(w):
    out = []
    for number in range(4):
        x, y = w.batches(1, number)[0]
        made = w.model(x.requires_grad_())
        (slopes,) = torch.autograd.grad(made.sum(), x, create_graph=True)
        out.append(
            [None if p.grad is None else p.grad.clone() for p in w.params()]
            + [p.data.sum() for p in w.params()]
        )
        (w.model if number % 2 else w.optimizer).zero_grad(set_to_none=number > 1)
        (F.mse_loss(made, y) + slopes.norm(2, 1).sub(1).square().mean()).backward()
        w.optimizer.step()
    return out + w.train(2)


@row(
    "`p.detach()` taken within a forward, or before a graph's backward, and read after later steps",
    make=Student,
)
def detached(w):
    kept = []
    w.train(1)
    w.model.inner = lambda model: kept.append([p.detach() for p in model.parameters()])
    w.train(1, 1)
    w.model.inner = lambda model: None
    out = [[t.clone() for t in kept[0]]]
    for optimizer in (
        w.optimizer,
        w.register(torch.optim.RMSprop(w.model.one.parameters(), lr=1e-2), native=False),
    ):
        x, y = w.batches(1)[0]
        loss = F.mse_loss(w.model(x), y)
        found = torch.autograd.grad(loss, list(w.model.one.parameters()), create_graph=True)
        kept.append([p.detach() for p in w.params()])
        (loss + 1e-2 * sum(g.square().sum() for g in found)).backward()
        for step in range(2):
            optimizer.step()
            out += [[t.clone() for t in values] for values in kept]
            w.train(1, 2 + step, optimizer)
            out += [[t.clone() for t in values] for values in kept]
    return out


@row("`backward(create_graph=True)`, and a backward through `p.grad` (AdaHessian)")
def curvature(w):
    out = []
    for number in range(3):
        if number == 2:
            w.backward(5)
        x, y = w.batches(1, number)[0]
        kept = [p.grad for p in w.params()]
        F.mse_loss(w.model(x), y).backward(create_graph=True)
        found = torch.autograd.grad(
            [p.grad for p in w.params()],
            w.params(),
            [p.sign() for p in w.params()],
            retain_graph=True,
        )
        (1e-2 * sum(p.grad.square().sum() for p in w.params())).backward()
        out += [found, kept, [p.grad.clone() for p in w.params()]]
        w.optimizer.step()
        w.optimizer.zero_grad()
    return out + w.train(2)


class Steps(nn.Module):
    """A cell and a layer after it, several times: in backward the next one begins before the
    previous has ended."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.cell, self.out = nn.LSTMCell(WIDTH, WIDTH), layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, total = (torch.zeros_like(x), torch.zeros_like(x)), 0
        for _ in range(3):
            state = self.cell(x, state)
            total = total + self.out(state[0])
        return total + self.out(x)


@row("parts that run several times, on a device of the size that `manage()` names")
def several_times(w):
    inner = World(Steps, w.device and "emu:12KiB")
    if w.device:
        try:
            inner.manage()
            raise AssertionError("a device of 12 KiB holds a cell of 66")
        except hybridps.HybridPSError as error:
            inner.device = re.search(r"Use at least (emu:[0-9]+KiB)", str(error))[1]
    inner.manage()
    out = inner.train(3) + [inner.evaluate()]
    inner.close()
    return out + [inner.params()]


@row(
    "a backward through a graph from before a step, which torch refuses (\"modified by an inplace"
    " operation\")"
)
def late_backward(w):
    def said(loss):
        try:
            loss.backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return None

    out = []
    for x, y in w.batches(3):
        w.optimizer.zero_grad()
        first, other = F.mse_loss(w.model(x), y), w.model(y).square().mean()
        first.backward(retain_graph=True)
        w.optimizer.step()
        out += [said(first), said(other), w.model[0].weight.grad.clone()]
    return out + w.train(2)

"""Constructs that users write around a model, each a function of a world: the rows of the table in
docs/hybridps.md. The rows are in hybridps_constructs_*.py.

A row trains as plain torch does, bit for bit, or is refused with a message. Its return value is
compared. If it returns a function, that is called when the client is closed, and its result is
compared, too.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

import hybridps

WIDTH = 32
CAPACITIES = ("emu:60KiB", "emu:96KiB", "emu:1MiB")  # of 131 KiB of parameters, gradients and state
EQUAL = "equal"
ROWS: list[tuple[str, str, Callable, Callable]] = []
ABSENT: list[str] = []  # rows that this torch can't run


def row(text: str, outcome: str = EQUAL, make: Callable | None = None, needs: str = "") -> Callable:
    """outcome: EQUAL, or what the error says. needs: an attribute of torch without which it can't
    run."""

    def add(use: Callable) -> Callable:
        ROWS.append((text, outcome, use, make or layers))
        if needs and not hasattr(torch, needs):
            ABSENT.append(text)
        return use

    return add


def layers(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.Tanh(),
        nn.Linear(2 * WIDTH, 2 * WIDTH),
        nn.Tanh(),
        nn.Linear(2 * WIDTH, WIDTH),
    )


class World:
    """A model with its optimizer, on plain torch or managed."""

    def __init__(self, make: Callable, device: str | None) -> None:
        self.model, self.device, self.client = make(), device, None
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def manage(self) -> None:
        if self.device:
            self.client = hybridps.manage(
                self.model, self.optimizer, device=self.device, chunk_bytes=4096
            )

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
            out.append(
                (
                    torch.randn(8, WIDTH, generator=generator),
                    torch.randn(8, WIDTH, generator=generator),
                )
            )
        return out

    def train(
        self, count: int, first: int = 0, optimizer: Any = None, penalty: Any = None
    ) -> list[float]:
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
    """A model and its moving average, made in forward as in MoCo and BYOL."""

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


def table() -> str:
    """The table as in docs/hybridps.md."""
    lines = ["| construct | is |", "| --- | --- |"]
    for text, outcome, _, _ in ROWS:
        told = "equal" if outcome == EQUAL else f'refused: "… {outcome} …"'
        lines.append(f"| {text} | {told} |")
    return "\n".join(lines) + "\n"

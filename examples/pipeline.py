"""1F1B: every stage runs a few forwards ahead, then alternates one forward and one backward.

At most `stages - stage` micro-batches are alive in a stage. Sends do not wait for the other side:
neighbours that both send would otherwise wait for each other for ever.
"""
from __future__ import annotations

import collections
from typing import Any, Sequence

import torch
import torch.distributed as dist

from gpt_stage import Stage

MicroBatch = tuple[torch.Tensor, torch.Tensor]  # tokens and targets, both [b, s]


class Schedule:
    """One training step's traffic of one stage. Gradients are those of the mean loss."""

    def __init__(self, stage: Stage, batches: Sequence[MicroBatch]) -> None:
        self.stage, self.grid, self.batches = stage, stage.grid, batches
        self.alive: collections.deque[tuple[Any, Any]] = collections.deque()
        self.sends: list[tuple[Any, torch.Tensor]] = []
        self.loss = torch.zeros(())

    def _send(self, tensor: torch.Tensor, to: int) -> None:
        whole = tensor.contiguous()
        self.sends.append((dist.isend(whole, to), whole))  # kept until it has left

    def _receive(self, sender: int) -> torch.Tensor:
        b, s = self.batches[0][0].shape
        tensor = torch.empty(b, s, self.stage.config.hidden_size)
        dist.recv(tensor, sender)
        return tensor

    def _forward(self, number: int) -> None:
        tokens, targets = self.batches[number]
        given = tokens if self.grid.first else self._receive(self.grid.before).requires_grad_()
        out = self.stage(given, targets)
        if self.grid.last:
            out = out / len(self.batches)
            self.loss += out.detach()
        else:
            self._send(out.detach(), self.grid.after)
        self.alive.append((given, out))

    def _backward(self) -> None:
        given, out = self.alive.popleft()
        if self.grid.last:
            out.backward()
        else:
            torch.autograd.backward(out, self._receive(self.grid.after))
        if not self.grid.first:
            self._send(given.grad, self.grid.before)

    def run(self) -> torch.Tensor:
        """Forward and backward of all micro-batches; the mean loss (0 where it is not known)."""
        count = len(self.batches)
        ahead = min(self.grid.stages - self.grid.pp - 1, count)
        for number in range(ahead):
            self._forward(number)
        for number in range(ahead, count):
            self._forward(number)
            self._backward()
        for _ in range(ahead):
            self._backward()
        for work, _ in self.sends:
            work.wait()
        return self.loss

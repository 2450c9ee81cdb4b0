"""Cuts tasks into waves: pieces of which one communicates while the next is computed.

A piece computes some rows of the whole task; the memory that pieces use decides which of them wait
for which. Collectives whose ranks' parts lie side by side (REDUCE_SCATTER, ALLGATHER, ALL_TO_ALL)
get a separate buffer for each wave, and copies between it and the tensors.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Iterator

import torch

from ._abi import TaskType
from ._given import whole
from ._tensors import Matrix, matrix
from .errors import NotRowSeparableError

SIDE_BY_SIDE = (TaskType.REDUCE_SCATTER, TaskType.ALLGATHER, TaskType.ALL_TO_ALL)
AUTO = (1, 2, 4, 8, 16)


@dataclass
class Piece:
    """A piece, which becomes one task of the library."""

    type: TaskType
    inputs: list[Any]
    outputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    wave: int = 0
    tag: str = ""


def bounds(rows: int, pieces: int) -> list[tuple[int, int]]:
    return [(rows * i // pieces, rows * (i + 1) // pieces) for i in range(pieces)]


def _rows(t: torch.Tensor, m: Matrix) -> torch.Tensor:
    """The same memory, viewed as rows and columns."""
    strides = (1, m.ld) if m.transposed else (m.ld, 1)
    return t.detach().as_strided((m.rows, m.cols), strides, t.storage_offset())


def rows_of(task: Any) -> int:
    """Number of one rank's rows that the task can be cut into. Raises NotRowSeparableError."""
    if task.type in (TaskType.ALLREDUCE, TaskType.BROADCAST, *SIDE_BY_SIDE):
        small = task.outputs[0] if task.type is TaskType.REDUCE_SCATTER else task.inputs[0]
        rows = math.prod(small.shape[:-1])
        return rows // task.world if task.type is TaskType.ALL_TO_ALL and \
            rows % task.world == 0 else rows
    if task.type is TaskType.ATTENTION:
        return _heads(task)[0].shape[0]
    if task.type in _CUTS:
        return matrix(task.outputs[0], "Y", task.attributes.get("trailing", 1)).rows
    raise NotRowSeparableError(f"task \"{task.name}\" ({task.type.name}) can't be cut",
                               "leave it out of overlap()")


def _slices(rows: int, waves: int, ranks: int) -> Iterator[tuple[int, str, slice]]:
    """(wave, tag, rows): with ranks > 1 each wave has a part of each rank's rows."""
    part = rows // ranks
    for wave, (first, last) in enumerate(bounds(part, waves)):
        for rank in range(ranks):
            tag = f"{wave + 1}/{waves}" + (f" of {rank}" if ranks > 1 else "")
            yield wave, tag, slice(rank * part + first, rank * part + last)


def _cut_rows(task: Any, waves: int, ranks: int) -> list[Piece]:
    """Cut X and Y by rows; keep weights, gamma and bias whole."""
    trailing = task.attributes.get("trailing", 1)
    both = task.type is TaskType.ELEMENTWISE and \
        all(t.shape == task.inputs[0].shape for t in task.inputs)
    transposable = task.type is TaskType.MATMUL and task.inputs[0].dim() == 2
    first = [t if t is None or (i > 0 and not both) else
             _rows(t, matrix(t, "X", trailing, transposable)) for i, t in enumerate(task.inputs)]
    if task.type in (TaskType.LAYERNORM, TaskType.RMSNORM):
        first[1:] = [t if t is None else t.detach().view(-1) for t in first[1:]]
    out = _rows(task.outputs[0], matrix(task.outputs[0], "Y", trailing))
    attributes = {**task.attributes, **({"trailing": 1} if "trailing" in task.attributes else {})}
    return [Piece(task.type, [t if t is None or (i > 0 and not both) else t[rows]
                              for i, t in enumerate(first)], [out[rows]], dict(attributes), wave,
                  tag)
            for wave, tag, rows in _slices(len(out), waves, ranks)]


def _heads(task: Any) -> list[torch.Tensor]:
    """Q, K, V and the outputs, (batch, ...); if each query head has its own keys, a head counts as
    a batch."""
    tensors = [t.detach() for t in (*task.inputs[:3], *task.outputs)]
    if tensors[0].shape[1] == tensors[1].shape[1]:
        tensors = [t.reshape(-1, 1, *t.shape[2:]) for t in tensors]
    return tensors


def _cut_batch(task: Any, waves: int, ranks: int) -> list[Piece]:
    q, k, v, *outputs = _heads(task)
    return [Piece(task.type, [q[rows], k[rows], v[rows], *task.inputs[3:]],
                  [t[rows] for t in outputs], dict(task.attributes), wave, tag)
            for wave, tag, rows in _slices(q.shape[0], waves, ranks)]


def _cut_flat(task: Any, waves: int, _: int) -> list[Piece]:
    cols = task.inputs[0].shape[-1] if task.inputs[0].dim() else 1
    x, y = (t.detach().view(-1, cols) for t in (task.inputs[0], task.outputs[0]))
    return [Piece(task.type, [x[rows]], [y[rows]], dict(task.attributes), wave, tag)
            for wave, tag, rows in _slices(len(x), waves, 1)]


def _cut_side_by_side(task: Any, waves: int, _: int) -> list[Piece]:
    rows, cols, world = rows_of(task), task.inputs[0].shape[-1], task.world
    many_in = task.type is not TaskType.ALLGATHER
    many_out = task.type is not TaskType.REDUCE_SCATTER
    x = task.inputs[0].detach().view(*((world,) if many_in else ()), rows, cols)
    y = task.outputs[0].detach().view(*((world,) if many_out else ()), rows, cols)
    out = []
    for wave, tag, part in _slices(rows, waves, 1):
        mine, theirs = (x[:, part] if many_in else x[part]), (y[:, part] if many_out else y[part])
        source, target = (t if t.is_contiguous() else torch.empty_like(
            t, memory_format=torch.contiguous_format) for t in (mine, theirs))
        if source is not mine:
            out.append(Piece(TaskType.MEMCPY, [mine], [source], {}, wave, tag + " in"))
        out.append(Piece(task.type, [source], [target], dict(task.attributes), wave, tag))
        if target is not theirs:
            out.append(Piece(TaskType.MEMCPY, [target], [theirs], {}, wave, tag + " out"))
    return out


_CUTS = {
    **{t: _cut_rows for t in (TaskType.MATMUL, TaskType.LINEAR, TaskType.LAYERNORM,
                              TaskType.RMSNORM, TaskType.GELU, TaskType.SILU, TaskType.SOFTMAX,
                              TaskType.ELEMENTWISE)},
    TaskType.ATTENTION: _cut_batch,
    TaskType.ALLREDUCE: _cut_flat, TaskType.BROADCAST: _cut_flat,
    **{t: _cut_side_by_side for t in SIDE_BY_SIDE},
}


def cut(task: Any, waves: int, ranks: int) -> list[Piece]:
    """Cut a task into pieces. ranks > 1: its data goes to, or comes from, a collective with parts
    side by side."""
    if waves == 1:
        return [Piece(task.type, task.inputs, task.outputs, dict(task.attributes))]
    return _CUTS[task.type](task, waves, ranks)


# Minimum work for a piece to be a separate task: multiplications, elements.
LEAST_FLOPS, LEAST_ELEMENTS = 1 << 21, 1 << 15


def parts_of(task: Any, most: int) -> int:
    """Number of pieces that a task is cut into so that several workers share it."""
    if most < 2 or task.type.is_comm or task.type not in _CUTS:
        return 1
    out = task.outputs[0]
    if task.type in (TaskType.MATMUL, TaskType.LINEAR):
        pieces = out.numel() * task.inputs[0].shape[-1] // LEAST_FLOPS
    elif task.type is TaskType.ATTENTION:
        pieces = 2 * out.numel() * task.inputs[1].shape[2] // LEAST_FLOPS
    else:
        pieces = out.numel() // LEAST_ELEMENTS
    return max(1, min(most, pieces, rows_of(task)))


def link(link_bytes_per_s: int, link_latency_ns: int, hop_ns: int) -> dict[str, int]:
    """Checked options of the virtual clock."""
    return {"link_bytes_per_s": whole(link_bytes_per_s, "link_bytes_per_s", 1, 2**62),
            "link_latency_ns": whole(link_latency_ns, "link_latency_ns", 0, 2**62),
            "hop_ns": whole(hop_ns, "hop_ns", 0, 2**62)}


class Overlap:
    """Tasks that are cut into the same number of waves, so that one wave communicates while the
    next is computed. Inside, memory decides what waits for what; dependencies between its tasks are
    ignored."""

    def __init__(self, graph: Any, compute: list[Any], comm: list[Any]) -> None:
        self.graph, self.compute, self.comm = graph, compute, comm
        self.waves = 1
        self.model: dict[str, int] | None = None
        self.most = min(rows_of(t) // self._ranks(t) for t in self.tasks)

    @property
    def tasks(self) -> list[Any]:
        return [*self.compute, *self.comm]

    def _ranks(self, task: Any) -> int:
        """Number of ranks among which the task's rows are divided."""
        worlds = {t.world for t in self.comm if t.type in SIDE_BY_SIDE}
        world = max(worlds, default=1)
        if task.type.is_comm or task.type not in _CUTS or rows_of(task) % world:
            return 1
        return world

    def with_waves(self, n: int) -> "Overlap":
        """Use n waves. Raises NotRowSeparableError if there are fewer rows."""
        self.graph._open("overlap()")
        if not 1 <= whole(n, "with_waves()") <= self.most:
            raise NotRowSeparableError(f"{n} waves of tasks with {self.most} rows",
                                       f"1 to {self.most}")
        self.waves, self.model = n, None
        return self

    def auto_waves(self, link_bytes_per_s: int = 10_000_000_000, link_latency_ns: int = 20_000,
                   hop_ns: int = 2_000) -> "Overlap":
        """Use the number of waves with the shortest run on a virtual clock, with estimated costs
        and this link: the same number on every rank."""
        self.graph._open("overlap()")
        self.model = link(link_bytes_per_s, link_latency_ns, hop_ns)
        return self

    def choices(self) -> list[int]:
        return [n for n in AUTO if n <= self.most]

    def pieces(self, task: Any) -> list[Piece]:
        return cut(task, self.waves, self._ranks(task))

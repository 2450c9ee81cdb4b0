"""The demo of SM scheduling: workers that run their tasks round by round, with one launch."""
from __future__ import annotations

import ctypes

import torch

from . import _abi
from ._tensors import checked
from .errors import DimensionError, DTypeError, LayoutError
from .task_graph import Task, TaskGraph

MOST_TASKS = 999  # worker * 1000 + task says which


def run_sm_scheduling_demo(data: torch.Tensor, num_tasks_per_worker: int = 10,
                           num_workers: int = 4, threads_per_worker: int = 128,
                           policy: str = "direct") -> tuple[torch.Tensor, torch.Tensor]:
    """Worker w owns data[w * (n // num_workers) ...), the last takes the rest; each of its tasks
    does x = x * 1.5 + 0.1 there, rounded once, and all workers end a round before the next begins.
    In place. Returns data and the order of completion: int32, worker * 1000 + task.

    float32, contiguous. A worker is one thread of a CPU, or a CTA of the size that the persistent
    kernel has: threads_per_worker is checked, and chooses nothing."""
    checked(data, "data")
    if data.dtype != torch.float32:
        raise DTypeError(f"data is of {data.dtype}", "float32")
    if not data.is_contiguous():
        raise LayoutError(f"data has strides {data.stride()}", "data.contiguous()")
    if data.requires_grad and torch.is_grad_enabled():
        raise DTypeError("data requires grad and is changed in place", "data.detach()")
    for value, least, most, what in (
            (num_tasks_per_worker, 1, MOST_TASKS, "num_tasks_per_worker"),
            (num_workers, 1, data.numel(), "num_workers"),
            (threads_per_worker, 1, 1024, "threads_per_worker")):
        if not isinstance(value, int) or not least <= value <= most:
            raise DimensionError(f"{what} is {value!r}", f"{least} to {most}")
    if policy not in ("direct", "scheduler"):
        raise DimensionError(f"policy is {policy!r}", "\"direct\" or \"scheduler\"")
    if data.device.type != "cpu":
        return data, _by_graph(data, num_tasks_per_worker, num_workers, policy)
    order = torch.empty(num_tasks_per_worker * num_workers, dtype=torch.int32)
    at = ctypes.cast(order.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    _abi.check(_abi.load_library().maco_demo(
        data.data_ptr(), data.numel(), num_tasks_per_worker, num_workers,
        _abi.POLICIES.index(policy), at), {_abi.EINVAL: DimensionError})
    return data, order


def _by_graph(data: torch.Tensor, tasks: int, workers: int, policy: str) -> torch.Tensor:
    """The same as a graph: worker w's tasks are its own, and each round waits for the one before."""
    flat, part = data.view(-1), data.numel() // workers
    ends = [w * part for w in range(workers)] + [data.numel()]
    with TaskGraph(workers, data.device, policy, trace=True) as graph:
        before: list[Task] = []
        for _ in range(tasks):
            now = [graph.elementwise("axpb", piece, alpha=1.5, beta=0.1, out=piece, worker=w)
                   for w, piece in ((w, flat[ends[w]:ends[w + 1]]) for w in range(workers))]
            for task in now:
                for on in before:
                    graph.add_dependency(task, on)
            before = now
        ids = graph.execute().ids
    return torch.tensor([i % workers * 1000 + i // workers for i in ids], dtype=torch.int32)

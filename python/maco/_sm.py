"""A demo of SM scheduling: workers run their tasks round by round, in one launch."""
from __future__ import annotations

import ctypes

import torch

from . import _abi
from ._tensors import checked
from .errors import DimensionError, DTypeError, LayoutError
from .task_graph import Task, TaskGraph

MOST_TASKS = 999  # because tasks are reported as worker * 1000 + task
_CTA_THREADS = 256  # of the persistent kernel: HL_GPU_THREADS


def run_sm_scheduling_demo(data: torch.Tensor, num_tasks_per_worker: int = 10,
                           num_workers: int = 4, threads_per_worker: int = 128,
                           policy: str = "direct") -> tuple[torch.Tensor, torch.Tensor]:
    """Worker w owns data[w * (n // num_workers) ...); the last also takes the remainder. Each of
    its tasks computes x = x * 1.5 + 0.1 there in place, rounded once, and all workers finish a
    round before the next begins. Returns data and the order of completion: int32, worker * 1000 +
    task.

    data: float32, contiguous. A worker's threads share its tasks. On a CPU it has up to
    threads_per_worker threads, limited by the processors per worker. On a GPU threads come in whole
    CTAs of the persistent kernel, of 256 each: 1 to 256 are one CTA, 257 to 512 two."""
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
        return data, _by_graph(data, num_tasks_per_worker, num_workers,
                               -(-threads_per_worker // _CTA_THREADS), policy)
    order = torch.empty(num_tasks_per_worker * num_workers, dtype=torch.int32)
    at = ctypes.cast(order.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    _abi.check(_abi.load_library().maco_demo(
        data.data_ptr(), data.numel(), num_tasks_per_worker, num_workers,
        threads_per_worker, _abi.POLICIES.index(policy), at), {_abi.EINVAL: DimensionError})
    return data, order


def _by_graph(data: torch.Tensor, tasks: int, workers: int, ctas: int,
              policy: str) -> torch.Tensor:
    """The same as a graph: each worker is ``ctas`` of the graph's workers, each with a strip of its
    part, and each round waits for the previous one."""
    flat, part = data.view(-1), data.numel() // workers
    ctas = min(ctas, part)
    strips = [strip for w in range(workers) for strip in
              flat[w * part:(w + 1) * part if w + 1 < workers else None].tensor_split(ctas)]
    with TaskGraph(len(strips), data.device, policy, trace=True) as graph:
        before: list[Task] = []
        for _ in range(tasks):
            now = [graph.elementwise("axpb", piece, alpha=1.5, beta=0.1, out=piece, worker=w)
                   for w, piece in enumerate(strips)]
            for task in now:
                for on in before:
                    graph.add_dependency(task, on)
            before = now
        ids = graph.execute().ids
    done = [0] * (tasks * workers)  # finished strips of each worker's task in each round
    order = []
    for task, w in (divmod(i, len(strips)) for i in ids):
        done[task * workers + w // ctas] += 1
        if done[task * workers + w // ctas] == ctas:
            order.append(w // ctas * 1000 + task)
    return torch.tensor(order, dtype=torch.int32)

"""MACO: a graph of compute and communication tasks, run by persistent workers.

    from maco import TaskGraph, TaskType

    graph = TaskGraph()
    t1 = graph.add_task(TaskType.MATMUL, inputs=[a, b], outputs=[c])
    t2 = graph.add_task(TaskType.ALLREDUCE, inputs=[c], outputs=[summed])
    graph.add_dependency(t2, t1)          # t2 waits for t1
    graph.execute()

``TaskGraph.from_module`` turns a module into a graph. ``@overlap_comm`` and ``MacoOptimizer``
overlap the collectives of functions and models that stay in torch, training included. Tested with
torch 1.13 and 2.6.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import MacoError

if TYPE_CHECKING:  # what __getattr__ returns, for type checkers
    from .decorators import overlap_comm
    from .optimizer import MacoOptimizer, mark
    from .task_graph import Plan, Result, Task, TaskGraph, TaskType

_HOME = {
    "TaskGraph": "task_graph", "TaskType": "task_graph", "Task": "task_graph",
    "Plan": "task_graph", "Result": "task_graph",
    "overlap_comm": "decorators",
    "MacoOptimizer": "optimizer", "mark": "optimizer",
}

__all__ = ["MacoError", "errors", "TaskGraph", "TaskType", "Task", "Plan", "Result", "overlap_comm",
           "MacoOptimizer", "mark"]


def __getattr__(name: str) -> Any:
    """Import each layer when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'maco' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"maco.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

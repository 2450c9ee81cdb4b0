"""The graph of tasks: what to do on which tensors, and in what order.

    graph = TaskGraph()
    t1 = graph.add_task(TaskType.MATMUL, inputs=[a, b], outputs=[c])
    t2 = graph.add_task(TaskType.ALLREDUCE, inputs=[c], outputs=[summed])
    graph.add_dependency(t2, t1)     # t2 waits for t1; inferred from memory, too
    graph.execute()

Tensors of tasks are kept as long as the graph, and are read and written in place; the graph can run
any number of times. Autograd sees nothing of it. Use a graph from one thread at a time.
"""
from __future__ import annotations

import contextlib
import ctypes
import graphlib
import os
import threading
import time
from typing import Any, Callable, Sequence

import torch

from hybridps._abi import forked

from . import _abi, _groups
from ._abi import TaskType
from ._builders import Builders
from ._given import name as given_name
from ._given import flag, real, sequence, whole
from ._tasks import Call, Numbers, check_output, numbers
from ._tensors import checked, extent, one_device
from ._waves import Overlap, Piece, cut, link, parts_of
from .errors import (AlreadyCompiledError, CyclicDependencyError, DeviceError, DimensionError,
                     MacoError, NotCompiledError, NullInputError)
from .module_graph import ModuleCalls, from_module

__all__ = ["Plan", "Result", "Task", "TaskGraph", "TaskType"]

WAVES = 4096  # distance between a graph's priorities; those of waves lie in between
_LOOK_S = 0.2  # seconds between two checks while waiting for a run
_abandoned: list[Any] = []  # memory that a task which never ended may still use


class Task:
    """A node of a graph."""

    def __init__(self, graph: "TaskGraph", index: int, type: TaskType, name: str | None) -> None:
        self.graph, self.index, self.type = graph, index, type
        self.name = name or f"{type.name} {index}"
        self.named = bool(name)  # the caller named it: ranks compare the names of collectives
        self.inputs: list[torch.Tensor | None] = []
        self.outputs: list[torch.Tensor] = []
        self.attributes: dict[str, Any] = {}
        self.priority, self.worker, self.cost_ns = 0, -1, 0
        self.group, self.world = 0, 1
        self.function: Callable[..., Any] | None = None
        self.overlap: Overlap | None = None

    @property
    def output(self) -> torch.Tensor:
        if not self.outputs:
            raise NullInputError(f"task \"{self.name}\" has no output", "SEND and NOP have none")
        return self.outputs[0]

    def __repr__(self) -> str:
        return f"<maco task {self.index} {self.type.name} \"{self.name}\">"


class Timing:
    """One task in a traced run; times in microseconds from the start of the first."""

    __slots__ = ("name", "kind", "worker", "start_us", "us")

    def __init__(self, event: dict[str, Any], begun: float) -> None:
        self.name, self.kind, self.worker = event["name"], event["cat"], event["tid"]
        self.start_us, self.us = event["ts"] - begun, event["dur"]

    def __repr__(self) -> str:
        return f"<{self.name}: {self.start_us:.1f} us + {self.us:.1f} us on {self.worker}>"


class Result:
    """``order``: names of the tasks in order of completion, ``ids``: their numbers (on CUDA only
    with trace=True). ``seconds``: duration of the run. ``trace``: its trace, ``times``: each
    task's, both only with trace=True."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.ids: list[int] = []
        self.seconds = 0.0
        self.trace: _abi.Trace | None = None
        self._thread: threading.Thread | None = None
        self._cancel: Callable[[], None] = lambda: None
        self._error: BaseException | None = None

    def wait(self) -> "Result":
        """Wait until the run is done; raises its error, if any."""
        if self._thread is not None:
            try:
                # Python would sleep through a signal that arrives just before the wait, so check
                # again.
                while self._thread.is_alive():
                    self._thread.join(_LOOK_S)
            # KeyboardInterrupt: a caller that stops waiting wants no run either.
            except BaseException:
                self._cancel()
                self._thread.join()
                raise
        if self._error is not None:
            raise self._error
        return self

    @property
    def done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    @property
    def times(self) -> list[Timing]:
        if self.trace is None:
            raise NotCompiledError("the run was not traced", "TaskGraph(trace=True)")
        ran = [e for e in self.trace.events()
               if e.get("ph") == "X" and e["cat"] in ("compute", "comm")]
        begun = min((e["ts"] for e in ran), default=0.0)
        return [Timing(e, begun) for e in ran]


class Plan:
    """A compiled graph."""

    def __init__(self, graph: "TaskGraph", handle: _abi.Plan, names: list[str],
                 groups: list[int]) -> None:
        self.graph, self.handle, self.names = graph, handle, names
        self.groups = groups  # of each collective, by task; -1: a computation

    def describe(self) -> dict[str, Any]:
        """Tasks, events, levels and the critical path."""
        return self.handle.describe()

    def simulate(self, workers: int = 0, hop_ns: int = 0, link_bytes_per_s: int = 10_000_000_000,
                 link_latency_ns: int = 20_000) -> dict[str, Any]:
        """Overlap statistics of a run on a virtual clock, from costs and this link: exact, and the
        same each time. Computes nothing."""
        workers = whole(workers, "workers", 0, 2**16) or self.graph.workers
        return _stats(self.handle.simulate(workers, **link(link_bytes_per_s, link_latency_ns,
                                                           hop_ns)))

    def execute(self, stream: Any = None, wait: bool = True) -> Result:
        return self.graph.execute(stream, wait)

    def overlap_stats(self) -> dict[str, Any]:
        """Statistics of the last run, from its trace: nanoseconds of computation, of communication,
        and of both at once; ``hidden``: both / communication."""
        return _stats(self.graph._traced())


def _stats(trace: _abi.Trace) -> dict[str, Any]:
    out: dict[str, Any] = trace.overlap()
    out["hidden"] = out["both_ns"] / out["comm_ns"] if out["comm_ns"] else None
    return out


class _Calls:
    """The Python functions of a graph, in the form that the library calls."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.raised: tuple[str, BaseException] | None = None

    def make(self, name: str, function: Callable[..., Any], inputs: Sequence[torch.Tensor],
             outputs: Sequence[torch.Tensor]) -> Any:
        def call(_arg: Any, _task: Any) -> int:
            if self.raised is not None:
                return _abi.ECANCELED
            try:
                with torch.no_grad():  # new threads have autograd enabled
                    function(list(inputs), list(outputs))
                return 0
            except BaseException as error:  # no exception may pass through C
                self.raised = (name, error)
                return _abi.ECANCELED
        self.made.append(_abi.FUNCTION(call))
        return self.made[-1]

    def raise_what_was(self, failure: MacoError) -> None:
        raised, self.raised = self.raised, None
        if raised is None:
            return
        name, error = raised
        if hasattr(error, "add_note"):
            error.add_note(f"raised in task \"{name}\" of a maco graph")
        raise error from failure


class TaskGraph(Builders):
    """num_workers: None = the CPUs that this process may use. device: "cpu", "cuda", "auto" = that
    of the first tensor. policy: "direct" (the worker that completes a task launches the next),
    "scheduler" (a scheduler hands out tasks) or "static" (lists made from costs). group: for
    collectives, a hybridps.Group or a group of torch.distributed; None = all its ranks if it is
    initialized, else this process alone. timeout_s: of a run. trace: record each run.

    infer: order tasks by the memory they use, in the order of adding; False: raise OverlapError for
    two unordered tasks of which one writes what the other uses. deterministic: matmuls give the
    same bits for any pieces, but are slower. balance: of the scheduler, "round_robin" or
    "least_loaded". parts: cut large tasks into up to this many pieces of rows, which workers share;
    requires infer."""

    def __init__(self, num_workers: int | None = None, device: Any = "auto",
                 policy: str = "direct", group: Any = None, timeout_s: float = 60,
                 trace: bool = False, *, infer: bool = True, deterministic: bool = False,
                 balance: str = "round_robin", parts: int = 1) -> None:
        for value, known, what in ((policy, _abi.POLICIES, "policy"),
                                   (balance, _abi.BALANCES, "balance")):
            if value not in known:
                raise DimensionError(f"{what} is {value!r}", "it is one of " + ", ".join(known))
        if num_workers is not None and whole(num_workers, "num_workers") < 1:
            raise DimensionError(f"{num_workers} workers", "at least 1, or None")
        if not 0 < real(timeout_s, "timeout_s") <= 1e9:
            raise DimensionError(f"timeout_s is {timeout_s}", "seconds, more than 0")
        parts = whole(parts, "parts")
        trace, infer = flag(trace, "trace"), flag(infer, "infer")
        deterministic = flag(deterministic, "deterministic")
        self.policy, self.balance, self.timeout_s, self.trace = policy, balance, timeout_s, trace
        if not 1 <= parts < WAVES or parts > 1 and not infer:
            raise DimensionError(f"{parts} parts" + ("" if infer else " with infer=False"),
                                 "pieces are ordered by the memory that they use; at least 1")
        self.infer, self.deterministic, self.parts = infer, deterministic, parts
        self.num_workers = num_workers
        self.device = None if device == "auto" else _device(device)
        self.tasks: list[Task] = []
        self._groups = _groups.Groups(group)
        self._edges: list[tuple[Task, Task]] = []
        self._overlaps: list[Overlap] = []
        self._calls = _Calls()
        self._plan: Plan | None = None
        self._kept: list[Any] = []
        self._places: dict[int, tuple[Task, torch.Tensor, int]] = {}
        self._runtime: _abi.Runtime | _abi.Cuda | None = None
        self._busy = threading.Lock()
        self._last: Result | None = None
        self._pid = os.getpid()

    def __reduce_ex__(self, _: Any) -> Any:
        raise MacoError("a TaskGraph can be neither copied nor pickled",
                        "build another one: tasks refer to their tensors")

    # ---- building ----

    def add_task(self, type: TaskType, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (),
                 name: str | None = None, priority: int = 0, worker: int = -1,
                 cost: int | None = None, **attributes: Any) -> Task:
        """inputs: tensors, or tasks, meaning their output. name: for a collective the same on all
        ranks, which compare it to tell similar collectives apart. priority: among tasks that are
        ready at the same time the highest goes first. worker: the worker that has to run it; -1 =
        any. cost: nanoseconds; None = estimated.

        Attributes: MATMUL alpha, beta; ATTENTION causal, scale; LAYERNORM and RMSNORM eps; GELU
        approximate; ELEMENTWISE op, alpha, beta; collectives op, group, BROADCAST root, SEND and
        RECV peer, tag; MEMSET value; CUSTOM_COMPUTE and CUSTOM_COMM function, which is called as
        function(inputs, outputs) and writes the outputs."""
        self._open("add_task()")
        try:
            kind = TaskType(type)
        except ValueError:
            raise DimensionError(f"unknown task type {type!r}", "see maco.TaskType") from None
        if kind is TaskType.TERMINATE:
            raise DimensionError("TERMINATE is not a task of a graph", "it is the runtime's")
        task = Task(self, len(self.tasks), kind,
                    None if name is None else given_name(name, "name of a task"))
        task.priority = whole(priority, f"priority of \"{task.name}\"", -2**18, 2**18 - 1)
        task.worker = whole(worker, f"worker of \"{task.name}\"", -1, 2**31 - 2)
        task.cost_ns = 0 if cost is None else whole(cost, f"cost of \"{task.name}\"", 0, 2**32 - 1)
        self._give(task, sequence(inputs, f"inputs of \"{task.name}\""),
                   sequence(outputs, f"outputs of \"{task.name}\""), attributes)
        self.tasks.append(task)
        return task

    def _give(self, task: Task, inputs: list[Any], outputs: list[Any],
              attributes: dict[str, Any]) -> None:
        what = f"task \"{task.name}\" ({task.type.name})"
        task.inputs = [t.output if isinstance(t, Task) else t for t in inputs]
        task.outputs = [t.output if isinstance(t, Task) else t for t in outputs]
        if task.type.is_comm:
            task.group, task.world = self._groups.index(attributes.pop("group", None))
        if task.type in (TaskType.CUSTOM_COMPUTE, TaskType.CUSTOM_COMM):
            task.function = attributes.pop("function", None)
            if not callable(task.function):
                raise NullInputError(f"{what} has no function", "give a callable")
            if attributes:
                raise DimensionError(f"{what} has no {', '.join(attributes)}", "it has a function")
            for i, t in enumerate(task.inputs):
                checked(t, f"input {i} of {what}")
            for i, t in enumerate(task.outputs):
                check_output(t, f"output {i} of {what}")
        else:
            task.attributes = attributes
            self._check(task, Piece(task.type, list(task.inputs), task.outputs, dict(attributes)))
        tensors = [t for t in (*task.inputs, *task.outputs) if t is not None]
        if self.device is None and tensors:
            self.device = _device(tensors[0].device)
        one_device(tensors, self.device, what)

    def _check(self, task: Task, piece: Piece) -> None:
        """Raise the library's errors now instead of at compile time."""
        graph = _abi.Graph()
        try:
            graph.add(self._op(task, piece, self._numbers(task, piece)))
        finally:
            graph.close()

    def add_dependency(self, task: Task, on: Task) -> None:
        """``task`` waits for ``on``."""
        self._open("add_dependency()")
        for t in (task, on):
            if not isinstance(t, Task) or t.graph is not self:
                raise NullInputError(f"{t!r} is not a task of this graph",
                                     "add_task() returns them")
        if task is on:
            error = CyclicDependencyError(f"task \"{task.name}\" would wait for itself",
                                          "(task, the one that it waits for)")
            error.names = (task.name,)
            raise error
        self._edges.append((task, on))

    def overlap(self, compute: Sequence[Task] | Task, comm: Sequence[Task] | Task) -> Overlap:
        """Cut the tasks into waves: ``.with_waves(n)`` or ``.auto_waves()``."""
        self._open("overlap()")
        both = [[t] if isinstance(t, Task) else sequence(t, f"{what} of overlap()")
                for t, what in ((compute, "compute"), (comm, "comm"))]
        if not self.infer:
            raise DimensionError("overlap() in a graph with infer=False",
                                 "its pieces are ordered by the memory that they use")
        for i, tasks in enumerate(both):
            for t in tasks:
                if not isinstance(t, Task) or t.graph is not self:
                    raise NullInputError(f"{t!r} is not a task of this graph",
                                         "add_task() returns them")
                if t.type.is_comm != bool(i):
                    raise DimensionError(f"task \"{t.name}\" is {t.type.name}",
                                         "compute=[what computes], comm=[collectives]")
                if t.overlap is not None:
                    raise DimensionError(f"task \"{t.name}\" is in another overlap()", "one each")
        if not both[1]:
            raise NullInputError("overlap() without communication", "comm=[collectives]")
        made = Overlap(self, *both)
        for t in made.tasks:
            t.overlap = made
        self._overlaps.append(made)
        return made

    def _open(self, what: str) -> None:
        if self._plan is not None:
            raise AlreadyCompiledError(f"{what} after compile()", "make another graph")

    # ---- compiling ----

    @property
    def workers(self) -> int:
        """The number of workers, or the maximum on the graph's device."""
        if self.num_workers is None and self._on_cuda:
            return torch.cuda.get_device_properties(self.device).multi_processor_count
        return self.num_workers or len(os.sched_getaffinity(0))

    def compile(self) -> Plan:
        """The plan, made once. Raises CyclicDependencyError, OverlapError."""
        if self._plan is None:
            if not self.tasks:
                raise NullInputError("the graph has no tasks", "add_task() first")
            self._no_cycle()
            for overlap in self._overlaps:
                if overlap.model is not None:
                    self._choose(overlap, overlap.model)
            self._plan = self._compiled()
        return self._plan

    def _no_cycle(self) -> None:
        parents: dict[Task, set[Task]] = {}
        for task, on in self._edges:
            parents.setdefault(task, set()).add(on)
        try:
            graphlib.TopologicalSorter(parents).prepare()
        except graphlib.CycleError as error:
            names = tuple(t.name for t in reversed(error.args[1][1:]))
            cycle = CyclicDependencyError(
                " waits for ".join(f"\"{n}\"" for n in (*names, names[0])),
                "remove one of these dependencies", _abi.ECONFLICT)
            cycle.names = names
            raise cycle from None

    def _choose(self, overlap: Overlap, model: dict[str, int]) -> None:
        """Choose the number of waves with the shortest run on the virtual clock, with as many
        workers as tasks name, because ranks may have different numbers of workers."""
        best: tuple[int, int] | None = None
        workers = 1 + max(0, *(t.worker for t in self.tasks))
        for n in overlap.choices():
            overlap.waves = n
            plan = self._compiled("direct")
            total = plan.handle.simulate(workers, **model).overlap()["total_ns"]
            if best is None or total < best[0]:
                best = (total, n)
        overlap.waves = best[1] if best else 1

    def _compiled(self, policy: str | None = None) -> Plan:
        policy = policy or self.policy
        graph, names, groups = _abi.Graph(), [], []
        self._kept, self._calls = [], _Calls()
        self._places = {id(t): (task, t, t.data_ptr()) for task in self.tasks
                       for t in (*task.inputs, *task.outputs) if t is not None}
        ids: dict[Task, list[int]] = {}
        for task in self.tasks:
            pieces = task.overlap.pieces(task) if task.overlap else \
                cut(task, parts_of(task, self.parts) if task.worker < 0 else 1, 1)
            ids[task] = []
            for piece in pieces:
                self._kept += [piece.inputs, piece.outputs]
                names.append(f"{task.name} {piece.tag}" if piece.tag else task.name)
                groups.append(task.group if task.type.is_comm else -1)
                op = self._op(task, piece, self._numbers(task, piece), len(pieces), names[-1])
                ids[task].append(graph.add(op))
        for task, on in self._edges:
            if task.overlap is not None and task.overlap is on.overlap:
                continue  # the pieces' memory is more precise
            for one in ids[task]:
                for other in ids[on]:
                    graph.depend(one, other)
        try:
            workers = self.workers if policy == "static" else 0
            plan = graph.compile(policy, self.balance, workers, self.infer)
        finally:
            graph.close()
        return Plan(self, plan, names, groups)

    def _numbers(self, task: Task, piece: Piece) -> Numbers:
        if task.function is not None:
            return Numbers(())
        call = Call(piece.type, f"task \"{task.name}\" ({piece.type.name})", list(piece.inputs),
                    list(piece.outputs), dict(piece.attributes), world=task.world)
        found = numbers(call)
        piece.inputs = call.inputs
        return found

    def _op(self, task: Task, piece: Piece, found: Numbers, pieces: int = 1,
            name: str | None = None) -> _abi.Op:
        op = _abi.Op(type=piece.type, dtype=found.dtype, deterministic=int(self.deterministic),
                     name=(name or task.name).encode(), on_worker=task.worker + 1,
                     group=task.group if piece.type.is_comm else 0,
                     priority=task.priority * WAVES - (min(piece.wave, WAVES - 1)
                                                       if task.overlap is not None else 0),
                     cost_ns=task.cost_ns // pieces, local_name=int(not task.named))
        op.dims[:len(found.dims)] = list(found.dims)
        op.aux[:len(found.aux)] = list(found.aux)
        if task.function is not None:
            return self._custom(task, op)
        for slots, tensors in ((op.inputs, piece.inputs), (op.outputs, piece.outputs)):
            for i, t in enumerate(tensors):
                slots[i] = t.data_ptr() if t is not None else None
        return op

    def _custom(self, task: Task, op: _abi.Op) -> _abi.Op:
        op.function = self._calls.make(task.name, task.function, task.inputs, task.outputs)
        reads, writes = ((_abi.Range * max(len(t), 1))(*map(extent, t))
                         for t in (task.inputs, task.outputs))
        self._kept += [reads, writes]
        op.reads, op.n_reads = ctypes.cast(reads, ctypes.POINTER(_abi.Range)), len(task.inputs)
        op.writes, op.n_writes = ctypes.cast(writes, ctypes.POINTER(_abi.Range)), len(task.outputs)
        return op

    # ---- running ----

    def execute(self, stream: Any = None, wait: bool = True) -> Result:
        """Run all tasks, on CUDA after the work in ``stream`` (a torch.cuda.Stream; None = the
        current one). wait=False: return at once; ``Result.wait()`` waits, and tensors must not be
        touched before that. Raises what a Python task raised."""
        plan, wait = self.compile(), flag(wait, "wait")
        if stream is not None and not self._on_cuda:
            raise DeviceError(f"a stream for a graph on {self.device}", "streams are CUDA's")
        if self._on_cuda:
            stream = (stream or torch.cuda.current_stream(self.device)).cuda_stream
        if forked(self._pid):
            raise MacoError("this graph was made before fork()", "make one in the child")
        if not self._busy.acquire(blocking=False):
            raise MacoError("this graph is running", "wait for the Result of execute(wait=False)")
        result = self._last = Result()
        if wait:
            self._run(plan, result, stream)
            return result.wait()
        result._cancel = self.cancel
        result._thread = threading.Thread(target=self._run, args=(plan, result, stream),
                                          name="maco-run")
        try:
            result._thread.start()
        except BaseException:
            self._busy.release()
            raise
        return result

    @property
    def _on_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def _opened(self) -> Any:
        workers = self.num_workers or self._static_workers()
        if not self._on_cuda:
            return _abi.Runtime(workers, self.policy, self.balance, self.timeout_s, self.trace,
                                self._groups.handles())
        groups = self._groups.list
        if any(g.world > 1 for g in groups):
            raise DeviceError("collectives of several ranks in a graph on CUDA",
                              "maco_cuda_open takes NCCL's communicators, this package makes none: "
                              "use maco.overlap_comm")
        return _abi.Cuda(self.device.index or 0, workers, 0, self.timeout_s, self.trace,
                         len(groups))

    def _run(self, plan: Plan, result: Result, stream: Any = None) -> None:
        try:
            with self._groups.mine():
                self._run_alone(plan, result, stream)
        except BaseException as error:
            result._error = self._failed(error)
        finally:
            self._busy.release()

    def _run_alone(self, plan: Plan, result: Result, stream: Any) -> None:
        if self._runtime is None:
            self._runtime = self._opened()
        self._groups.handles()  # created if necessary
        self._in_place()
        begun = time.perf_counter()
        try:
            self._runtime.run(plan.handle, stream or 0)
        except BaseException:
            self._left_out(plan)
            raise
        finally:
            result.seconds = time.perf_counter() - begun
            if self.trace:
                with contextlib.suppress(MacoError):
                    result.trace = self._runtime.trace()
        if self.trace or not self._on_cuda:
            result.ids = self._runtime.order(len(plan.names))
            result.order = [plan.names[i] for i in result.ids]

    def _left_out(self, plan: Plan) -> None:
        """After a failed run: other ranks may wait in the collectives that it did not come to."""
        done: set[int] = set()
        with contextlib.suppress(MacoError):  # not even begun, or a thread is still at work
            done = set(self._runtime.order(len(plan.names)))
        for number in {group for i, group in enumerate(plan.groups) if group >= 0
                       and i not in done}:
            self._groups.list[number].fall_behind()

    def _in_place(self) -> None:
        """Check that no tensor got other memory, because the plan contains addresses."""
        for task, t, home in self._places.values():
            if t.data_ptr() != home:
                raise MacoError(f"a tensor of task \"{task.name}\" has moved since the graph was "
                                "compiled", "write into it in place, or make the graph again")

    def _static_workers(self) -> int:
        return self.workers if self.policy == "static" else 0

    def _failed(self, error: BaseException) -> BaseException:
        if self._runtime is not None and self._runtime.at_work():
            _abandoned.append((self._kept, self._calls, self.tasks))
        self._groups.failed(error)
        if isinstance(error, MacoError):
            try:
                self._calls.raise_what_was(error)
            except BaseException as theirs:
                return theirs
        return error

    def cancel(self) -> None:
        """From any thread: end the run with CanceledError."""
        if self._runtime is not None:
            self._runtime.cancel()

    def _traced(self) -> _abi.Trace:
        if self._last is None or self._last.trace is None:
            raise NotCompiledError("no run was traced", "TaskGraph(trace=True), then execute()")
        return self._last.trace

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the last run's trace in Chrome's format, for Perfetto; pid is the rank."""
        self._traced().write(os.fspath(path), self._groups.rank)

    def close(self) -> None:
        """End the workers; a later run starts new ones."""
        with self._busy:
            if self._runtime is not None:
                self._runtime.close()
                self._runtime = None

    def __enter__(self) -> "TaskGraph":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @classmethod
    def from_module(cls, module: torch.nn.Module, example_inputs: Any, strict: bool = False,
                    **options: Any) -> Any:
        """Turn a module into a graph, which is called like the module with inputs of the same
        shapes. options: TaskGraph's; ``parts`` defaults to the number of workers. strict: raise
        UnsupportedError for calls into torch."""
        return from_module(ModuleGraph, module, example_inputs, strict, options)


class ModuleGraph(ModuleCalls, TaskGraph):
    """The result of from_module."""


def _device(device: Any) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"unknown device {device!r}: {error}", "\"cpu\" or \"cuda\"") from None
    if found.type == "cuda":
        why = _abi.cuda_available() if torch.cuda.is_available() else "torch has none"
        if why:
            raise DeviceError(f"CUDA is not available: {why}", "device=\"cpu\", and tensors on it")
        return torch.device("cuda", torch.cuda.current_device() if found.index is None
                            else found.index)
    if found.type != "cpu":
        raise DeviceError(f"there are no graphs on {found.type}", "\"cpu\" or \"cuda\"")
    return found

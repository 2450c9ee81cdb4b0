#!/usr/bin/python3
"""Random arguments of any kind: invalid ones raise a MacoError with a hint, and no process dies.

    test_maco_arguments.py [SECONDS [SEED]]
"""
from __future__ import annotations

import pathlib
import random
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from maco import MacoError, TaskGraph, TaskType, overlap_comm  # noqa: E402
from maco._sm import run_sm_scheduling_demo  # noqa: E402

NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    2**31,
    2**31 - 1,
    -(2**31),
    2**40,
    2**64,
    1.5,
    -0.5,
    float("nan"),
    float("inf"),
    True,
    None,
    "x",
    "",
    b"y",
    [],
    object(),
    3 + 4j,
    torch.ones(2),
]
NAMES = [None, "a", "", 'q"u\n', "n" * 5000, "\0", b"x", 5, "\ud800"]
DTYPES = [torch.float32] * 5 + [
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
ATTRIBUTES = (
    "priority",
    "worker",
    "cost",
    "alpha",
    "beta",
    "causal",
    "scale",
    "eps",
    "approximate",
    "op",
    "group",
    "root",
    "peer",
    "tag",
    "value",
    "function",
    "nonsense",
)
BUILDERS = {
    "matmul": 2,
    "linear": 2,
    "attention": 3,
    "layernorm": 1,
    "rmsnorm": 1,
    "gelu": 1,
    "silu": 1,
    "softmax": 1,
    "copy": 1,
    "fill": 1,
    "nop": 0,
    "allreduce": 1,
    "allgather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "broadcast": 1,
}
OWN = {"fill": {"value"}, "allreduce": set()}  # builders name these themselves


class Fuzz:
    def __init__(self, seed: int) -> None:
        self.dice, self.calls, self.wrong = random.Random(seed), 0, []

    def one_in(self, n: int) -> bool:
        return self.dice.randrange(n) == 0

    def tensor(self):
        shape = [self.dice.choice([0, 1, 2, 3, 4, 8]) for _ in range(self.dice.randint(0, 4))]
        t = torch.zeros(shape, dtype=self.dice.choice(DTYPES))
        kind = self.dice.randrange(16)
        if kind == 0:
            return t.expand(3, *shape)
        if kind == 1 and shape:
            return t[::2]
        if kind == 2 and len(shape) > 1:
            return t.transpose(0, -1)
        if kind == 3:
            return torch.empty(shape, device="meta")
        if kind == 4 and shape and t.dtype == torch.float32:
            return t.to_sparse()
        return t

    def junk(self):
        return self.tensor() if self.one_in(2) else self.dice.choice(NUMBERS)

    def attempt(self, function):
        self.calls += 1
        try:
            return function()
        except MacoError as error:
            if not error.hint:
                self.wrong.append(traceback.format_exc())
        except Exception:
            self.wrong.append(traceback.format_exc())
        return None

    def options(self, names, n):
        return {k: self.junk() for k in names if self.one_in(n)}

    def task(self, graph, tasks):
        given = self.options(ATTRIBUTES, 12)
        if self.one_in(8):
            given["name"] = self.dice.choice(NAMES)
        if self.one_in(3):
            kind = self.dice.choice([*TaskType, 999, None])
            x, y = ([self.junk() for _ in range(self.dice.randint(0, n))] for n in (4, 2))
            return graph.add_task(kind, x, y, **given)
        name = self.dice.choice(list(BUILDERS))
        for own in OWN.get(name, ()):
            given.pop(own, None)
        n = 4 if name == "attention" else 2
        inputs = [torch.zeros([4] * n) for _ in range(BUILDERS[name])]
        for i in range(len(inputs)):
            if self.one_in(5):
                inputs[i] = self.junk()
            elif tasks and self.one_in(3):
                inputs[i] = self.dice.choice(tasks)
        return getattr(graph, name)(*inputs, **given)

    def graph(self):
        given = {
            "num_workers": self.dice.randint(1, 2),
            "timeout_s": 5,
            "policy": self.dice.choice(["direct", "scheduler", "static"]),
            **self.options(
                (
                    "device",
                    "policy",
                    "group",
                    "timeout_s",
                    "parts",
                    "trace",
                    "infer",
                    "deterministic",
                    "balance",
                ),
                20,
            ),
        }
        graph = self.attempt(lambda: TaskGraph(**given))
        if graph is None:
            return
        tasks = []
        for _ in range(self.dice.randint(1, 8)):
            made = self.attempt(lambda: self.task(graph, tasks))
            tasks += [made] if made is not None else []
            if self.one_in(3):
                two = [
                    self.dice.choice(tasks) if tasks and not self.one_in(6) else self.junk()
                    for _ in range(2)
                ]
                self.attempt(lambda: graph.add_dependency(*two))
        if self.one_in(3):
            cut = [
                (
                    [t for t in tasks if t.type.is_comm == comm][:1]
                    if not self.one_in(4)
                    else self.junk()
                )
                for comm in (False, True)
            ]
            made = self.attempt(lambda: graph.overlap(*cut))
            if made is not None:
                self.attempt(
                    lambda: (
                        made.with_waves(self.junk())
                        if self.one_in(2)
                        else made.auto_waves(*[self.junk() for _ in range(2 * self.one_in(3))])
                    )
                )
        plan = self.attempt(graph.compile)
        if plan is not None:
            self.attempt(plan.describe)
            self.attempt(lambda: plan.simulate(**self.options(("workers", "hop_ns"), 2)))
            self.attempt(graph.execute)
        graph.close()

    def rest(self):
        self.attempt(
            lambda: run_sm_scheduling_demo(
                self.junk() if self.one_in(2) else torch.zeros(self.dice.choice([0, 1, 100])),
                *[self.junk() if self.one_in(3) else self.dice.randint(1, 4) for _ in range(3)],
            )
        )
        given = self.options(("comm_op", "chunks", "split_arg", "split_dim", "group", "grad"), 5)
        self.attempt(
            lambda: overlap_comm(**given)(lambda *x: x[0])(
                self.junk() if self.one_in(3) else torch.zeros(8, 4)
            )
        )
        self.attempt(lambda: TaskGraph.from_module(self.junk(), self.junk()))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5
    fuzz = Fuzz(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not fuzz.wrong:
        fuzz.graph()
        fuzz.rest()
    for text in fuzz.wrong:
        print(text)
    print(f"{fuzz.calls} calls, {len(fuzz.wrong)} answered by something else than a hint")
    return 1 if fuzz.wrong or fuzz.calls < 10 else 0


if __name__ == "__main__":
    sys.exit(main())

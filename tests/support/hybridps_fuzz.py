#!/usr/bin/python3
"""Random training programs, each run on plain torch and managed, and compared bit for bit.

A program is made from a seed: a model, optimizers, a device and a list of operations, which train,
and read and write parameters, gradients and optimizer state where a user might. Both runs return a
list of what they saw. The lists are equal; or the managed run ends in a HybridPSError that REFUSALS
lists; or both end in an exception. A signal is always a failure, so programs run in children.

    tests/support/hybridps_fuzz.py 100000            programs 0 to 99999
    tests/support/hybridps_fuzz.py --replay 4711     one, with what it does
    tests/support/hybridps_fuzz.py --shrink 4711     its shortest part that still fails
    --length 4                                       models and programs four times as long
    --cuda cuda:0                                    on a GPU; see NOT_ON_CUDA for what is left out

On a GPU the plain run keeps its parameters where a managed run has them: on the device in a pass,
on the host outside; and it steps in the same place.
"""
from __future__ import annotations

import argparse
import collections
import gc
import os
import pathlib
import pickle
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import needs  # noqa: E402

torch = needs.torch()
import hybridps
import hybridps_programs as programs
from hybridps_programs import Run, make_program

LOST = 75  # the status of a child whose device is lost
REFUSALS = (  # messages that are allowed instead of a result
    "needs .* of device memory at once",
    "written in place between forward and",
    "memory of .*two parameters in the same memory",
    "this step needs all state on the host at once",
    "is requested between a backward with create_graph",
    "has no exp_avg.*, but a step",
    "was used after its content had ended",
    "native Adam counts whole ones",
)


class Wrong(Exception):
    pass


class Lost(Wrong):
    """The device's context is lost: this process can run no more programs."""


def execute(seed, program, managed):
    """What the program saw, then how it ended."""
    run = Run(seed)
    run.managed = managed
    client, end = None, "end"
    run.move("cpu")
    try:
        if managed:
            client = hybridps.manage(
                run.model, run.optimizers, manager="none", spill="none", **run.way
            )
        for number, op in enumerate(program):
            run.seen.append(f"{number} {op[0]}")
            run.do(op)
    except hybridps.HybridPSError as error:
        end = f"HybridPSError: {error}"
    except Exception as error:  # plain torch must fail, too
        known = managed and re.match("HybridPSError: ", str(error))
        end = str(error) if known else f"raised {type(error).__name__}: {error}"
    try:
        if client is not None:
            client.close()
    except hybridps.HybridPSError as error:
        end = f"HybridPSError: {error}" if end == "end" else end
    if end == "end":
        end = look_after(run)
    return run.seen, end


def look_after(run):
    """Reads what is left after the client was closed, and trains on."""
    run.seen.append("after")
    run.see(list(run.model.parameters()))
    if programs.CUDA:  # everything is back where it came from
        return (
            "end"
            if not run.managed or all(p.is_cuda for p in run.model.parameters())
            else "raised: not on the device"
        )
    run.see([p.grad for p in run.model.parameters()])
    for value in run.kept:
        run.see(value)
    try:
        run.op_step(0, 0, 0, 0)
    except Exception as error:
        return f"raised {type(error).__name__} after close: {error}"
    run.see(list(run.model.parameters()))
    return "end"


def check(seed, program):
    """ "same", or "refused: ..."; Wrong says what differs."""
    plain, plain_end = execute(seed, program, False)
    seen, end = execute(seed, program, True)
    if "CUDA error" in plain_end + end or "CUDA_ERROR" in end:
        raise Lost(end)
    for number, (a, b) in enumerate(zip(plain, seen)):
        if a != b:
            at = next(s for s in reversed(plain[: number + 1]) if isinstance(s, str))
            raise Wrong(f"differs from plain torch in operation {at}")
    if end.startswith("HybridPSError"):
        for known in REFUSALS:
            if re.search(known, end, re.S):
                return f"refused: {known}"
        if not plain_end.startswith("raised"):
            raise Wrong(end)
    elif end.split(":")[0] != plain_end.split(":")[0]:
        raise Wrong(f"ends in {end}, plain torch in {plain_end}")
    elif len(plain) != len(seen):
        raise Wrong(f"saw {len(seen)} things, plain torch {len(plain)}")
    return "same" if plain_end == "end" else "both raised"


def text_of(seed, program):
    run = Run(seed)
    lines = [
        f"seed {seed}: {run.way}",
        (
            f"  {', '.join(type(o).__name__ for o in run.optimizers)};"
            f" {sum(p.numel() for p in run.model.parameters())} parameters; {len(run.hooks)} hooks"
            " from before"
        ),
    ]
    return "\n".join(lines + [f"  {n} {op}" for n, op in enumerate(program)])


def in_child(seeds, program=None):
    """{seed: result}, each run in one child; a run that a signal ended is reported."""
    results: dict[int, str] = {}
    seeds = list(seeds)
    gc.freeze()  # collections in children skip torch's million objects
    while seeds:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(seeds, program, write)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            data = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done = _parse(data)
        results.update(done)
        seeds = seeds[len(done) :]
        if code not in (0, LOST) and seeds:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
            results[seeds.pop(0)] = f"WRONG: the process ended by {how}"
    return results


def _child(seeds, program, write):
    torch.set_num_threads(1)
    code = 0
    for seed in seeds:
        signal.alarm(300)  # this process waits for itself
        try:
            result = check(seed, program or make_program(seed))
        except Wrong as wrong:
            result, code = f"WRONG: {wrong}", LOST if isinstance(wrong, Lost) else 0
        line = pickle.dumps((seed, result))
        os.write(write, len(line).to_bytes(4, "little") + line)
        if code != 0:
            break
    os._exit(code)


def _parse(data):
    out = {}
    while data:
        size = int.from_bytes(data[:4], "little")
        seed, result = pickle.loads(data[4 : 4 + size])
        out[seed] = result
        data = data[4 + size :]
    return out


def shrink(seed):
    """The shortest part of the program that still fails."""
    program = make_program(seed)
    worse = True
    while worse:
        worse = False
        for at in reversed(range(len(program))):
            shorter = program[:at] + program[at + 1 :]
            if shorter and in_child([seed], shorter)[seed].startswith("WRONG"):
                program, worse = shorter, True
    return program


def fuzz(first, count, batch=1000, tell=None):
    """Counts of results, and the failed seeds with the reason. tell: called with the number of
    programs that have run and with what failed in the last batch."""
    counts: collections.Counter = collections.Counter()
    wrong: dict[int, str] = {}
    for start in range(first, first + count, batch):
        for seed, result in in_child(range(start, min(start + batch, first + count))).items():
            counts[result.split(": ")[0]] += 1
            if result.startswith("WRONG"):
                wrong[seed] = result
        if tell is not None:
            tell(sum(counts.values()), {s: w for s, w in wrong.items() if s >= start})
    return counts, wrong


def on_this_gpu():
    """As many parameters in a unit of the GPU's memory as in a page elsewhere."""
    programs.WIDTH = 181
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=2000, help="programs (2000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    parser.add_argument("--length", type=int, default=1, help="times the blocks and operations (1)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one, here")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="shorten one that goes wrong")
    parser.add_argument("--cuda", default="", metavar="DEVICE", help="on a GPU, as cuda:0")
    args = parser.parse_args()
    programs.LENGTH, programs.CUDA = args.length, args.cuda
    if programs.CUDA:
        on_this_gpu()
    torch.set_num_threads(1)
    if args.replay is not None or args.shrink is not None:
        seed = args.replay if args.replay is not None else args.shrink
        program = make_program(seed) if args.replay is not None else shrink(seed)
        print(text_of(seed, program), flush=True)
        print(
            (check(seed, program) if args.replay is not None else in_child([seed], program)[seed])
        )
        return 0
    began = time.process_time()

    def tell(done, wrong):
        for seed, result in wrong.items():
            print(f"{seed}: {result[:300]}")
        if args.count > done:
            print(f"{done} of {args.count}", flush=True)

    counts, wrong = fuzz(args.seed, args.count, batch=max(200 // args.length, 1), tell=tell)
    print(
        f"{dict(counts)}; {os.times().children_user + os.times().children_system:.0f} s of CPU, "
        f"{time.process_time() - began:.0f} s here"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

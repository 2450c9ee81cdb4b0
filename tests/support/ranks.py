"""The ranks of a group, each in a forked process: torch is imported once, in the parent."""
from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any, Callable


def ranks(
    run: Callable[[int], Any], world: int = 2, limit: int = 200, dies: tuple[int, ...] = ()
) -> list[Any]:
    """Returns what run(rank) returned in each. ``dies``: ranks that end otherwise; limit:
    seconds."""
    sys.stdout.flush()
    readers, pids = [], []
    for rank in range(world):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(limit)
                value = pickle.dumps(run(rank))
                with os.fdopen(writer, "wb") as out:
                    out.write(value)
                code = 0
            except BaseException as error:  # a child must never run the parent's code
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        os.close(writer)
        readers.append(os.fdopen(reader, "rb"))
        pids.append(pid)
    data = []
    for reader in readers:
        with reader:
            data.append(reader.read())
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert all((code != 0) == (rank in dies) for rank, code in enumerate(codes)), codes
    return [pickle.loads(d) if d else None for d in data]


def alone(run: Callable[[], Any]) -> Any:
    """What run() returns, in a process of its own: in torch 2 children of a process that had a
    backward can have none."""
    return ranks(lambda _: run(), world=1)[0]

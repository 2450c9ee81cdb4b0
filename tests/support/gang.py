"""Runs train_gpt.py as a gang of forked ranks: torch is imported once, in the parent."""
from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import sys
import tempfile
import time

from support.ports import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def rank_of(order: str, pp: int, tp: int, dp: int, sizes: tuple[int, int, int]) -> int:
    pps, tps, dps = sizes
    if order == "tp-pp-dp":
        return tp + tps * (pp + pps * dp)
    return tp + tps * (dp + dps * pp)


def _child(environment: dict[str, str], out: int, run) -> None:
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(environment)
        code = run()
    except SystemExit as leave:
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException as error:  # a child must never run the parent's code
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


class Gang:
    """Forked ranks; each calls `run` with its own environment."""

    def __init__(
        self,
        run,
        pp: int = 1,
        tp: int = 1,
        dp: int = 1,
        order: str = "tp-dp-pp",
        model: str = "m",
        job: str = "job",
        attempt: int = 1,
    ) -> None:
        port, self.pids, self.files = free_port(), {}, {}
        sizes, world = (pp, tp, dp), pp * tp * dp
        sys.stdout.flush()
        for place in ((p, t, d) for p in range(pp) for t in range(tp) for d in range(dp)):
            rank = rank_of(order, *place, sizes)
            names = ("PIPELINE", "TENSOR", "DATA")
            environment = {f"{n}_PARALLEL_RANK": str(v) for n, v in zip(names, place)}
            environment.update({f"{n}_PARALLEL_SIZE": str(v) for n, v in zip(names, sizes)})
            environment.update(
                GLOBAL_RANK=str(rank),
                RANK=str(rank),
                WORLD_SIZE=str(world),
                LOCAL_RANK="0",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                HELIOS_MODEL=model,
                HELIOS_JOB=job,
                HELIOS_ATTEMPT=str(attempt),
                OMP_NUM_THREADS="1",
                GLOO_SOCKET_IFNAME="lo",
            )
            self.files[rank] = tempfile.TemporaryFile()
            pid = os.fork()
            if pid == 0:
                _child(environment, self.files[rank].fileno(), run)
            self.pids[rank] = pid

    def output(self, rank: int) -> str:
        fd = self.files[rank].fileno()
        # pread: the file position is shared with the rank that writes.
        return os.pread(fd, os.fstat(fd).st_size, 0).decode()

    def close(self) -> None:
        """Kill the ranks that still run and drop their output."""
        for rank in list(self.pids):
            self.kill(rank, signal.SIGKILL)
        self.wait(10)
        for file in self.files.values():
            file.close()

    def kill(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def wait(self, timeout_s: float = 60) -> dict[int, int]:
        """Exit code per rank; a rank that is not done by the deadline is killed and reported as
        -9."""
        codes, deadline = {}, time.monotonic() + timeout_s
        watch = {os.pidfd_open(pid): rank for rank, pid in self.pids.items()}
        while watch:
            ready, _, _ = select.select(list(watch), [], [], max(0, deadline - time.monotonic()))
            if not ready:
                for rank in watch.values():
                    self.kill(rank, signal.SIGKILL)
                deadline = time.monotonic() + 10
            for fd in ready:
                rank = watch.pop(fd)
                _, status = os.waitpid(self.pids.pop(rank), 0)
                codes[rank] = os.waitstatus_to_exitcode(status)
                os.close(fd)
        return codes

    def lines(self, kind: str) -> list[dict]:
        """All HELIOS_<kind> lines of all ranks."""
        head = f"HELIOS_{kind} "
        return [
            json.loads(line[len(head) :])
            for rank in sorted(self.files)
            for line in self.output(rank).splitlines()
            if line.startswith(head)
        ]

    def losses(self) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.lines("PROGRESS")}

    def everything(self) -> str:
        return "\n".join(f"--- rank {r}\n{self.output(r)}" for r in sorted(self.files))

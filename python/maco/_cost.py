"""Chooses the number of chunks: a model of overlap, fed with times measured on this machine.

C: time to compute all, X: time to communicate all, o: extra cost of each chunk. n chunks take
max(C, X) + min(C, X) / n + n o, which is minimal at n = sqrt(min(C, X) / o). From there, or from 2,
powers of two are run, downwards or upwards as long as they get faster. They have to be run because
o is a small difference of two measured times: it says where to begin, but not whether to cut. The
fastest of many short measurements may be so by luck, and other users disturb the machine, so the
FINALISTS fastest are run again, in turns with one chunk. The best one has to gain LEAST_GAIN there,
or nothing is cut. Nothing is run if hiding all of the shorter one would gain less.
"""
from __future__ import annotations

import functools
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable

import torch

from ._comm import Carrier

LEAST_GAIN = 0.03
MOST_CHUNKS = 64
FINALISTS = 3
REPEATS = 5
PROBE = 4  # chunks, one after the other, to measure o


@dataclass(frozen=True)
class Decision:
    """Times in seconds of the slowest rank. chunks 1: not cut."""

    chunks: int
    reason: str
    compute: float = 0.0
    comm: float = 0.0
    per_chunk: float = 0.0
    plain: float = 0.0  # one chunk
    overlapped: float = 0.0  # as chosen, or as tried without success

    @property
    def gain(self) -> float:
        """The share of the plain time that is saved."""
        return 1 - self.overlapped / self.plain if self.chunks > 1 and self.plain > 0 else 0.0

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain}


def expected(compute: float, comm: float, per_chunk: float, chunks: int) -> float:
    """Expected seconds for this number of chunks."""
    if chunks == 1:
        return compute + comm
    return max(compute, comm) + min(compute, comm) / chunks + chunks * per_chunk


def best_chunks(compute: float, comm: float, per_chunk: float, most: int) -> int:
    """A power of two, at most ``most``."""
    powers = [1 << k for k in range(min(most, MOST_CHUNKS).bit_length())] or [1]
    return min(powers, key=lambda n: expected(compute, comm, per_chunk, n))


def fastest(first: int, most: int, seconds: Callable[[int], float]) -> list[int]:
    """The FINALISTS chunk counts with the shortest runs, shortest first, among the powers of two
    from 2 to ``most`` that are tried, beginning with ``first``."""
    tried = {first: seconds(first)}
    best = first
    for step in (lambda n: n // 2, lambda n: n * 2):
        n = step(best)
        turned = best == first  # turn around only if this way does not get faster
        while turned and 2 <= n <= min(most, MOST_CHUNKS):
            tried[n] = seconds(n)
            if tried[n] >= tried[best]:
                break
            best, n = n, step(n)
    return sorted(tried, key=tried.__getitem__)[:FINALISTS]


def _seconds(carrier: Carrier, *runs: Callable[[], Any]) -> list[float]:
    """The median of several runs of each, taken in turns, which all ranks begin together."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS + 1):
        for seconds, run in zip(taken, runs):
            carrier.largest([0.0])
            begun = time.perf_counter()
            run()
            if carrier.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
    return [statistics.median(seconds[1:]) for seconds in taken]


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def decide(carrier: Carrier, most: int, compute: Callable[[], Any], comm: Callable[[], Any],
           chunked: Callable[[int, str], Any]) -> Decision:
    """Decide the same on all ranks, which call it together. chunked(n, "overlap" or "serial") does
    everything in n chunks; most: the maximum number of chunks."""
    if carrier.world == 1:
        return Decision(1, "one rank has nothing to wait for")
    if most < 2:
        return Decision(1, "a single row can't be cut")
    probe = min(PROBE, most)
    c, x, plain, serial = carrier.largest([
        *_seconds(carrier, compute), *_seconds(carrier, comm),
        *_seconds(carrier, lambda: chunked(1, "serial")),
        *_seconds(carrier, lambda: chunked(probe, "serial"))])
    per_chunk = max((serial - plain) / (probe - 1), 1e-6)
    first = max(best_chunks(c, x, per_chunk, most), 2)
    facts = {"compute": c, "comm": x, "per_chunk": per_chunk}
    hoped = 1 - max(c, x) / (c + x)
    if hoped < LEAST_GAIN:
        return Decision(1, f"chunks would gain {hoped * 100:.1f} % at best, less than "
                           f"{LEAST_GAIN * 100:.0f} %: it computes {_text(c)} and communicates "
                           f"{_text(x)}", plain=plain, **facts)
    finalists = fastest(first, most, lambda n: carrier.largest(
        _seconds(carrier, lambda: chunked(n, "overlap")))[0])
    plain, *again = carrier.largest(_seconds(
        carrier, lambda: chunked(1, "serial"),
        *(functools.partial(chunked, n, "overlap") for n in finalists)))
    overlapped, chunks = min(zip(again, finalists))
    facts.update(plain=plain, overlapped=overlapped)
    gain = 1 - overlapped / plain
    if gain < LEAST_GAIN:
        return Decision(1, f"{chunks} chunks, the best that was run, gain {gain * 100:.1f} %: it "
                           f"computes {_text(c)} and communicates {_text(x)}, and a chunk costs "
                           f"{_text(per_chunk)}",
                        **facts)
    return Decision(chunks, f"{chunks} chunks gain {gain * 100:.1f} %", **facts)

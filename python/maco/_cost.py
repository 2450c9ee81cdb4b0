"""How many chunks: a model of overlap, fed with times of this machine.

C: computing all, X: communicating all, o: what each chunk costs more. n chunks take
max(C, X) + min(C, X) / n + n o, least at n = sqrt(min(C, X) / o). From there, or from 2, powers of two are
run, downwards or upwards as long as they get faster, for o is a small difference of two measured times: it
says where to begin, and not whether. The fastest of many short measurements is one by luck too, and others
use the machine now and then: so the FINALISTS fastest are run again, in turns with one chunk. The better one
gains LEAST_GAIN there, or nothing is cut. Nothing is run where hiding all of the shorter one would gain less.
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
PROBE = 4  # chunks, one after the other, to find o


@dataclass(frozen=True)
class Decision:
    """Seconds; the slowest rank's. chunks 1: left alone."""

    chunks: int
    reason: str
    compute: float = 0.0
    comm: float = 0.0
    per_chunk: float = 0.0
    plain: float = 0.0  # one chunk
    overlapped: float = 0.0  # as chosen, or as tried in vain

    @property
    def gain(self) -> float:
        """Part of the plain time that is saved."""
        return 1 - self.overlapped / self.plain if self.chunks > 1 and self.plain > 0 else 0.0

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain}


def expected(compute: float, comm: float, per_chunk: float, chunks: int) -> float:
    """Seconds that so many chunks take."""
    if chunks == 1:
        return compute + comm
    return max(compute, comm) + min(compute, comm) / chunks + chunks * per_chunk


def best_chunks(compute: float, comm: float, per_chunk: float, most: int) -> int:
    """A power of two, at most ``most``."""
    powers = [1 << k for k in range(min(most, MOST_CHUNKS).bit_length())] or [1]
    return min(powers, key=lambda n: expected(compute, comm, per_chunk, n))


def fastest(first: int, most: int, seconds: Callable[[int], float]) -> list[int]:
    """The FINALISTS numbers of chunks, powers of two from 2 to ``most``, with the shortest runs among those that
    are tried from ``first`` on; the shortest first."""
    tried = {first: seconds(first)}
    best = first
    for step in (lambda n: n // 2, lambda n: n * 2):
        n = step(best)
        turned = best == first  # the other way only where this one does not get faster
        while turned and 2 <= n <= min(most, MOST_CHUNKS):
            tried[n] = seconds(n)
            if tried[n] >= tried[best]:
                break
            best, n = n, step(n)
    return sorted(tried, key=tried.__getitem__)[:FINALISTS]


def _seconds(carrier: Carrier, *runs: Callable[[], Any]) -> list[float]:
    """Of each the median of some runs, in turns, that all ranks begin together."""
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
    """The same on all ranks, which call it together. chunked(n, "overlap" or "serial") does all of
    it in n chunks; most: chunks there can be."""
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
        carrier, lambda: chunked(1, "serial"), *(functools.partial(chunked, n, "overlap") for n in finalists)))
    overlapped, chunks = min(zip(again, finalists))
    facts.update(plain=plain, overlapped=overlapped)
    gain = 1 - overlapped / plain
    if gain < LEAST_GAIN:
        return Decision(1, f"{chunks} chunks, the best that was run, gain {gain * 100:.1f} %: it computes "
                           f"{_text(c)} and communicates {_text(x)}, and a chunk costs {_text(per_chunk)}",
                        **facts)
    return Decision(chunks, f"{chunks} chunks gain {gain * 100:.1f} %", **facts)

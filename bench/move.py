#!/usr/bin/python3
"""How fast moves are compared with the path that they take, and how much readers of other shards
lose meanwhile. Each of the daemons, all on this machine, believes that it has its own host. `helios
bench` measures the rate of a path in the same round; the measurements take turns, and the median of
the rounds counts. This takes a little more than two minutes, with --readers one. --readers measures
only the readers, and where the time of a read goes."""
import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "chaos"), str(ROOT / "tests"), str(ROOT / "python")]
sys.dont_write_bytecode = True
from apart import BUILD, HELIOS, Apart, Calls, Refused  # noqa: E402

RATE_BAR, FULL_BAR, BUDGET_BAR = 0.8, 0.9, 0.97
BUDGET = 0.1  # of the path's rate
TURNS = 3  # moves of each kind in a round
FULL, BUDGETED, ALONE = "full rate", "budget", "no moves"
QUIET = 0.1  # processors that others may use beside a measurement
L2_TO_L2, L2_TO_L3, L3_TO_L2 = "L2 to L2", "L2 to L3", "L3 to L2"
# Arguments of helios bench.
PATHS = {
    L3_TO_L2: ("get", "--path", "net"),
    L2_TO_L2: ("migrate", "--chunk", "1MiB"),
    L2_TO_L3: ("put",),
}


def reads_per_second(reader, seconds):
    """Of a process of read_others."""

    def count():
        reader.stdin.write("\n")
        reader.stdin.flush()
        return int(reader.stdout.readline())

    begun, before = time.perf_counter(), count()
    time.sleep(seconds)
    return (count() - before) / (time.perf_counter() - begun)


def read_others(controller, largest):
    """Reads all mapped shards but the largest ones, and reports how often when asked."""
    os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
    from helios import _abi

    client, count = _abi.Client(controller), [0]
    shards = [s for s in client.request_shards("m", -1, 0, 0).shards if s.size < largest]

    def answer():
        for _ in sys.stdin:
            print(count[0], flush=True)
        os._exit(0)

    threading.Thread(target=answer, daemon=True).start()
    while True:
        for shard in shards:
            client.map(shard).buffer()
            count[0] += 1


BENCH_MOST = 128 << 20  # a rate that holds for more, too


def bench(kind, size):
    """GB/s of the path by itself: the rows of helios over a network."""
    name, *args = PATHS[kind]
    said = subprocess.run(
        [
            HELIOS,
            "bench",
            name,
            "--size",
            str(min(size, BENCH_MOST)),
            "--rounds",
            "1",
            *args,
            "-o",
            "json",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return max(
        r["gb_per_s"]
        for r in json.loads(said)["rows"]
        if r["system"] in ("helios-zmq", "helios-tcp", "helios-rdma")
    )


def timed_move(calls, shard, node, tier):
    """GB/s of a move, from the order to its end."""
    begun = time.perf_counter()
    calls("moveShard", id=shard["id"], node=node, tier=tier)
    return int(shard["sizeBytes"]) / (time.perf_counter() - begun) / 1e9


def move_round(calls, shard):
    """One round trip; the shard is only in L3 before and after."""
    rates = {
        L3_TO_L2: timed_move(calls, shard, "node-0", "L2"),
        L2_TO_L2: timed_move(calls, shard, "node-1", "L2"),
    }
    calls("dropCopy", id=shard["id"], node="", tier="L3")
    rates[L2_TO_L3] = timed_move(calls, shard, "", "L3")
    return rates


def rate_rounds(calls, shard, rounds):
    """For each kind and round: GB/s of the moves, and of the path just before."""
    size, seen = int(shard["sizeBytes"]), {kind: [] for kind in PATHS}
    move_round(calls, shard)  # the first touches memory
    for _ in range(rounds):
        paths = {kind: bench(kind, size) for kind in PATHS}
        turns = [move_round(calls, shard) for _ in range(TURNS)]
        for kind, rows in seen.items():
            rows.append((statistics.median(t[kind] for t in turns), paths[kind]))
    return seen


def shuttle(address, shard, stop, bytes_per_s):
    """Moves the shard between the nodes until `stop` is set."""
    calls, node = Calls(address), 0
    while not stop.is_set():
        with contextlib.suppress(Refused):  # it is there already, the first time
            calls(
                "moveShard", id=shard["id"], node=f"node-{node}", tier="L2", bytesPerS=bytes_per_s
            )
        node = 1 - node
    calls.close()


def threads_time(pid):
    """Seconds for which its threads had a processor, and for which they waited for one."""
    had = waited = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends
            run, wait, _ = map(int, (task / "schedstat").read_text().split())
            had, waited = had + run, waited + wait
    return had / 1e9, waited / 1e9


def busy_time():
    """Seconds of all processors."""
    user, nice, system, _, _, irq, softirq = map(
        int, pathlib.Path("/proc/stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Count:
    """Reads per second; microseconds of each for which the reader had a processor, waited for one,
    and helios-l3d had one; and how many processors were used by programs outside of this
    measurement."""

    reads: float
    runs: float
    waits: float
    l3: float
    others: float


def reads_beside(world, shard, reader, bytes_per_s, seconds):
    """Reads while the shard moves back and forth;
    None: it does not move, 0: no limit of its rate."""
    pids = [
        reader.pid,
        world.daemons["l3d"].process.pid,
        os.getpid(),
        *(d.process.pid for n, d in world.daemons.items() if n != "l3d"),
    ]
    stop = threading.Event()
    mover = threading.Thread(target=shuttle, args=(world.address, shard, stop, bytes_per_s))
    if bytes_per_s is not None:
        mover.start()
    begun, before, busy = time.perf_counter(), [threads_time(pid) for pid in pids], busy_time()
    reads = reads_per_second(reader, seconds)
    took, after, busy = (
        time.perf_counter() - begun,
        [threads_time(pid) for pid in pids],
        busy_time() - busy,
    )
    if bytes_per_s is not None:
        stop.set()
        mover.join()
    spent = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before)]
    us = 1e6 / (reads * took)
    return Count(
        reads,
        spent[0][0] * us,
        spent[0][1] * us,
        spent[1][0] * us,
        (busy - sum(s[0] for s in spent)) / took,
    )


def kept_shares(world, shard, reader, budget, args):
    """Reads beside moves at full rate and at the budget,
    over the mean of those alone right before and after; and all counts."""
    shares, counts = {FULL: [], BUDGETED: []}, {ALONE: [], FULL: [], BUDGETED: []}
    before = reads_beside(world, shard, reader, None, args.seconds)
    for turn in range(2 * args.rounds):
        kind = (FULL, BUDGETED)[turn % 2]
        beside = reads_beside(world, shard, reader, 0 if kind == FULL else budget, args.seconds)
        after = reads_beside(world, shard, reader, None, args.seconds)
        shares[kind].append(beside.reads / ((before.reads + after.reads) / 2))
        counts[kind].append(beside)
        counts[ALONE].append(after)
        before = after
    return shares, counts


def report_counts(counts):
    """Where the time of a read goes, without moves and beside them."""
    for kind, rows in counts.items():
        m = Count(*(statistics.median(column) for column in zip(*map(dataclasses.astuple, rows))))
        print(
            (
                f"{kind}: {m.reads:.0f} reads/s; of the {1e6 / m.reads:.0f} us of a read"
                f" {m.runs:.0f} on a processor, {m.waits:.0f} waiting for one; helios-l3d"
                f" {m.l3:.0f}; others used {m.others:.2f} processors"
            ),
            flush=True,
        )
    others = statistics.median(c.others for rows in counts.values() for c in rows)
    if others > QUIET:
        print(
            f"others used {others:.2f} processors all the time: repeat this on a quiet machine",
            flush=True,
        )


def report(name, values, bar):
    value = statistics.median(values)
    print(
        (
            f"{name:46} {value:6.3f}  ({min(values):.3f} to {max(values):.3f})  bar {bar:.2f}:"
            f" {'met' if value >= bar else 'MISSED'}"
        ),
        flush=True,
    )
    return value >= bar


def measure(world, args):
    world.daemons["controller"].args["--placement-grace"] = "0"
    world.start()
    shard = max(world.shards, key=lambda s: int(s["sizeBytes"]))
    size, calls, met = int(shard["sizeBytes"]), Calls(world.address), True
    seen = {} if args.readers else rate_rounds(calls, shard, args.rounds)
    for kind, rows in seen.items():
        print(
            f"{kind}: {statistics.median(r for r, _ in rows):.2f} GB/s of {size >> 20} MiB, from"
            f" the order to its end; the path by itself {statistics.median(p for _, p in rows):.2f}"
        )
        met &= report(f"move/path, {kind}", [rate / path for rate, path in rows], RATE_BAR)
    reader = subprocess.Popen(
        [sys.executable, __file__, "--read-others", world.address, str(size // 2)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=world.env,
    )
    reads_per_second(reader, 1)  # it has mapped all of them once
    if args.readers:
        move_round(calls, shard)  # the first touches memory
    path = (
        bench(L2_TO_L2, size) if args.readers else statistics.median(p for _, p in seen[L2_TO_L2])
    )
    shares, counts = kept_shares(world, shard, reader, int(path * BUDGET * 1e9), args)
    report_counts(counts)
    met &= report("reads of other shards, moves at full rate", shares[FULL], FULL_BAR)
    met &= report(
        f"reads of other shards, moves at {BUDGET:.0%} of the path", shares[BUDGETED], BUDGET_BAR
    )
    reader.stdin.close()
    reader.wait()
    calls.close()
    return met


def main():
    p = argparse.ArgumentParser(prog="./run bench move", description=__doc__)
    p.add_argument(
        "--mib", type=int, default=192, help="size of the shard that moves, at most 255 (192)"
    )
    p.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    p.add_argument("--seconds", type=float, default=2.0, help="length of each count of reads (2)")
    p.add_argument("--readers", action="store_true", help="only what readers lose")
    p.add_argument("--read-others", nargs=2, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.read_others:
        return read_others(args.read_others[0], int(args.read_others[1]))
    model = {"layers": 2, "hidden": 256, "ffn": 512, "vocab": args.mib << 10}  # F32: 1 KiB a word
    world = Apart(l3=f"{4 * args.mib}MiB", l2=f"{2 * args.mib + 64}MiB", model=model, sync_ms=0)
    try:
        return 0 if measure(world, args) else 1
    finally:
        world.close(False)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""How fast moves are against the path that they take, and what readers of other shards lose meanwhile. Daemons of one machine that
each believe to be on a host of their own. The rate of a path is that of `helios bench` in the same round; what is compared takes
turns, and the median of the rounds counts. A little more than two minutes."""
import argparse
import contextlib
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
TURNS = 3     # moves of each kind in a round
FULL, BUDGETED = "full rate", "budget"
L2_TO_L2, L2_TO_L3, L3_TO_L2 = "L2 to L2", "L2 to L3", "L3 to L2"
PATHS = {L3_TO_L2: ("get", "--path", "net"), L2_TO_L2: ("migrate", "--chunk", "1MiB"), L2_TO_L3: ("put",)}  # of helios bench


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
    """Reads all shards but the largest ones, mapped, and says how often when it is asked."""
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
    said = subprocess.run([HELIOS, "bench", name, "--size", str(min(size, BENCH_MOST)), "--rounds", "1", *args, "-o", "json"], check=True,
                          capture_output=True, text=True).stdout
    return max(r["gb_per_s"] for r in json.loads(said)["rows"] if r["system"] in ("helios-zmq", "helios-tcp", "helios-rdma"))


def timed_move(calls, shard, node, tier):
    """Its GB/s from the order to its end."""
    begun = time.perf_counter()
    calls("moveShard", id=shard["id"], node=node, tier=tier)
    return int(shard["sizeBytes"]) / (time.perf_counter() - begun) / 1e9


def move_round(calls, shard):
    """Once round; it is in L3 alone before and after."""
    rates = {L3_TO_L2: timed_move(calls, shard, "node-0", "L2"), L2_TO_L2: timed_move(calls, shard, "node-1", "L2")}
    calls("dropCopy", id=shard["id"], node="", tier="L3")
    rates[L2_TO_L3] = timed_move(calls, shard, "", "L3")
    return rates


def rate_rounds(calls, shard, rounds):
    """Of each kind, for each round: GB/s of the moves, and of the path just before."""
    size, seen = int(shard["sizeBytes"]), {kind: [] for kind in PATHS}
    move_round(calls, shard)  # the first touches memory
    for _ in range(rounds):
        paths = {kind: bench(kind, size) for kind in PATHS}
        turns = [move_round(calls, shard) for _ in range(TURNS)]
        for kind, rows in seen.items():
            rows.append((statistics.median(t[kind] for t in turns), paths[kind]))
    return seen


def shuttle(address, shard, stop, bytes_per_s):
    """Between the nodes, until stop."""
    calls, node = Calls(address), 0
    while not stop.is_set():
        with contextlib.suppress(Refused):  # it is there already, the first time
            calls("moveShard", id=shard["id"], node=f"node-{node}", tier="L2", bytesPerS=bytes_per_s)
        node = 1 - node
    calls.close()


def reads_beside(world, shard, reader, bytes_per_s, seconds):
    """Reads per second while the shard goes to and fro; None: it rests, 0: as fast as it can."""
    stop = threading.Event()
    mover = threading.Thread(target=shuttle, args=(world.address, shard, stop, bytes_per_s))
    if bytes_per_s is not None:
        mover.start()
    reads = reads_per_second(reader, seconds)
    if bytes_per_s is not None:
        stop.set()
        mover.join()
    return reads


def kept_shares(world, shard, reader, budget, args):
    """Reads beside moves at full rate and at the budget, over the mean of those alone right before and after."""
    shares = {FULL: [], BUDGETED: []}
    before = reads_beside(world, shard, reader, None, args.seconds)
    for turn in range(2 * args.rounds):
        kind = (FULL, BUDGETED)[turn % 2]
        beside = reads_beside(world, shard, reader, 0 if kind == FULL else budget, args.seconds)
        after = reads_beside(world, shard, reader, None, args.seconds)
        shares[kind].append(beside / ((before + after) / 2))
        before = after
    return shares


def report(name, values, bar):
    value = statistics.median(values)
    print(f"{name:46} {value:6.3f}  ({min(values):.3f} to {max(values):.3f})  bar {bar:.2f}: {'met' if value >= bar else 'MISSED'}",
          flush=True)
    return value >= bar


def measure(world, args):
    world.daemons["controller"].args["--placement-grace"] = "0"
    world.start()
    shard = max(world.shards, key=lambda s: int(s["sizeBytes"]))
    size, calls, met = int(shard["sizeBytes"]), Calls(world.address), True
    seen = rate_rounds(calls, shard, args.rounds)
    for kind, rows in seen.items():
        print(f"{kind}: {statistics.median(r for r, _ in rows):.2f} GB/s of {size >> 20} MiB, from the order to its end; the path by "
              f"itself {statistics.median(p for _, p in rows):.2f}")
        met &= report(f"move/path, {kind}", [rate / path for rate, path in rows], RATE_BAR)
    reader = subprocess.Popen([sys.executable, __file__, "--read-others", world.address, str(size // 2)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, env=world.env)
    reads_per_second(reader, 1)  # it has mapped all of them once
    budget = int(statistics.median(p for _, p in seen[L2_TO_L2]) * BUDGET * 1e9)
    shares = kept_shares(world, shard, reader, budget, args)
    met &= report("reads of other shards, moves at full rate", shares[FULL], FULL_BAR)
    met &= report(f"reads of other shards, moves at {BUDGET:.0%} of the path", shares[BUDGETED], BUDGET_BAR)
    reader.stdin.close()
    reader.wait()
    calls.close()
    return met


def main():
    p = argparse.ArgumentParser(prog="./run bench move", description=__doc__)
    p.add_argument("--mib", type=int, default=192, help="size of the shard that moves, at most 255 (192)")
    p.add_argument("--rounds", type=int, default=5, help="of each measurement (5)")
    p.add_argument("--seconds", type=float, default=2.0, help="of a count of reads (2)")
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

#!/usr/bin/python3
"""How fast moves are against the path that they take, and what readers of other shards lose meanwhile. Daemons of one machine that
each believe to be on a host of their own; the rates of the paths are those of `helios bench migrate` and `helios bench put`."""
import argparse
import json
import os
import pathlib
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
L2_TO_L2, L2_TO_L3, L3_TO_L2 = "L2 to L2", "L2 to L3", "L3 to L2"


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


def bench(name, *args):
    """GB/s of the path by itself: the rows of helios over a network."""
    said = subprocess.run([HELIOS, "bench", name, "--size", "64MiB", "--rounds", "3", *args, "-o", "json"], check=True,
                          capture_output=True, text=True).stdout
    return max(r["gb_per_s"] for r in json.loads(said)["rows"] if r["system"] in ("helios-zmq", "helios-tcp", "helios-rdma"))


def timed_move(calls, shard, node, tier):
    begun = time.perf_counter()
    calls("moveShard", id=shard["id"], node=node, tier=tier)
    return int(shard["sizeBytes"]) / (time.perf_counter() - begun) / 1e9


def move_rounds(calls, shard, rounds):
    """GB/s of each kind of move, the median."""
    rates = {L2_TO_L2: [], L2_TO_L3: [], L3_TO_L2: []}
    for _ in range(rounds + 1):
        rates[L3_TO_L2].append(timed_move(calls, shard, "node-0", "L2"))
        rates[L2_TO_L2].append(timed_move(calls, shard, "node-1", "L2"))
        calls("dropCopy", id=shard["id"], node="", tier="L3")
        rates[L2_TO_L3].append(timed_move(calls, shard, "", "L3"))
    return {kind: sorted(all_[1:])[rounds // 2] for kind, all_ in rates.items()}  # the first touches memory


def shuttle(address, shard, stop, pause_s):
    """Between the nodes, until stop."""
    calls, node = Calls(address), 0
    while not stop.is_set():
        try:
            calls("moveShard", id=shard["id"], node=f"node-{node}", tier="L2")
        except Refused:
            pass  # it is there already, the first time
        node = 1 - node
        stop.wait(pause_s)
    calls.close()


def kept_share(world, shard, reader, pause_s, rounds, seconds):
    """Reads per second during moves over those without, the median of rounds that take turns."""
    shares = []
    for _ in range(rounds):
        alone = reads_per_second(reader, seconds)
        stop = threading.Event()
        mover = threading.Thread(target=shuttle, args=(world.address, shard, stop, pause_s))
        mover.start()
        shares.append(reads_per_second(reader, seconds) / alone)
        stop.set()
        mover.join()
    return sorted(shares)[rounds // 2]


def report(name, value, bar):
    print(f"{name:52} {value:6.3f}  bar {bar:.2f}: {'met' if value >= bar else 'MISSED'}", flush=True)
    return value >= bar


def measure(world, args):
    world.daemons["controller"].args["--placement-grace"] = "0"
    world.start()
    shard = max(world.shards, key=lambda s: int(s["sizeBytes"]))
    size, calls = int(shard["sizeBytes"]), Calls(world.address)
    paths = {L2_TO_L2: bench("migrate", "--chunk", "1MiB"), L2_TO_L3: bench("put"), L3_TO_L2: bench("get", "--path", "net")}
    rates = move_rounds(calls, shard, args.rounds)
    met = True
    for kind, rate in rates.items():
        print(f"{kind}: {rate:.2f} GB/s of {size >> 20} MiB, from the order to its end; the path by itself {paths[kind]:.2f}")
        met &= report(f"move/path, {kind}", rate / paths[kind], RATE_BAR)
    reader = subprocess.Popen([sys.executable, __file__, "--read-others", world.address, str(size // 2)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, env=world.env)
    pause = size / (paths[L2_TO_L2] * BUDGET * 1e9)
    met &= report("reads of other shards, moves at full rate", kept_share(world, shard, reader, 0, args.rounds, args.seconds), FULL_BAR)
    met &= report(f"reads of other shards, moves at {BUDGET:.0%} of the path",
                  kept_share(world, shard, reader, pause, args.rounds, args.seconds), BUDGET_BAR)
    reader.stdin.close()
    reader.wait()
    calls.close()
    return met


def main():
    p = argparse.ArgumentParser(prog="./run bench move", description=__doc__)
    p.add_argument("--mib", type=int, default=256, help="size of the shard that moves (256)")
    p.add_argument("--rounds", type=int, default=3, help="of each measurement (3)")
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

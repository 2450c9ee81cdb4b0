#!/usr/bin/python3
"""The last commit of a save by a thousand ranks: how long the proof takes, what memory it needs,
and whether the Controller answers meanwhile. The model has small tensors and as many parts as a
large one, because their number costs."""
import argparse
import itertools
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "python")]
from support import checkpoints  # noqa: E402
from support.cluster import cluster, leave_by_signals  # noqa: E402

import helios  # noqa: E402

TP, BAR_S = 8, 5.0


def peak_kib(pid):
    """Peak memory of the process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def ping(client, stop, took):
    while not stop.is_set():
        start = time.perf_counter()
        client.request_shards("m", 1, 0, 0)
        took.append((start, time.perf_counter() - start))


def save(c, stages, job, ranks):
    """When each rank's save began, and its seconds; those of the last one include the proof."""
    saves = []
    for pp, tp in itertools.product(range(stages), range(TP)):
        rank = helios.Rank(
            job=job,
            model="m",
            pp=pp,
            tp=tp,
            pp_size=stages,
            tp_size=TP,
            world_size=ranks,
            global_rank=pp * TP + tp,
        )
        with helios.Session(c.info["controller"], rank=rank) as me:
            state = me.load_state_dict()
            start = time.perf_counter()
            saved = me.save_state_dict(
                state,
                1,
                optim={
                    f"{kind}.{n}": t for n, t in state.items() for kind in ("exp_avg", "exp_avg_sq")
                },
            )
            saves.append((start, time.perf_counter() - start))
    assert saved.visible
    return saves


def main():
    p = argparse.ArgumentParser()
    p.add_argument(
        "--stages", type=int, default=126, help="stages, each with one layer and 8 tensor ranks"
    )
    stages = p.parse_args().stages
    leave_by_signals()
    with cluster(nodes=1, slots=1, size="1GiB") as c:
        source, _ = checkpoints.llama(
            c.dir / "source", layers=stages, hidden=64, heads=8, groups=8, ffn=64
        )
        c.json("model", "import", source, "--name", "m", "--tp", TP, "--pp", stages)
        pid, stop, took = c.pid("controllerd"), threading.Event(), []
        with helios.Session(c.info["controller"]) as other:
            before = peak_kib(pid)
            pinger = threading.Thread(target=ping, args=(other.client, stop, took))
            pinger.start()
            saves = save(c, stages, "bench", TP * stages)
            stop.set()
            pinger.join()
        shown = max(c.json("model", "show", "m")["versions"], key=lambda v: v["version"])
        assert shown["proved"], shown["unproved"]
        (began, last), others = saves[-1], sorted(s for _, s in saves[:-1])
        during = sorted(s for at, s in took if began <= at + s and at <= began + last)
        print(
            f"{TP * stages} ranks, {shown['shards']} shards: save of a rank"
            f" {1e3 * others[len(others) // 2]:.1f} ms, of the last one with the proof {last:.3f} s"
            f" (bar {BAR_S:.0f} s: {'met' if last <= BAR_S else 'MISSED'})"
        )
        print(
            f"Controller: {before >> 10} MiB before, {peak_kib(pid) >> 10} MiB at most;"
            f" {len(during)} other calls during the last one, p50"
            f" {1e3 * during[len(during) // 2]:.2f} ms, p99"
            f" {1e3 * during[len(during) * 99 // 100]:.2f} ms, longest {1e3 * during[-1]:.1f} ms"
        )
    return 0 if last <= BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())

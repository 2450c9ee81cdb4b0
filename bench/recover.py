#!/usr/bin/python3
"""From the SIGKILL of a rank to the gang's next optimizer step: with a parked process that takes its place, and with
one that has to be started. The GPT of the examples at a tiny size, two pipeline stages; `helios drill` measures."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples")]
from support import needs  # noqa: E402

needs.torch()
from support.cluster import BUILD, Cluster, wait_for  # noqa: E402

import hf_llama  # noqa: E402

STAGES = 2
BARS = {("warm", "p50Seconds"): 1.0, ("warm", "p99Seconds"): 2.0, ("cold", "p50Seconds"): 4.0}


def submit(c, spares):
    more = {"spares": spares} if spares else {}
    return c.submit(json.dumps({
        "jobName": "recover", "model": {"name": "m", "version": 1}, "parallelism": {"pipeline_parallel_size": STAGES},
        "resources": {"ranks_per_slot": 1}, "recovery": {"mode": "replace", "replacements": 100000}, **more,
        "env": {"HELIOS_LIBRARY": str(BUILD / "lib" / "libhelios.so.0")},
        "command": [sys.executable, str(ROOT / "examples" / "train_gpt.py"), "--steps=1000000", "--save-every=50",
                    "--batch=8", "--micro-batches=2"]}))


def trains(c, job):
    ranks = [r for x in c.job(job)["containers"] for r in x["ranks"]]
    return len(ranks) == STAGES and all(r.get("progress", {}).get("steps", 0) > 1 for r in ranks)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--times", type=int, default=20, help="ranks killed, with a spare and without")
    p.add_argument("--pause", default="8s", help="between two of them, in which a spare is parked again")
    args = p.parse_args()
    c = Cluster(nodes=STAGES, slots=1, size="1GiB")
    c.limit = 3600
    c.up()
    met = True
    try:
        model = hf_llama.Llama(hf_llama.Config(hidden_size=64, intermediate_size=128, max_position_embeddings=64))
        model.init_weights(seed=1)
        hf_llama.save(model, c.dir / "hf")
        c.json("model", "import", c.dir / "hf", "--name", "m", "--tp", 1, "--pp", STAGES)
        print("system,op,size,n,min_us,p50_us,p99_us,mean_us,gbps")
        for kind, spares in (("warm", 1), ("cold", 0)):
            job = submit(c, spares)
            wait_for("its steps", lambda job=job: trains(c, job), 120)
            report = c.json("drill", "--job", job, "--faults", "kill", "--times", args.times, "--pause", args.pause)
            c.json("cancel", job)
            fault, = report["faults"]
            for phase in fault["phases"]:
                p50, p99 = phase["p50Seconds"], phase["p99Seconds"]
                print(f"helios,recover-{kind}-{phase['phase']},0,{fault['made']},,{p50 * 1e6:.0f},{p99 * 1e6:.0f},,")
                for (which, value), bar in BARS.items():
                    if which == kind and phase["phase"] == "total":
                        met &= phase[value] <= bar
                        print(f"# {kind} {value[:3]} {phase[value]:.2f} s, bar {bar:g} s", file=sys.stderr)
            c.wait_job(job, "cancelled")
            print(f"# {kind}: {report['repeated']} steps made again, {report['differing']} of them with another loss",
                  file=sys.stderr)
    finally:
        c.run("down", "--purge")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

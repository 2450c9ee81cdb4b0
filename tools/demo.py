"""./run demo: the main job on this machine, end to end, with the real daemons.

Trains a small Hugging Face checkpoint on real text, slices it TP2 x PP2 into the pool of a local
cluster, runs a gang of four ranks on it that saves versions, kills a rank's gang in between to show
that it goes on, and compares the losses with the unsliced model. Exit 0 only if every proof holds.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HELIOS = ROOT / "build" / "bin" / "helios"
PYTHON = "/usr/bin/python3"
TTY = sys.stdout.isatty()
TOLERANCE = 1e-4  # between the loss of the slices and that of the unsliced model
LOSS_RANK = 2  # first tensor rank of the last stage
CURVE_TOLERANCE = 1e-3  # over the whole training: sums in another order drift apart
STATE_BYTES_MAX = 99  # a socket lies in it
LIMIT_S = 170  # for the job; the demo gives up after that


class Failure(Exception):
    """A step of the demo did not do what it should."""


def say(text):
    print(text, flush=True)


def title(number, text):
    say(f"\n\033[1m{number}. {text}\033[0m" if TTY else f"\n{number}. {text}")


def helios(*args, state, check=True):
    """Run the CLI with -o json; its result as Python data."""
    command = [str(HELIOS), "--state", str(state), *map(str, args), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        if check:
            raise Failure(f"helios {' '.join(map(str, args))}: {done.stderr.strip()}")
        return None
    return json.loads(done.stdout) if done.stdout.strip() else {}


def python(script, *args):
    env = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(
        [PYTHON, str(ROOT / "examples" / script), *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Failure(f"{script}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


class Log:
    """Follows one rank's output and keeps its machine-readable lines."""

    def __init__(self, state, job, rank):
        self.state, self.job, self.rank = state, job, rank
        self.offset, self.rest, self.lines = 0, "", []

    def read(self):
        part = helios(
            "logs",
            self.job,
            "--rank",
            self.rank,
            "--offset",
            self.offset,
            state=self.state,
            check=False,
        )
        if not part:
            return []
        if part["size"] < self.offset:  # a new attempt has a new log
            self.offset, self.rest = 0, ""
            return self.read()
        self.offset = part["offset"] + len(part["text"].encode())
        *whole, self.rest = (self.rest + part["text"]).split("\n")
        new = []
        for line in whole:
            kind, _, body = line.partition(" ")
            if kind.startswith("HELIOS_"):
                new.append((kind, json.loads(body)))
        self.lines += new
        return new

    def of(self, kind):
        return [body for name, body in self.lines if name == f"HELIOS_{kind}"]


def bar(step, steps, loss, note):
    width = 32
    full = width * step // max(steps, 1)
    line = f"  [{'#' * full}{'.' * (width - full)}] step {step:3}/{steps}  loss {loss:.4f}  {note}"
    if TTY:
        print("\r" + line.ljust(96), end="", flush=True)
    elif step % 10 == 0:
        say(line)


def rank_pid(describe, rank):
    for container in describe["containers"]:
        for entry in container.get("ranks", []):
            if entry["rank"] == rank and entry["state"] == "running":
                return entry["pid"]
    return None


def last_words(state, job):
    """What the ranks said at the end: the cluster and its logs are about to go."""
    for rank in range(4):
        part = helios("logs", job, "--rank", rank, state=state, check=False) or {"text": ""}
        for line in part["text"].splitlines()[-5:]:
            say(f"  rank {rank}: {line}")


def follow(state, job, steps, kill_after):
    """Follow the job to its end; once, after a version is visible, kill rank 0 with SIGKILL."""
    logs = [Log(state, job, rank) for rank in range(4)]
    killed, deadline = None, time.monotonic() + LIMIT_S
    while True:
        info = helios("describe", job, state=state)
        for kind, body in logs[LOSS_RANK].read():
            if kind == "HELIOS_PROGRESS":
                bar(body["step"] + 1, steps, body["loss"], f"attempt {info['attempt']}")
            if kind == "HELIOS_SAVED" and killed is None and body["step"] >= kill_after:
                pid = rank_pid(info, 0)
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    killed = time.monotonic()
                    say(
                        f"\n  version {body['version']} is visible;"
                        f" rank 0 (pid {pid}) killed with SIGKILL"
                    )
        if info["state"] in ("succeeded", "failed", "cancelled"):
            break
        if time.monotonic() > deadline:
            last_words(state, job)
            raise Failure(f"job {job} is still {info['state']} after {LIMIT_S} s")
        time.sleep(0.25)
    for log in logs:
        log.read()
    if TTY:
        say("")
    if info["state"] != "succeeded":
        last_words(state, job)
        raise Failure(f"job {job} {info['state']}: {info['reason']}")
    return info, logs, killed is not None


def table(rows):
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"  {name.ljust(width)}  {value}")


def proofs(work, logs, steps):
    """(what, ok, text) of everything the demo claims."""
    losses = {}
    for body in logs[LOSS_RANK].of("PROGRESS"):
        losses.setdefault(body["step"], []).append(body["loss"])
    reference = [
        json.loads(line)["loss"]
        for line in python(
            "reference_loss.py", "--dir", work / "hf", "--steps", steps - 1
        ).splitlines()
    ]
    first = abs(losses[0][0] - reference[0])
    worst = max(
        abs(value - reference[step])
        for step, values in losses.items()
        for value in values
        if step < len(reference)
    )
    yield (
        "slices = unsliced model",
        first < TOLERANCE,
        (f"step 0: {losses[0][0]:.6f} against {reference[0]:.6f}, difference {first:.1e}"),
    )
    yield (
        "resumed = undisturbed",
        worst < CURVE_TOLERANCE and len(losses) == steps,
        (
            f"all {len(losses)} steps, over the kill; largest difference {worst:.1e} from the"
            " unsliced, undisturbed run"
        ),
    )


def run(args, state, work):
    title(1, "A Hugging Face checkpoint, trained on the licence texts of this machine")
    say(
        "  "
        + python("make_checkpoint.py", "--out", work / "hf", "--steps", args.pretrain)
        .strip()
        .splitlines()[-1]
    )

    title(2, "A local cluster: controller, L3 pool, 2 agents with 2 slots each")
    up = helios("up", "--nodes", 2, "--slots", 2, "--l3-size", "512MiB", state=state)
    say(f"  controller {up['controller']}, l3 {up['l3']}, state {state}")

    title(3, "Slice it TP2 x PP2 into the pool")
    imported = helios(
        "model", "import", work / "hf", "--name", "demo", "--tp", 2, "--pp", 2, state=state
    )
    say(
        f"  {imported['shards']} shards, {imported['bytes']:,} bytes in"
        f" {imported['seconds'] * 1e3:.1f} ms ({imported['bytesPerSecond'] / 1e9:.2f} GB/s)"
    )

    title(4, "Place and run the gang")
    plan = helios("plan", "examples/job.yaml", state=state)
    for line in plan["arithmetic"]:
        say(f"  {line}")
    for container in plan["containers"]:
        ranks = ", ".join(
            f"rank {r['rank']} = (pp {r['pp']}, tp {r['tp']}, dp {r['dp']})"
            for r in container["ranks"]
        )
        say(f"  {container['node']}:{container['numaId']}  {ranks}")
    job = helios("submit", "examples/job.yaml", state=state)["id"]
    info, logs, killed = follow(state, job, args.steps, kill_after=1)
    if not killed:
        raise Failure("no version became visible before the job ended, so nothing could be killed")

    title(5, "Result")
    pulls = [body for log in logs for body in log.of("PULL")]
    cluster = helios("info", state=state)
    model = helios("model", "show", "demo", state=state)
    progress = logs[LOSS_RANK].of("PROGRESS")
    seconds = sum(p["seconds"] for p in pulls)
    versions = ", ".join(f"{v['version']} (step {v['step']})" for v in reversed(model["versions"]))
    table(
        [
            ("import", f"{imported['bytesPerSecond'] / 1e9:.2f} GB/s"),
            (
                "pull",
                (
                    f"{sum(p['bytes'] for p in pulls) / max(seconds, 1e-9) / 1e9:.2f} GB/s"
                    f" verified, path {', '.join(sorted({p['path'] for p in pulls}))},"
                    f" {len(pulls)} pulls"
                ),
            ),
            ("CRC failures", str(cluster["crcFailures"])),
            ("loss first / last", f"{progress[0]['loss']:.4f} / {progress[-1]['loss']:.4f}"),
            ("attempts", str(info["attempt"])),
            ("versions", versions),
        ]
    )
    bad = 0
    for name, ok, text in proofs(work, logs, args.steps):
        say(f"  {'ok  ' if ok else 'FAIL'}  {name}: {text}")
        bad += not ok
    if cluster["crcFailures"] != 0 or model["latest"] < 2:
        bad += 1
    return bad


def main():
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__.splitlines()[0])
    parser.add_argument("--pretrain", type=int, default=60, help="steps that make the checkpoint")
    parser.add_argument(
        "--steps", type=int, default=60, help="steps of the job, as in examples/job.yaml"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    args = parser.parse_args()
    work = ROOT / "build" / "demo"
    state = work / "state"
    if len(os.fsencode(state)) > STATE_BYTES_MAX:
        state = pathlib.Path(tempfile.mkdtemp(prefix="helios-demo-"))
    started = time.monotonic()
    helios("down", state=state, check=False)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        bad = run(args, state, work)
    except Failure as failure:
        say(f"\ndemo: {failure}")
        bad = 1
    finally:
        if args.keep:
            say(
                f"\nThe cluster runs on; try: build/bin/helios --state {state} list;"
                " stop it with ... down"
            )
        else:
            helios("down", state=state, check=False)
    say(f"\ndemo {'failed' if bad else 'ok'} after {time.monotonic() - started:.0f} s")
    sys.exit(1 if bad else 0)


main()

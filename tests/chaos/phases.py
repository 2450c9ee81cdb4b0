"""What happens while a fault strikes. A phase returns how it ended: "ok", "refused" (the CLI said
why) or "failed" (a job that said why); it raises Broken for a wrong answer, Absent if it has
nothing to work on."""
from __future__ import annotations

import contextlib
import json
import pathlib
import random
import sqlite3
import time
from typing import Callable

import content
import poolfile
from world import BASE, BASE_PP, BASE_TP, BUILD, NODES, Absent, Broken, World, rows, until

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENDED = ("succeeded", "failed", "cancelled")
RECOVER_S = 90.0
JOB_S = 90.0  # limit for a short job, including gang restarts and a busy machine

SAVE = """
jobName: %s
model: {name: %s}
parallelism: {pipeline_parallel_size: %d, tensor_parallel_size: %d, data_parallel_size: 1}
resources: {ranks_per_slot: 1}
restarts: 20
command: [/usr/bin/python3, %s, %s, %s, %s, %s, '%d']
"""
SHORT = """
jobName: %s
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 1, data_parallel_size: 1}
resources: {ranks_per_slot: 1}
restarts: 20
command: [/bin/sh, -c, 'sleep 0.%d; echo "rank $GLOBAL_RANK said %s"']
"""


def import_model(world: World, rng: random.Random, number: int) -> str:
    name, tp, pp = f"m-{number}", rng.choice((1, 2)), rng.choice((1, 2))
    directory, raw = world.checkpoint(
        "import", rng.randrange(1 << 30), hidden=rng.choice((64, 128, 192))
    )
    want = content.imported(directory, raw, tp, pp)
    world.other_size[name] = 3 - tp, content.imported(directory, raw, 3 - tp, pp)
    world.maybe[name] = want
    ok, _ = world.call("model", "import", directory, "--name", name, "--tp", tp, "--pp", pp)
    if not ok:
        return "refused"
    world.truth[name, 1] = want
    return "ok"


def pull(world: World, rng: random.Random, _: int) -> str:
    outcome = "ok"
    for _ in range(4):
        model, version = world.pick()
        places = world.truth[model, version]
        place = rng.choice(sorted(places))
        if world.pull(model, version, place, places[place], rng.choice(("auto", "net"))):
            outcome = "refused"
    return outcome


def reshard(world: World, rng: random.Random, number: int) -> str:
    """Imports a model; then reads its ranks at the other tensor parallel size,
    whose shards are cut meanwhile."""
    outcome = import_model(world, rng, number)
    name = f"m-{number}"
    world.resharded.append(name)
    world.fault_may_begin.set()
    tp_size, places = world.other_size[name]
    for place, want in sorted(places.items()):
        if world.pull(name, 1, place, want, tp_size=tp_size):
            outcome = "refused"
    return outcome


def _find_job(world: World, name: str) -> str:
    """The job's id, whether the submit was answered or not; "" if there is no job."""
    return next(
        (job["id"] for job in rows(world.c.json("list")) if job["id"].startswith(name + "-")), ""
    )


def _run_job(world: World, name: str, text: str) -> tuple[str, str]:
    """Submits and waits for the end: (job id or "", state). Failing calls are repeated."""
    world.job_name = name
    ok, said = world.call("submit", world.job_file(text), "-o", "json")
    if not ok:
        return "", "refused"
    job = json.loads(said)["id"]
    end = time.monotonic() + JOB_S
    while time.monotonic() < end:
        done = world.c.run("describe", job, "-o", "json")
        if done.returncode == 0 and (state := json.loads(done.stdout)["state"]) in ENDED:
            return job, state
        time.sleep(0.1)
    raise Broken(f"job {job} has not ended within {JOB_S:.0f} s")


def save(world: World, rng: random.Random, number: int) -> str:
    seed, name = f"save-{number}-{rng.randrange(1 << 30)}", f"save{number}"
    world.maybe_saved[seed] = content.saved(world.truth[BASE, 1], seed)
    text = SAVE % (
        name,
        BASE,
        BASE_PP,
        BASE_TP,
        HERE / "saver.py",
        ROOT,
        BUILD / "lib" / "libhelios.so.0",
        world.shapes,
        seed,
        number,
    )
    _, state = _run_job(world, name, text)
    if state == "succeeded":
        world.must_have_saved.add(seed)
    return "ok" if state == "succeeded" else state


def submit(world: World, rng: random.Random, number: int) -> str:
    name, word = f"short{number}", f"word-{rng.randrange(1 << 30)}"
    job, state = _run_job(world, name, SHORT % (name, rng.randrange(1, 9), word))
    if state == "succeeded":
        world.must_have_said.append((job, word))
    return "ok" if state == "succeeded" else state


def _shard_in_pool(world: World, rng: random.Random, model: str, version: int) -> str:
    """Id of one of its shards that the pool holds."""
    here = poolfile.sealed(world.pool)
    ids = sorted({s["id"] for s in world.shards(model, version)} & set(here))
    if not ids:
        raise Absent("no shard of the version is in the pool")
    return rng.choice(ids)


def copy(world: World, rng: random.Random, _: int) -> str:
    """Copies into one node's memory, and over the migration network into the other's."""
    shard = _shard_in_pool(world, rng, *world.pick())
    world.copied.append(shard)
    there, other = rng.sample(NODES, 2)
    world.fault_may_begin.set()
    for args in ((there,), (other, "--migrate")):
        ok, _ = world.call("shard", "copy", shard, "--to", *args)
        if not ok:
            return "refused"
    return "ok"


def archive(world: World, rng: random.Random, _: int) -> str:
    """Evicts a rank's shards from the pool, then reads them: they come from the archive."""
    model, version = world.pick()
    place = rng.choice(sorted(world.truth[model, version]))
    mine = [s for s in world.shards(model, version) if (s["pp"], s["tp"]) == place]
    ids, outcome = {s["id"] for s in mine}, "ok"
    until("the version to be archived", lambda: ids <= {p.stem for p in world.archived()})
    world.fault_may_begin.set()
    for shard in sorted(ids & set(poolfile.sealed(world.pool))):
        ok, _ = world.call("shard", "drop", shard, "--from", "l3")
        outcome = outcome if ok else "refused"
    if world.pull(model, version, place, world.truth[model, version][place]):
        outcome = "refused"
    return outcome


# Of the Controller's records. Those of jobs and nodes stay.
CATALOGUE = ("cluster/%", "model/%", "version/%", "shard/%")


def _records(world: World, keep: dict | None) -> dict:
    """The catalogue's records; with `keep`, replaces them by these."""
    with contextlib.closing(
        sqlite3.connect(world.c.state / "controller" / "controller.db", timeout=20)
    ) as db, db:
        where = " OR ".join("key LIKE ?" for _ in CATALOGUE)
        found = dict(db.execute(f"SELECT key, value FROM kv WHERE {where}", CATALOGUE))
        if keep is not None:
            db.execute(f"DELETE FROM kv WHERE {where}", CATALOGUE)
            db.executemany("INSERT INTO kv (key, value) VALUES (?, ?)", keep.items())
    return found


def recover(world: World, rng: random.Random, number: int) -> str:
    """Saves a version, then deletes the catalogue or restores the previous one: everything
    committed comes back from its manifests."""
    before = _records(world, None) if rng.random() < 0.5 else {}
    outcome = import_model(world, rng, number)
    until("the manifest of each version", lambda: len(world.manifests()) == len(world.visible()))
    world.killed.add("controllerd")
    world.c.kill("controllerd")
    _records(world, before)
    world.fault_may_begin.set()
    end = time.monotonic() + RECOVER_S
    while True:
        world.start_again()
        done = world.c.run("info", "-o", "json")
        claim = json.loads(done.stdout)["claim"] if done.returncode == 0 else ""
        if claim == "ok":
            return outcome
        if claim == "refused":
            _recover_once(world)
        if time.monotonic() > end:
            raise Broken(f"not recovered within {RECOVER_S:.0f} s; the claim is {claim!r}")
        time.sleep(0.2)


def _recover_once(world: World) -> None:
    """Leftovers are removed only once all versions have come back."""
    done = world.c.run("recover", "-o", "json")
    world.log(f"  helios recover: exit {done.returncode}; {done.stderr.strip()[:160]}")
    if done.returncode == 1 and done.stdout:
        if any(v["state"] == "skipped" for v in json.loads(done.stdout)["versions"]):
            raise Broken(f"not restored: {done.stdout}")
        world.call("recover", "--discard")


PHASES: dict[str, Callable[[World, random.Random, int], str]] = {
    "import": import_model,
    "pull": pull,
    "save": save,
    "submit": submit,
    "copy": copy,
    "archive": archive,
    "recover": recover,
    "reshard": reshard,
}
# Phases that call fault_may_begin when they are ready to be hit.
WAITS = {"copy", "archive", "recover", "reshard"}


# ---- once there is no fault any more ----


def finish(world: World, excused: bool) -> None:
    """Completes what the phase began. `excused`: a job may have failed with a reason."""
    job = _find_job(world, world.job_name) if world.job_name else ""
    if job:
        state = until(
            f"job {job} to end", lambda: (s := world.job_state(job)) in ENDED and s, JOB_S
        )
        if state != "succeeded" and not (excused and world.c.job(job)["reason"]):
            raise Broken(f"job {job} {state}: {world.c.job(job)['reason']}")
    for job, word in world.must_have_said:
        for rank in range(2):
            text = world.c.log(job, rank)
            if f"rank {rank} said {word}" not in text and not excused:
                raise Broken(f"the output of rank {rank} of {job} is lost: {text!r}")
    for name in world.resharded:
        tp_size, places = world.other_size[name]
        for place, want in sorted(places.items()):
            said = world.pull(name, 1, place, want, tp_size=tp_size)
            if said:
                raise Broken(
                    f"{name} of tensor parallel size {tp_size} cannot be read"
                    f" without a fault: {said}"
                )
    for shard in world.copied:
        for copied in world.c.json("shard", "show", shard)["copies"]:
            if copied["tier"] == "L2":
                world.call("shard", "drop", shard, "--from", copied["node"])

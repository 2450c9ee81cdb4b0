"""A torch.distributed gang that keeps training when one of its ranks is lost.

    import helios.elastic

    def train(gang):                    # called each time the gang has come together
        model = build(helios.load_state_dict(version=gang.version))
        ...
        helios.report(step, loss, tokens)

    helios.elastic.run(train)

With ``recovery: {mode: replace}`` in the job file a lost process is replaced in its container, by a
parked one if the file has ``spares``. The other processes survive: their collective fails, `train`
ends with that error, and it is called again once the new process is there. Process groups are
created again each time; keep what has to survive outside `train`.

Without that key, and outside a job, `train` is called once and its errors are raised.

In a job with ``data_parallel_size: {min, max}`` the gang may have a different size when it forms
again, because the replicas of a lost node are gone or new ones have been added. `train` is then
called with a different rank and world size; a process whose replica was removed ends. The gang
grows after a save: `save_state_dict` then raises `Resized` on all ranks, so leave its RuntimeErrors
to `run`.

Rank 0 runs a TCPStore at MASTER_ADDR:MASTER_PORT, where the ranks meet under the number of the next
generation. No Agent is involved; the Controller is called when `train` loads. If rank 0 moves to
another container the Agents tell the ranks in a file (_lost.py).
"""
from __future__ import annotations

import datetime
import functools
import gc
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from . import _abi, _arguments, _gang, _lost, _replicas, _steps, errors
from ._gang import Resized
from .session import Rank, Session

__all__ = ["Gang", "Resized", "run", "replaces"]

T = TypeVar("T")
BROKEN = (RuntimeError, ConnectionError, TimeoutError)  # torch.distributed's, when a peer is gone
LOOK = 0.01  # seconds between two checks of which ranks have joined
CONNECT = 1.0  # seconds per attempt to reach rank 0's store; no signal is handled meanwhile
REPLACED = os.EX_NOPERM  # starting the process again would end the same way
ASK = 0.5  # seconds between two calls of the Controller, in a gang that may resize
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Gang:
    """One formation of the gang. `version`: the one all ranks continue from; -1 without a model."""

    generation: int
    rank: int
    world_size: int
    version: int
    cause: str  # why the previous one ended; "" = this is the process's first
    dp_rank: int = 0
    dp_size: int = 1


class _Moved(Exception):
    """The gang no longer has the size under which this process is looking for it."""


def replaces() -> bool:
    """Whether lost ranks of this job are replaced while the others survive."""
    return os.environ.get("HELIOS_RECOVERY") == "replace"


def run(train: Callable[[Gang], T], *, backend: str = "gloo", timeout: float = 60,
        attempts: int = 5,
        warm: Callable[[], Any] | None = None) -> T:
    """Call train(gang), again after each loss, and return what it returns.

    `timeout`: seconds that a collective may take, and that the gang may take to form again.
    `attempts`: how many times in a row the gang may fail without a step, or four times as often
    without getting further, before the error is raised as probably the program's own. `warm`:
    called in a parked process for work that needs no rank: reading files, building tables.

    RuntimeError, ConnectionError and TimeoutError (a failed collective) and HeliosError count as a
    loss; other exceptions are raised. Each save compares the replicas of data ranks: a rank that
    differs from the majority raises Corrupt and should end; the others continue from the last
    version.
    """
    if not callable(train):
        raise errors.InvalidArgument(f"{_arguments.told('train', train)} must be a function of a "
                                     "Gang")
    _arguments.integer("attempts", attempts, 1)
    _park(warm)
    meeting = _Meeting(backend, float(timeout))
    if replaces():
        _lost.watch()
    cause, idle, stuck, best = "", 0, 0, -1
    while True:
        try:
            return train(meeting.join(cause))
        except Resized as error:
            cause = str(error)
            error.__traceback__ = None
        except (*BROKEN, errors.HeliosError) as error:
            last, highest = _steps.progress()
            idle = idle + 1 if last < 0 else 0
            stuck = stuck + 1 if highest <= best else 0
            best = highest
            if not replaces() or idle >= attempts or stuck >= 4 * attempts:
                raise
            if isinstance(error, _replicas.Differs) and meeting.rank in error.odd:
                raise  # this process is the one whose data is wrong
            cause = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            error.__traceback__ = None  # frees its frames' process groups: others wait on them
            del error
        meeting.leave()
        print(f"helios.elastic: rank {meeting.rank} rejoins the gang: {cause}", file=sys.stderr,
              flush=True)


# ---- a parked process -------------------------------------------------------------------------


def _park(warm: Callable[[], Any] | None) -> None:
    """In a spare process: do what needs no rank, then wait for a rank's place."""
    text = os.environ.pop("HELIOS_SPARE", "")
    if not text:
        return
    import torch
    import torch.distributed  # noqa: F401
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()  # loads libraries that are loaded lazily
    _abi.library()
    if warm is not None:
        warm()
    with os.fdopen(int(text), "rb") as pipe:
        told = pipe.read()
    if not told:
        sys.exit(0)  # not needed
    for row in told.split(b"\0")[:-1]:
        name, _, value = row.decode().partition("=")
        os.environ[name] = value


# ---- waits ------------------------------------------------------------------------------------


def _count_waits() -> None:
    """Count the time that torch.distributed waits for other ranks as waiting."""
    from torch.distributed.distributed_c10d import Work
    wait = Work.wait
    if getattr(wait, "counts", False):
        return

    @functools.wraps(wait)
    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic_ns()
        try:
            return wait(self, *args, **kwargs)
        finally:
            _steps.add_wait(time.monotonic_ns() - began)
    counting.counts = True  # type: ignore[attr-defined]
    Work.wait = counting


# ---- meeting ----------------------------------------------------------------------------------


class _Meeting:
    """Where the ranks of a gang meet, generation after generation."""

    def __init__(self, backend: str, timeout: float) -> None:
        place = Rank.from_environment()
        self.rank, self.world = place.global_rank, place.world_size
        self._backend, self._timeout = backend, timeout
        self._before = 0  # the last generation that this process was in
        self._store: Any = None
        self._place = ("", 0)  # address and port of the store
        self._server: Any = None  # rank 0's server, kept as long as this process lives
        self._asked = 0.0  # when the Controller was last called
        _count_waits()
        os.environ.setdefault("USE_LIBUV", "0")  # Debian's torch 2.6 is built without libuv

    def join(self, cause: str) -> Gang:
        """Meet the other ranks and create the default process group."""
        _steps.activity("joining")
        missing = [name for name in ENVIRONMENT if not os.environ.get(name)]
        if missing:
            raise errors.InvalidArgument(f"{missing[0]} is not set: start ranks with 'helios "
                                         "submit'")
        deadline = self._take_place()
        while True:
            try:
                generation = self._meet(deadline)
                version = self._enter(generation)  # of the model
                break
            except _Moved:
                self._drop()
                deadline = self._take_place()
            except BROKEN as error:
                why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                print(f"helios.elastic: rank {self.rank} rejoins the gang: {why}", file=sys.stderr,
                      flush=True)
                if time.monotonic() >= deadline or not replaces():
                    raise errors.TimedOut("the gang did not come together within "
                                          f"{self._timeout:g} s: "
                                          f"{str(error).splitlines()[0][:200]}") from None
                self._drop()
        self._before = generation
        _replicas.meets = _gang.meets = True
        _steps.joined(generation)
        me = Rank.from_environment()
        return Gang(generation, self.rank, self.world, version, cause, me.dp, me.dp_size)

    def _take_place(self) -> float:
        """Wait for a place in the gang; return the time by which the gang has to have formed."""
        if not _gang.resizes():
            return time.monotonic() + self._timeout
        from . import session
        before, pause = [os.environ[name] for name in ENVIRONMENT], LOOK
        while True:
            try:
                size, env = _gang.ask(session().client)
            except (errors.Unavailable, errors.TimedOut):
                env = {}
            if env:
                break
            time.sleep(pause)  # a new rank waits as long as the gang trains without it
            pause = min(2 * pause, ASK)
        _gang.take(size, env)
        me = Rank.from_environment()
        self.rank, self.world, self._asked = me.global_rank, me.world_size, time.monotonic()
        session().become(me)
        if before != [os.environ[name] for name in ENVIRONMENT]:
            self._store = None
        return time.monotonic() + self._timeout

    def _look_for_size(self) -> None:
        """Raise _Moved if the gang was resized: missing ranks were given up, or new ones joined."""
        if not _gang.resizes() or time.monotonic() - self._asked < ASK:
            return
        from . import session
        self._asked = time.monotonic()
        try:
            if _gang.ask(session().client)[0] != _gang.number:
                raise _Moved
        except (errors.Unavailable, errors.TimedOut):
            pass

    @property
    def _prefix(self) -> str:
        """A prefix that keeps ranks of different gang sizes apart."""
        return f"size-{_gang.number}/" if _gang.resizes() else ""

    def leave(self) -> None:
        """Drop the groups, so that ranks that wait for this one notice, and a save that lacks the
        lost rank."""
        self._drop()
        from . import _session  # this process's, if there is one
        if _session is not None:
            try:
                _session.abandon_unfinished()
            except errors.HeliosError:
                pass  # unreachable now: it ends with the attempt

    def _drop(self) -> None:
        import torch.distributed as dist
        if dist.is_initialized():
            dist.destroy_process_group()
        else:  # a failed group has used up a number of the group's name, unlike in a new process
            dist.distributed_c10d._group_count = 0
        gc.collect()

    def _connect(self, seconds: float) -> Any:
        """Rank 0's store, which a rank 0 process creates with the first generation it joins."""
        import torch.distributed as dist
        host, port = ("", "") if _gang.resizes() else _lost.master()
        place = host or os.environ["MASTER_ADDR"], int(port or os.environ["MASTER_PORT"])
        limit = datetime.timedelta(seconds=seconds)
        if place != self._place and self._server is None:
            self._store = None  # rank 0 has moved to another container
        self._place = place
        if self.rank == 0 and self._server is None:
            self._server = self._store = dist.TCPStore(*place, None, True, limit,
                                                       wait_for_workers=False)
        if self._store is None:  # rank 0's own connection may be the one that was cut
            self._store = dist.TCPStore(*place, None, False, limit, wait_for_workers=False)
        self._store.set_timeout(limit)
        if self.rank == 0:
            self._store.compare_set(f"{self._prefix}generation", "",
                                    str(max(_steps.generation(), self._before) + 1))
        return self._store

    def _meet(self, deadline: float) -> int:
        """Wait until all ranks have joined the same generation."""
        while True:
            self._look_for_size()
            left = deadline - time.monotonic()
            if left <= 0:
                raise RuntimeError("a rank is missing")
            try:
                generation = self._claim(self._connect(min(left, CONNECT)))
                if self._await_all(generation, deadline):
                    return generation
            except BROKEN:
                if time.monotonic() >= deadline:
                    raise
                self._store = None  # rank 0, or the connection to it, was lost
                time.sleep(LOOK)

    def _own(self, store: Any) -> None:
        """Exit if the rank continues in a later container: this server was taken for lost."""
        mine = int(os.environ.get("HELIOS_CONTAINER") or 0)
        key = f"{self._prefix}container/{self.rank}"
        held = int(store.compare_set(key, "", str(mine)))
        while held < mine:
            held = int(store.compare_set(key, str(held), str(mine)))
        if held > mine:
            print(f"helios.elastic: rank {self.rank} continues in container {held}; this process "
                  f"of container {mine} exits",
                  file=sys.stderr, flush=True)
            sys.exit(REPLACED)

    def _claim(self, store: Any) -> int:
        """A generation in which neither this process nor an earlier one in its place has been."""
        self._own(store)
        token, at = uuid.uuid4().hex, self._prefix
        while True:
            now = int(store.get(f"{at}generation"))
            if now > self._before and store.compare_set(f"{at}{now}/{self.rank}", "",
                                                        token) == token.encode():
                store.add(f"{at}{now}/joined", 1)
                return now
            store.compare_set(f"{at}generation", str(now), str(now + 1))

    def _await_all(self, generation: int, deadline: float) -> bool:
        """False: the ranks now meet under another number."""
        at = self._prefix
        while time.monotonic() < deadline:
            self._look_for_size()
            all_joined = self._store.add(f"{at}{generation}/joined", 0) == self.world
            if int(self._store.get(f"{at}generation")) != generation:
                return False
            if all_joined:
                return True
            time.sleep(LOOK)
        raise RuntimeError(f"a rank is missing in generation {generation}")

    def _enter(self, generation: int) -> int:
        import torch.distributed as dist
        store = dist.PrefixStore(f"{self._prefix}generation-{generation}", self._store)
        try:  # all have joined: a rank that gives up early leaves the others waiting
            self._store.set_timeout(datetime.timedelta(seconds=self._timeout))
            dist.init_process_group(self._backend, store=store, rank=self.rank,
                                    world_size=self.world,
                                    timeout=datetime.timedelta(seconds=self._timeout))
            return self._agree(store, generation)
        except BROKEN:
            self._before = generation  # a rank has already left it
            raise

    def _agree(self, store: Any, generation: int) -> int:
        """Rank 0 picks the version to continue from: "newest" must mean the same to all."""
        from . import session
        me = Rank.from_environment()
        if not me.model:
            return -1
        if self.rank == 0:
            begun = generation == 1 and me.model_version != -1  # chosen by the Controller
            store.set("version", str(me.model_version if begun else _newest(session())))
        return int(store.get("version"))


def _newest(session: Session) -> int:
    """The version that this rank's job continues from: the newest it saved, else the one it began
    with.

    Saves are found only if they name their job in `meta` (``"job": helios.rank().job``).
    """
    me = session.rank
    split = _abi.Split(me.tp_size, me.pp_size, me.virtual_stages, me.ep_size,
                       me.etp_size or me.tp_size)

    def listed(version: int) -> _abi.ShardList:
        return session.client.request_shards(me.model, version, me.pp, me.tp, split)

    newest = listed(-1)
    if me.model_version == -1:
        return newest.version
    for version in range(newest.version, me.model_version, -1):
        try:
            meta = (newest if version == newest.version else listed(version)).meta_json
        except (errors.NotFound, errors.Corrupt):
            continue  # removed, or incomplete
        if json.loads(meta or "{}").get("job") == me.job:
            return version
    return me.model_version

"""A gang of torch.distributed that goes on when one of its ranks is lost.

    import helios.elastic

    def train(gang):                    # called each time the gang has come together
        model = build(helios.load_state_dict(version=gang.version))
        ...
        helios.report(step, loss, tokens)

    helios.elastic.run(train)

With ``recovery: {mode: replace}`` in the job file a lost process is replaced in its container, by one that is
parked there where the file has ``spares``. The others keep their processes: their collective fails, `train` ends
with that error, and it is called again once the new process is there. Process groups are made anew each time;
what is kept over it belongs outside of `train`.

Without that key, and outside of a job, `train` is called once and its errors are raised.

In a job with ``data_parallel_size: {min, max}`` the gang may have another size when it comes together again: the
replicas that a lost node had are gone, or others have come. Then `train` is called with another rank and world size;
a process whose replica is lost ends. It grows after a save, whose `save_state_dict` ends with `Resized` on all ranks,
so leave RuntimeErrors of it to `run`.

Rank 0 has a TCPStore at MASTER_ADDR:MASTER_PORT, where the ranks meet under the number of the next generation. No
Agent takes part; the Controller is asked when `train` loads. Where rank 0 goes on in another container the Agents say
so, in a file (_lost.py).
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
BROKEN = (RuntimeError, ConnectionError, TimeoutError)  # what torch.distributed raises when a peer is gone
LOOK = 0.01  # seconds between two looks at who is there
CONNECT = 1.0  # seconds of one try to reach rank 0's store; no signal is handled meanwhile
REPLACED = os.EX_NOPERM  # another start of the same would end alike
ASK = 0.5  # seconds between two questions to the Controller, in a gang that changes its size
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Gang:
    """One coming-together of the gang. `version`: what all ranks go on from; -1 without a model."""

    generation: int
    rank: int
    world_size: int
    version: int
    cause: str  # why the one before ended; "" = this is this process's first
    dp_rank: int = 0
    dp_size: int = 1


class _Moved(Exception):
    """The gang has another size than the one in which this process looks for it."""


def replaces() -> bool:
    """Lost ranks of this job are replaced while the others go on."""
    return os.environ.get("HELIOS_RECOVERY") == "replace"


def run(train: Callable[[Gang], T], *, backend: str = "gloo", timeout: float = 60, attempts: int = 5,
        warm: Callable[[], Any] | None = None) -> T:
    """Call train(gang), again after each loss, and return what it returns.

    `timeout`: seconds that a collective may take, and the gang to come together again. `attempts`: so often in
    a row the gang may fail without a step, and four times as often without getting any further, then the error is
    raised: it may be the program's own. `warm`: called in a parked
    process, for what needs no rank: reading files, building tables.

    RuntimeError, ConnectionError and TimeoutError (a collective that failed) and HeliosError count as a loss; other
    exceptions are raised. Each save compares the replicas of data ranks: the one that is not as most of the others
    raises Corrupt and is to end, the others go on from the last version.
    """
    if not callable(train):
        raise errors.InvalidArgument(f"{_arguments.told('train', train)} must be a function of a Gang")
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
                raise  # this process is the one that is not to be trusted
            cause = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            error.__traceback__ = None  # its frames hold process groups, whose sockets others wait on
            del error
        meeting.leave()
        print(f"helios.elastic: rank {meeting.rank} joins the gang again: {cause}", file=sys.stderr, flush=True)


# ---- a parked process -------------------------------------------------------------------------


def _park(warm: Callable[[], Any] | None) -> None:
    """In a spare: do what needs no rank, then wait for the place of one."""
    text = os.environ.pop("HELIOS_SPARE", "")
    if not text:
        return
    import torch
    import torch.distributed  # noqa: F401
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()  # libraries that load with the first use
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
    """What torch.distributed waits for other ranks is no time of this rank's own."""
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
    """Where the ranks of a gang come together, generation after generation."""

    def __init__(self, backend: str, timeout: float) -> None:
        self.rank, self.world = Rank.from_environment().global_rank, Rank.from_environment().world_size
        self._backend, self._timeout = backend, timeout
        self._before = 0  # the last generation that this process was in
        self._store: Any = None
        self._place = ("", 0)  # address and port of the store
        self._server: Any = None  # rank 0's, for as long as this process lives
        self._asked = 0.0  # when the Controller was asked last
        _count_waits()
        os.environ.setdefault("USE_LIBUV", "0")  # Debian's torch 2.6 asks for libuv and is built without

    def join(self, cause: str) -> Gang:
        """Come together and make the default process group."""
        _steps.activity("joining")
        missing = [name for name in ENVIRONMENT if not os.environ.get(name)]
        if missing:
            raise errors.InvalidArgument(f"{missing[0]} is not set: start ranks with 'helios submit'")
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
                print(f"helios.elastic: rank {self.rank} meets the gang anew: {why}", file=sys.stderr, flush=True)
                if time.monotonic() >= deadline or not replaces():
                    raise errors.TimedOut(f"the gang did not come together within {self._timeout:g} s: "
                                          f"{str(error).splitlines()[0][:200]}") from None
                self._drop()
        self._before = generation
        _replicas.meets = _gang.meets = True
        _steps.joined(generation)
        me = Rank.from_environment()
        return Gang(generation, self.rank, self.world, version, cause, me.dp, me.dp_size)

    def _take_place(self) -> float:
        """Until this process has a place in its gang; when the gang is to have come together."""
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
            time.sleep(pause)  # a new rank waits for as long as the gang goes on without it
            pause = min(2 * pause, ASK)
        _gang.take(size, env)
        me = Rank.from_environment()
        self.rank, self.world, self._asked = me.global_rank, me.world_size, time.monotonic()
        session().become(me)
        if before != [os.environ[name] for name in ENVIRONMENT]:
            self._store = None
        return time.monotonic() + self._timeout

    def _look_for_size(self) -> None:
        """Raises _Moved: those who are missing are not waited for, or others have come."""
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
        """Ranks of different sizes do not meet."""
        return f"size-{_gang.number}/" if _gang.resizes() else ""

    def leave(self) -> None:
        """Let go of the groups, so that ranks which wait for this one hear of it; and of a save that
        lacks the lost rank."""
        self._drop()
        from . import _session  # of this process, if there is one
        if _session is not None:
            try:
                _session.abandon_unfinished()
            except errors.HeliosError:
                pass  # nobody answers now: it goes with the attempt

    def _drop(self) -> None:
        import torch.distributed as dist
        if dist.is_initialized():
            dist.destroy_process_group()
        else:  # one that did not come about has used up a number of the group's name, which a new process has not
            dist.distributed_c10d._group_count = 0
        gc.collect()

    def _connect(self, seconds: float) -> Any:
        """The store of rank 0, which a process of rank 0 makes with the first generation that it joins."""
        import torch.distributed as dist
        host, port = ("", "") if _gang.resizes() else _lost.master()
        place = host or os.environ["MASTER_ADDR"], int(port or os.environ["MASTER_PORT"])
        limit = datetime.timedelta(seconds=seconds)
        if place != self._place and self._server is None:
            self._store = None  # rank 0 is in another container now
        self._place = place
        if self.rank == 0 and self._server is None:
            self._server = self._store = dist.TCPStore(*place, None, True, limit, wait_for_workers=False)
        if self._store is None:  # rank 0's own connection may be the one that was cut
            self._store = dist.TCPStore(*place, None, False, limit, wait_for_workers=False)
        self._store.set_timeout(limit)
        if self.rank == 0:
            self._store.compare_set(f"{self._prefix}generation", "", str(max(_steps.generation(), self._before) + 1))
        return self._store

    def _meet(self, deadline: float) -> int:
        """Until all ranks have joined the same generation."""
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
                self._store = None  # rank 0 is the one that was lost, or the connection to it
                time.sleep(LOOK)

    def _own(self, store: Any) -> None:
        """End here if the rank goes on in a later container: its server was taken for lost, and this process lives."""
        mine, key = int(os.environ.get("HELIOS_CONTAINER") or 0), f"{self._prefix}container/{self.rank}"
        held = int(store.compare_set(key, "", str(mine)))
        while held < mine:
            held = int(store.compare_set(key, str(held), str(mine)))
        if held > mine:
            print(f"helios.elastic: rank {self.rank} goes on in container {held}; this process of container {mine} ends",
                  file=sys.stderr, flush=True)
            sys.exit(REPLACED)

    def _claim(self, store: Any) -> int:
        """A generation that this process has not been in, nor one that had its place."""
        self._own(store)
        token, at = uuid.uuid4().hex, self._prefix
        while True:
            now = int(store.get(f"{at}generation"))
            if now > self._before and store.compare_set(f"{at}{now}/{self.rank}", "", token) == token.encode():
                store.add(f"{at}{now}/joined", 1)
                return now
            store.compare_set(f"{at}generation", str(now), str(now + 1))

    def _await_all(self, generation: int, deadline: float) -> bool:
        """False: the ranks meet under another number now."""
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
        try:  # all have joined: who gives up early leaves the others waiting for it
            self._store.set_timeout(datetime.timedelta(seconds=self._timeout))
            dist.init_process_group(self._backend, store=store, rank=self.rank, world_size=self.world,
                                    timeout=datetime.timedelta(seconds=self._timeout))
            return self._agree(store, generation)
        except BROKEN:
            self._before = generation  # somebody has left it already
            raise

    def _agree(self, store: Any, generation: int) -> int:
        """Rank 0 says which version all of them go on from: "newest" must mean the same to each."""
        from . import session
        me = Rank.from_environment()
        if not me.model:
            return -1
        if self.rank == 0:
            begun = generation == 1 and me.model_version != -1  # the Controller has chosen it for this attempt
            store.set("version", str(me.model_version if begun else _newest(session())))
        return int(store.get("version"))


def _newest(session: Session) -> int:
    """The version that this rank's job goes on from: the newest that it has saved, else the one that it began with.

    Saves name their job in `meta` (``"job": helios.rank().job``), or they are not found.
    """
    me = session.rank
    split = _abi.Split(me.tp_size, me.pp_size, me.virtual_stages, me.ep_size, me.etp_size or me.tp_size)

    def listed(version: int) -> _abi.ShardList:
        return session.client.request_shards(me.model, version, me.pp, me.tp, split)

    newest = listed(-1)
    if me.model_version == -1:
        return newest.version
    for version in range(newest.version, me.model_version, -1):
        try:
            meta = (newest if version == newest.version else listed(version)).meta_json
        except (errors.NotFound, errors.Corrupt):
            continue  # removed, or not whole
        if json.loads(meta or "{}").get("job") == me.job:
            return version
    return me.model_version

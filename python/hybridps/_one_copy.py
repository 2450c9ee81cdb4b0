"""One copy of parameters and gradients for all ranks of a host (``one_copy=True``).

The host memory of their chunks is one memory file that all ranks map privately
(hybridps_share_host): what a rank writes is private until the owner of the parameter publishes it.
Each chunk of gradients has one owner, who alone sums its reduced gradients and steps its
parameters.

    backward      every rank reduces; the owner adds up            its own memory
    its end       owners publish gradients | meet | others renew   all ranks show the file
    step          meet | owners step and publish | meet | renew

A rank publishes only when no other can be reading: all ranks are in the same backward, because each
gradient was reduced by all, or in the same step.
"""
from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Iterable, Sequence

import torch

from . import _abi
from ._abi import GRAD, PARAM, HybridPSError
from ._group import Group
from ._params import is_kept

if TYPE_CHECKING:
    from ._home import Shown
    from ._slots import Slot

_LONG = 1 << 46  # bytes of the sparse file


class OneCopy:
    """Of one rank. All ranks call the same, in the same order."""

    def __init__(self, pool: _abi.Pool, group: Group) -> None:
        self._pool, self._group = pool, group
        self._file = -1
        self._file = _open_file(group)
        self._owners: dict[int, int] = {}  # by chunk of gradients
        self._load = [0] * group.world
        self._arrived: set["Slot"] = set()
        self._slots: dict[int, list["Slot"]] = {}  # by chunk of gradients
        self._chunk: dict[int, int] = {}  # of each gradient
        self._published: set[int] = set()  # own chunks of gradients that are in the file
        self._ended: set[int] = set()  # of these, chunks that no rank uses any more
        self.begins = False  # true while parameters are being placed

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> None:
        """Within the block new parameters and gradients are shared."""
        self.begins = True
        self._pool.share_host(self._file, (PARAM, GRAD))

    def __exit__(self, *_: object) -> None:
        self.begins = False
        self._pool.share_host(self._file, ())

    def begin(self, slots: Sequence["Slot"]) -> None:
        """Call with placed slots, accessed on the host: broadcasts rank 0's values and assigns
        owners."""
        ids = [i for s in slots for i in (s.tensor, s.grad) if i >= 0]
        mine = [[info["chunk"], info["offset"], info["chunk_bytes"]]
                for info in map(self._pool.tensor, ids)]
        for rank, theirs in enumerate(self._group.allgather(torch.tensor(mine), "one_copy")):
            if theirs.tolist() != mine:
                raise HybridPSError(f"one_copy: rank {rank} lays its chunks out differently: give "
                                    "all ranks devices of one size, or the same chunk_bytes")
        params = [s.tensor for s in slots]
        if self._group.rank == 0:
            self._pool.publish(params)
        self.meet("parameters")
        self._pool.renew(params)
        chunks: dict[int, int] = {}
        for slot in slots:
            if slot.grad >= 0:
                number, size = self._pool.chunk(slot.grad)
                chunks[number] = size
                self._chunk[slot.grad] = number
                self._slots.setdefault(number, []).append(slot)
        for number, size in sorted(chunks.items(), key=lambda c: -c[1]):
            if number not in self._owners:
                owner = self._owners[number] = self._load.index(min(self._load))
                self._load[owner] += size
        for slot in slots:
            if slot.grad >= 0:
                slot.owner = self._owners[self._chunk[slot.grad]]
                slot.away = slot.owner != self._group.rank

    def meet(self, what: str) -> None:
        """Return when all ranks are here."""
        self._group.allreduce(torch.zeros(1), "sum", f"one_copy: {what}")

    def arrived(self, slot: "Slot") -> None:
        """A gradient was reduced; if this rank owns it, it is being summed."""
        self._arrived.add(slot)
        chunk = self._chunk[slot.grad]
        if chunk in self._published:
            self._published.remove(chunk)
            if not any(s.has_grad for s in self._slots[chunk]):
                self._ended.add(chunk)

    def summed(self, slot: "Slot") -> None:
        """The new gradient is on the device. The file's content of earlier ones, which have ended
        on all ranks, need not stay until it is published."""
        chunk = self._chunk[slot.grad]
        if chunk in self._ended:
            self._ended.remove(chunk)
            self._pool.withdraw(slot.grad)

    def forget(self) -> None:
        """The backward failed."""
        self._arrived.clear()

    def publish_gradients(self) -> None:
        """Call at the end of a backward, when every rank has the gradients on the host."""
        slots = sorted(self._arrived, key=lambda s: s.grad)
        self._arrived.clear()
        if not slots:
            return
        for ids in self._chunks(s for s in slots if not s.away):
            with self._pool.on_host(*ids):
                self._pool.publish(ids)
            self._published.add(self._chunk[ids[0]])
        self.meet("gradients")
        for ids in self._chunks(s for s in slots if s.away):
            with self._pool.on_host(*ids, write=True):
                self._pool.renew(ids)
        for slot in slots:
            slot.has_grad = True

    def _chunks(self, slots: Iterable["Slot"]) -> list[list[int]]:
        """Their gradients by chunk, so that only one chunk at a time is in memory twice."""
        return [[s.grad for s in run]
                for _, run in itertools.groupby(slots, lambda s: self._chunk[s.grad])]

    def stepped(self, slots: Sequence["Slot"], published: bool) -> None:
        """After every rank has stepped its share: all get the values, which are open on the host.
        published: the owners already published them while they stepped."""
        slots = sorted(slots, key=lambda s: s.tensor)
        if not published:
            self.meet("step")
            self._pool.publish([s.tensor for s in slots if not s.away])
        self.meet("parameters")
        self._pool.renew([s.tensor for s in slots])

    # ---- unsupported cases ----

    @staticmethod
    def refuse(why: str) -> None:
        raise HybridPSError(f"one_copy=True: {why}")

    def ended(self, ending: Sequence["Slot"], slots: Sequence["Slot"],
              kept: Sequence["Shown"]) -> list["Slot"]:
        """Those of the ending gradients that exist; slots: the ones whose views were dropped."""
        held = [slot for slot, shown in zip(slots, kept) if shown()]
        for slot in slots:
            slot.show_grad_host()
        if held:
            self.refuse_kept(held[0])
        return [slot for slot in ending if slot.has_grad]

    def refuse_kept(self, slot: "Slot") -> None:
        slot.left = None
        self.refuse(f"your code still has {slot.name}.grad, whose memory the next gradient needs: "
                    "keep a clone(), or let go of it before")

    def refuse_shown(self, slot: "Slot") -> None:
        """Refuse new values while a user still shows the old ones."""
        if is_kept(slot):
            self.refuse(f"your code still has {slot.name}.data, whose memory the assigned values "
                        "need: keep a clone(), or let go of it before")


def _open_file(group: Group) -> int:
    """The same file in all ranks; raises HybridPSError in all of them if one can't get it."""
    file, why = -1, ""
    if group.rank == 0:
        file = os.memfd_create("hybridps-one-copy")
        os.ftruncate(file, _LONG)
    pid, number, inode = group.share((os.getpid(), file, os.fstat(file).st_ino) if file >= 0
                                     else None,
                                     0, "one_copy")
    if file < 0:
        try:
            file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(file).st_ino != inode:
                why = f"process {pid} is another one here"
        except OSError as error:
            why = str(error)
    bad = group.allreduce(torch.tensor(int(bool(why))), "max", "one_copy")
    if not bad:
        return file
    if file >= 0:
        os.close(file)
    raise HybridPSError("one_copy is for ranks of one host, user and PID namespace, which can show "
                        f"memory of rank 0: {why or 'another rank can not'}")

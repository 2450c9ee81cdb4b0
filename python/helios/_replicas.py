"""In a gang of helios.elastic, each save compares by checksums the ranks that should have the same
parameters.

A flipped bit in one replica shows up in no loss and raises no error: the gang keeps training two
different models, and saves that of data rank 0. This module names the rank whose bytes differ from
most of its replicas, with the tensor and the MiB, before anything is saved. That rank ends, and the
others continue from the last version.
"""
from __future__ import annotations

import collections
import hashlib
from typing import Any, Mapping

from . import _abi, _state, _steps, _tensors, errors

Sums = dict[str, list[int]]  # per tensor, one checksum per MiB

meets = False  # the ranks of this process's gang can communicate


class Differs(errors.Corrupt):
    """Replicas differ. ``odd``: the ranks that differ from the majority."""

    def __init__(self, sentence: str, odd: frozenset[int]) -> None:
        super().__init__(sentence)
        self.odd = odd


def _sums(tensors: Mapping[str, Any], me: Any) -> Sums:
    """Skips experts that are divided among ranks, and values that can only be read piece by
    piece."""
    out: Sums = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "read_into") or (me.ep_size > 1 and _state.names_expert(name)):
            continue
        plain = _tensors.on_host(name, tensor)
        out[name] = _abi.checksums(plain.data_ptr(), plain.numel() * plain.element_size())
    return out


def _digest(sums: Sums) -> bytes:
    return hashlib.blake2b(repr(sorted(sums.items())).encode(), digest_size=16).digest()


def first_difference(mine: Sums, other: Sums) -> tuple[str, int]:
    """The tensor and the MiB at which two ranks differ first."""
    for name in sorted(mine.keys() | other.keys()):
        for mib, (a, b) in enumerate(zip(mine.get(name, ()), other.get(name, ()))):
            if a != b:
                return name, mib
        if len(mine.get(name, ())) != len(other.get(name, ())):
            return name, 0
    return "", 0


def judge(told: Mapping[int, tuple[Any, bytes]], sums: Mapping[int, Sums]) -> dict[int, str]:
    """A sentence for each rank that differs from its replicas. told: place and digest of each rank.

    If more than half of a place's ranks have the same digest, the others are odd; otherwise all of
    them are.
    """
    out: dict[int, str] = {}
    places = collections.defaultdict(list)
    for rank, (place, digest) in told.items():
        places[place].append((rank, digest))
    for ranks in places.values():
        digest, count = collections.Counter(d for _, d in ranks).most_common(1)[0]
        if count == len(ranks):
            continue
        most = count * 2 > len(ranks)
        for rank, own in ranks:
            if most and own == digest:
                continue
            other = next(r for r, d in ranks if d != own and (d == digest or not most))
            name, mib = first_difference(sums[rank], sums[other])
            out[rank] = f"has other bytes than {count if most else f'rank {other}'}" \
                        f"{' of its replicas' if most else ''} in '{name}', MiB {mib}" \
                        f"{'' if most else '; it is not known which is right'}"
    return out


def check(state: Any, me: Any) -> None:
    """Raise Differs on all ranks of the gang if any replica differs. All ranks call it."""
    if not meets or me.dp_size * me.cp_size == 1 or hasattr(state, "helios_state"):
        return
    import torch.distributed as dist
    tensors = _state.split(state)[0]
    sums = _sums(tensors, me)
    told: list[Any] = [None] * me.world_size
    dist.all_gather_object(told, ((me.pp, me.tp), _digest(sums)))
    if len(set(told)) == len({place for place, _ in told}):
        _hold(tensors)
        return
    all_sums: list[Any] = [None] * me.world_size
    dist.all_gather_object(all_sums, sums)
    said = judge(dict(enumerate(told)), dict(enumerate(all_sums)))
    if me.global_rank in said:
        _steps.trouble(said[me.global_rank])
    rank, text = min(said.items())
    raise Differs(
        f"rank {rank} {text}: nothing is saved, the gang continues from its last version",
        frozenset(said))


def _hold(tensors: Mapping[str, Any]) -> None:
    """Report where the largest tensor lies: helios drill flips a bit there."""
    plain = [t for t in tensors.values() if getattr(t, "is_cpu", False) and t.is_contiguous()]
    if plain:
        largest = max(plain, key=lambda t: t.numel() * t.element_size())
        _steps.held(largest.data_ptr(), largest.numel() * largest.element_size())

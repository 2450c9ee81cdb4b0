"""The place of this process in a gang whose size may change (data_parallel_size: {min, max}).

The Controller knows the place. A process asks whenever its gang forms, and rank 0 asks when all
ranks have saved. If the gang then has a different size, all ranks leave and form it again. Nothing
is lost, because everything has just been saved.
"""
from __future__ import annotations

import os
from typing import Any

from . import _abi, errors

number = -1  # number of the gang's size that this process is in, from 0; -1: it has not asked
meets = False  # the ranks of its gang can communicate


class Resized(RuntimeError):
    """The gang changes its size. Everything is saved; helios.elastic.run calls `train` again."""


def resizes() -> bool:
    """Whether the gang of this process may change its size while it runs."""
    return bool(os.environ.get("HELIOS_RESIZES"))


def ask(client: _abi.Client) -> tuple[int, dict[str, str]]:
    """Number of the current size, and the environment that goes with it; {}: ask again."""
    env = os.environ
    return client.join_gang(env["HELIOS_JOB"], int(env["HELIOS_ATTEMPT"]),
                            int(env["HELIOS_CONTAINER"]),
                            int(env["LOCAL_RANK"]))


def take(size: int, env: dict[str, str]) -> None:
    """Make this process that rank from now on."""
    global number
    number = size
    os.environ.update(env)


def leave_if_resized(client: _abi.Client, me: Any) -> None:
    """Call on all ranks after all of them have committed. Raises Resized on all of them, or on
    none."""
    if not (meets and resizes()):
        return
    import torch.distributed as dist
    now = number
    if me.global_rank == 0:
        try:
            now = ask(client)[0]
        except errors.HeliosError:
            pass  # unreachable: try again at the next save
    told: list[Any] = [None] * me.world_size
    dist.all_gather_object(told, now)
    if told[0] != number:
        raise Resized("the gang gets another size")

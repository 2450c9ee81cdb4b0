"""The place of this process in a gang whose data parallel size may change (data_parallel_size: {min, max}).

The Controller has it. A process asks whenever its gang comes together, and rank 0 does when all have saved: where
the gang has another size then, all of them leave it and come together again, and nothing is lost by that.
"""
from __future__ import annotations

import os
from typing import Any

from . import _abi, errors

number = -1  # which size of the gang this process is in, counted from 0; -1: it has not asked
meets = False  # the ranks of its gang can ask each other


class Resized(RuntimeError):
    """The gang gets another size. Everything is saved: helios.elastic.run calls `train` again."""


def resizes() -> bool:
    """The gang of this process may get another size while it runs."""
    return bool(os.environ.get("HELIOS_RESIZES"))


def ask(client: _abi.Client) -> tuple[int, dict[str, str]]:
    """Number of the size that is in force, and the environment that goes with it; {}: ask again."""
    env = os.environ
    return client.join_gang(env["HELIOS_JOB"], int(env["HELIOS_ATTEMPT"]), int(env["HELIOS_CONTAINER"]),
                            int(env["LOCAL_RANK"]))


def take(size: int, env: dict[str, str]) -> None:
    """This process is that rank from now on."""
    global number
    number = size
    os.environ.update(env)


def leave_if_resized(client: _abi.Client, me: Any) -> None:
    """All ranks call it, when all of them have committed. Raises Resized on each of them, or on none."""
    if not (meets and resizes()):
        return
    import torch.distributed as dist
    now = number
    if me.global_rank == 0:
        try:
            now = ask(client)[0]
        except errors.HeliosError:
            pass  # out of reach: with the next save
    told: list[Any] = [None] * me.world_size
    dist.all_gather_object(told, now)
    if told[0] != number:
        raise Resized("the gang gets another size")

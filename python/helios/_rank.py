"""The place of a process in its gang, as the environment says."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping

from . import _arguments
from .errors import InvalidArgument


@dataclass(frozen=True)
class Rank:
    """Place of this process in its gang, from the environment that Helios gives to ranks.

    Outside a job every index is 0 and every size 1. ``virtual_stages`` are model chunks per
    pipeline stage (1: none, 0: the model's). The experts of a layer are divided among ``ep_size``
    ranks of dp, each expert among ``etp_size`` ranks of tp (0: all). ``model`` is the name alone;
    ``model_version`` the number after '@' in HELIOS_MODEL, -1 for the newest version.
    """

    global_rank: int = 0
    pp: int = 0
    tp: int = 0
    dp: int = 0
    local_rank: int = 0
    pp_size: int = 1
    tp_size: int = 1
    dp_size: int = 1
    ep: int = 0
    ep_size: int = 1
    etp_size: int = 0
    cp: int = 0
    cp_size: int = 1
    virtual_stages: int = 0
    world_size: int = 1
    local_world_size: int = 1
    job: str = ""
    attempt: int = 0
    node: str = ""
    model: str = ""
    model_version: int = -1

    def __post_init__(self) -> None:
        """Raises InvalidArgument that names the field."""
        for name, low in RANK_NUMBERS.items():
            _arguments.integer(f"Rank: {name}", getattr(self, name), low)
        for name in ("job", "node", "model"):
            _arguments.text(f"Rank: {name}", getattr(self, name))
        if "@" in self.model:
            raise InvalidArgument(f"Rank: model={self.model!r} must be the name alone: pass the "
                                  "number as model_version")

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> "Rank":
        """Raises InvalidArgument that names the invalid variable."""
        _arguments.mapping("env", env, "a mapping of names to texts, as os.environ is")
        pp_size = _number(env, ("PIPELINE_PARALLEL_SIZE",), 1, 1)
        tp_size = _number(env, ("TENSOR_PARALLEL_SIZE",), 1, 1)
        dp_size = _number(env, ("DATA_PARALLEL_SIZE",), 1, 1)
        cp_size = _number(env, ("CONTEXT_PARALLEL_SIZE",), 1, 1)
        world = _number(env, ("WORLD_SIZE",), pp_size * tp_size * cp_size * dp_size, 1)
        if world != pp_size * tp_size * cp_size * dp_size:
            context = f"CP {cp_size} x " if cp_size > 1 else ""
            raise InvalidArgument(f"WORLD_SIZE={world} is not PP {pp_size} x TP {tp_size} x "
                                  f"{context}DP {dp_size}: start ranks with 'helios submit'")
        model, version = split_model(env.get("HELIOS_MODEL", ""))
        ep_size = _number(env, ("EXPERT_PARALLEL_SIZE",), 1, 1)
        return cls(
            ep=_number(env, ("EXPERT_PARALLEL_RANK",), 0, 0, ep_size), ep_size=ep_size,
            etp_size=_number(env, ("EXPERT_TENSOR_PARALLEL_SIZE",), 0, 1, tp_size + 1),
            global_rank=_number(env, ("GLOBAL_RANK", "RANK"), 0, 0, world),
            pp=_number(env, ("PIPELINE_PARALLEL_RANK",), 0, 0, pp_size),
            tp=_number(env, ("TENSOR_PARALLEL_RANK",), 0, 0, tp_size),
            dp=_number(env, ("DATA_PARALLEL_RANK",), 0, 0, dp_size),
            cp=_number(env, ("CONTEXT_PARALLEL_RANK",), 0, 0, cp_size), cp_size=cp_size,
            local_rank=_number(env, ("LOCAL_RANK",), 0, 0),
            local_world_size=_number(env, ("LOCAL_WORLD_SIZE",), 1, 1),
            pp_size=pp_size, tp_size=tp_size, dp_size=dp_size, world_size=world,
            virtual_stages=_number(env, ("VIRTUAL_PIPELINE_PARALLEL_SIZE",), 0, 1),
            job=env.get("HELIOS_JOB", ""), attempt=_number(env, ("HELIOS_ATTEMPT",), 0, 0),
            node=env.get("HELIOS_NODE", ""), model=model, model_version=version)


# The minimum of each field.
RANK_NUMBERS = {"global_rank": 0, "pp": 0, "tp": 0, "dp": 0, "local_rank": 0, "pp_size": 1,
                "tp_size": 1, "dp_size": 1, "cp": 0, "cp_size": 1, "ep": 0,
                "ep_size": 1, "etp_size": 0, "virtual_stages": 0, "world_size": 1,
                "local_world_size": 1, "attempt": 0,
                "model_version": -1}


def _number(env: Mapping[str, str], names: tuple[str, ...], default: int, low: int,
            end: int | None = None) -> int:
    for name in names:
        text = env.get(name)
        if text is None or text == "":
            continue
        _arguments.text(name, text)
        if not text.isdecimal() or int(text) < low or (end is not None and int(text) >= end):
            limit = f"from {low} to {end - 1}" if end is not None else f"of at least {low}"
            raise InvalidArgument(f"{name}={text!r} in the environment must be a number {limit}")
        return int(text)
    return default


def split_model(text: str) -> tuple[str, int]:
    """("name", 7) of "name@7"; ("name", -1) of "name"."""
    _arguments.text("model", text, "NAME or NAME@VERSION")
    name, at, version = text.partition("@")
    if at and (not name or not version.isdecimal() or int(version) < 1):
        raise InvalidArgument(f"model={text!r} must be NAME or NAME@VERSION, a version is a number "
                              "from 1")
    return name, int(version) if at else -1

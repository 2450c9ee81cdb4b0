"""Reads a model's config: its Hugging Face config, and which part (shard) a tensor belongs to."""
from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from . import _abi, _arguments
from .errors import InvalidArgument

__all__ = ["hugging_face_config", "parts_of"]

CONFIG = "a mapping, as helios.model_config() or a config.json is"


def hugging_face_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Hugging Face config.json inside a Helios model config (or `config` itself)."""
    _arguments.mapping("config", config, CONFIG)
    inner = config.get("hf")
    return inner if isinstance(inner, Mapping) else config


# What Python's json writes and JSON lacks; Helios keeps it as texts (src/core/model/hf.h).
_BEYOND_JSON = {f"python:{text}": float(text) for text in ("Infinity", "-Infinity", "NaN")}


def numbers(value: Any) -> Any:
    """The config with such texts turned back into numbers."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return _BEYOND_JSON.get(value, value) if isinstance(value, str) else value


def parts_of(config: Mapping[str, Any], names: Sequence[str], pp: int = 0) -> list[str]:
    """The part that each tensor of stage `pp` is saved in: "embedding", "vision", "layer-0003",
    "experts-0003" (global numbers), "mtp-0000" or "head". `config` is the result of
    helios.model_config(), or a Hugging Face config of a model in one stage.

    Names are Megatron-core's, local to the stage; prefixes (as in ``exp_avg.decoder.layers.0.…``)
    do not matter.
    """
    _arguments.mapping("config", config, CONFIG)
    _arguments.integer("pp", pp, 0)
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidArgument(f"{_arguments.told('names', names)} must be a list of names of "
                              "tensors")
    for name in names:
        _arguments.text("names", name)
    try:
        text = json.dumps(config)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"config must be JSON: {error}") from None
    return _abi.parts_of(text, None, pp, names)

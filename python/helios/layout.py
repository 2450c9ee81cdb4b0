"""Which layers a pipeline stage holds, and which part (shard) a tensor belongs to.

Layers are numbered globally 0..layers-1; inside a stage every chunk counts from 0 again, and with a
virtual pipeline names carry the chunk: ``model1.decoder.layers.0.…``. Which stage holds what is in
the model's config, which the Controller gives for the split requested.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping

from . import _arguments
from .errors import Corrupt, InvalidArgument

__all__ = ["Layout", "hugging_face_config", "layer_count", "plain_part"]

CONFIG = "a mapping, as helios.model_config() or a config.json is"

_LAYER = re.compile(r"(?:^|\.)(?:model(\d+)\.)?decoder\.layers\.(\d+)\.")
_ANY_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.")
_EXPERTS = re.compile(r"\.mlp\.experts\.")
_MTP = re.compile(r"(?:^|\.)(?:model\d+\.)?mtp\.layers\.(\d+)\.")
_VISION = re.compile(r"(?:^|\.)(?:vision_tower|vision_model|multi_modal_projector)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:model\d+\.)?embedding\.")


def plain_part(name: str) -> str:
    """Part of a tensor of any model: its layer by its name, as the import of an unknown model has it."""
    _arguments.text("name", name)
    layer = _ANY_LAYER.search(name)
    return f"layer-{int(layer[1]):04d}" if layer else "model-0000"


def layer_count(config: Mapping[str, Any]) -> int:
    """Layers by a Hugging Face config."""
    _arguments.mapping("config", config, CONFIG)
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, Mapping) else {}):
        for field in ("num_hidden_layers", "n_layer", "num_layers"):
            count = source.get(field)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    raise InvalidArgument("the config has no number of layers (num_hidden_layers): leave it out to "
                          "store the model without one")


def hugging_face_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Hugging Face config.json inside a model config of Helios (or the thing itself)."""
    _arguments.mapping("config", config, CONFIG)
    inner = config.get("hf")
    return inner if isinstance(inner, Mapping) else config


@dataclass(frozen=True)
class Layout:
    """stages[pp][chunk] is a range of global layer numbers; one chunk without virtual pipeline."""

    stages: tuple[tuple[range, ...], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.stages, tuple) or not all(
                isinstance(stage, tuple) and all(isinstance(run, range) for run in stage) for stage in self.stages):
            raise InvalidArgument(f"{_arguments.told('stages', self.stages)} must be a tuple with a tuple of ranges of "
                                  "layer numbers for each stage")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Layout":
        """The layout of an imported model; `config` is what helios.model_config() returns."""
        _arguments.mapping("config", config, CONFIG)
        try:
            stages = tuple(
                tuple(range(int(run["first"]), int(run["first"]) + int(run["count"]))
                      for run in stage)
                for stage in config["stages"])
        except (KeyError, TypeError, ValueError):
            raise Corrupt("the model's config has no usable 'stages': import the model again with "
                          "'helios model import'") from None
        numbers = sorted(n for stage in stages for run in stage for n in run)
        if not numbers or numbers != list(range(len(numbers))):
            raise Corrupt(f"the stages of the model's config do not hold every layer once: "
                          f"{config['stages']}")
        return cls(stages)

    @classmethod
    def even(cls, layers: int, pp_size: int, chunks: int) -> Layout:
        """As Megatron shares `layers` out where nothing is said of the first and the last stage."""
        for name, value in (("layers", layers), ("pp_size", pp_size), ("chunks", chunks)):
            _arguments.integer(name, value, 1)
        count, rest = divmod(layers, pp_size * chunks)
        if rest:
            raise InvalidArgument(f"{layers} layers over {pp_size} stages of {chunks} chunks each is not even")
        firsts = [[(chunk * pp_size + stage) * count for chunk in range(chunks)] for stage in range(pp_size)]
        return cls(tuple(tuple(range(first, first + count) for first in stage) for stage in firsts))

    @property
    def layers(self) -> int:
        """Layers of the whole model."""
        return sum(len(run) for stage in self.stages for run in stage)

    def global_layer(self, stage: int, local: int, chunk: int = 0) -> int:
        """Global number of layer `local` of `chunk` of `stage`."""
        for name, value in (("stage", stage), ("local", local), ("chunk", chunk)):
            _arguments.integer(name, value, 0)
        if not 0 <= stage < len(self.stages):
            raise InvalidArgument(f"stage {stage} is out of range (0 to {len(self.stages) - 1})")
        runs = self.stages[stage]
        if not 0 <= chunk < len(runs) or not 0 <= local < len(runs[chunk]):
            raise InvalidArgument(f"stage {stage} has no layer {local} in chunk {chunk}: "
                                  f"it holds {[list(run) for run in runs]}")
        return runs[chunk][local]

    def part(self, name: str, stage: int) -> str:
        """Part of a tensor: "embedding", "vision", "layer-0003", "experts-0003" (global numbers),
        "mtp-0000" or "head". The experts of MTP layer 0 have the number behind the last layer's.

        `name` is a Megatron-core name local to `stage`; whatever stands before it (as in
        ``exp_avg.decoder.layers.0.…``) does not matter.
        """
        _arguments.text("name", name)
        _arguments.integer("stage", stage, 0)
        if _VISION.search(name):
            return "vision"
        layer, mtp = _LAYER.search(name), _MTP.search(name)
        experts = _EXPERTS.search(name) is not None
        if mtp:
            return f"experts-{self.layers + int(mtp[1]):04d}" if experts else f"mtp-{int(mtp[1]):04d}"
        if layer:
            number = self.global_layer(stage, int(layer[2]), int(layer[1] or 0))
            return f"{'experts' if experts else 'layer'}-{number:04d}"
        return "embedding" if _EMBEDDING.search(name) else "head"

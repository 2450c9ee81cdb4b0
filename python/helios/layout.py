"""Which layers a pipeline stage holds, and which part (shard) a tensor belongs to.

The rules are Megatron's. Layers are numbered globally 0..layers-1; inside a stage every chunk
counts from 0 again, and with a virtual pipeline names carry it: ``model1.decoder.layers.0.…``.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping

from .errors import InvalidArgument

__all__ = ["Layout", "hugging_face_config"]

_LAYER = re.compile(r"(?:^|\.)(?:model(\d+)\.)?decoder\.layers\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:model\d+\.)?embedding\.")


def hugging_face_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Hugging Face config.json inside a model config of Helios (or the thing itself)."""
    inner = config.get("hf")
    return inner if isinstance(inner, Mapping) else config


@dataclass(frozen=True)
class Layout:
    """How `layers` transformer layers spread over `stages` pipeline stages.

    ``chunks`` > 1 is the virtual pipeline: every stage holds that many separate runs of layers.
    ``first`` and ``last`` fix the number of layers of the outer stages (0 = even).
    """

    layers: int
    stages: int
    chunks: int = 1
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        if min(self.layers, self.stages, self.chunks) < 1 or self.first < 0 or self.last < 0:
            raise InvalidArgument(f"impossible pipeline layout: {self}")
        if self.chunks > 1 and (self.first or self.last):
            raise InvalidArgument("a virtual pipeline cannot have uneven first or last stages")
        rest, middle = self._middle()
        if rest < 0 or middle < 0 or (rest % middle if middle else rest):
            raise InvalidArgument(
                f"{self.layers} layers do not spread over {self.stages} stages x {self.chunks} "
                f"chunks (first {self.first}, last {self.last})")

    def _middle(self) -> tuple[int, int]:
        """Layers that are spread evenly, and over how many runs."""
        stages = self.stages - bool(self.first) - bool(self.last)
        return self.layers - self.first - self.last, stages * self.chunks

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Layout":
        """The layout of an imported model; `config` is what helios.model_config() returns."""
        hf = hugging_face_config(config)
        layers = config.get("layers", hf.get("num_hidden_layers", hf.get("n_layer")))
        stages = config.get("pp")
        if not isinstance(layers, int) or not isinstance(stages, int):
            raise InvalidArgument("the model's config says neither 'layers' nor 'pp': import the "
                                  "model again with 'helios model import'")
        return cls(layers, stages, max(1, int(config.get("virtualStages", 1))),
                   int(config.get("firstStageLayers", 0)), int(config.get("lastStageLayers", 0)))

    def stage(self, stage: int) -> tuple[range, ...]:
        """Global layer numbers of one stage, one range per chunk."""
        if not 0 <= stage < self.stages:
            raise InvalidArgument(f"stage {stage} of {self.stages}")
        rest, middle = self._middle()
        each = rest // middle if middle else 0
        if self.chunks > 1:
            runs = [each * (chunk * self.stages + stage) for chunk in range(self.chunks)]
            return tuple(range(start, start + each) for start in runs)
        if stage == 0 and self.first:
            return (range(0, self.first),)
        if stage == self.stages - 1 and self.last:
            return (range(self.layers - self.last, self.layers),)
        start = self.first + each * (stage - bool(self.first))
        return (range(start, start + each),)

    def global_layer(self, stage: int, local: int, chunk: int = 0) -> int:
        """Global number of layer `local` of `chunk` of `stage`."""
        runs = self.stage(stage)
        if not 0 <= chunk < len(runs) or not 0 <= local < len(runs[chunk]):
            raise InvalidArgument(f"stage {stage} has no layer {local} in chunk {chunk}: "
                                  f"it holds {[list(run) for run in runs]}")
        return runs[chunk][local]

    def part(self, name: str, stage: int) -> str:
        """Part of a tensor: "embedding", "layer-0003" (global number) or "head".

        `name` is a Megatron-core name local to `stage`; whatever stands before it (as in
        ``exp_avg.decoder.layers.0.…``) does not matter.
        """
        layer = _LAYER.search(name)
        if layer:
            return f"layer-{self.global_layer(stage, int(layer[2]), int(layer[1] or 0)):04d}"
        return "embedding" if _EMBEDDING.search(name) else "head"

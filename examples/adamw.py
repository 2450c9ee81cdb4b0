"""AdamW and its state as named tensors: ``exp_avg.<parameter>`` and ``exp_avg_sq.<parameter>``."""
from __future__ import annotations

from typing import Mapping

import torch
from torch import nn

MOMENTS = ("exp_avg", "exp_avg_sq")


def make(parameters: Mapping[str, nn.Parameter], lr: float) -> torch.optim.AdamW:
    """Matrices decay, vectors do not: the same on a slice as on the whole model."""
    matrices = [p for p in parameters.values() if p.dim() > 1]
    vectors = [p for p in parameters.values() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}]
    if vectors:
        groups.append({"params": vectors, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def export_state(
    optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter]
) -> dict[str, torch.Tensor]:
    return {
        f"{moment}.{name}": optimizer.state[p][moment]
        for moment in MOMENTS
        for name, p in parameters.items()
    }


def import_state(
    optimizer: torch.optim.AdamW,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, torch.Tensor],
    updates: int,
) -> None:
    """Copies; KeyError names a moment that is missing. `updates`: how many were made so far."""
    for name, p in parameters.items():
        state = optimizer.state[p]
        state["step"] = torch.tensor(float(updates))
        for moment in MOMENTS:
            state[moment] = tensors[f"{moment}.{name}"].clone()

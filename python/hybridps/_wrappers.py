"""What of torch's sums up a model's gradients itself: with it a model can't be managed."""
from __future__ import annotations

import sys
from typing import Iterable

import torch

WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "replicate"}
WHY = (" sums up gradients that managed memory has taken: manage the model itself with "
       "group=hybridps.Group.torch() instead")


def around(module: torch.nn.Module) -> set[str]:
    """Of its types, and of what torch.distributed has made of it."""
    return WRAPPERS & {kind.__name__ for kind in type(module).__mro__} | made_of([module])


def made_of(modules: Iterable[torch.nn.Module]) -> set[str]:
    """By functions of torch.distributed that leave a module what it is."""
    contract = sys.modules.get("torch.distributed._composable.contract")
    if contract is None:
        return set()
    return WRAPPERS & {name for m in modules for name in m.__dict__.get(contract.REGISTRY_KEY, ())}

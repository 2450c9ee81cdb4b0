"""torch's wrappers that reduce a model's gradients themselves: such a model can't be managed."""
from __future__ import annotations

import sys
from typing import Iterable

import torch

WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "replicate"}
WHY = (" sums up gradients that managed memory has taken: manage the model itself with "
       "group=hybridps.Group.torch() instead")


def around(module: torch.nn.Module) -> set[str]:
    """The wrappers among the module's types, and those that torch.distributed applied to it."""
    return WRAPPERS & {kind.__name__ for kind in type(module).__mro__} | made_of([module])


def made_of(modules: Iterable[torch.nn.Module]) -> set[str]:
    """Those applied by functions of torch.distributed that keep the module's type."""
    contract = sys.modules.get("torch.distributed._composable.contract")
    if contract is None:
        return set()
    return WRAPPERS & {name for m in modules for name in m.__dict__.get(contract.REGISTRY_KEY, ())}

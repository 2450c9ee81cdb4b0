"""What of torch's sums up a model's gradients itself: with it a model can't be managed."""
from __future__ import annotations

import sys

import torch

WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "replicate"}
WHY = (" sums up gradients that managed memory has taken: manage the model itself with "
       "group=hybridps.Group.torch() instead")


def around(module: torch.nn.Module) -> set[str]:
    """Of its types, and of what torch.distributed has made of it."""
    contract = sys.modules.get("torch.distributed._composable.contract")
    made = (contract._get_registry(module) if contract is not None else None) or {}
    return WRAPPERS & ({kind.__name__ for kind in type(module).__mro__} | set(made))

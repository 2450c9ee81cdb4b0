"""Stand-ins for Megatron-LM's objects in a training: a chunk of a model, and its distributed
optimizer. Needs torch."""
from __future__ import annotations

import types

import torch

KINDS = ("exp_avg", "exp_avg_sq")


class Chunk:
    """A chunk of a Megatron model in its wrappers."""

    def __init__(self, state):
        self.parameters = {n: torch.nn.Parameter(t.to(torch.bfloat16)) for n, t in state.items()}

    def named_parameters(self):
        return [(f"module.module.{n}", p) for n, p in self.parameters.items()]


class Distributed:
    """The attributes of Megatron-core's DistributedOptimizer, built by its rules: buckets of
    parameters, the last parameter first, padded to a multiple of the data ranks, each of which owns
    one range."""

    def __init__(self, chunk, dp, dp_size, inner=torch.optim.Adam, instance=0):
        self.config = types.SimpleNamespace(use_precision_aware_optimizer=False)
        self.distributed_optimizer_instance_id = instance
        self.model_param_group_index_map, mains, buckets = {}, ([], []), []
        params = list(reversed(chunk.parameters.values()))
        for bucket in (params[:5], params[5:]):
            total = sum(p.numel() for p in bucket)
            each, at, owned = -(-total // dp_size), 0, {}
            for param in bucket:
                start, end = max(0, dp * each - at), min(param.numel(), (dp + 1) * each - at)
                at += param.numel()
                if end <= start:
                    continue
                owned[param] = {"param": types.SimpleNamespace(start=start, end=end)}
                group = int(param.dim() == 1)  # no weight decay
                self.model_param_group_index_map[param] = (group, len(mains[group]))
                mains[group].append(param.detach().view(-1)[start:end].clone().float())
            buckets.append({"param_map": owned})
        self.gbuf_ranges = [{(torch.bfloat16, torch.float32): buckets}]
        self.optimizer = inner([{"params": group} for group in mains])

    def fill(self, values):
        """values(param) gives the main parameter and the moments."""
        for param, (group, order) in self.model_param_group_index_map.items():
            where = next(
                b["param_map"][param]["param"] for b in self.buckets() if param in b["param_map"]
            )
            main, of = self.optimizer.param_groups[group]["params"][order], values(param)
            main.copy_(of["param"].reshape(-1)[where.start : where.end])
            self.optimizer.state[main] = {
                k: of[k].reshape(-1)[where.start : where.end].clone() for k in KINDS
            } | {"step": torch.tensor(4.0)}

    def buckets(self):
        return [b for buffer in self.gbuf_ranges for of_type in buffer.values() for b in of_type]


class FusedAdam:
    """An optimizer of Apex or Transformer Engine: it counts steps in its groups."""

    def __init__(self, groups):
        self.param_groups, self.state = groups, {}

"""What does not fit on the device, and what can't be managed: rows of the table in docs/hybridps.md
(see hybridps_constructs.py)."""
from __future__ import annotations

import re

import torch
import torch.nn as nn
import torch.nn.functional as F

import hybridps
from hybridps_constructs import CAPACITIES, WIDTH, World, layers, row


def bytes_of(device: str) -> int:
    return int(device[4:-3]) << {"KiB": 10, "MiB": 20}[device[-3:]]


def big(w: World) -> nn.Module:
    """Layers, one of which is larger than the device."""
    torch.manual_seed(2)
    wide = 1 << (bytes_of(w.device or CAPACITIES[0]) // 4 // WIDTH).bit_length()
    return nn.Sequential(nn.Linear(WIDTH, wide), nn.Tanh(), nn.Linear(wide, WIDTH))


@row("a layer that is larger than the device", "of device memory at once; device")
def too_large(w):
    if w.device:
        model = big(w)
        hybridps.manage(model, torch.optim.Adam(model.parameters()), device=w.device).close()
    return []


@row("the same on a device of the size that the refusal names")
def named(w):
    out = []
    for steps in (1, 3):  # the first time, with any work
        torch.manual_seed(4)
        inner = World(
            lambda: nn.Sequential(
                layers(), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            ),
            w.device and "emu:12KiB",
        )
        if w.device:
            try:
                inner.manage()
                raise AssertionError("a device of 12 KiB holds a layer of 16")
            except hybridps.HybridPSError as error:
                inner.device = re.search(r"Use at least (emu:[0-9]+KiB)", str(error))[1]
        inner.manage()
        out += inner.train(steps) + [inner.evaluate()]
        inner.close()
        out += inner.params()
    return out


@row("where all fits, nothing moves in a step; what is read of the parameters comes once")
def still(w):
    def moved():
        stats = (
            w.client.stats()
            if w.device == CAPACITIES[-1]
            else {"total": {"h2d": 0, "d2h": 0}, "faults": 0}
        )
        return [stats["total"]["h2d"], stats["total"]["d2h"], stats["faults"]]

    out = w.train(3)
    before = moved()
    out += w.train(2, 3)
    assert moved() == before, (before, moved())
    out += [p.detach().clone() for p in w.params() for _ in range(2)]
    out += [w.model.state_dict(), w.model.state_dict()]
    if w.device == CAPACITIES[-1]:
        params = w.client.stats()["host_by_kind"]["param"]
        assert moved() == [before[0], before[1] + params, before[2]], (before, moved())
    return out + w.train(2, 5)


@row("`register_post_accumulate_grad_hook`", "no hooks after accumulation", needs="compile")
def after_accumulation(w):
    w.params()[0].register_post_accumulate_grad_hook(lambda p: None)
    return []


@row(
    "an embedding with `max_norm`, which writes its weight in forward",
    "written in place between forward and",
    make=lambda: nn.Embedding(8, WIDTH, max_norm=0.1),
)
def max_norm(w):
    w.model(torch.arange(8)).sum().backward()
    return []


@row(
    "a module of `torch.jit.script`",
    "is compiled by torch.jit",
    make=lambda: torch.jit.script(layers()),
)
def scripted(w):
    return []


@row("another type of parameters while they are managed (`model.double()`)", "close the client")
def other_type(w):
    w.model.double()
    return []


class Triangle(nn.Module):
    """A parametrization without an inverse: torch calls set_() on the parameter."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


@row("parametrizations registered and removed while managed (`p.set_()`)")
def parametrized(w):
    parametrize = torch.nn.utils.parametrize
    out = w.train(1)
    parametrize.register_parametrization(w.model[2], "weight", Triangle())
    out += w.train(2, 1) + [[p.grad.clone() for p in w.params()]]
    parametrize.remove_parametrizations(w.model[2], "weight")
    return out + w.train(2, 3)


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(40, WIDTH, sparse=True)
        self.bag = nn.EmbeddingBag(40, WIDTH, sparse=True, mode="sum")
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = (x.abs() * 10).long() % 40
        return self.out(self.words(index).mean(1) + self.bag(index))


@row("sparse gradients of embeddings, stepped by SparseAdam", make=Bags)
def sparse(w):
    few = [w.model.words.weight, w.model.bag.weight]
    w.optimizer.param_groups[0]["params"] = list(w.model.out.parameters())
    slow = w.register(torch.optim.SparseAdam(few, lr=1e-2))
    out = []
    for x, y in w.batches(3):
        w.optimizer.zero_grad()
        slow.zero_grad()
        loss = F.mse_loss(w.model(x), y)
        loss.backward()
        w.optimizer.step()
        slow.step()
        out.append(loss.item())
    return out


@row(
    "a lazy module that has not seen a batch",
    "call the model with a batch before",
    make=lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LazyLinear(WIDTH)),
)
def lazy(w):
    return []


@row(
    "parameters on the meta device",
    "is on the meta device and has no values",
    make=lambda: nn.Linear(WIDTH, WIDTH, device="meta"),
)
def meta(w):
    return []

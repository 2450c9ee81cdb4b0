"""Types of parameters: rows of the table in docs/hybridps.md (see hybridps_constructs.py)."""
from __future__ import annotations

import copy

import torch
import torch.nn as nn

from hybridps_constructs import layers, row


class Weight(nn.Parameter):
    """Overrides what managed parameters override."""

    reads = 0

    @property
    def data(self):
        Weight.reads += 1
        return super().data * 2

    @data.setter
    def data(self, values):
        nn.Parameter.data.__set__(self, values / 2)

    def detach(self):
        return super().detach().double()

    def __repr__(self):
        return "weight"

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), Weight(nn.Parameter.data.__get__(self) * 3))


class Heavy(Weight):
    """Its base is managed, too."""


class Tagged(torch.Tensor):
    """A parameter of this type is not one by its class."""

    def new_empty(self, *args, **kwargs):
        return super().new_empty(*args, **kwargs).as_subclass(Tagged)


def weighted():
    model = layers(1)
    model[0].weight, model[2].weight = Weight(model[0].weight.data), Heavy(model[2].weight.data)
    model[4].weight = nn.Parameter(model[4].weight.data.as_subclass(Tagged))
    return model


@row("`isinstance` and `type` of parameters (`type(p) is nn.Parameter`) and modules", make=weighted)
def kinds(w):
    w.train(1)
    said = [
        [isinstance(p, nn.Parameter), type(p).__name__, type(p) is nn.Parameter, p.is_leaf]
        for p in w.params()
    ]
    said += [[type(m) is nn.Linear, isinstance(m, nn.Module)] for m in w.model.modules()]
    return (
        said
        + [isinstance(w.optimizer, torch.optim.Adam), [repr(p) for p in w.params()]]
        + w.train(1, 1)
    )


@row(
    "a class of parameters with `data`, `detach`, `__repr__` and `__deepcopy__` of its own",
    make=weighted,
)
def own_class(w):
    out, before = w.train(2), Weight.reads
    out += [[p.data for p in w.params()], [p.detach() for p in w.params()], Weight.reads - before]
    for p in w.params():
        p.data = p.data.clone() * 0.5
    twin = copy.deepcopy(w.model)
    out += [
        Weight.reads - before,
        list(twin.parameters()),
        [type(p).__name__ for p in twin.parameters()],
    ]

    def later():
        return out + w.train(2, 2) + [sorted(vars(kind)) for kind in (Weight, Heavy, Tagged)]

    return later


@row("`nn.Parameter` and a parameter's class changed by others meanwhile")
def patched(w):
    own = nn.Parameter.__repr__
    nn.Parameter.__repr__ = lambda p: f"of {tuple(p.shape)}"
    w.params()[0].__class__ = Heavy
    out = w.train(2) + [repr(p) for p in w.params()]

    def later():
        told = repr(w.params()[1])
        nn.Parameter.__repr__ = own
        return out + w.train(1, 2) + [told, repr(w.params()[1]), repr(nn.Parameter(torch.ones(2)))]

    return later

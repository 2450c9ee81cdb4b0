"""Code of users on plain torch and with little device memory: compares the bits."""
from __future__ import annotations

import hashlib
import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F

from hybridps_model import hybridps

WIDTH = 32
# One chunk a page: barely more fits than one layer and its gradients.
TIGHT = {"device": "emu:56KiB", "chunk_bytes": 4096}
WAYS = (
    TIGHT,
    {**TIGHT, "mode": "move"},
    {**TIGHT, "optimizer_device": "device", "device": "emu:96KiB"},
)


def data(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator))
        for _ in range(count)
    ]


def layers(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(2 * WIDTH, 2 * WIDTH),
        nn.Tanh(),
        nn.Linear(2 * WIDTH, WIDTH),
    )


def bits(value):
    """Replaces tensors by a hash of their bytes, whose difference is short to print,
    in lists of any depth."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1).view(torch.uint8).numpy()
        return value.dtype, tuple(value.shape), hashlib.blake2b(flat, digest_size=16).hexdigest()
    return [bits(v) for v in value] if isinstance(value, (list, tuple)) else value


def train(model, optimizer, batches):
    losses = []
    for x, y in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Code(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def same(self, use, make=layers, optimizer=torch.optim.Adam, ways=WAYS):
        """`use(model, optimizer)` returns the same list and leaves the same parameters."""

        def run(way):
            model = make()
            chosen = optimizer(model.parameters())
            client = hybridps.manage(model, chosen, **way) if way else None
            try:
                out = use(model, chosen)
            finally:
                if client:
                    client.close()
            return bits(out), bits(list(model.parameters()))

        plain = run(None)
        for way in ways:
            with self.subTest(**way):
                self.assertEqual(run(way), plain)


def several(model, optimizer):
    return train(model, optimizer, data(5))

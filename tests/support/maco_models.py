"""Small modules of the kinds that graphs are made from."""
from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Llm(nn.Module):
    """A block with RMSNorm, causal attention and a gated MLP; attention written out."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, RMSNorm(width), RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        scores = (q @ k.transpose(2, 3)) / (c // self.heads) ** 0.5
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Dit(nn.Module):
    """A diffusion transformer's block: norms without weights, shifted, scaled and gated by
    functions of a condition."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.modulation(condition).unsqueeze(1).chunk(6, -1)
        )
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


def gathered(x):
    """The rows of every rank."""
    out = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x)
    return out


def scattered(x):
    """This rank's rows of the sum."""
    out = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x)
    return out


class SplitLlm(nn.Module):
    """A block over several ranks: heads and the MLP's width are split, rows are distributed in
    between (sequence parallel)."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        world = dist.get_world_size()
        self.heads, part = heads // world, width // world
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * part), nn.Linear(part, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * part), nn.Linear(4 * part, width, bias=False)

    def forward(self, x):
        h = gathered(self.norm1(x))
        t, b, _ = h.shape
        q, k, v = (
            y.reshape(t, b * self.heads, -1).transpose(0, 1) for y in self.qkv(h).chunk(3, -1)
        )
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        h = (scores.softmax(-1) @ v).transpose(0, 1).reshape(t, b, -1)
        x = x + scattered(self.out(h))
        return x + scattered(self.down(F.silu(self.up(gathered(self.norm2(x))))))


class SplitDit(nn.Module):
    """A diffusion transformer's block over several ranks: the condition comes from rank 0, its
    functions are computed in parts, sums are all-reduced."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.world = dist.get_world_size()
        self.heads, part = heads // self.world, width // self.world
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * part), nn.Linear(part, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * part), nn.Linear(4 * part, width, bias=False)
        self.modulation = nn.Linear(width, 6 * part)

    def forward(self, x, condition):
        condition = condition.clone()
        dist.broadcast(condition, 0)
        own = self.modulation(F.silu(condition))
        parts = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(parts, own)
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            torch.cat(parts, -1).unsqueeze(1).chunk(6, -1)
        )
        b, t, _ = x.shape
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(h).chunk(3, -1))
        h = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(-1) @ v
        h = self.out(h.transpose(1, 2).reshape(b, t, -1))
        dist.all_reduce(h)
        x = x + gate1 * h
        h = self.down(F.gelu(self.up(self.norm2(x) * (1 + scale2) + shift2), approximate="tanh"))
        dist.all_reduce(h, group=dist.group.WORLD)
        return x + gate2 * h


def teach_gloo():
    """Gloo in torch 1.13 has neither of these; built from what it has."""
    gather, reduce = dist.all_gather, dist.all_reduce

    def into_tensor(output_tensor, input_tensor, group=None, async_op=False):
        parts = list(output_tensor.view(dist.get_world_size(group), *input_tensor.shape))
        return gather(parts, input_tensor, group, async_op)

    def scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = input.clone()
        reduce(whole, op, group)
        output.copy_(whole.view(-1, *output.shape)[dist.get_rank(group)])

    for name in ("all_gather_into_tensor", "_all_gather_base"):
        setattr(dist, name, into_tensor)
    for name in ("reduce_scatter_tensor", "_reduce_scatter_base"):
        setattr(dist, name, scatter_tensor)

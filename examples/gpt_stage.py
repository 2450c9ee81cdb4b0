"""One pipeline stage of a Llama-like GPT on one tensor-parallel rank, with Megatron-core's names.

``Stage(...).load_state_dict(helios.load_state_dict())`` fits strictly: what Helios serves for
(pp, tp) is exactly this module's state.
"""
from __future__ import annotations

import re
from typing import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from hf_llama import Config, attend, rms_norm, rope_tables, rotate
from parallel import (
    ColumnParallelLinear,
    Grid,
    RowParallelLinear,
    VocabParallelEmbedding,
    column_parallel,
    vocab_parallel_cross_entropy,
)

Shapes = Mapping[str, torch.Size]


class RMSNorm(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.eps = c.rms_norm_eps
        self.weight = nn.Parameter(torch.empty(c.hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


class SelfAttention(nn.Module):
    """Rows of linear_qkv: per query group its q heads, then k, then v; whole groups per rank."""

    def __init__(self, c: Config, prefix: str, shapes: Shapes, grid: Grid) -> None:
        super().__init__()
        self.c = c
        rows = shapes[f"{prefix}linear_qkv.weight"][0]
        self.linear_qkv = ColumnParallelLinear(c.hidden_size, rows, grid.tensor)
        columns = shapes[f"{prefix}linear_proj.weight"][1]
        self.linear_proj = RowParallelLinear(columns, c.hidden_size, grid.tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        share = self.c.num_attention_heads // self.c.num_key_value_heads
        qkv = self.linear_qkv(x).view(b, s, -1, share + 2, self.c.head)
        q = qkv[..., :share, :].flatten(2, 3).transpose(1, 2)
        k = qkv[..., share, :].transpose(1, 2)
        v = qkv[..., share + 1, :].transpose(1, 2)
        cos, sin = rope_tables(s, self.c.head, self.c.rope_theta)
        k = rotate(k, cos, sin).repeat_interleave(share, 1)
        out = attend(rotate(q, cos, sin), k, v.repeat_interleave(share, 1))
        return self.linear_proj(out.transpose(1, 2).reshape(b, s, -1))


class Mlp(nn.Module):
    """Rows of linear_fc1: this rank's gate rows, then its up rows."""

    def __init__(self, c: Config, prefix: str, shapes: Shapes, grid: Grid) -> None:
        super().__init__()
        rows = shapes[f"{prefix}linear_fc1.weight"][0]
        self.linear_fc1 = ColumnParallelLinear(c.hidden_size, rows, grid.tensor)
        self.linear_fc2 = RowParallelLinear(rows // 2, c.hidden_size, grid.tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.linear_fc1(x).chunk(2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, c: Config, prefix: str, shapes: Shapes, grid: Grid) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c)
        self.self_attention = SelfAttention(c, f"{prefix}self_attention.", shapes, grid)
        self.pre_mlp_layernorm = RMSNorm(c)
        self.mlp = Mlp(c, f"{prefix}mlp.", shapes, grid)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Stage(nn.Module):
    """Embedding (first stage), a run of layers, final norm and output layer (last stage).

    Sizes come from the shapes of this rank's tensors: any split that Helios serves is right here.
    """

    def __init__(self, c: Config, shapes: Shapes, grid: Grid) -> None:
        super().__init__()
        self.config, self.grid = c, grid
        norm = re.compile(r"decoder\.layers\.\d+\.input_layernorm\.weight")
        layers = sum(1 for name in shapes if norm.fullmatch(name))
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(
            Layer(c, f"decoder.layers.{i}.", shapes, grid) for i in range(layers)
        )
        if grid.first:
            rows = shapes["embedding.word_embeddings.weight"][0]
            self.embedding = nn.Module()
            self.embedding.word_embeddings = VocabParallelEmbedding(
                rows, c.hidden_size, grid.tp * rows, grid.tensor
            )
        if grid.last:
            self.decoder.final_layernorm = RMSNorm(c)
            if not (c.tie_word_embeddings and grid.first):
                rows = shapes["output_layer.weight"][0]
                self.output_layer = ColumnParallelLinear(c.hidden_size, rows, grid.tensor)

    def tied_weight(self) -> nn.Parameter | None:
        """This stage's copy of the tied embedding when other stages hold one too."""
        if not self.config.tie_word_embeddings or self.grid.embedding is None:
            return None
        if self.grid.first:
            return self.embedding.word_embeddings.weight
        return self.output_layer.weight if self.grid.last else None

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Tokens [b, s] (first stage) or hidden [b, s, h] in; hidden, or the loss (last), out."""
        if self.grid.first:
            x = self.embedding.word_embeddings(x)
        for layer in self.decoder.layers:
            x = layer(x)
        if not self.grid.last:
            return x
        x = self.decoder.final_layernorm(x)
        if hasattr(self, "output_layer"):
            logits = self.output_layer(x)
        else:
            weight = self.embedding.word_embeddings.weight
            logits = column_parallel(x, weight, self.grid.tensor)
        first = self.grid.tp * logits.shape[-1]
        return vocab_parallel_cross_entropy(
            logits.flatten(0, 1), targets.flatten(), first, self.config.vocab_size, self.grid.tensor
        )

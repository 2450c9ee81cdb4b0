"""A small Llama in plain PyTorch with Hugging Face's names, config and files, not sliced.

It makes the demo's checkpoint and is the reference that the sliced training is compared with.
"""
from __future__ import annotations

import ctypes
import json
import pathlib
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from helios import safetensors

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class Config:
    """The fields of config.json that a Llama needs; names are Hugging Face's."""

    vocab_size: int = 257
    hidden_size: int = 128
    intermediate_size: int = 352
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 128
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    head_dim: int = 0  # 0: hidden_size / num_attention_heads

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Config":
        known = {k: raw[k] for k in cls.__dataclass_fields__ if raw.get(k) is not None}
        known.setdefault("num_key_value_heads", known.get("num_attention_heads", 1))
        return cls(**known)

    def to_json(self, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "head_dim": self.head,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": str(dtype).removeprefix("torch."),
        }


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rope_tables(seq: int, head: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, both [seq, head], in rotate_half order."""
    inverse = theta ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
    angles = torch.outer(torch.arange(seq, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [..., seq, head]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention, all [batch, heads, seq, head]."""
    seq, head = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) * head**-0.5
    future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        c = self.c
        cos, sin = rope_tables(s, c.head, c.rope_theta)
        q = self.q_proj(x).view(b, s, -1, c.head).transpose(1, 2)
        k = self.k_proj(x).view(b, s, -1, c.head).transpose(1, 2)
        v = self.v_proj(x).view(b, s, -1, c.head).transpose(1, 2)
        share = c.num_attention_heads // c.num_key_value_heads
        k = rotate(k, cos, sin).repeat_interleave(share, 1)
        out = attend(rotate(q, cos, sin), k, v.repeat_interleave(share, 1))
        return self.o_proj(out.transpose(1, 2).reshape(b, s, -1))


class Mlp(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.eps = c.rms_norm_eps
        self.weight = nn.Parameter(torch.ones(c.hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


class Layer(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(c)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c)
        self.mlp = Mlp(c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """state_dict() has exactly the names of a Hugging Face LlamaForCausalLM."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.model.norm = Norm(c)
        if not c.tie_word_embeddings:
            self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def init_weights(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.data.copy_(0.02 * torch.randn(parameter.shape, generator=random))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, seq, vocabulary] of tokens [batch, seq]."""
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        x = self.model.norm(x)
        tied = self.config.tie_word_embeddings
        return F.linear(x, self.model.embed_tokens.weight if tied else self.lm_head.weight)

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy over all tokens, in nats."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


def save(model: Llama, out: pathlib.Path, dtype: torch.dtype = torch.float32) -> int:
    """Write config.json and model.safetensors; returns the bytes of the latter."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(model.config.to_json(dtype), indent=2) + "\n")
    names = {value: key for key, value in DTYPES.items()}
    tensors = []
    for name, tensor in model.state_dict().items():
        stored = tensor.to(dtype).contiguous()
        raw = ctypes.string_at(stored.data_ptr(), stored.numel() * stored.element_size())
        tensors.append((name, names[dtype], tuple(tensor.shape), raw))
    with open(out / "model.safetensors", "wb") as file:
        return safetensors.write(file, tensors, {"format": "pt"})


def load_tensors(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    """All tensors of a Hugging Face directory (one file or several), as stored."""
    out = {}
    for path in sorted(directory.glob("*.safetensors")):
        header = safetensors.read_header(path)
        data = bytearray(path.read_bytes())
        for entry in header.entries.values():
            piece = data[header.data_start + entry.begin : header.data_start + entry.end]
            out[entry.name] = torch.frombuffer(piece, dtype=DTYPES[entry.dtype]).view(entry.shape)
    if not out:
        raise SystemExit(f"{directory} has no *.safetensors")
    return out


def load(directory: pathlib.Path) -> Llama:
    """The model of a Hugging Face directory, computing in fp32 whatever it is stored in."""
    raw = json.loads((directory / "config.json").read_text())
    model = Llama(Config.from_json(raw))
    wanted = set(model.state_dict())
    tensors = {k: v.float() for k, v in load_tensors(directory).items() if k in wanted}
    model.load_state_dict(tensors)
    return model

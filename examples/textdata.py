"""Real text as training batches: bytes of files, cut the same way for every run.

A token is a byte; number 256 separates documents, so the vocabulary has 257 entries. The batch of a
step is a function of the step alone: a resumed run sees what the undisturbed one would have seen.
"""
from __future__ import annotations

import pathlib
from typing import Sequence

import torch

SEPARATOR = 256
VOCABULARY = 257
LICENSES = pathlib.Path("/usr/share/common-licenses")  # English prose on every Debian


def load_tokens(paths: Sequence[str] = ()) -> torch.Tensor:
    """All tokens, int64, of the given files (default: the licence texts of Debian)."""
    if paths:
        files = [pathlib.Path(p) for p in paths]
    else:
        # The names without a version are links to the newest one.
        files = sorted(p for p in LICENSES.glob("*") if p.is_file() and not p.is_symlink())
    tokens: list[int] = []
    for file in files:
        tokens.extend(file.read_bytes())
        tokens.append(SEPARATOR)
    if len(tokens) < 2:
        where = ", ".join(map(str, paths)) or str(LICENSES)
        raise SystemExit(f"no text in {where}: name a file with --text")
    return torch.tensor(tokens, dtype=torch.int64)


def batch(
    tokens: torch.Tensor, step: int, size: int, seq: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one step, both [size, seq] int64."""
    if len(tokens) <= seq:
        raise SystemExit(f"the text has {len(tokens)} tokens, sequences of {seq} need more")
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(0, len(tokens) - seq, (size,), generator=random)
    windows = tokens[starts[:, None] + torch.arange(seq + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

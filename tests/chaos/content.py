"""The expected bytes of every committed version:
computed from the seed and an independent slicer."""
from __future__ import annotations

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402

Rank = dict[str, bytes]  # tensor name -> bytes
Content = dict[tuple[int, int], Rank]  # (pp, tp) -> tensors


def saved_bytes(seed: str, pp: int, tp: int, name: str, size: int) -> bytes:
    """What a rank of the save phase writes (tests/chaos/saver.py)."""
    return random.Random(f"{seed}/{pp}/{tp}/{name}").randbytes(size)


def imported(directory: pathlib.Path, raw: Rank, tp: int, pp: int) -> Content:
    """The slices of a checkpoint that checkpoints.llama wrote."""
    import torch
    from support import slicer

    config = json.loads((directory / "config.json").read_text())
    header, _ = checkpoints.read(directory / "model.safetensors")
    # int32: bytes are only moved, and random floats include many NaNs
    hf = {
        name: torch.frombuffer(bytearray(data), dtype=torch.int32).view(header[name]["shape"])
        for name, data in raw.items()
    }
    return {
        place: {
            name: tensor.numpy().tobytes()
            for tensors in parts.values()
            for name, tensor in tensors.items()
        }
        for place, parts in slicer.slice_model(hf, config, tp, pp).items()
    }


def saved(like: Content, seed: str) -> Content:
    """The content of a version that saver.py wrote over a model with the shapes of `like`."""
    return {
        (pp, tp): {
            name: saved_bytes(seed, pp, tp, name, len(data)) for name, data in tensors.items()
        }
        for (pp, tp), tensors in like.items()
    }


def difference(got: pathlib.Path, want: Rank) -> str:
    """ "" if a pulled file holds exactly `want`, else the first difference."""
    _, tensors = checkpoints.read(got)
    if set(tensors) != set(want):
        return f"tensors {sorted(set(tensors) ^ set(want))[:3]} are not in both"
    for name, data in want.items():
        if tensors[name] != data:
            first = next(
                (i for i, (a, b) in enumerate(zip(tensors[name], data)) if a != b),
                min(len(data), len(tensors[name])),
            )
            return f"{name} differs from byte {first}"
    return ""

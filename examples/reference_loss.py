#!/usr/bin/python3
"""Loss of the unsliced Hugging Face model on the batches of train_gpt.py, to compare with.

    reference_loss.py --dir HF_DIRECTORY [--steps 0] [--batch 8] [--lr 1e-3] ...

Prints {"step": 0, "loss": ...}; with --steps N, one line for each step of the undisturbed training.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import torch  # noqa: E402

import adamw  # noqa: E402
import hf_llama  # noqa: E402
import textdata  # noqa: E402


def curve(
    directory: pathlib.Path,
    steps: int,
    batch: int,
    lr: float,
    seq: int = 0,
    seed: int = 0,
    text: list[str] | None = None,
) -> list[float]:
    """Losses of steps 0..steps, each before the update of its step."""
    model = hf_llama.load(directory)
    tokens = textdata.load_tokens(text or [])
    seq = seq or model.config.max_position_embeddings
    optimizer = adamw.make(dict(model.named_parameters()), lr)
    losses = []
    for step in range(steps + 1):
        loss = model.loss(*textdata.batch(tokens, step, batch, seq, seed))
        losses.append(loss.item())
        if step < steps:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=0, help="updates to make")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", action="append", default=[])
    args = parser.parse_args()
    torch.set_num_threads(1)
    losses = curve(args.dir, args.steps, args.batch, args.lr, args.seq, args.seed, args.text)
    for step, loss in enumerate(losses):
        print(json.dumps({"step": step, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()

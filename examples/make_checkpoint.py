#!/usr/bin/python3
"""Make a small Hugging Face checkpoint by training a Llama briefly on real text.

    make_checkpoint.py --out DIR [--steps 40] [--seed 1] [--size tiny] [--dtype fp32]
"""
from __future__ import annotations

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import torch  # noqa: E402

import hf_llama  # noqa: E402
import textdata  # noqa: E402

SIZES = {
    "tiny": hf_llama.Config(),
    "mini": hf_llama.Config(hidden_size=64, intermediate_size=176, max_position_embeddings=64),
}
DTYPE_NAMES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory to write")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--dtype", choices=sorted(DTYPE_NAMES), default="fp32")
    parser.add_argument("--tied", action="store_true", help="tie embedding and output layer")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--text", action="append", default=[], help="file to train on, repeatable")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    size = SIZES[args.size]
    if args.tied:
        size = hf_llama.Config(**{**vars(size), "tie_word_embeddings": True})
    model = hf_llama.Llama(size)
    model.init_weights(args.seed)
    tokens = textdata.load_tokens(args.text)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    started = time.monotonic()
    for step in range(args.steps):
        # Another seed than the training's batches, or its first loss would be one already seen.
        loss = model.loss(
            *textdata.batch(
                tokens, step, args.batch, size.max_position_embeddings, seed=1000 + args.seed
            )
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / 10)
        optimizer.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step:4}  loss {loss.item():.4f}", flush=True)
    written = hf_llama.save(model, args.out, DTYPE_NAMES[args.dtype])
    print(
        f"{args.out}: {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{written:,} bytes, {time.monotonic() - started:.1f} s"
    )


if __name__ == "__main__":
    main()

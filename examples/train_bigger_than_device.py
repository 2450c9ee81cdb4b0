#!/usr/bin/python3
"""Train a GPT whose model data is four times the (emulated) device, with a plain training loop.

    ./run build && /usr/bin/python3 examples/train_bigger_than_device.py

Prints the losses, whether they equal plain torch's bit for bit (--no-check saves the time for
that), the time of a step of both, a picture of the device's memory over one iteration, and the
bytes that moved. Model data are parameters, gradients and Adam's two states: 16 bytes per float32
parameter.
"""
from __future__ import annotations

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import hybridps  # noqa: E402

VOCAB, SEQUENCE = 512, 64
LETTERS = {"param": "p", "grad": "g", "p32": "3", "momentum": "m", "variance": "v", "other": "o"}


class Gpt(nn.Module):
    """Tokens (batch, SEQUENCE) to logits (batch, SEQUENCE, VOCAB)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCAB, width), nn.Embedding(SEQUENCE, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 32, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(SEQUENCE, device=tokens.device))
        mask = torch.full((SEQUENCE, SEQUENCE), float("-inf"), device=tokens.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))


def batch(generator: torch.Generator) -> torch.Tensor:
    """Tokens (8, SEQUENCE + 1)."""
    start = torch.randint(0, VOCAB, (8, 1), generator=generator)
    return (start + 7 * torch.arange(SEQUENCE + 1)) % VOCAB


def step(model: nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> torch.Tensor:
    """One step; returns the loss before it. Nothing here depends on managed memory."""
    optimizer.zero_grad(set_to_none=True)
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> tuple[list, float]:
    """Losses, and the seconds of the fastest step."""
    generator = torch.Generator().manual_seed(1)
    losses, best = [], float("inf")
    for _ in range(steps):
        text = batch(generator)
        begun = time.perf_counter()
        loss = step(model, optimizer, text)
        best = min(best, time.perf_counter() - begun)
        losses.append(loss.item())
    return losses, best


def make(args: argparse.Namespace) -> tuple[Gpt, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Gpt(args.width, args.layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


class Picture:
    """Bytes on the device at every moment of the newest iteration."""

    def __init__(self) -> None:
        self.client: hybridps.Client | None = None
        self.moments: list[dict] = []
        self.iteration = 0

    def sample(self) -> int:
        """Called at each moment: how many bytes of the device are used by others. Here none."""
        if self.client is not None:
            iteration, by_kind = self.client.device_by_kind()
            if iteration != self.iteration:
                self.iteration, self.moments = iteration, []
            self.moments.append(by_kind)
        return 0

    def draw(self, capacity: int, columns: int = 72, rows: int = 10) -> None:
        """p = parameters, g = gradients; from the first moment (left) to the last."""
        step = max(1, -(-len(self.moments) // columns))
        wide = max(1, columns // len(self.moments))
        shown = [kinds for kinds in self.moments[::step] for _ in range(wide)]
        for row in range(rows, 0, -1):
            line = ""
            for kinds in shown:
                height, letter = 0, " "
                for kind, size in kinds.items():
                    height += size
                    if height * rows > (row - 1) * capacity and height and letter == " ":
                        letter = LETTERS[kind]
                line += letter
            print(f"{capacity * row / rows / 2**20:7.1f} MiB |{line}")
        print(f"{'0':>11} +{'-' * len(shown)}  {len(self.moments)} moments")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--times", type=float, default=4, help="how many times the device memory the model data are"
    )
    parser.add_argument("--policy", default="opt", help="opt, lru, fifo, heat or random")
    parser.add_argument("--mode", default="copy", help="copy or move")
    parser.add_argument("--no-check", action="store_true", help="don't train in plain torch too")
    args = parser.parse_args()

    model, optimizer = make(args)
    count = sum(p.numel() for p in model.parameters())
    capacity = int(16 * count / args.times)
    picture = Picture()
    with hybridps.manage(
        model,
        optimizer,
        device=f"emu:{capacity}",
        policy=args.policy,
        mode=args.mode,
        reserved_bytes=picture.sample,
    ) as client:
        picture.client = client
        losses, seconds = train(model, optimizer, args.steps)
        stats = client.stats()
    print(
        f"{count / 1e6:.1f} M parameters: {16 * count / 2**20:.0f} MiB of model data on a device "
        f"of {capacity / 2**20:.0f} MiB"
    )
    print("losses", *(f"{loss:.4f}" for loss in losses))
    print(f"fastest step {seconds * 1e3:.0f} ms")
    if not args.no_check:
        expected, plain = train(*make(args), args.steps)
        print(
            f"plain torch {plain * 1e3:.0f} ms, losses",
            "bit-equal" if losses == expected else "DIFFERENT",
        )
        if losses != expected:
            sys.exit(1)
    picture.draw(stats["capacity"])
    last, floor = stats["last"], 4 * count
    print(
        f"per iteration: {last['h2d'] / 2**20:.1f} MiB to the device, "
        f"{last['d2h'] / 2**20:.1f} MiB back (parameters, and gradients: {floor / 2**20:.1f} MiB "
        f"each way at least); peak {stats['device_peak'] / 2**20:.1f} MiB of "
        f"{stats['capacity'] / 2**20:.1f}"
    )


if __name__ == "__main__":
    main()

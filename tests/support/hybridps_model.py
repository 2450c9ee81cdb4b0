"""A small GPT, the loop that trains it, and plain torch's result to compare managed runs with."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "python"))
import hybridps  # noqa: E402

VOCAB, WIDTH, SEQUENCE, LAYERS, STEPS = 128, 64, 16, 4, 20
FEW = 8  # steps of a row that differs little from another: two more than training plans ahead
CHUNK = 64 << 10
SIZES = (1, 0.6, 0.35)  # of the bytes of parameters, gradients and optimizer state


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, *, causal):
        b, t, c = x.shape
        q, k, v = (
            h.view(b, t, 4, c // 4).transpose(1, 2) for h in self.qkv(self.ln1(x)).split(c, 2)
        )
        scores = q @ k.transpose(2, 3) / (c // 4) ** 0.5
        scores = scores.masked_fill(causal, float("-inf")).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, c))
        h = self.up(self.ln2(x)).relu_()  # a layer's output changed in place
        return {"hidden": x + self.down(h)}


class Gpt(nn.Module):
    def __init__(self, tied=False, checkpointing=None, frozen=False):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.checkpointing = checkpointing
        if tied:
            self.head.weight = self.token.weight
        if frozen:
            self.place.weight.requires_grad_(False)
            self.blocks[1].up.weight.requires_grad_(False)
        causal = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
        self.register_buffer("causal", causal)

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                run = lambda h, block=block: block(h, causal=self.causal)["hidden"]  # noqa: E731
                x = checkpoint(run, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = block(x, causal=self.causal)["hidden"]
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return {"loss": F.cross_entropy(logits.float().view(-1, VOCAB), targets.reshape(-1))}


def batches(count):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        tokens = torch.randint(0, VOCAB, (4, SEQUENCE + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def make(seed=3, dtype=torch.float32, **shape):
    torch.manual_seed(seed)
    return Gpt(**shape).to(dtype)


def train(
    model,
    optimizer,
    steps=STEPS,
    accumulate=1,
    clip=None,
    evaluate=False,
    scheduler=None,
    zeros=False,
):
    """The loop of a user who knows nothing of managed memory."""
    losses = []
    data = batches(steps * accumulate)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=not zeros or step % 2 == 0)
        for _ in range(accumulate):
            x, y = next(data)
            loss = model(x, targets=y)["loss"]
            loss.backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        if evaluate and step % 5 == 2:
            model.eval()
            with torch.no_grad():
                losses.append(model(x, targets=y)["loss"].item())
            model.train()
    return losses


def adam(model, kind=torch.optim.Adam):
    return kind(model.parameters(), lr=1e-3, weight_decay=0.01)


def model_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


class Watch:
    """Checks every moment, and compares the bytes of each iteration with those of the recorded
    trace."""

    def __init__(self, test, reserved_bytes=lambda client: 0):
        self.test, self.reserved_bytes, self.client = test, reserved_bytes, None
        self.bytes = {}

    def moment(self):
        """A client's reserved_bytes."""
        if self.client is None:
            return 0
        s = self.client.stats()
        self.test.assertLessEqual(s["device"], s["avail"])
        self.bytes[s["iterations"] - 1] = (s["last"]["h2d"], s["last"]["d2h"])
        self.deviations = s["deviations"]
        return self.reserved_bytes(self.client)

    def compare(self, mode, native=True):
        """From iteration 1 on, every iteration moves exactly the bytes that opt moves on the
        recorded trace, planned as in training. In the last iterations the end is known, which can
        save a little."""
        last = self.client.stats()
        self.bytes[last["iterations"]] = (last["iteration"]["h2d"], last["iteration"]["d2h"])
        # of iterations 0, 1, ...
        live = [moved for number, moved in sorted(self.bytes.items()) if number > 0]
        self.test.assertEqual(len(live), last["iterations"])
        self.test.assertGreater(len(live), 4)
        if native:
            self.test.assertEqual(self.deviations, 0)
        self.test.assertEqual(live[1:], self.replay(mode, len(live), "--ahead", "6")[1:])
        known = self.replay(mode, len(live))
        self.test.assertLessEqual(sum(map(sum, live[1:-1])), 1.01 * sum(map(sum, known[1:-1])))

    def replay(self, mode, iterations, *options):
        trace = json.loads(self.client.trace("train"))
        trace["iterations"] = iterations
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(trace, file)
            file.flush()
            out = subprocess.run(
                [
                    BUILD / "bin" / "helios",
                    "mem",
                    "replay",
                    file.name,
                    "--policy",
                    "opt",
                    "--mode",
                    mode,
                    "-o",
                    "json",
                    *options,
                ],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        self.test.assertEqual(json.loads(out)["peak_over_avail"], 0)
        return [(i["h2d"], i["d2h"]) for i in json.loads(out)["per_iter"]]


class Case:
    """Plain torch's losses and final values, computed once; then any number of managed runs to
    compare."""

    def __init__(
        self,
        test,
        optimizer=adam,
        native=False,
        dtype=torch.float32,
        shape=None,
        where="host",
        **loop,
    ):
        self.test, self.optimizer, self.native, self.dtype = test, optimizer, native, dtype
        self.where = where  # where native steps run
        self.shape, self.loop = shape or {}, loop
        model = make(dtype=dtype, **self.shape)
        self.bytes = model_bytes(model) * 4
        self.losses = train(model, optimizer(model), **loop)
        self.end = {k: v.clone() for k, v in model.state_dict().items()}

    def run(self, capacity, mode="copy", policy="opt", reserved_bytes=lambda client: 0):
        model = make(dtype=self.dtype, **self.shape)
        optimizer = self.optimizer(model)
        watch = Watch(self.test, reserved_bytes)
        with hybridps.manage(
            model,
            optimizer,
            device=f"emu:{int(capacity)}",
            mode=mode,
            policy=policy,
            native=self.native,
            chunk_bytes=CHUNK,
            optimizer_device=self.where,
            reserved_bytes=watch.moment,
        ) as client:
            watch.client = client
            losses = train(model, optimizer, **self.loop)
            stats = client.stats()
            if policy == "opt" and not self.loop.get("evaluate") and not self.loop.get("zeros"):
                watch.compare(mode, self.native)  # before anything is read
            self.same(losses, model.state_dict(), f"{capacity} bytes, {mode}, {policy}")
        self.test.assertEqual(stats["peak_over_avail"], 0)
        self.test.assertLessEqual(stats["device_peak"], stats["capacity"])
        self.same(losses, model.state_dict(), "after the end of managing")
        return stats

    def minimum(self):
        """The most bytes that are pinned at once: a device of this size must suffice."""
        pinned = [0]
        model = make(dtype=self.dtype, **self.shape)
        optimizer = self.optimizer(model)
        with hybridps.manage(
            model,
            optimizer,
            device=f"emu:{self.bytes * 4}",
            native=self.native,
            chunk_bytes=CHUNK,
            optimizer_device=self.where,
        ) as client:
            access = client.state.pool.access

            def measured(group):
                access(group)
                pinned[0] = max(pinned[0], client.stats()["pinned"])

            client.state.pool.access = measured
            train(model, optimizer, **{**self.loop, "steps": 1})
        return pinned[0]

    def everywhere(self, most=0.2):
        """A row of the matrix: 100, 60, 35 % of the model's data, and the minimum that works."""
        for part in SIZES:
            self.run(self.bytes * part)
        minimum = self.minimum()
        self.test.assertLess(minimum, self.bytes * most)
        tight = self.run(minimum)
        self.test.assertGreater(tight["last"]["evictions"], 0)
        self.run(minimum, mode="move", policy="lru")

    def same(self, losses, state, where):
        self.test.assertEqual(losses, self.losses, where)
        self.test.assertEqual(list(state), list(self.end), where)
        for name, value in state.items():
            self.test.assertTrue(torch.equal(value, self.end[name]), f"{name}: {where}")

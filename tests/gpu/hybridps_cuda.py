#!/usr/bin/python3
"""HybridPS on a CUDA device against plain torch: \
losses and parameters to the bit, at several capacities.

    tests/gpu/hybridps_cuda.py [--device cuda:0] [--width 512] [--layers 4] [--steps 6]

Each row trains a GPT twice: plain, and managed on a device that holds 105, 50 or 25 % of the model
data. The plain one steps where the managed one does: on the device, or on the host between two
passes. Ends with 1 if anything differs."""
from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import time
import traceback
from typing import Any, Iterator

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import needs  # noqa: E402

torch = needs.torch()
sys.path.append(str(needs.ROOT / "examples"))
import hybridps  # noqa: E402
from train_bigger_than_device import Gpt, batch  # noqa: E402

GRANULE = 2 << 20


def deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def move(params: list, device: Any) -> None:
    """Values and gradients, as a managed parameter's go between passes."""
    for p in params:
        grad, p.grad = p.grad, None
        p.data = p.data.to(device)
        p.grad = None if grad is None else grad.to(device)


@contextlib.contextmanager
def exact_roots(on: bool) -> Iterator[None]:
    """Roots of arrays are rounded right, as native Adam's are. MKL's, which torch takes where it
    was built with it, are not for one element in 160."""
    root = torch.Tensor.sqrt
    if on:
        # A root's second rounding changes nothing.
        torch.Tensor.sqrt = lambda t: root(t.double()).to(t.dtype)
    try:
        yield
    finally:
        torch.Tensor.sqrt = root


class Trainer:
    """A model with its optimizer. host: it is plain, and steps on the host."""

    def __init__(
        self,
        args: Any,
        make_optimizer: Any,
        dtype: Any,
        host: bool = False,
        native: bool = False,
        masters: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.model = Gpt(args.width, args.layers).to(args.device, dtype)
        self.params = list(self.model.parameters())
        self.device, self.host, self.native = args.device, host, native
        if host:
            move(self.params, "cpu")
        # Of 16 bits: native Adam keeps values of 32, and here the plain one does.
        self.stepped = self.params
        if masters:
            self.stepped = [torch.nn.Parameter(p.detach().float()) for p in self.params]
        self.optimizer = make_optimizer(self.stepped)
        self.generator = torch.Generator().manual_seed(1)

    def step(self) -> Any:
        text = batch(self.generator).to(self.device)
        for p in self.params if self.stepped is not self.params else ():
            p.grad = None
        self.optimizer.zero_grad(set_to_none=True)
        if self.host:
            move(self.params, self.device)
        logits = self.model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), text[:, 1:].flatten()
        )
        loss.backward()
        if self.host:
            move(self.params, "cpu")
        with exact_roots(self.host and self.native):
            self.step_by_masters() if self.stepped is not self.params else self.optimizer.step()
        return loss.detach()

    def step_by_masters(self) -> None:
        for master, p in zip(self.stepped, self.params):
            master.grad = p.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.stepped, self.params):
                p.copy_(master)

    def train(self, steps: int) -> tuple[list[float], list]:
        losses = [self.step().item() for _ in range(steps)]
        return losses, [p.detach().cpu().clone() for p in self.params]


OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False), {}),
    "adam wd": (lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1, foreach=False), {}),
    "adamw as it is": (lambda p: torch.optim.AdamW(p, lr=1e-3), {}),
    "sgd": (lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), {}),
    "adamw not native": (lambda p: torch.optim.AdamW(p, lr=1e-3), {"native": False}),
    "adamw on the host": (lambda p: torch.optim.AdamW(p, lr=1e-3), {"optimizer_device": "host"}),
    "adamw on the device": (
        lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
        {"optimizer_device": "device"},
    ),
}
WAYS: list[tuple[float, dict]] = [
    (1.05, {}),
    (0.5, {}),
    (0.25, {}),
    (0.5, {"policy": "lru"}),
    (0.25, {"mode": "move"}),
    (0.25, {"prefetch": 0}),
    (0.5, {"policy": "random", "chunk_bytes": GRANULE}),
]


def cases() -> Iterator[tuple[str, float, dict, Any]]:
    for name in OPTIMIZERS:
        for share in (1.05, 0.5, 0.25):
            yield name, share, {}, torch.float32
    for share, way in WAYS[3:]:
        yield "adamw", share, way, torch.float32
        yield "adamw on the device", share, way, torch.float32
    for share in (1.05, 0.5):
        yield "adamw", share, {}, torch.bfloat16
        yield "adamw", share, {"gradients": "reuse"}, torch.bfloat16


def furthest(one: list, other: list) -> float:
    return max(
        ((a.double() - b.double()).norm() / (a.double().norm() + 1e-30)).item()
        for a, b in zip(one, other)
    )


def compare(
    args: Any, name: str, share: float, way: dict, dtype: Any, known: dict
) -> tuple[bool, str]:
    make, options = OPTIMIZERS[name]
    managed = Trainer(args, make, dtype)
    data = 16 * sum(p.numel() for p in managed.params)
    capacity = -(-int(share * data) // GRANULE) * GRANULE
    began = time.perf_counter()
    with hybridps.manage(
        managed.model,
        managed.optimizer,
        device=f"{args.device}:{capacity}",
        manager="none",
        spill="none",
        **{**options, **way},
    ) as client:
        on_device = any(s.on_device for s in client.state.optimizers)
        losses = [managed.step().item() for _ in range(args.steps)]
        stats = client.stats()
    took = time.perf_counter() - began
    where = {p.device.type for p in managed.params}
    values = [p.detach().cpu() for p in managed.params]
    native = options.get("native", True)
    key = (name, dtype, on_device)
    if key not in known:
        known[key] = Trainer(
            args, make, dtype, not on_device, native, masters=dtype is not torch.float32
        ).train(args.steps)
    expected, wanted = known[key]
    same = losses == expected and all(torch.equal(a, b) for a, b in zip(values, wanted))
    far = furthest(wanted, values)
    facts = (
        f"{'device' if on_device else 'host':6}"
        f" {'bit-equal' if same else f'DIFFERENT by {far:.1e}'} in"
        f" {took:.1f} s, {stats['last']['h2d'] / data:.2f} and {stats['last']['d2h'] / data:.2f} of"
        " the model data moved in a step"
    )
    if where != {"cuda"}:
        return False, facts + f"; parameters came back on {where}"
    return same, facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="", help="rows with this in their name")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        needs.skip("torch sees no GPU")
    deterministic()
    wrong, known = 0, {}
    for name, share, way, dtype in cases():
        text = (
            f"{name}, {share:.0%}{''.join(f', {k} {v}' for k, v in way.items())}, {str(dtype)[6:]}"
        )
        if args.only not in text:
            continue
        try:
            ok, facts = compare(args, name, share, way, dtype, known)
        except Exception as error:  # the other rows are worth having
            ok, facts = False, f"{type(error).__name__}: {str(error)[:600]}"
            traceback.print_exc(limit=-6)
        wrong += not ok
        print(f"  {text:58} {facts}{'' if ok else '  WRONG'}", flush=True)
    print(f"hybridps on {torch.cuda.get_device_name(0)}: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

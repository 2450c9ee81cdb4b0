#!/usr/bin/python3
"""Train a Llama-like GPT with tensor, pipeline and data parallelism on weights that Helios serves.

    helios submit examples/job.yaml

Every rank pulls its own slices (helios.load_state_dict), trains, and every --save-every steps
writes parameters and optimizer state back as a new version (helios.save_state_dict). A gang that
starts from such a version continues at the next step, on the same loss curve. With `recovery:
{mode: replace}` in the job file only a lost rank is restarted, and the others meet it again
(helios.elastic).

Lines for programs: HELIOS_PULL {...} once per rank, HELIOS_PROGRESS {...} per step and HELIOS_SAVED
{...} per version from the rank that has the loss. The loss of a step is the one before its update.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import signal
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import adamw  # noqa: E402
import helios  # noqa: E402
import helios.elastic  # noqa: E402
import textdata  # noqa: E402
from maco import MacoError  # noqa: E402
from gpt_stage import Stage  # noqa: E402
from hf_llama import Config  # noqa: E402
from parallel import Grid, RowParallelLinear, all_reduce, make_grid  # noqa: E402
from pipeline import MicroBatch, Schedule  # noqa: E402


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps",
        type=int,
        default=60,
        help="total number of updates, including those before a restart",
    )
    parser.add_argument("--save-every", type=int, default=20, help="0 = never write back")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step, whole gang")
    parser.add_argument("--micro-batches", type=int, default=4, help="pipeline depth of one step")
    parser.add_argument("--seq", type=int, default=0, help="tokens per sequence (0: the model's)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the text")
    parser.add_argument("--text", action="append", default=[], help="file to train on, repeatable")
    parser.add_argument(
        "--overlap",
        choices=("off", "maco", "serial"),
        default="off",
        help=(
            "maco: sums over tensor ranks run while the next chunk is computed; "
            "serial: the same chunks one after the other, for comparison"
        ),
    )
    parser.add_argument(
        "--overlap-chunks", default="auto", metavar="N", help="of tokens; auto: measured"
    )
    parser.add_argument("--timeout", type=float, default=60, help="seconds to wait for a peer")
    return parser.parse_args(argv)


def report(kind: str, **values: Any) -> None:
    print(f"HELIOS_{kind} {json.dumps(values)}", flush=True)


class Trainer:
    """State of one rank: its stage, its optimizer, the step it is at."""

    def __init__(self, args: argparse.Namespace, version: int) -> None:
        self.args, self.me = args, helios.rank()
        share = args.batch // self.me.dp_size
        if share < 1 or args.batch % self.me.dp_size or share % args.micro_batches:
            raise SystemExit(
                f"--batch {args.batch} does not divide into {self.me.dp_size} data "
                f"ranks x {args.micro_batches} micro-batches"
            )
        self.tokens = textdata.load_tokens(args.text)
        helios.session()  # kept when the gang meets again
        me = self.me
        self.grid: Grid = make_grid(
            me.global_rank, me.world_size, me.pp, me.tp, me.dp, args.timeout
        )
        self._pull(version)

    def _pull(self, version: int) -> None:
        """Weights, and optimizer state if the version has one, into this rank's modules."""
        started = time.monotonic()
        pulled = helios.load_state_dict(version=version)
        moments = helios.load_state_dict(version=version, kind="optim")
        seconds, stats, meta = time.monotonic() - started, helios.stats(), helios.meta()
        self.config = Config.from_json(dict(helios.hugging_face_config(helios.model_config())))
        self.seq = self.args.seq or self.config.max_position_embeddings
        if self.config.vocab_size < textdata.VOCABULARY:
            raise SystemExit(
                f"the model's vocabulary of {self.config.vocab_size} is too small for "
                f"{textdata.VOCABULARY} byte tokens: make_checkpoint.py makes one"
            )
        try:
            self.stage = Stage(self.config, {n: t.shape for n, t in pulled.items()}, self.grid)
            self.stage.load_state_dict(pulled)
        except (KeyError, RuntimeError) as error:
            raise SystemExit(
                "this example trains Llama models imported with --naming local and "
                f"one chunk per stage; these tensors do not fit: {error}"
            ) from None
        if self.args.overlap != "off":
            chunks = self.args.overlap_chunks
            schedule = {"maco": "overlap"}.get(self.args.overlap, self.args.overlap)
            for module in self.stage.modules():
                if isinstance(module, RowParallelLinear):
                    module.overlap(int(chunks) if chunks.isdigit() else chunks, schedule)
        self.parameters = dict(self.stage.named_parameters())
        self.optimizer = adamw.make(self.parameters, self.args.lr)
        self.step = int(meta.get("step", 0)) if moments else 0
        if moments:
            adamw.import_state(self.optimizer, self.parameters, moments, self.step)
            if meta.get("seed", self.args.seed) != self.args.seed:
                raise SystemExit(f"this version was trained with --seed {meta['seed']}: use it too")
        report(
            "PULL",
            rank=self.me.global_rank,
            pp=self.me.pp,
            tp=self.me.tp,
            dp=self.me.dp,
            version=version,
            step=self.step,
            tensors=len(pulled) + len(moments),
            path=stats["path"],
            bytes=stats["read_bytes"],
            seconds=round(seconds, 6),
            gb_per_s=round(stats["read_bytes"] / max(1, stats["read_ns"]), 3),
            crc_failures=stats["crc_failures"],
            retries=stats["retries"],
        )

    def _batches(self) -> list[MicroBatch]:
        """This data rank's share of the step's batch, cut into micro-batches."""
        inputs, targets = textdata.batch(
            self.tokens, self.step, self.args.batch, self.seq, self.args.seed
        )
        mine = slice(self.me.dp, None, self.me.dp_size)
        count = self.args.micro_batches
        return list(zip(inputs[mine].chunk(count), targets[mine].chunk(count)))

    def _reduce_gradients(self) -> None:
        """Mean over data ranks; sum of the two copies of a tied embedding."""
        if self.grid.data is not None:
            gradients = [p.grad for p in self.parameters.values()]
            flat = all_reduce(torch.cat([g.flatten() for g in gradients]), self.grid.data)
            flat.div_(self.me.dp_size)
            for gradient, piece in zip(gradients, flat.split([g.numel() for g in gradients])):
                gradient.copy_(piece.view_as(gradient))
        tied = self.stage.tied_weight()
        if tied is not None:
            all_reduce(tied.grad, self.grid.embedding)

    def train_step(self) -> float:
        """One update. Returns the batch's mean loss on ranks of the last stage, 0 elsewhere."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = Schedule(self.stage, self._batches()).run()
        self._reduce_gradients()
        self.optimizer.step()
        self.step += 1
        mean = all_reduce(loss, self.grid.data).item() / self.me.dp_size
        if not math.isfinite(mean):
            raise RuntimeError(f"the loss of step {self.step - 1} is {mean}: use a smaller --lr")
        return mean

    def save(self, loss: float) -> None:
        """Parameters and optimizer state as a new version; rank 0's meta needs the loss."""
        value = torch.tensor(loss, dtype=torch.float64)
        dist.broadcast(value, self.grid.reporter)
        # A bf16 model is trained in fp32.
        saved = helios.save_state_dict(
            {name: p.data for name, p in self.parameters.items()},
            self.step,
            meta={
                "step": self.step,
                "loss": value.item(),
                "seed": self.args.seed,
                "job": self.me.job,
            },
            # The same on every data rank, so that rank 0 saves it for all.
            optim=adamw.export_state(self.optimizer, self.parameters) if self.me.dp == 0 else None,
            any_dtype=True,
        )
        dist.barrier()  # now every rank has committed: the version is visible
        if self.me.global_rank == self.grid.reporter:
            report(
                "SAVED",
                version=saved.version,
                step=self.step,
                rank_bytes=saved.bytes,
                seconds=round(saved.seconds, 6),
            )

    def run(self) -> None:
        args, speaks = self.args, self.me.global_rank == self.grid.reporter
        if speaks and self.step:
            print(f"resumed at step {self.step}", flush=True)
        helios.activity("training")
        while self.step < args.steps:
            started = time.monotonic()
            step, loss = self.step, self.train_step()
            seconds = time.monotonic() - started
            helios.report(step, loss, args.batch * self.seq // self.me.dp_size)
            if speaks:
                speed = args.batch * self.seq / seconds
                print(f"step {step:5}  loss {loss:.4f}  {speed:,.0f} tokens/s", flush=True)
                report(
                    "PROGRESS", step=step, steps=args.steps, loss=loss, tokens_per_s=round(speed, 1)
                )
            if args.save_every and (self.step % args.save_every == 0 or self.step == args.steps):
                self.save(loss)


def train(args: argparse.Namespace, gang: helios.elastic.Gang) -> None:
    """Train from the gang's version to the last step;
    called again when the gang has lost a rank."""
    if gang.cause and gang.rank == 0:
        print(
            f"generation {gang.generation} goes on from version {gang.version}: {gang.cause}",
            flush=True,
        )
    Trainer(args, gang.version).run()
    dist.barrier()  # no rank leaves while a peer still communicates with it


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 failed, 143 stopped by SIGTERM."""
    args = arguments(argv)
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: (stopping.append(1), sys.exit(143)))
    torch.set_num_threads(1)
    try:
        helios.elastic.run(
            lambda gang: train(args, gang),
            timeout=args.timeout,
            warm=lambda: textdata.load_tokens(args.text),
        )
        status = 0
    except SystemExit:
        if not stopping:
            raise
        status = 143
    except (helios.HeliosError, MacoError, RuntimeError) as error:
        # When a gang is stopped, a rank may see a peer's closed connection before its own signal.
        status = 143 if stopping else 1
        if not stopping:
            where = f"rank {os.environ.get('GLOBAL_RANK', '0')}"
            print(f"train_gpt: {where}: {error}", file=sys.stderr, flush=True)
    finally:
        helios.close()
    return status


if __name__ == "__main__":
    code = main()
    if code == 143:
        sys.stdout.flush()
        # After a stop in the middle of a collective, torch may abort in the interpreter's shutdown.
        os._exit(code)
    sys.exit(code)

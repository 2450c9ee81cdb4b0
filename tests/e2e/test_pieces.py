#!/usr/bin/python3
"""Optimizer state that data-parallel ranks divide into ranges of elements, as Megatron's
distributed optimizer does, and extra state of modules, with real daemons: every reader gets what a
save of whole state would give."""
from __future__ import annotations

import io
import itertools
import math
import pathlib
import random
import sys
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints, dense_models  # noqa: E402
from support.megatron_optimizer import KINDS, Chunk, Distributed, FusedAdam  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

import helios.megatron  # noqa: E402
from helios import Piece, errors, megatron, safetensors  # noqa: E402

FC2 = "exp_avg.decoder.layers.1.mlp.linear_fc2.weight"


def same(a, b):
    return a.keys() == b.keys() and all(
        x.dtype == b[n].dtype
        and x.shape == b[n].shape
        and torch.equal(x.contiguous().view(torch.uint8), b[n].contiguous().view(torch.uint8))
        for n, x in a.items()
    )


def moments(state):
    """A function of each element's bits: the same at every layout."""
    return {
        f"{kind}.{name}": t.contiguous().view(torch.int32).add(i + 1).view(torch.float32)
        for i, kind in enumerate(KINDS)
        for name, t in state.items()
    }


def even(total, dp_size):
    """The bounds of ranks in a buffer, which is padded like Megatron's gradient buffers."""
    each = -(-total // dp_size)
    return [min(total, each * i) for i in range(dp_size + 1)]


def uneven(total, dp_size):
    inner = sorted(random.Random(total).sample(range(1, total), dp_size - 1))
    return [0, *inner, total]


def pieces(state, dp, dp_size, edges):
    """What data rank `dp` holds: its range of one buffer with all parameters,
    the last one first."""
    at, out = 0, {}
    whole = moments(state)
    low, high = edges(sum(t.numel() for t in state.values()), dp_size)[dp : dp + 2]
    for name, tensor in reversed(state.items()):
        start, end = max(0, low - at), min(tensor.numel(), high - at)
        if start < end:
            for kind in KINDS:
                flat = whole[f"{kind}.{name}"].reshape(-1)
                out[f"{kind}.module.{name}"] = Piece(flat[start:end], tensor.shape, start)
        at += tensor.numel()
    return out


# What a rank may do wrong with its pieces.


def holder(optim):
    return next(
        n for n in optim if optim[n].tensor.numel() > 4 and n.startswith("exp_avg.module.decoder")
    )


def gap(optim):
    piece = optim[holder(optim)]
    optim[holder(optim)] = Piece(piece.tensor[:-1], piece.shape, piece.start)


def moved(optim):
    name = next(n for n in optim if optim[n].start > 0)
    piece = optim[name]
    optim[name] = Piece(piece.tensor, piece.shape, piece.start - 1)


def turned(optim):
    name = next(n for n in optim if len(optim[n].shape) == 2 and len(set(optim[n].shape)) == 2)
    piece = optim[name]
    optim[name] = Piece(piece.tensor, piece.shape[::-1], piece.start)


def lost(optim):  # all of a tensor
    del optim[next(n for n, p in optim.items() if p.tensor.numel() == math.prod(p.shape))]


class Pieces(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 2, "size": "640MiB"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source, _ = checkpoints.llama(cls.c.dir / "plain", layers=4, hidden=32, seed=1)

    def imported(self, name, tp=2, pp=1, source=None):
        self.c.json(
            "model", "import", source or self.source, "--name", name, "--tp", tp, "--pp", pp
        )

    def gang(self, model, dp_size, tp_size=2, pp_size=1):
        ranks = []
        for number, (pp, dp, tp) in enumerate(
            itertools.product(range(pp_size), range(dp_size), range(tp_size))
        ):
            ranks.append(
                self.session(
                    job=f"{model}-{dp_size}",
                    model=model,
                    pp=pp,
                    tp=tp,
                    dp=dp,
                    pp_size=pp_size,
                    tp_size=tp_size,
                    dp_size=dp_size,
                    world_size=pp_size * dp_size * tp_size,
                    global_rank=number,
                )
            )
        return ranks

    def save(self, model, dp_size, edges, step=3, change=None, **sizes):
        """Saves a version in pieces; change(rank, optim) may spoil what a rank passes."""
        for rank in self.gang(model, dp_size, **sizes):
            state = rank.load_state_dict(version=1, copy=True)
            optim = pieces(state, rank.rank.dp, dp_size, edges)
            if change:
                change(rank.rank, optim)
            saved = rank.save_state_dict(
                {f"module.{n}": t for n, t in state.items()}, step, optim=optim
            )
        self.assertTrue(saved.visible)
        return saved.version

    def save_whole(self, model, **sizes):
        for rank in self.gang(model, 1, **sizes):
            state = rank.load_state_dict(version=1, copy=True)
            saved = rank.save_state_dict(state, 9, optim=moments(state))
        self.assertTrue(saved.visible)
        return saved.version

    def versions(self, model):
        return {v["version"]: v for v in self.c.json("model", "show", model)["versions"]}

    def test_every_layout_and_every_number_of_data_ranks_reads_what_whole_state_would_be(self):
        self.imported("even")
        whole = self.save_whole("even")
        shared = [
            self.save("even", dp, edges, step)
            for step, (dp, edges) in enumerate(((2, even), (3, uneven), (1, even)))
        ]
        reader = self.session()
        for version in shared:
            self.assertEqual(self.versions("even")[version]["unproved"], "")
        for tp_size, pp_size in ((2, 1), (1, 1), (4, 1), (2, 2), (4, 2), (1, 4)):
            for pp, tp in itertools.product(range(pp_size), range(tp_size)):
                place = {
                    "pp": pp,
                    "tp": tp,
                    "tp_size": tp_size,
                    "pp_size": pp_size,
                    "kind": "optim",
                }
                want = reader.load_state_dict("even", whole, **place)
                for version in shared:
                    with self.subTest(version=version, place=place):
                        self.assertTrue(
                            same(reader.load_state_dict("even", version, **place), want)
                        )
        out = self.c.dir / "export"  # with one data rank the pieces are whole tensors
        self.c.json("model", "export", f"even@{shared[2]}", "--optimizer", "--out", out)
        self.assertIn(FC2, safetensors.read_header(out / "mp_rank_01.safetensors").entries)
        for version in shared:
            self.assertEqual(
                {cut["leftOut"] for cut in self.versions("even")[version]["cuts"]}, {""}
            )
        for rank in self.gang("even", 5):  # another number of data ranks, in a job
            self.assertTrue(
                same(
                    rank.load_state_dict(version=shared[1], kind="optim"),
                    rank.load_state_dict(version=whole, kind="optim"),
                )
            )
            self.assertTrue(
                same(
                    rank.load_state_dict(version=shared[1], kind="all"),
                    rank.load_state_dict(version=whole, kind="all"),
                )
            )
        self.assertEqual(
            len(reader.load_state_dict("even", shared[1], kind="optim", naming="te")),
            len(reader.load_state_dict("even", whole, kind="optim", naming="te")),
        )
        for version in shared:
            self.assertTrue(self.c.json("model", "verify", f"even@{version}"))
            self.assertEqual(
                self.c.run("model", "diff", "--all", f"even@{version}", f"even@{whole}").returncode,
                0,
            )

    def test_context_ranks_have_shares_as_data_ranks_do(self):
        self.imported("context")
        whole = self.save_whole("context")
        grid = itertools.product(range(2), range(2), range(2))  # tp is the fastest, then cp
        for number, (dp, cp, tp) in enumerate(grid):
            rank = self.session(
                job="context",
                model="context",
                tp=tp,
                cp=cp,
                dp=dp,
                tp_size=2,
                cp_size=2,
                dp_size=2,
                world_size=8,
                global_rank=number,
            )
            state = rank.load_state_dict(version=1, copy=True)
            saved = rank.save_state_dict(
                state if (dp, cp) == (0, 0) else {n: t + 1 for n, t in state.items()},
                4,
                optim=pieces(state, 2 * dp + cp, 4, uneven),
            )
        self.assertTrue(saved.visible)
        self.assertEqual(self.versions("context")[saved.version]["unproved"], "")
        reader = self.session()
        for kind, tp_size in itertools.product(("model", "optim"), (2, 4)):
            for tp in range(tp_size):
                got, want = (
                    reader.load_state_dict("context", v, tp=tp, tp_size=tp_size, kind=kind)
                    for v in (saved.version, whole)
                )
                self.assertTrue(same(got, want), (kind, tp_size, tp))

    def test_a_tied_head_has_the_pieces_of_the_embedding(self):
        source, _ = dense_models.checkpoint(self.c.dir / "tied", "gemma2")
        self.imported("tied", source=source)
        whole, shared = self.save_whole("tied"), self.save("tied", 3, uneven)
        reader = self.session()
        for tp_size in (1, 2):
            place = {"pp": 1, "pp_size": 2, "tp_size": tp_size, "kind": "optim"}
            want = reader.load_state_dict("tied", whole, **place)
            self.assertIn("exp_avg.output_layer.weight", want)
            self.assertTrue(same(reader.load_state_dict("tied", shared, **place), want))

    def test_ranges_give_a_rank_its_own_elements(self):
        self.imported("ranges")
        version = self.save("ranges", 3, uneven)
        reader = self.session()
        for tp_size in (2, 4):
            place = {"version": version, "tp": 1, "tp_size": tp_size, "kind": "optim"}
            whole = reader.load_state_dict("ranges", **place)
            name = FC2.removeprefix("exp_avg.")
            count = whole[FC2].numel()
            for low, high in ((0, count), (1, count - 1), (count // 2, count // 2 + 1), (7, 7)):
                got = reader.load_state_dict(
                    "ranges", ranges={f"module.{name}": (low, high)}, **place
                )
                self.assertTrue(
                    same(
                        got,
                        {
                            f"{kind}.{name}": whole[f"{kind}.{name}"].reshape(-1)[low:high]
                            for kind in KINDS
                        },
                    )
                )
            with self.assertRaisesRegex(
                errors.InvalidArgument, rf"{name}.*\[0, {count}\), not \[0, {count + 1}\)"
            ):
                reader.load_state_dict("ranges", ranges={name: (0, count + 1)}, **place)
            with self.assertRaisesRegex(errors.NotFound, "no optimizer state of 'decoder.nothing'"):
                reader.load_state_dict("ranges", ranges={"decoder.nothing": (0, 1)}, **place)
        with self.assertRaisesRegex(errors.InvalidArgument, "kind='optim'"):
            reader.load_state_dict("ranges", ranges={})

    def refused(self, model, change, message):
        # with the same step, ranks would hear of the earlier failure
        self.step = getattr(self, "step", 10) + 1
        with self.assertRaisesRegex(errors.HeliosError, message):
            self.save(model, 2, even, self.step, change)
        self.assertEqual(
            sorted(v for v, rec in self.versions(model).items() if rec["state"] == "visible"), [1]
        )

    def test_pieces_that_do_not_cover_the_state_once_are_refused(self):
        self.imported("bad")
        key = FC2.replace("exp_avg.", "exp_avg.module.").replace("layers.1", "layers.3")

        def on(tp, dp, spoil):
            def change(rank, optim):
                if (rank.tp, rank.dp) == (tp, dp):
                    spoil(optim)

            return change

        self.refused(
            "bad", on(1, 0, gap), r"tp1.*exp_avg\.decoder.*no data-parallel rank holds elements \["
        )
        self.refused(
            "bad",
            on(0, 1, moved),
            r"exp_avg.*elements \[\d+, \d+\) are held by rank 0 and by rank 2",
        )
        self.refused("bad", on(1, 1, turned), r"exp_avg.*shape \[")
        self.refused(
            "bad",
            on(0, 1, lost),
            r"optimizer tensor 'exp_avg.* is held by rank \d .* and not by rank \d",
        )

        def stale(optim):  # of a norm, which both tensor ranks have
            name = next(n for n in optim if n.startswith("exp_avg.") and "layernorm" in n)
            optim[name] = Piece(optim[name].tensor * 0, optim[name].shape, optim[name].start)

        self.refused("bad", on(1, 0, stale), r"exp_avg\..*layernorm")
        held = {}  # by rank 0: rank 2 passes the same once more
        self.refused(
            "bad",
            lambda rank, optim: (
                held.update(optim)
                if rank.dp == rank.tp == 0
                else optim.update({key: held[key]} if rank.tp == 0 else {})
            ),
            r"linear_fc2\.weight': elements \[0, \d+\) are held by rank 0 and by rank 2",
        )
        outside = on(0, 1, lambda optim: optim.update({f"{FC2}.at1000000of32x32": torch.zeros(3)}))
        self.refused("bad", outside, r"linear_fc2.*3 elements from 1000000 on")
        mixed = on(
            0,
            1,
            lambda optim: optim.update({"exp_avg.decoder.final_layernorm.weight": torch.zeros(32)}),
        )
        self.refused("bad", mixed, r"final_layernorm")
        with self.assertRaisesRegex(
            errors.InvalidArgument, r"3 elements from 6 on are not in a tensor of shape \[2, 4\]"
        ):
            self.gang("bad", 1)[0].save_state_dict(
                {}, 1, optim={key: Piece(torch.zeros(3), (2, 4), 6)}
            )

    @staticmethod
    def optimizer(rank, state, inner=torch.optim.Adam):
        """(chunks, optimizer) of a rank of Megatron's; and the same with its state filled in."""
        chunk = Chunk(state)
        names = {p: n for n, p in chunk.parameters.items()}

        def values(param):
            whole = moments({"x": state[names[param]]})
            return {"param": state[names[param]], **{k: whole[f"{k}.x"] for k in KINDS}}

        empty, filled = (Distributed(chunk, rank.dp, rank.dp_size, inner) for _ in range(2))
        filled.fill(values)
        return [chunk], empty, filled

    def test_megatrons_distributed_optimizer_is_saved_and_loaded_at_another_layout(self):
        self.imported("megatron")
        for rank in self.gang("megatron", 2):
            state = rank.load_state_dict(version=1, copy=True)
            chunks, empty, filled = self.optimizer(rank.rank, state)
            with self.assertRaisesRegex(errors.InvalidArgument, "made no step yet"):
                megatron.optimizer_pieces(chunks, empty)
            chained = types.SimpleNamespace(
                chained_optimizers=[filled, types.SimpleNamespace(is_stub_optimizer=True)]
            )
            saved = rank.save_state_dict(state, 5, optim=megatron.optimizer_pieces(chunks, chained))
        self.assertTrue(saved.visible)
        reader = self.session()
        for tp_size, dp_size, inner in (
            (2, 2, torch.optim.Adam),
            (1, 3, FusedAdam),
            (4, 1, torch.optim.Adam),
        ):
            for tp, dp in itertools.product(range(tp_size), range(dp_size)):
                place = {
                    "model": "megatron",
                    "version": saved.version,
                    "tp": tp,
                    "tp_size": tp_size,
                }
                state = reader.load_state_dict(**place, copy=True)
                chunks, empty, filled = self.optimizer(
                    helios.Rank(dp=dp, dp_size=dp_size), state, inner
                )
                megatron.load_optimizer(chunks, empty, 5, session=reader, **place)
                got = megatron.optimizer_pieces(chunks, empty)
                want = megatron.optimizer_pieces(chunks, filled)
                self.assertEqual(got.keys(), want.keys())
                for name, piece in want.items():
                    self.assertEqual((got[name].start, got[name].shape), (piece.start, piece.shape))
                    # else padded anew
                    if tp_size == 2 or "word_embeddings" not in name and "output_layer" not in name:
                        self.assertTrue(same({name: got[name].tensor}, {name: piece.tensor}))
                if inner is FusedAdam:
                    self.assertEqual({g["step"] for g in empty.optimizer.param_groups}, {5})
                else:
                    self.assertEqual(
                        {float(s["step"]) for s in empty.optimizer.state.values()}, {5.0}
                    )

    def test_optimizers_that_keep_their_state_otherwise_are_refused(self):
        chunk = Chunk({"decoder.a": torch.zeros(4, 4), "decoder.b": torch.zeros(4)})
        optimizer = Distributed(chunk, 0, 2)
        with self.assertRaisesRegex(errors.InvalidArgument, "none of the model's chunks"):
            megatron.optimizer_pieces([Chunk({})], optimizer)
        self.assertEqual(
            megatron.optimizer_pieces([chunk], Distributed(chunk, 0, 2, instance=1)), {}
        )
        with self.assertRaisesRegex(errors.Unsupported, "not a DistributedOptimizer"):
            megatron.optimizer_pieces([chunk], torch.optim.SGD([torch.zeros(1)], lr=1))
        optimizer.config.use_precision_aware_optimizer = True
        with self.assertRaisesRegex(errors.Unsupported, "precision-aware"):
            megatron.optimizer_pieces([chunk], optimizer)

    def save_extra(self, model, extra):
        """By two tensor ranks, each with extra(tp) for each layer."""
        for rank in self.gang(model, 1):
            state = rank.load_state_dict(version=1, copy=True)
            blobs = {
                f"decoder.layers.{i}.{name}._extra_state": value
                for i in range(4)
                for name, value in extra(rank.rank.tp, i).items()
            }
            saved = rank.save_state_dict({**state, **blobs}, 9, optim=moments(state))
        self.assertTrue(saved.visible)
        return saved.version

    def test_extra_state_that_tensor_ranks_have_in_common_is_read_at_every_layout(self):
        self.imported("extra")
        version = self.save_extra(
            "extra",
            lambda tp, i: {
                "linear_qkv": torch.full((5,), i, dtype=torch.uint8),
                "linear_proj": torch.empty(0, dtype=torch.uint8),
                "core_attention": io.BytesIO(b"layer %d" % i),
            },
        )
        reader = self.session()
        for tp_size, pp_size in ((2, 1), (1, 1), (4, 1), (4, 2), (1, 4)):
            for pp, tp in itertools.product(range(pp_size), range(tp_size)):
                place = {"pp": pp, "tp": tp, "tp_size": tp_size, "pp_size": pp_size}
                got = reader.load_state_dict("extra", version, kind="extra", **place)
                self.assertEqual(len(got), 12 // pp_size)
                for local in range(4 // pp_size):
                    layer = local + pp * 4 // pp_size
                    name = f"decoder.layers.{local}."
                    self.assertEqual(got[f"{name}linear_qkv._extra_state"].tolist(), [layer] * 5)
                    self.assertEqual(got[f"{name}linear_proj._extra_state"].numel(), 0)
                    self.assertEqual(
                        got[f"{name}core_attention._extra_state"].read(), b"layer %d" % layer
                    )
                every = reader.load_state_dict("extra", version, kind="all", **place)
                self.assertLess(set(got), set(every))
        self.assertEqual({cut["leftOut"] for cut in self.versions("extra")[version]["cuts"]}, {""})
        out = self.c.dir / "pulled"
        self.c.json("pull", "--model", f"extra@{version}", "--tp-size", 4, "--tp", 3, "--out", out)
        self.assertIn(
            "decoder.layers.3.core_attention._extra_state:bytes",
            safetensors.read_header(out).entries,
        )

    def test_extra_state_that_tensor_ranks_differ_in_is_refused_and_optimizer_state_is_not(self):
        self.imported("differ")
        reader = self.session()
        for extra in (
            lambda tp, i: {"linear_qkv": torch.tensor([tp if i == 2 else 7])},
            lambda tp, i: {"linear_qkv": torch.zeros(2)} if tp == 0 or i != 2 else {},
        ):
            version = self.save_extra("differ", extra)
            with self.assertRaisesRegex(
                errors.Unsupported, r"\(\d shards, such as extra-layer-0002 at pp 0\): tensor ranks"
            ):
                reader.load_state_dict("differ", version, tp_size=1, kind="extra")
            self.assertTrue(reader.load_state_dict("differ", version, tp_size=1, kind="optim"))
            self.assertTrue(reader.load_state_dict("differ", version, tp=1, kind="extra"))

    def test_pieces_of_a_loose_save_that_do_not_fit_are_left_out_and_said(self):
        self.imported("loose")
        for rank in self.gang("loose", 1):
            state = rank.load_state_dict(copy=True)
            saved = rank.save_state_dict(
                state,
                3,
                strict=False,
                optim={FC2: Piece(torch.zeros(3), state[FC2.removeprefix("exp_avg.")].shape, 1)},
            )
        reader = self.session()
        with self.assertRaisesRegex(errors.Unsupported, "pieces that cover them"):
            reader.load_state_dict("loose", saved.version, tp_size=1, kind="optim")
        with self.assertRaisesRegex(errors.Corrupt, r"elements \[0, 1\) of 'exp_avg.*no piece"):
            reader.load_state_dict("loose", saved.version, kind="optim")
        self.assertTrue(reader.load_state_dict("loose", saved.version, tp_size=1))


if __name__ == "__main__":
    unittest.main()

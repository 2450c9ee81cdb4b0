#!/usr/bin/python3
"""Tensors that the model's config does not ask for, saved with strict=False: kept at every layout
at which all ranks hold them alike, otherwise refused by name, with real daemons."""
from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import Cluster  # noqa: E402

import helios  # noqa: E402
from helios import errors  # noqa: E402

LAYERS = 4
OUTER = "rotary.inv_freq"  # of no layer


def beside(layer):
    return f"decoder.layers.{layer}.gate.beside"


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[n].contiguous().view(torch.uint8), b[n].contiguous().view(torch.uint8))
        for n in a
    )


class Beside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, nodes=1, slots=1, size="256MiB")
        cls.source, _ = checkpoints.llama(cls.c.dir / "source", layers=LAYERS, hidden=32, seed=1)

    def session(self, **place):
        made = helios.Session(self.c.info["controller"], rank=helios.Rank(**place))
        self.addCleanup(made.close, force=True)
        return made

    def saved(self, name, tp_size, pp_size, add, moment=lambda tp, t: t + 1):
        """Version 2 of a model: version 1, plus add(pp, tp) with a moment of each tensor."""
        self.c.json(
            "model", "import", self.source, "--name", name, "--tp", tp_size, "--pp", pp_size
        )
        for pp in range(pp_size):
            for tp in range(tp_size):
                rank = self.session(
                    job=name,
                    model=name,
                    pp=pp,
                    tp=tp,
                    pp_size=pp_size,
                    tp_size=tp_size,
                    world_size=pp_size * tp_size,
                    global_rank=pp * tp_size + tp,
                )
                state = {**rank.load_state_dict(version=1), **add(pp, tp)}
                saved = rank.save_state_dict(
                    state,
                    1,
                    optim={f"exp_avg.{n}": moment(tp, t) for n, t in add(pp, tp).items()},
                    strict=False,
                )
        self.assertEqual((saved.version, saved.visible), (2, True))

    def check(self, name, tp_size, pp_size, expected):
        """Every position has version 1's tensors, and expected(pp)."""
        reader, place = self.session(), {"tp_size": tp_size, "pp_size": pp_size}
        for pp in range(pp_size):
            for tp in range(tp_size):
                with self.subTest(name=name, pp=pp, tp=tp, **place):
                    more = expected(pp)
                    want = {
                        **reader.load_state_dict(f"{name}@1", pp=pp, tp=tp, copy=True, **place),
                        **more,
                    }
                    self.assertTrue(
                        same(reader.load_state_dict(f"{name}@2", pp=pp, tp=tp, **place), want)
                    )
                    self.assertTrue(
                        same(
                            reader.load_state_dict(
                                f"{name}@2", pp=pp, tp=tp, kind="optim", dp=0, **place
                            ),
                            {f"exp_avg.{n}": t + 1 for n, t in more.items()},
                        )
                    )

    def test_what_all_tensor_ranks_hold_alike_every_rank_has_at_every_layout(self):
        values = {layer: torch.full((3, 2), layer + 0.5) for layer in range(LAYERS)}
        self.saved(
            "alike",
            2,
            1,
            lambda pp, tp: {beside(n): t for n, t in values.items()} | {OUTER: torch.arange(5.0)},
        )
        for tp_size, pp_size in ((1, 1), (4, 1), (4, 2), (2, 2)):
            each = LAYERS // pp_size

            def expected(pp, each=each, pp_size=pp_size):
                return {
                    **{beside(n): values[pp * each + n] for n in range(each)},
                    **({OUTER: torch.arange(5.0)} if pp == pp_size - 1 else {}),
                }

            self.check("alike", tp_size, pp_size, expected)
        cuts = {
            c["split"]["tp"]: c["leftOut"]
            for c in self.c.json("model", "show", "alike")["versions"][0]["cuts"]
        }
        self.assertEqual(cuts, {1: "", 4: ""})

    def test_what_all_stages_hold_alike_every_stage_has(self):
        self.saved("stages", 2, 2, lambda pp, tp: {OUTER: torch.arange(5.0)})
        for pp_size in (1, 2, 4):
            self.check("stages", 2, pp_size, lambda pp: {OUTER: torch.arange(5.0)})
        for tp_size, pp_size in ((1, 1), (4, 1), (1, 2), (4, 2), (1, 4)):
            self.check("stages", tp_size, pp_size, lambda pp: {OUTER: torch.arange(5.0)})

    def test_what_a_stage_holds_alone_is_refused_by_name_with_the_size_that_works(self):
        self.saved("first", 2, 2, lambda pp, tp: {OUTER: torch.arange(5.0)} if pp == 0 else {})
        with self.assertRaisesRegex(
            errors.Unsupported, f"part head at pp 0, tp 0 is not one that .* '{OUTER}' .* use TP2"
        ):
            self.session().load_state_dict("first", tp_size=4)
        self.check("first", 2, 1, lambda pp: {OUTER: torch.arange(5.0)})

    def refused(self, name, words, add):
        self.saved(name, 2, 1, add)
        with self.assertRaisesRegex(errors.Unsupported, words):
            self.session().load_state_dict(f"{name}@2", tp_size=4)
        for tp in range(2):  # as it was saved
            got = self.session().load_state_dict(f"{name}@2", tp=tp)
            self.assertTrue(same({n: got[n] for n in add(0, tp)}, add(0, tp)))

    def test_what_ranks_do_not_hold_alike_is_refused_by_name(self):
        self.refused(
            "bytes",
            f"'{beside(1)}' of part pp0/tp0/layer-0001 .* tensor ranks hold different bytes",
            lambda pp, tp: {beside(1): torch.full((3,), float(tp))},
        )

    def test_state_that_ranks_do_not_hold_alike_is_refused_by_name(self):
        self.saved("state", 2, 1, lambda pp, tp: {beside(1): torch.ones(3)}, lambda tp, t: t + tp)
        with self.assertRaisesRegex(
            errors.Unsupported,
            f"'exp_avg.{beside(1)}' of part optim-layer-0001 .* ranks 0 and 1 differ",
        ):
            self.session().load_state_dict("state@2", tp_size=4)

    def test_what_one_rank_alone_holds_is_refused_by_name(self):
        for alone in (0, 1):
            self.refused(
                f"alone{alone}",
                f"'{beside(1)}' of part pp0/tp{alone}/layer-0001 .* not every tensor rank",
                lambda pp, tp, alone=alone: {beside(1): torch.ones(3)} if tp == alone else {},
            )

    def test_what_two_stages_hold_with_other_bytes_is_refused_by_name(self):
        self.saved("differ", 1, 2, lambda pp, tp: {OUTER: torch.full((3,), float(pp))})
        with self.assertRaisesRegex(
            errors.Unsupported, f"'{OUTER}' is in part head of stage 0 and of stage 1"
        ):
            self.session().load_state_dict("differ@2", pp_size=1)


if __name__ == "__main__":
    unittest.main(verbosity=2)

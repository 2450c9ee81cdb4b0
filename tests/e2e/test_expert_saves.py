#!/usr/bin/python3
"""What gangs save of models with experts, with real daemons: a version that is exported as it was
trained, and optimizer state that follows its parameters to every layout."""
from __future__ import annotations

import dataclasses
import itertools
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

needs.torch()
needs.programs()

from support.expert_case import FAMILIES, VIRTUAL, ExpertCase, layout  # noqa: E402

import helios  # noqa: E402
from helios import errors  # noqa: E402


class ExpertSaves(ExpertCase):
    def test_what_a_gang_saves_of_every_family_is_a_version(self):
        for family in FAMILIES:
            for split, dp_size in (((2, 2, 2, 2), 4), ((2, 1, 2, 1), 2)):
                with self.subTest(family=family, split=split):
                    name, numbers = self.load(family, split, "--naming", "te")
                    self.save(name, split, dp_size, lambda _, t: t + 1)
                    self.check_exported(name, {n: t + 1 for n, t in numbers.items()})

    def test_the_state_of_experts_comes_back_to_every_rank_that_has_them(self):
        split = (2, 1, 2, 2)
        name, numbers = self.load("mixtral", split)
        self.save(name, split, 4, lambda _, t: t)
        for rank in self.gang(split, 4):
            with helios.Session(self.c.info["controller"], rank=rank) as me:
                optim = me.load_state_dict(model=name, kind="optim")
                plain = {n.removeprefix("exp_avg."): t - 1 for n, t in optim.items()}
                self.check_mixtral(plain, numbers, (split, (rank.pp, rank.tp, rank.ep)), False)

    def test_the_state_of_experts_follows_them_to_another_layout(self):
        for stored in ((2, 1, 2, 2), VIRTUAL[0]):
            name, numbers = self.load("mixtral", stored)
            # two data ranks: no two have the same experts
            self.save(name, stored, 2, lambda _, t: t)
            said = self.c.json("model", "verify", f"{name}@2")
            self.assertTrue(said["proved"], said)
            wanted = (1, 1, 4, 1)
            with self.session() as me:
                for ep in range(4):
                    optim = me.load_state_dict(name, ep=ep, **layout(wanted), kind="optim", dp=0)
                    plain = {n.removeprefix("exp_avg."): t - 1 for n, t in optim.items()}
                    self.check_mixtral(plain, numbers, (wanted, (0, 0, ep)), False)

    def test_pieces_of_the_state_of_experts_are_put_together(self):
        split, dp_size, job = (2, 1, 2, 2), 4, "pieces"
        name, numbers = self.load("mixtral", split)
        for rank in self.gang(split, dp_size):
            with helios.Session(
                self.c.info["controller"], rank=dataclasses.replace(rank, job=job, model=name)
            ) as me:
                state, optim = me.load_state_dict(), {}
                # the eight ranks hold each expert twice, everything else four times
                for n, t in state.items():
                    number, size = (
                        ((rank.dp * 2 + rank.tp) // 4, 2)
                        if ".mlp.experts." in n
                        else (rank.dp, dp_size)
                    )
                    start, end = (t.numel() * i // size for i in (number, number + 1))
                    optim[f"exp_avg.{n}"] = helios.Piece(
                        (t + 1).reshape(-1)[start:end], t.shape, start
                    )
                saved = me.save_state_dict(state, step=1, optim=optim)
        self.assertTrue(saved.visible)
        for wanted in (split, (1, 1, 4, 1), (2, 2, 1, 1)):
            for pp, tp, ep in itertools.product(
                range(wanted[1]), range(wanted[0]), range(wanted[2])
            ):
                with self.session() as me:
                    optim = me.load_state_dict(
                        name,
                        pp=pp,
                        tp=tp,
                        ep=ep,
                        kind="optim",
                        tp_size=wanted[0],
                        pp_size=wanted[1],
                        ep_size=wanted[2],
                        etp_size=wanted[3],
                    )
                plain = {n.removeprefix("exp_avg."): t - 1 for n, t in optim.items()}
                self.check_mixtral(plain, numbers, (wanted, (pp, tp, ep)), False)

    def test_doubled_or_missing_experts_make_no_version(self):
        split = (1, 1, 2, 1)
        name, _ = self.load("mixtral", split)
        for harm in ("drop", "double"):
            ranks = list(self.gang(split, 2))
            with self.assertRaisesRegex(errors.HeliosError, "experts-000"):
                for rank in ranks:
                    wrong = {**rank.__dict__, "job": harm, "model": name}
                    if harm == "double":
                        wrong["ep"] = 0
                    with helios.Session(self.c.info["controller"], rank=helios.Rank(**wrong)) as me:
                        state = me.load_state_dict()
                        if harm == "drop" and rank.dp == 1:
                            state = {
                                n: t for n, t in state.items() if "layers.2.mlp.experts" not in n
                            }
                        me.save_state_dict(state, step=1)
            self.assertEqual(len(self.c.json("model", "show", name)["versions"]), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)

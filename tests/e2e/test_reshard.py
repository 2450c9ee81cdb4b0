#!/usr/bin/python3
"""A model that is stored for one tensor parallel size is read, trained and saved at others, with real
daemons: the same bytes as a fresh import at that size, cut once, and given up first when room is needed."""
from __future__ import annotations

import itertools
import pathlib
import shutil
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import Cluster  # noqa: E402

import helios  # noqa: E402
from helios import errors, safetensors  # noqa: E402

LAYOUTS = list(itertools.product((1, 2, 4), (1, 2)))  # tp, pp


def same(a, b):
    """Bit for bit: the checkpoints' bytes are random, and some are not numbers."""
    return a.keys() == b.keys() and all(
        x.dtype == b[n].dtype and torch.equal(x.contiguous().view(torch.uint8),
                                              b[n].contiguous().view(torch.uint8))
        for n, x in a.items())


class Reshard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(nodes=1, slots=2, size="256MiB")
        cls.addClassCleanup(shutil.rmtree, cls.c.dir, ignore_errors=True)
        cls.addClassCleanup(cls.c.run, "down")
        cls.c.up()
        cls.source, _ = checkpoints.llama(cls.c.dir / "llama", layers=4, hidden=32, seed=1)
        for tp, pp in LAYOUTS:
            cls.c.json("model", "import", cls.source, "--name", f"tp{tp}pp{pp}", "--tp", tp, "--pp", pp)

    def session(self, **place):
        made = helios.Session(self.c.info["controller"], rank=helios.Rank(**place))
        self.addCleanup(made.close, force=True)
        return made

    def cuts(self, model):
        return {v["version"]: {cut["split"]["tp"] for cut in v["cuts"]}
                for v in self.c.json("model", "show", model)["versions"]}

    def test_every_layout_reads_what_an_import_at_it_would_have_made(self):
        session = self.session()
        for (tp_stored, pp_stored), (tp_size, pp_size) in itertools.permutations(LAYOUTS, 2):
            stored, wanted = f"tp{tp_stored}pp{pp_stored}@1", f"tp{tp_size}pp{pp_size}@1"
            for pp, tp in itertools.product(range(pp_size), range(tp_size)):
                with self.subTest(stored=stored, wanted=wanted, pp=pp, tp=tp):
                    got = session.load_state_dict(stored, pp=pp, tp=tp, tp_size=tp_size, pp_size=pp_size)
                    self.assertTrue(same(got, session.load_state_dict(wanted, pp=pp, tp=tp)))
                    config = session.model_config()
                    session.load_state_dict(stored, pp=pp, tp=tp, tp_size=tp_size, pp_size=pp_size)
                    self.assertEqual(session.model_config(), config)
        self.assertEqual(self.cuts("tp1pp1"), {1: {2, 4}})
        self.assertEqual(self.cuts("tp4pp2"), {1: {1, 2}})

    def test_a_layout_is_cut_once(self):
        self.c.json("model", "import", self.source, "--name", "once", "--tp", 1, "--pp", 1)
        sessions = [self.session() for _ in range(4)]
        threads = [threading.Thread(target=s.load_state_dict, args=("once",),
                                    kwargs={"tp": i, "tp_size": 4}) for i, s in enumerate(sessions)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        shards = {s["id"] for s in self.c.json("shard", "ls", "--model", "once")["items"]}
        result = self.c.json("model", "reshard", "once", "--tp-size", 4)
        self.assertEqual({s["id"] for s in self.c.json("shard", "ls", "--model", "once")["items"]}, shards)
        self.assertEqual((result["version"], result["split"]["tp"]), (1, 4))
        self.assertEqual(self.cuts("once"), {1: {4}})
        self.assertEqual(self.c.json("model", "reshard", "once", "--pp-size", 2)["shards"], 0)
        self.c.json("model", "rm", "once")
        self.assertFalse({s["id"] for s in self.c.json("shard", "ls")["items"]} & shards)

    def test_what_does_not_work_out_is_refused_with_the_arithmetic(self):
        session = self.session()
        with self.assertRaisesRegex(errors.InvalidArgument, "3"):
            session.load_state_dict("tp1pp1", tp_size=3)
        with self.assertRaisesRegex(errors.InvalidArgument, "4 layers over 3 stages"):
            session.load_state_dict("tp1pp1", tp_size=4, pp_size=3)
        with self.assertRaisesRegex(errors.NotFound, "TP2 x PP1"):
            session.load_state_dict("tp1pp1", tp=2, tp_size=2)

    def gang(self, model, tp_size):
        return [self.session(job="reshard", model=model, pp=0, tp=tp, pp_size=1, tp_size=tp_size,
                             world_size=tp_size, global_rank=tp) for tp in range(tp_size)]

    def test_a_save_at_another_size_comes_back_at_every_size(self):
        self.c.json("model", "import", self.source, "--name", "saved", "--tp", 2, "--pp", 1)
        states = {}
        for rank in self.gang("saved", 4):
            state = {n: t.clone().view(torch.int32).add_(1).view(torch.float32)
                     for n, t in rank.load_state_dict().items()}
            states[rank] = state, {f"exp_avg.{n}": t.clone() for n, t in state.items()}
        for rank, (state, moments) in states.items():
            saved = rank.save_state_dict(state, 7, optim=moments)
        self.assertTrue(saved.visible)
        own = {rank.rank.tp: state for rank, (state, _) in states.items()}
        reader = self.session()
        names = [n for n in own[0] if "linear_fc2.weight" in n]
        for tp_size in (1, 2):
            parts = [reader.load_state_dict("saved", tp=tp, tp_size=tp_size) for tp in range(tp_size)]
            optim = [reader.load_state_dict("saved", tp=tp, tp_size=tp_size, kind="optim")
                     for tp in range(tp_size)]
            for n in names:  # cut along its columns
                whole = torch.cat([own[tp][n] for tp in range(4)], 1)
                self.assertTrue(same({n: torch.cat([p[n] for p in parts], 1)}, {n: whole}))
                self.assertTrue(same({n: torch.cat([p[f"exp_avg.{n}"] for p in optim], 1)}, {n: whole}))
        self.assertEqual(self.cuts("saved"), {1: {4}, saved.version: {1, 2}})
        wrong = {n: t[:1].clone() if "linear_fc2" in n else t.clone() for n, t in own[0].items()}
        with self.assertRaisesRegex(errors.InvalidArgument, "linear_fc2"):
            self.gang("saved", 4)[0].save_state_dict(wrong, 8)

    def test_state_that_ranks_share_out_is_left_out_and_said(self):
        self.c.json("model", "import", self.source, "--name", "shared", "--tp", 1, "--pp", 1)
        for dp in range(2):
            rank = self.session(job="dp", model="shared", pp=0, tp=0, dp=dp, pp_size=1, tp_size=1, dp_size=2,
                                world_size=2, global_rank=dp)
            state = rank.load_state_dict()
            rank.save_state_dict(state, 3, optim={f"exp_avg.{n}": t[:1].clone() for n, t in state.items()})
        with self.assertRaisesRegex(errors.Unsupported, "data-parallel ranks share"):
            self.session().load_state_dict("shared", tp_size=2, kind="optim")
        self.assertTrue(self.session().load_state_dict("shared", tp_size=2, kind="model"))
        cut, = self.c.json("model", "show", "shared")["versions"][0]["cuts"]
        self.assertIn("optimizer state", cut["leftOut"])

    def shared_out(self, model, held):
        """Saved by two data ranks, of which rank dp passes the state of what held(dp, i) names."""
        self.c.json("model", "import", self.source, "--name", model, "--tp", 2, "--pp", 1)
        for dp, tp in ((d, t) for d in range(2) for t in range(2)):
            rank = self.session(job=model, model=model, pp=0, tp=tp, dp=dp, pp_size=1, tp_size=2, dp_size=2,
                                world_size=4, global_rank=2 * dp + tp)
            state = rank.load_state_dict(copy=True)
            saved = rank.save_state_dict(state, 3, optim={f"exp_avg.{n}": t.clone() for i, (n, t) in enumerate(
                sorted(state.items())) if held(dp, i)})
        self.assertTrue(saved.visible)

    def test_shares_of_whole_tensors_are_put_together_for_another_layout(self):
        self.shared_out("zero", lambda dp, i: i % 2 == dp)
        reader = self.session()
        for tp_size, pp_size in ((1, 1), (4, 2)):
            for pp, tp in ((p, t) for p in range(pp_size) for t in range(tp_size)):
                sizes = {"pp": pp, "tp": tp, "tp_size": tp_size, "pp_size": pp_size}
                state = reader.load_state_dict("zero", **sizes)
                optim = reader.load_state_dict("zero", kind="optim", **sizes)
                padded = {n for n in state if "word_embeddings" in n or "output_layer" in n}
                self.assertEqual(optim.keys(), {f"exp_avg.{n}" for n in state})
                self.assertTrue(same({n: t for n, t in state.items() if n not in padded},
                                     {n: optim[f"exp_avg.{n}"] for n in state if n not in padded}))
        cuts = next(v for v in self.c.json("model", "show", "zero")["versions"] if v["version"] == 2)["cuts"]
        self.assertEqual([cut["leftOut"] for cut in cuts], ["", ""])
        own = reader.load_state_dict("zero", tp=1, kind="optim", dp=1)  # at its own layout a share stays one
        self.assertTrue(0 < len(own) < len(reader.load_state_dict("zero", tp=1)))

    def test_a_tensor_that_two_shares_hold_is_left_out_and_said(self):
        self.shared_out("twice", lambda dp, i: i == 3 or i % 2 == dp)
        with self.assertRaisesRegex(errors.Unsupported, "data-parallel ranks share"):
            self.session().load_state_dict("twice", tp_size=1, kind="optim")

    def test_cuts_survive_a_restart_of_the_controller(self):
        self.c.json("model", "import", self.source, "--name", "kept", "--tp", 1, "--pp", 1)
        session = self.session()
        before = session.load_state_dict("kept", tp=1, tp_size=2, copy=True)
        shards = {s["id"] for s in self.c.json("shard", "ls", "--model", "kept")["items"]}
        self.c.kill("controllerd")
        self.c.json("up")
        self.assertEqual({s["id"] for s in self.c.json("shard", "ls", "--model", "kept")["items"]}, shards)
        self.assertTrue(same(self.session().load_state_dict("kept", tp=1, tp_size=2), before))

    def test_exported_and_pulled_files_are_those_of_an_import(self):
        out = [self.c.dir / "pulled-a", self.c.dir / "pulled-b"]
        self.c.json("pull", "--model", "tp1pp1@1", "--pp", 1, "--tp", 3, "--tp-size", 4, "--pp-size", 2,
                    "--out", out[0])
        self.c.json("pull", "--model", "tp4pp2@1", "--pp", 1, "--tp", 3, "--out", out[1])
        self.assertEqual(*(self.tensors(p) for p in out))

    @staticmethod
    def tensors(path):
        header = safetensors.read_header(path)
        data = pathlib.Path(path).read_bytes()
        return {e.name: (e.dtype, e.shape, data[header.data_start + e.begin:header.data_start + e.end])
                for e in header.entries.values()}


class Room(unittest.TestCase):
    def test_derived_shards_are_the_first_to_go(self):
        cluster = Cluster(nodes=1, slots=1, size="64MiB")
        self.addCleanup(shutil.rmtree, cluster.dir, ignore_errors=True)
        self.addCleanup(cluster.run, "down")
        cluster.up()
        source, _ = checkpoints.llama(cluster.dir / "big", layers=4, hidden=256, ffn=1024, vocab=1024)
        add = ("model", "import", source, "--tp", 1, "--pp", 1, "--name")
        cluster.json(*add, "first")
        self.assertGreater(cluster.json("model", "reshard", "first", "--tp-size", 2)["bytes"], 10 << 20)
        cluster.json(*add, "second")
        cluster.json(*add, "third")  # takes the room of the derived shards: there is no archive
        session = helios.Session(cluster.info["controller"], rank=helios.Rank())
        self.addCleanup(session.close, force=True)
        with self.assertRaisesRegex(errors.NoSpace, "tensor parallel size 2"):
            session.load_state_dict("first", tp_size=2)
        self.assertEqual({len(session.load_state_dict(m)) for m in ("first", "second", "third")},
                         {len(session.load_state_dict("first"))})
        session.close(force=True)
        cluster.json("model", "rm", "second")
        cluster.json("model", "reshard", "first", "--tp-size", 2)
        cuts = cluster.json("model", "show", "first")["versions"][0]["cuts"]
        self.assertEqual([cut["split"]["tp"] for cut in cuts], [2])


if __name__ == "__main__":
    unittest.main()

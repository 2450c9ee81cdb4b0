#!/usr/bin/python3
"""A model stored for one tensor parallel size is read, trained and saved at others,
with real daemons: the same bytes as a fresh import at that size, cut once, and evicted
first when space is needed."""
from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import gc
import itertools
import os
import pathlib
import re
import shutil
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
sys.path.insert(0, str(needs.ROOT / "tests" / "chaos"))

import poolfile  # noqa: E402
from support import checkpoints, dense_models  # noqa: E402
from support.cluster import Cluster, wait_for  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

import helios  # noqa: E402
from helios import _abi, errors, safetensors  # noqa: E402

# tp, pp, virtual stages
LAYOUTS = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (2, 2, 2), (4, 2, 2)]


def same(a, b):
    """Bit for bit: the checkpoints' bytes are random, and include NaNs."""
    return a.keys() == b.keys() and all(
        x.dtype == b[n].dtype
        and torch.equal(x.contiguous().view(torch.uint8), b[n].contiguous().view(torch.uint8))
        for n, x in a.items()
    )


class Reshard(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 2, "size": "640MiB"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.imports = {}
        cls.source, _ = checkpoints.llama(cls.c.dir / "plain", layers=4, hidden=32, seed=1)
        for tp, pp in ((1, 1), (4, 2)):
            cls.c.json(
                "model", "import", cls.source, "--name", f"tp{tp}pp{pp}", "--tp", tp, "--pp", pp
            )

    def job(self, tp):
        path = self.c.dir / f"job-tp{tp}.yaml"
        path.write_text(
            f"jobName: planned\nmodel: {{name: tp1pp1}}\nparallelism: {{tensor_parallel_size: {tp},"
            " pipeline_parallel_size: 1, data_parallel_size: 1}\ncommand: [sleep, '100']\n"
        )
        return path

    def test_a_job_of_another_size_is_planned_and_submitted_or_refused_with_the_arithmetic(self):
        self.assertEqual(self.c.json("plan", self.job(2))["worldSize"], 2)
        submitted = [
            threading.Thread(target=self.c.run, args=("submit", self.job(2))) for _ in range(2)
        ]
        for each in submitted:
            each.start()
        for each in submitted:
            each.join()
        jobs = [job["id"] for job in self.c.json("list")["items"] if job["name"] == "planned"]
        self.assertEqual(len(set(jobs)), 2)
        for job in jobs:
            self.c.json("cancel", job)
        for command in ("plan", "submit"):
            said = self.c.refuse(command, self.job(3))
            self.assertIn("parallelism: model 'tp1pp1': ", said)
            self.assertIn("3", said.partition("tp1pp1")[2])

    def cuts(self, model):
        return {
            v["version"]: {cut["split"]["tp"] for cut in v["cuts"]}
            for v in self.c.json("model", "show", model)["versions"]
        }

    def imported(self, source, name, layout):
        tp, pp, chunks = layout
        self.c.json(
            "model",
            "import",
            source,
            "--name",
            name,
            "--tp",
            tp,
            "--pp",
            pp,
            *(("--virtual-stages", chunks) if chunks > 1 else ()),
        )

    @staticmethod
    def positions(layout):
        return list(itertools.product(range(layout[1]), range(layout[0])))

    @staticmethod
    def read(session, model, layout, place, **more):
        tp, pp, chunks = layout
        return session.load_state_dict(
            model, pp=place[0], tp=place[1], tp_size=tp, pp_size=pp, virtual_stages=chunks, **more
        )

    def import_all(self, family):
        """{layout: (model, {position: (tensors, config)})} of fresh imports,
        shared by the tests."""
        if family not in self.imports:
            source, _ = dense_models.checkpoint(self.c.dir / family, family)
            own, session = {}, self.session()
            for layout in LAYOUTS:
                name = "-".join(map(str, (family.replace("/", "-"), *layout)))
                self.imported(source, name, layout)
                own[layout] = name, {
                    place: (
                        session.load_state_dict(name, pp=place[0], tp=place[1], copy=True),
                        session.model_config(),
                    )
                    for place in self.positions(layout)
                }
            self.imports[family] = own
        return self.imports[family]

    def test_every_layout_reads_what_an_import_at_it_would_have_made(self):
        session = self.session()
        for family in dense_models.FAMILIES + dense_models.VARIANTS:
            own = self.import_all(family)
            for stored, wanted in itertools.permutations(LAYOUTS, 2):
                for place in self.positions(wanted):
                    with self.subTest(family=family, stored=stored, wanted=wanted, place=place):
                        got, (tensors, config) = (
                            self.read(session, own[stored][0], wanted, place, version=1),
                            own[wanted][1][place],
                        )
                        self.assertTrue(same(got, tensors))
                        self.assertEqual(session.model_config(), config)
            name = own[1, 1, 1][0]
            self.assertEqual(self.cuts(name), {1: {2, 4}})  # one for all stages

    def test_optimizer_state_follows_its_parameters_to_every_layout(self):
        """A moment is its parameter plus one, bit for bit: so it is the same at every layout,
        including its padding."""
        session = self.session()

        def moment(state):
            return {
                f"exp_avg.{n}": t.contiguous().view(torch.int32).add(1).view(torch.float32)
                for n, t in state.items()
            }

        for family, stored in (
            ("llama", (2, 2, 2)),
            ("qwen2", (4, 2, 2)),
            ("gpt2", (1, 4, 1)),
            ("gemma2", (4, 1, 1)),
        ):
            own = self.import_all(family)
            name, before = own[stored]
            for (pp, tp), (state, _) in before.items():
                rank = self.session(
                    job="moments",
                    model=name,
                    pp=pp,
                    tp=tp,
                    pp_size=stored[1],
                    tp_size=stored[0],
                    virtual_stages=stored[2],
                    world_size=len(before),
                    global_rank=pp * stored[0] + tp,
                )
                saved = rank.save_state_dict(state, 1, optim=moment(state))
            self.assertEqual((saved.version, saved.visible), (2, True))
            for wanted in LAYOUTS:
                for place, (tensors, _) in own[wanted][1].items():
                    with self.subTest(family=family, stored=stored, wanted=wanted, place=place):
                        self.assertTrue(
                            same(self.read(session, name, wanted, place, version=2), tensors)
                        )
                        moments = self.read(
                            session, name, wanted, place, version=2, kind="optim", dp=0
                        )
                        self.assertTrue(same(moments, moment(tensors)))

    def test_a_layout_is_cut_once(self):
        self.c.json("model", "import", self.source, "--name", "once", "--tp", 1, "--pp", 1)
        sessions = [self.session() for _ in range(4)]
        threads = [
            threading.Thread(
                target=s.load_state_dict, args=("once",), kwargs={"tp": i, "tp_size": 4}
            )
            for i, s in enumerate(sessions)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        shards = {s["id"] for s in self.c.json("shard", "ls", "--model", "once")["items"]}
        result = self.c.json("model", "reshard", "once", "--tp-size", 4)
        self.assertEqual(
            {s["id"] for s in self.c.json("shard", "ls", "--model", "once")["items"]}, shards
        )
        self.assertEqual((result["version"], result["split"]["tp"]), (1, 4))
        self.assertEqual(self.cuts("once"), {1: {4}})
        self.assertEqual(self.c.json("model", "reshard", "once", "--pp-size", 2)["shards"], 0)
        self.c.json("model", "rm", "once")
        self.assertFalse({s["id"] for s in self.c.json("shard", "ls")["items"]} & shards)

    def pooled(self):
        """Shards in the pool, manifests not counted."""
        return self.c.json("info")["pool"]["shards"]

    def listed(self):
        return len(self.c.json("shard", "ls")["items"])

    def test_many_readers_of_many_layouts_make_each_cut_once(self):
        models = ["crowd-a", "crowd-b", "crowd-c"]
        for name, tp in zip(models, (1, 2, 4)):
            self.imported(self.source, name, (tp, 1, 1))
        wanted = {name: {1, 2, 4} - {tp} for name, tp in zip(models, (1, 2, 4))}
        jobs = [
            (name, (tp, pp, 1), (pp - 1, tp - 1))
            for name in models
            for tp in wanted[name]
            for pp in (1, 2)
        ] * 2
        sessions, got, failed = [self.session() for _ in jobs], {}, []

        def read(session, job):
            try:
                got.setdefault(job[1:], []).append(self.read(session, *job))
            except errors.HeliosError as e:
                failed.append(e)

        before = sum(self.plans())
        threads = [threading.Thread(target=read, args=each) for each in zip(sessions, jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])
        self.assertEqual({name: self.cuts(name)[1] for name in models}, wanted)
        self.assertEqual(sum(self.plans()), before + 6)  # each cut takes one, new or reused
        for states in got.values():  # from one place, of two models
            self.assertTrue(all(same(states[0], state) for state in states))
        wait_for(
            "no shard that the catalogue does not know", lambda: self.pooled() == self.listed()
        )
        for name in models:
            self.c.json("model", "rm", name)
        wait_for("nothing to be left of them", lambda: self.pooled() == self.listed())

    def test_what_does_not_work_out_is_refused_with_the_arithmetic(self):
        session = self.session()
        with self.assertRaisesRegex(
            errors.InvalidArgument, "tp 3 does not divide .* use tp 1, 2 or 4"
        ):
            session.load_state_dict("tp1pp1", tp_size=3)
        with self.assertRaisesRegex(errors.InvalidArgument, "4 layers over 3 stages"):
            session.load_state_dict("tp1pp1", tp_size=4, pp_size=3)
        with self.assertRaisesRegex(errors.NotFound, "TP2 x PP1"):
            session.load_state_dict("tp1pp1", tp=2, tp_size=2)

    def gang(self, model, tp_size):
        return [
            self.session(
                job="reshard",
                model=model,
                pp=0,
                tp=tp,
                pp_size=1,
                tp_size=tp_size,
                world_size=tp_size,
                global_rank=tp,
            )
            for tp in range(tp_size)
        ]

    def test_a_save_at_another_size_comes_back_at_every_size(self):
        self.c.json("model", "import", self.source, "--name", "saved", "--tp", 2, "--pp", 1)
        states = {}
        for rank in self.gang("saved", 4):
            state = {
                n: t.clone().view(torch.int32).add_(1).view(torch.float32)
                for n, t in rank.load_state_dict().items()
            }
            states[rank] = state, {f"exp_avg.{n}": t.clone() for n, t in state.items()}
        for rank, (state, moments) in states.items():
            saved = rank.save_state_dict(state, 7, optim=moments)
        self.assertTrue(saved.visible)
        own = {rank.rank.tp: state for rank, (state, _) in states.items()}
        reader = self.session()
        names = [n for n in own[0] if "linear_fc2.weight" in n]
        for tp_size in (1, 2):
            parts = [
                reader.load_state_dict("saved", tp=tp, tp_size=tp_size) for tp in range(tp_size)
            ]
            optim = [
                reader.load_state_dict("saved", tp=tp, tp_size=tp_size, kind="optim")
                for tp in range(tp_size)
            ]
            for n in names:  # cut along its columns
                whole = torch.cat([own[tp][n] for tp in range(4)], 1)
                self.assertTrue(same({n: torch.cat([p[n] for p in parts], 1)}, {n: whole}))
                self.assertTrue(
                    same({n: torch.cat([p[f"exp_avg.{n}"] for p in optim], 1)}, {n: whole})
                )
        self.assertEqual(self.cuts("saved"), {1: {4}, saved.version: {1, 2}})
        wrong = {n: t[:1].clone() if "linear_fc2" in n else t.clone() for n, t in own[0].items()}
        with self.assertRaisesRegex(errors.InvalidArgument, "linear_fc2"):
            self.gang("saved", 4)[0].save_state_dict(wrong, 8)

    def plans(self):
        """Cuts as counted by L3: (made, reused)."""
        text = self.c.run("metrics", "l3").stdout
        return tuple(
            int(re.search(rf"^helios_cut_plans_{word}_total (\d+)$", text, re.M)[1])
            for word in ("made", "reused")
        )

    def test_the_next_version_is_cut_by_the_plan_of_the_one_before(self):
        self.c.json("model", "import", self.source, "--name", "planned", "--tp", 2, "--pp", 1)
        gang, reader = self.gang("planned", 2), self.session()
        states = [{n: t.clone() for n, t in rank.load_state_dict().items()} for rank in gang]
        made, reused = self.plans()
        # the first save adds optimizer state, so its plan differs from the import's
        for step in range(1, 4):
            for rank, state in zip(gang, states):
                for t in state.values():
                    t.view(torch.int32).add_(1)
                saved = rank.save_state_dict(
                    state, step, optim={f"exp_avg.{n}": t for n, t in state.items()}
                )
            whole = reader.load_state_dict("planned", saved.version, tp_size=1)
            moments = reader.load_state_dict("planned", saved.version, tp_size=1, kind="optim")
            self.assertTrue(same({f"exp_avg.{n}": t for n, t in whole.items()}, moments))
            (name,) = (n for n in whole if "layers.1." in n and n.endswith("linear_fc2.weight"))
            self.assertTrue(
                same({name: whole[name]}, {name: torch.cat([state[name] for state in states], 1)})
            )
            self.assertEqual(self.plans(), (made + 1, reused + step - 1))
        self.assertEqual(self.cuts("planned"), {1: set(), 2: {1}, 3: {1}, 4: {1}})
        reader.load_state_dict("planned", 2, tp_size=4)
        self.assertEqual(self.plans(), (made + 2, reused + 2))

    def test_state_that_ranks_share_out_is_left_out_and_said(self):
        self.c.json("model", "import", self.source, "--name", "shared", "--tp", 1, "--pp", 1)
        for dp in range(2):
            rank = self.session(
                job="dp",
                model="shared",
                pp=0,
                tp=0,
                dp=dp,
                pp_size=1,
                tp_size=1,
                dp_size=2,
                world_size=2,
                global_rank=dp,
            )
            state = rank.load_state_dict()
            rank.save_state_dict(
                state, 3, optim={f"exp_avg.{n}": t[:1].clone() for n, t in state.items()}
            )
        with self.assertRaisesRegex(errors.Unsupported, "data-parallel ranks hold shares"):
            self.session().load_state_dict("shared", tp_size=2, kind="optim")
        self.assertTrue(self.session().load_state_dict("shared", tp_size=2, kind="model"))
        (cut,) = self.c.json("model", "show", "shared")["versions"][0]["cuts"]
        self.assertIn("optimizer state", cut["leftOut"])

    def shared_out(self, model, held):
        """Saved by two data ranks; rank dp passes the state named by held(dp, i)."""
        self.c.json("model", "import", self.source, "--name", model, "--tp", 2, "--pp", 1)
        for dp, tp in ((d, t) for d in range(2) for t in range(2)):
            rank = self.session(
                job=model,
                model=model,
                pp=0,
                tp=tp,
                dp=dp,
                pp_size=1,
                tp_size=2,
                dp_size=2,
                world_size=4,
                global_rank=2 * dp + tp,
            )
            state = rank.load_state_dict(copy=True)
            saved = rank.save_state_dict(
                state,
                3,
                optim={
                    f"exp_avg.{n}": t.clone()
                    for i, (n, t) in enumerate(sorted(state.items()))
                    if held(dp, i)
                },
            )
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
                self.assertTrue(
                    same(
                        {n: t for n, t in state.items() if n not in padded},
                        {n: optim[f"exp_avg.{n}"] for n in state if n not in padded},
                    )
                )
        cuts = next(
            v for v in self.c.json("model", "show", "zero")["versions"] if v["version"] == 2
        )["cuts"]
        self.assertEqual([cut["leftOut"] for cut in cuts], ["", ""])
        # at its own layout a share stays one
        own = reader.load_state_dict("zero", tp=1, kind="optim", dp=1)
        self.assertTrue(0 < len(own) < len(reader.load_state_dict("zero", tp=1)))

    def test_a_tensor_that_two_shares_hold_is_left_out_and_said(self):
        self.shared_out("twice", lambda dp, i: i == 3 or i % 2 == dp)
        with self.assertRaisesRegex(errors.Unsupported, "data-parallel ranks hold shares"):
            self.session().load_state_dict("twice", tp_size=1, kind="optim")

    def test_cuts_survive_a_restart_of_the_controller(self):
        self.c.json("model", "import", self.source, "--name", "kept", "--tp", 1, "--pp", 1)
        session = self.session()
        before = session.load_state_dict("kept", tp=1, tp_size=2, copy=True)
        shards = {s["id"] for s in self.c.json("shard", "ls", "--model", "kept")["items"]}
        self.c.kill("controllerd")
        self.c.json("up")
        self.assertEqual(
            {s["id"] for s in self.c.json("shard", "ls", "--model", "kept")["items"]}, shards
        )
        self.assertTrue(same(self.session().load_state_dict("kept", tp=1, tp_size=2), before))

    def test_exported_and_pulled_files_are_those_of_an_import(self):
        out = [self.c.dir / "pulled-a", self.c.dir / "pulled-b"]
        self.c.json(
            "pull",
            "--model",
            "tp1pp1@1",
            "--pp",
            1,
            "--tp",
            3,
            "--tp-size",
            4,
            "--pp-size",
            2,
            "--out",
            out[0],
        )
        self.c.json("pull", "--model", "tp4pp2@1", "--pp", 1, "--tp", 3, "--out", out[1])
        self.assertEqual(*(self.tensors(p) for p in out))

    @staticmethod
    def tensors(path):
        header = safetensors.read_header(path)
        data = pathlib.Path(path).read_bytes()
        return {
            e.name: (
                e.dtype,
                e.shape,
                data[header.data_start + e.begin : header.data_start + e.end],
            )
            for e in header.entries.values()
        }


class Room(unittest.TestCase):
    def start(self, **env):
        """A pool with room for three models; returns the cluster, and the command that adds one."""
        cluster = Cluster(nodes=1, slots=1, size="64MiB", env=env)
        self.addCleanup(shutil.rmtree, cluster.dir, ignore_errors=True)
        self.addCleanup(cluster.run, "down")
        cluster.up()
        source, _ = checkpoints.llama(
            cluster.dir / "big", layers=4, hidden=256, ffn=1024, vocab=1024
        )
        return cluster, ("model", "import", source, "--tp", 1, "--pp", 1, "--name")

    def test_a_cut_waits_for_room_that_rests_and_says_so_in_the_end(self):
        cluster, add = self.start(HELIOS_L3_QUARANTINE="1h", HELIOS_ARCHIVE_LOAD_TIMEOUT="300ms")
        for name in ("first", "second", "third"):
            cluster.json(*add, name)
        cluster.json("model", "rm", "third")
        said = cluster.refuse("model", "reshard", "first", "--tp-size", 2)
        self.assertRegex(
            said,
            r"'first' needs .* are free in the pool and \d.* are in quarantine \(l3.quarantine\)",
        )

    def test_a_reader_whose_shards_went_after_it_listed_them_gets_them_from_a_new_cut(self):
        cluster, add = self.start()
        cluster.json(*add, "first")
        session = helios.Session(cluster.info["controller"], rank=helios.Rank())
        self.addCleanup(session.close, force=True)
        client, split = session.client, _abi.Split(tp=2)
        listed = client.request_shards("first", 1, 0, 1, split)
        before = [bytes(client.map(shard).buffer()) for shard in listed.shards]
        for way in (self.mapped, self.copied):
            gc.collect()  # a view pins its shard
            derived = {
                s["id"]
                for s in cluster.json("shard", "ls", "--model", "first")["items"]
                if s["derived"]
            }
            for name in ("second", "third"):
                cluster.json(*add, name)
            wait_for(
                "the derived shards to go", lambda: cluster.json("info")["pool"]["shards"] == 3 * 6
            )
            cluster.json("model", "rm", "third")
            self.assertEqual([way(client, shard) for shard in listed.shards], before)
            fresh = {
                s["id"]
                for s in cluster.json("shard", "ls", "--model", "first")["items"]
                if s["derived"]
            }
            self.assertEqual((len(fresh), fresh & derived), (len(derived), set()))
            cluster.json("model", "rm", "second")
            listed = client.request_shards("first", 1, 0, 1, split)
        gc.collect()
        cluster.json("model", "rm", "first")
        wait_for("its shards to go", lambda: cluster.json("info")["pool"]["shards"] == 0)
        with self.assertRaisesRegex(
            errors.NotFound, "first.*was evicted, and cutting its version again failed"
        ):
            client.map(listed.shards[0])

    @staticmethod
    def mapped(client, shard):
        return bytes(client.map(shard).buffer())

    @staticmethod
    def copied(client, shard):
        lib, handle, size = client._lib, client._use(), ctypes.c_uint64()
        client._check(lib.helios_find(handle, _abi._Id(*shard.id), ctypes.byref(size), None))
        into = ctypes.create_string_buffer(size.value)
        client._check(
            lib.helios_get(handle, _abi._Id(*shard.id), into, ctypes.c_size_t(size.value))
        )
        return into.raw

    def test_derived_shards_are_the_first_to_go(self):
        cluster, add = self.start()
        cluster.json(*add, "first")
        self.assertGreater(
            cluster.json("model", "reshard", "first", "--tp-size", 2)["bytes"], 10 << 20
        )
        cluster.json(*add, "second")
        cluster.json(*add, "third")  # takes the space of the derived shards: there is no archive
        session = helios.Session(cluster.info["controller"], rank=helios.Rank())
        self.addCleanup(session.close, force=True)
        with self.assertRaisesRegex(errors.NoSpace, "tensor parallel size 2"):
            session.load_state_dict("first", tp_size=2)
        self.assertEqual(
            {len(session.load_state_dict(m)) for m in ("first", "second", "third")},
            {len(session.load_state_dict("first"))},
        )
        session.close(force=True)
        cluster.json("model", "rm", "second")
        cluster.json("model", "reshard", "first", "--tp-size", 2)
        cuts = cluster.json("model", "show", "first")["versions"][0]["cuts"]
        self.assertEqual([cut["split"]["tp"] for cut in cuts], [2])


class Readers(unittest.TestCase):
    # tp, pp: each needs a cut of its own
    LAYOUTS = [(2, 1), (4, 2), (8, 1), (16, 2), (32, 1), (64, 2)]
    TRIES = 5  # until L3 is stopped before it has made all

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(
            cls, nodes=1, slots=1, size="768MiB", env={"HELIOS_RPC_TIMEOUT": "60s"}
        )
        cls.source, _ = checkpoints.llama(
            cls.c.dir / "wide",
            layers=2,
            hidden=512,
            heads=64,
            groups=64,
            ffn=1536,
            vocab=2048,
            seed=5,
        )
        for tp, pp in cls.LAYOUTS:
            cls.c.json(
                "model", "import", cls.source, "--name", f"wide-{tp}", "--tp", tp, "--pp", pp
            )

    def session(self):
        made = helios.Session(self.c.info["controller"], rank=helios.Rank())
        self.addCleanup(made.close, force=True)
        return made

    def derived(self):
        return {
            e.id
            for e in poolfile.entries(pathlib.Path(self.c.info["pool"]))
            if e.id.startswith(poolfile.DERIVED)
        }

    @staticmethod
    def last_rank(session, model, tp, pp):
        return session.load_state_dict(
            model, pp=pp - 1, tp=tp - 1, tp_size=tp, pp_size=pp, copy=True
        )

    @contextlib.contextmanager
    def said(self):
        """Returns a function that reads what libhelios has written to stderr."""
        path, kept = self.c.dir / "said", os.dup(2)
        with path.open("w") as file:
            os.dup2(file.fileno(), 2)
        try:
            yield path.read_text
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def read_all_at_once(self, sessions):
        """More cuts than L3 makes at a time; L3 is stopped for a while once it has begun.
        {tp: state}"""
        before, l3 = self.derived(), self.c.pid("l3d")
        with concurrent.futures.ThreadPoolExecutor(len(sessions)) as pool:
            reads = {
                tp: pool.submit(self.last_rank, sessions[tp], "wide", tp, pp)
                for tp, pp in self.LAYOUTS
            }
            while not self.derived() - before:
                self.assertFalse(all(read.done() for read in reads.values()), "no cut has begun")
            os.kill(l3, signal.SIGSTOP)
            try:
                time.sleep(3)  # waiting callers are answered after two seconds
            finally:
                os.kill(l3, signal.SIGCONT)
            return {tp: read.result() for tp, read in reads.items()}

    def test_six_readers_at_six_layouts_read_one_version_at_once(self):
        fresh, sessions = {}, {}
        for tp, pp in self.LAYOUTS:
            sessions[tp] = self.session()
            fresh[tp] = self.last_rank(sessions[tp], f"wide-{tp}", tp, pp)
        told, turns = 0, 0
        while told == 0:
            self.assertLess(turns, self.TRIES, "no reader has waited")
            turns += 1
            self.c.json("model", "import", self.source, "--name", "wide")
            with self.said() as said:
                got = self.read_all_at_once(sessions)
                told = sum(f"name=wide version=1 tp={tp}" in said() for tp in got)
            for tp, state in got.items():
                self.assertTrue(same(state, fresh[tp]), tp)
            cuts = self.c.json("model", "show", "wide")["versions"][0]["cuts"]
            self.assertEqual(
                sorted(cut["split"]["tp"] for cut in cuts), [tp for tp, _ in self.LAYOUTS]
            )
            self.assertEqual(
                (self.c.state / "log" / "l3d.log").read_text().count("cut done name=wide "),
                len(cuts) * turns,
            )
            self.c.json("model", "rm", "wide")


if __name__ == "__main__":
    unittest.main()

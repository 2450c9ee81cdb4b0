#!/usr/bin/python3
"""A process that dies in the middle of a cut (the L3 daemon, the Controller, the reader) or of a
save that makes a model leaves no wrong bytes and nothing in the pool, and the next call works. A
damaged shard of a cut is derived again by the read that meets it."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints, kill_case  # noqa: E402
from support.cluster import HELIOS, PATIENCE_S, wait_for  # noqa: E402
from support.kill_case import poolfile  # noqa: E402
from support.terminal import on_terminal  # noqa: E402

import helios  # noqa: E402
from helios import _abi  # noqa: E402

STRIKES = 20  # cuts that may end before the daemon is stopped
SAVER = """
import os, signal, sys, torch, helios
class Deadly:  # a value whose reader dies when its bytes are asked for
    dtype, shape = torch.float32, (4,)
    def read_into(self, address, size):
        os.kill(os.getpid(), signal.SIGKILL)
session = helios.Session(sys.argv[1], rank=helios.Rank())
session.save_state_dict({"a": torch.ones(1 << 20), "b": Deadly()}, 1, model="new")
"""


class Kills(kill_case.KillCase):
    SIZE = "1GiB"

    def session(self):
        made = helios.Session(self.c.info["controller"], rank=helios.Rank())
        self.addCleanup(made.close, force=True)
        return made


class Saves(Kills):
    # a save may take this long between begin and commit: the last one must not be dropped
    GRACE = "2s"

    def test_who_dies_while_it_saves_a_new_model_leaves_none(self):
        [(code, _, said)] = self.finish([self.python(SAVER, self.c.info["controller"])])
        self.assertEqual(code, -signal.SIGKILL, said)
        wait_for("the model to go", lambda: not self.c.json("model", "ls")["items"])
        wait_for("its shards to go", lambda: not self.orphans())
        self.assertEqual(self.c.json("shard", "ls")["items"], [])
        state = {"other": torch.ones(3)}
        self.assertEqual(self.session().save_state_dict(state, 1, model="new").version, 1)
        self.assertEqual(set(self.session().load_state_dict("new")), {"other"})


class Cuts(Kills):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        source, _ = checkpoints.llama(
            cls.c.dir / "llama", layers=8, hidden=512, ffn=1536, vocab=2048
        )
        cls.c.json("model", "import", source, "--name", "model", "--tp", 1, "--pp", 1)
        cls.c.json("model", "import", source, "--name", "wanted", "--tp", 2, "--pp", 1)

    def states(self):
        return {
            e.id: e.state for e in poolfile.entries(self.pool) if e.id.startswith(poolfile.DERIVED)
        }

    def read(self, model, tp, **sizes):
        return self.session().load_state_dict(model, tp=tp, copy=True, **sizes)

    def reader(self, size):
        return self.helios(
            "pull",
            "--model",
            "model",
            "--pp",
            0,
            "--tp",
            0,
            "--pp-size",
            1,
            "--tp-size",
            size,
            "--out",
            self.c.dir / "pulled",
        )

    def in_the_middle(self):
        """A reader whose cut has begun and has shards being written,
        while the L3 daemon is stopped."""
        l3 = self.c.pid("l3d")
        for _ in range(STRIKES):
            before = set(self.states())
            reader = self.reader(2)
            self.addCleanup(reader.stdout.close)
            self.addCleanup(reader.stderr.close)
            self.addCleanup(reader.wait, 60)
            # a cut takes a tenth of a second: poll without a pause
            deadline = time.monotonic() + PATIENCE_S
            while not set(self.states()) - before and reader.poll() is None:
                self.assertLess(time.monotonic(), deadline, "the cut did not begin")
            os.kill(l3, signal.SIGSTOP)
            new = [state for id, state in self.states().items() if id not in before]
            if poolfile.WRITING in new:
                return reader
            os.kill(l3, signal.SIGCONT)
            reader.wait(60)
            self.forget_cuts()
        self.fail(f"{STRIKES} cuts ended before the daemon could be stopped")

    @contextlib.contextmanager
    def slowed(self):
        """Keeps the L3 daemon stopped most of the time."""
        pid, over = self.c.pid("l3d"), threading.Event()

        def hinder():
            while not over.wait(0.005):
                os.kill(pid, signal.SIGSTOP)
                over.wait(1)
                os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=hinder)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def test_a_layout_made_ahead_of_time_draws_how_far_it_is(self):
        command = [HELIOS, "--state", self.c.state, "model", "reshard", "model", "--tp-size", 4]
        self.addCleanup(self.forget_cuts)
        for _ in range(STRIKES):  # until one takes longer than the Controller's answer
            with self.slowed():
                code, shown = on_terminal(command, env=self.c.env, stream="stderr")
            self.assertEqual(code, 0, shown)
            cuts = [
                c["split"]["tp"]
                for v in self.c.json("model", "show", "model")["versions"]
                for c in v["cuts"]
            ]
            self.assertEqual(cuts, [4])
            if shown:
                break
            self.forget_cuts()
        self.assertRegex(shown, r"\r\x1b\[Kcutting \[.*%.* of .*\r\x1b\[K$")
        done = self.c.run("model", "reshard", "model", "--tp-size", 4)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("can be read as TP4 x PP1", done.stdout)

    def test_a_progress_line_that_is_interrupted_is_ended(self):
        command = [HELIOS, "--state", self.c.state, "model", "reshard", "model", "--tp-size", 4]
        self.addCleanup(self.forget_cuts)
        for _ in range(STRIKES):
            with self.slowed():
                code, shown = on_terminal(
                    command, env=self.c.env, stream="stderr", interrupt=b"cutting ["
                )
            if shown:
                break
            self.forget_cuts()
        self.assertEqual(code, -signal.SIGINT, shown)
        self.assertRegex(shown, r"\r\x1b\[Kcutting \[[^\n]*\n$")

    def forget_cuts(self):
        """Resets the model to one that was never cut."""
        self.c.json("model", "rm", "model")
        self.c.json(
            "model", "import", self.c.dir / "llama", "--name", "model", "--tp", 1, "--pp", 1
        )

    def check_reads(self):
        for tp in range(2):
            got, wanted = self.read("model", tp, tp_size=2), self.read("wanted", tp)
            self.assertEqual(got.keys(), wanted.keys())
            for name, tensor in wanted.items():
                self.assertTrue(
                    torch.equal(got[name].view(torch.uint8), tensor.view(torch.uint8)), name
                )

    def check_after(self):
        self.c.up()
        self.check_reads()
        wait_for("what nobody knows to leave the pool", lambda: not self.orphans())
        cuts = self.c.json("model", "show", "model")["versions"][0]["cuts"]
        self.assertEqual([cut["split"]["tp"] for cut in cuts], [2])
        self.forget_cuts()
        known = self.known()
        wait_for(
            "only the imported shards to use the pool",
            lambda: set(self.states().values()) <= {poolfile.FREED, poolfile.DELETED},
        )
        self.assertLessEqual(known, set(poolfile.sealed(self.pool)))

    def test_the_l3_daemon_killed_in_the_middle_of_a_cut(self):
        reader = self.in_the_middle()
        self.c.kill("l3d")
        self.c.up()
        reader.wait(60)
        self.check_after()

    def test_the_controller_killed_in_the_middle_of_a_cut(self):
        reader = self.in_the_middle()
        self.c.kill("controllerd")
        os.kill(self.c.pid("l3d"), signal.SIGCONT)
        self.c.up()
        reader.wait(60)
        self.check_after()

    def test_both_daemons_killed_in_the_middle_of_a_cut(self):
        reader = self.in_the_middle()
        self.c.kill("controllerd")
        self.c.kill("l3d")
        self.c.up()
        reader.wait(60)
        self.check_after()

    def test_the_reader_killed_in_the_middle_of_its_cut(self):
        reader = self.in_the_middle()
        reader.kill()
        reader.wait(60)
        os.kill(self.c.pid("l3d"), signal.SIGCONT)
        self.check_after()

    def damage(self):
        """Flips one bit in each shard of the cuts; returns their ids."""
        cut = [
            entry
            for id, entry in poolfile.sealed(self.pool).items()
            if id.startswith(poolfile.DERIVED)
        ]
        for entry in cut:
            poolfile.flip(self.pool, entry.offset + entry.size - 1, 3)
        return {entry.id for entry in cut}

    def test_a_cut_with_a_damaged_shard_is_made_anew_in_the_same_read(self):
        for _ in range(2):
            self.read("model", 0, tp_size=2)
            damaged = self.damage()
            self.assertTrue(damaged)
            self.check_reads()
            self.assertFalse(damaged & self.known())
        self.check_after()

    def test_a_client_that_listed_a_cut_before_it_was_damaged_reads_it(self):
        split = _abi.Split(tp=2)
        for path in ("shm", "net"):
            client = _abi.Client(self.c.info["controller"], path=path)
            self.addCleanup(client.close)
            for way in (self.copied, self.mapped):
                with self.subTest(path=path, way=way.__name__):
                    listed = client.request_shards("model", 1, 0, 1, split)
                    before = [self.copied(client, shard) for shard in listed.shards]
                    self.damage()
                    self.assertEqual([way(client, shard) for shard in listed.shards], before)
                    gc.collect()  # a view pins its shard
            self.assertGreater(client.stats()["crc_failures"], 0)
        self.check_after()

    @staticmethod
    def mapped(client, shard):
        return bytes(client.map(shard).buffer())

    @staticmethod
    def copied(client, shard):
        into = ctypes.create_string_buffer(shard.size)
        client._check(
            client._lib.helios_get(
                client._use(), _abi._Id(*shard.id), into, ctypes.c_size_t(shard.size)
            )
        )
        return into.raw


if __name__ == "__main__":
    unittest.main()

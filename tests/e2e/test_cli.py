"""Models, shards and pulls through the command line,
checked with readers that share no code with it."""
import concurrent.futures
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import unittest
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import HELIOS, cluster, wait_for  # noqa: E402
from support.terminal import on_terminal  # noqa: E402

LAYERS, HIDDEN, VOCAB = 4, 64, 61


def read(raw):
    """Tensors of a safetensors file by its definition: {name: (dtype, shape, bytes)},
    and its metadata."""
    size = struct.unpack("<Q", raw[:8])[0]
    assert (8 + size) % 64 == 0, "data is not aligned"
    header = json.loads(raw[8 : 8 + size])
    meta = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end, f"{name}: a gap or an overlap"
        end = stop
        tensors[name] = entry["dtype"], entry["shape"], raw[8 + size + begin : 8 + size + stop]
    assert 8 + size + end == len(raw), "bytes after the last tensor"
    return tensors, meta


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # bytes over the network are compared
        cls.context = cluster(nodes=1, slots=1, size="64MiB", tcp=True)
        cls.c = cls.context.__enter__()
        try:
            cls.source = cls.c.dir / "checkpoint"
            checkpoints.llama(cls.source, layers=LAYERS, hidden=HIDDEN, vocab=VOCAB)
            cls.hf = checkpoints.read(cls.source / "model.safetensors")[1]
            cls.imported = cls.c.json(
                "model",
                "import",
                cls.source,
                "--name",
                "toy",
                "--tp",
                2,
                "--pp",
                2,
                "--vocab-divisor",
                8,
            )
        except BaseException:
            cls.context.__exit__(*sys.exc_info())
            raise

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)

    def pull(self, pp, tp, *args):
        out = self.c.dir / f"pull-{pp}-{tp}.safetensors"
        done = self.c.run("pull", "--model", "toy", "--pp", pp, "--tp", tp, "--out", out, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out.read_bytes(), done.stderr

    def test_a_pull_is_a_safetensors_file_with_the_ranks_slices_and_true_checksums(self):
        self.assertEqual(self.imported["version"], 1)
        self.assertEqual(self.imported["shards"], 2 * 2 * (LAYERS // 2 + 1))
        half = HIDDEN * 4 * (64 // 2)  # the vocabulary of 61 is padded to 64
        for pp in (0, 1):
            for tp in (0, 1):
                raw, said = self.pull(pp, tp)
                tensors, meta = read(raw)
                self.assertIn("path shm", said)
                self.assertIn("0 checksum failures", said)
                for name, (_, _, data) in tensors.items():
                    self.assertEqual(meta[f"crc32.{name}"], f"{zlib.crc32(data):08x}", name)
                parts = (
                    ["embedding", "layer-0000", "layer-0001"]
                    if pp == 0
                    else ["layer-0002", "layer-0003", "head"]
                )
                self.assertEqual(meta["helios.part"].split(","), parts)
                for local in range(LAYERS // 2):
                    norm = tensors[f"decoder.layers.{local}.input_layernorm.weight"]
                    self.assertEqual(
                        norm[2], self.hf[f"model.layers.{2 * pp + local}.input_layernorm.weight"]
                    )
                word = (
                    self.hf["model.embed_tokens.weight"] if pp == 0 else self.hf["lm_head.weight"]
                )
                padded = word + word[-HIDDEN * 4 :] * 3
                name = "embedding.word_embeddings.weight" if pp == 0 else "output_layer.weight"
                self.assertEqual(tensors[name][2], padded[tp * half : (tp + 1) * half])

    def test_stdout_and_the_network_give_the_same_bytes(self):
        raw, _ = self.pull(1, 1)
        other, said = self.pull(1, 1, "--path", "net")
        self.assertEqual(raw, other)
        self.assertIn("path tcp", said)
        stream = subprocess.run(
            [
                str(HELIOS),
                "--state",
                str(self.c.state),
                "pull",
                "--model",
                "toy@1",
                "--pp",
                "1",
                "--tp",
                "1",
                "--out",
                "-",
            ],
            capture_output=True,
            timeout=60,
            check=True,
        )
        self.assertEqual(stream.stdout, raw)
        self.assertIn(b"iB/s, 0 checksum failures", stream.stderr)

    def test_bytes_are_not_written_to_a_terminal(self):
        main, side = pty.openpty()
        done = subprocess.run(
            [str(HELIOS), "--state", str(self.c.state), "pull", "--model", "toy", "--out", "-"],
            stdout=side,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        os.close(side)
        os.close(main)
        self.assertEqual(done.returncode, 1)
        self.assertIn("terminal", done.stderr)

    def test_a_pull_that_fails_leaves_no_file(self):
        out = self.c.dir / "never"
        text = self.c.refuse("pull", "--model", "toy", "--pp", 7, "--tp", 0, "--out", out)
        self.assertIn("TP2 x PP2", text)
        text = self.c.refuse("pull", "--model", "nobody", "--out", out)
        self.assertIn("nobody", text)
        self.assertEqual(list(self.c.dir.glob("never*")), [])
        self.assertIn(
            "/no/such/dir", self.c.refuse("pull", "--model", "toy", "--out", "/no/such/dir/x")
        )

    def test_exports_hold_what_pulls_hold(self):
        flat = self.c.dir / "flat"
        done = self.c.json("model", "export", "toy", "--format", "safetensors", "--out", flat)
        self.assertEqual(done["files"], 4)
        self.assertEqual(
            sorted(p.name for p in flat.iterdir()),
            [f"mp_rank_{tp:02}_{pp:03}.safetensors" for tp in (0, 1) for pp in (0, 1)],
        )
        for tp in (0, 1):
            for pp in (0, 1):
                self.assertEqual(
                    (flat / f"mp_rank_{tp:02}_{pp:03}.safetensors").read_bytes(),
                    self.pull(pp, tp)[0],
                )

    def test_the_torch_export_loads_and_equals_the_slices(self):
        try:
            import torch
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            self.skipTest("torch is not installed")
        out = self.c.dir / "torch"
        self.assertEqual(
            self.c.json("model", "export", "toy@1", "--format", "torch", "--no-args", "--out", out)[
                "files"
            ],
            4,
        )
        self.assertEqual((out / "latest_checkpointed_iteration.txt").read_text(), "release")
        for tp in (0, 1):
            for pp in (0, 1):
                path = out / "release" / f"mp_rank_{tp:02}_{pp:03}" / "model_optim_rng.pt"
                state = torch.load(path, weights_only=True)
                tensors, _ = read(self.pull(pp, tp)[0])
                self.assertEqual(set(state["model"]), set(tensors))
                for name, (_, shape, data) in tensors.items():
                    self.assertEqual(list(state["model"][name].shape), shape)
                    self.assertEqual(state["model"][name].numpy().tobytes(), data, name)

    def test_without_a_pipeline_file_names_have_no_stage(self):
        self.c.json("model", "import", self.source, "--name", "flat", "--tp", 1, "--pp", 1)
        out = self.c.dir / "one"
        self.c.json("model", "export", "flat", "--out", out)
        self.assertEqual([p.name for p in out.iterdir()], ["mp_rank_00.safetensors"])
        gone = self.c.json("model", "rm", "flat")
        self.assertEqual((gone["name"], gone["version"]), ("flat", -1))
        self.assertGreater(gone["bytes"], 0)
        self.assertEqual([m["name"] for m in self.c.json("model", "ls")["items"]], ["toy"])

    def test_shards_are_listed_shown_and_copied(self):
        shards = self.c.json("shard", "ls", "--model", "toy")["items"]
        self.assertEqual(len(shards), self.imported["shards"])
        one = next(s for s in shards if s["part"] == "layer-0003" and s["tp"] == 1)
        shown = self.c.json("shard", "show", one["id"], "--verify")
        self.assertTrue(shown["verify"]["ok"])
        self.assertEqual(len(shown["tensors"]), one["tensors"])
        out = self.c.dir / "one.safetensors"
        self.assertEqual(self.c.run("shard", "get", one["id"], "--out", out).returncode, 0)
        raw = out.read_bytes()
        self.assertEqual((len(raw), zlib.crc32(raw)), (one["sizeBytes"], int(one["crc32"], 16)))
        tensors, _ = read(raw)
        self.assertEqual(
            {t["name"]: (t["dtype"], t["shape"], t["crc32"]) for t in shown["tensors"]},
            {n: (d, s, f"{zlib.crc32(b):08x}") for n, (d, s, b) in tensors.items()},
        )
        self.assertIn("toy@1", self.c.refuse("shard", "rm", one["id"]))
        self.assertIn("nothing was freed", self.c.refuse("shard", "rm", "0" * 31 + "1"))
        table = self.c.run("shard", "ls").stdout.splitlines()
        self.assertEqual(len(table), len(shards) + 1)
        self.assertEqual(table[0].split()[:3], ["ID", "MODEL", "PP"])

    def test_a_shard_is_named_by_the_first_digits_of_its_id(self):
        ids = [s["id"] for s in self.c.json("shard", "ls")["items"]]
        table = self.c.run("shard", "ls").stdout.splitlines()[1:]
        shown = [line.split()[0] for line in table]
        self.assertEqual({len(i) for i in shown}, {8})  # 12 random ids: 8 digits tell them apart
        self.assertEqual([[i for i in ids if i.startswith(s)] for s in shown], [[i] for i in ids])
        wide = self.c.run("shard", "ls", "-o", "wide").stdout.splitlines()[1:]
        self.assertEqual([line.split()[0] for line in wide], ids)
        self.assertEqual(self.c.json("shard", "show", shown[3])["id"], ids[3])
        self.assertEqual(
            self.c.run("shard", "get", shown[3], "--out", self.c.dir / "short").returncode, 0
        )
        self.assertIn("toy@1", self.c.refuse("shard", "rm", shown[3]))
        self.assertIn(self.absent(ids), self.c.refuse("shard", "show", self.absent(ids)))
        for text in ("1", "xyz", "0" * 33):
            self.assertIn("32 hexadecimal digits", self.c.refuse("shard", "show", text, code=2))

    @staticmethod
    def absent(ids):
        """Four digits with which no id begins."""
        return next(
            p for p in (f"{n:04x}" for n in range(65536)) if not any(i.startswith(p) for i in ids)
        )

    def settled(self):
        """The pool, once it holds the shards and manifests of the models and nothing else."""
        shown = [
            self.c.json("model", "show", m["name"]) for m in self.c.json("model", "ls")["items"]
        ]
        pool = self.c.json("info")["pool"]
        return (
            pool
            if (pool["shards"], pool["manifests"])
            == (len(self.c.json("shard", "ls")["items"]), sum(len(m["versions"]) for m in shown))
            else None
        )

    def passing(self, name):
        """A model whose removal is over when the test is."""
        self.addCleanup(wait_for, "the pool to hold what is left only", self.settled)
        self.c.json("model", "import", self.source, "--name", name, "--tp", 1, "--pp", 1)
        self.addCleanup(self.c.json, "model", "rm", name)

    def test_digits_that_several_ids_begin_with_are_refused_with_the_candidates(self):
        before = wait_for("the pool to hold the models only", self.settled)["usedBytes"]
        twins, names = [], []
        while not twins:  # of 257 ids two begin with the same 2 digits; each round adds 12
            names.append(f"many{len(names)}")
            self.c.json("model", "import", self.source, "--name", names[-1], "--tp", 2, "--pp", 2)
            ids = [s["id"] for s in self.c.json("shard", "ls")["items"]]
            twins = [i for i in ids if sum(j[:2] == i[:2] for j in ids) > 1]
        said = self.c.refuse("shard", "show", twins[0][:2], code=2)
        for one in (i for i in ids if i[:2] == twins[0][:2]):
            self.assertIn(one[:8] + " (", said)
        for name in names:
            self.c.json("model", "rm", name)
        self.assertEqual(
            wait_for("the pool to hold what is left only", self.settled)["usedBytes"], before
        )

    def test_a_shard_that_is_named_twice_is_freed_once(self):
        self.passing("freed")
        one = self.c.json("shard", "ls", "--model", "freed")["items"][0]["id"]
        done = self.c.run("shard", "rm", "--force", "--", one, one[:31])
        self.assertEqual((done.returncode, done.stdout), (0, "freed 1 shard\n"), done.stderr)

    def test_a_key_that_only_several_cuts_have_is_refused_with_the_candidates(self):
        self.passing("whole")
        for size in (2, 4):
            self.c.json("model", "reshard", "whole", "--tp-size", size)
        of = {
            (s["derivedSplit"], s["tp"]): s["id"]
            for s in self.c.json("shard", "ls", "--model", "whole")["items"]
            if s["part"] == "layer-0001"
        }
        key = "whole@1/pp0/tp{}/layer-0001"
        self.assertEqual(self.c.json("shard", "show", key.format(0))["id"], of["", 0])
        self.assertEqual(self.c.json("shard", "show", key.format(3))["id"], of["TP4", 3])
        said = self.c.refuse("shard", "show", key.format(1), code=2)
        for split in ("TP2", "TP4"):
            self.assertRegex(said, rf"{of[split, 1][:8]}\w* \({split}\)")

    def test_the_shards_of_a_model_that_does_not_exist_are_an_error(self):
        self.assertIn("nope", self.c.refuse("shard", "ls", "--model", "nope"))
        self.assertIn("99", self.c.refuse("shard", "ls", "--model", "toy@99"))

    def test_lists_have_one_shape_and_their_texts_are_unfolded(self):
        for command in (
            ("nodes",),
            ("list",),
            ("store",),
            ("model", "ls"),
            ("shard", "ls"),
            ("conf",),
        ):
            doc = self.c.json(*command)
            self.assertEqual(list(doc), ["items"], command)
            self.assertIsInstance(doc["items"], list, command)
        model = self.c.json("model", "show", "toy")
        self.assertEqual(model["config"]["layers"], LAYERS)
        listed = self.c.json("model", "ls")["items"][0]
        self.assertEqual(listed["config"], model["config"])
        # known only to `model show`: a list without them does not say that they are false
        told = {"durability", "lackingShards", "lacking", "heat", "pinned", "inMemory"}
        self.assertEqual(set(model["versions"][0]) - set(listed["versions"][0]), told)
        self.assertEqual(model["versions"][0]["meta"], {})
        for shard in self.c.json("shard", "ls")["items"]:
            self.assertRegex(shard["crc32"], "^[0-9a-f]{8}$")
        shown = self.c.json("shard", "show", shard["id"])
        for crc in (shown["crc32"], *shown["chunkCrcs"], *(c["crc32"] for c in shown["copies"])):
            self.assertRegex(crc, "^[0-9a-f]{8}$")
        self.assertEqual(shown["crc32"], shard["crc32"])

    def test_states_have_colours_on_a_terminal_only_and_tables_there_fit(self):
        command = [HELIOS, "--state", self.c.state, "shard", "ls"]
        code, shown = on_terminal(command)
        self.assertEqual(code, 0)
        self.assertIn("\x1b[32msealed\x1b[0m", shown)
        plain = re.sub(r"\x1b\[[0-9]+m", "", shown)
        self.assertLessEqual(max(map(len, plain.splitlines())), 80)
        self.assertNotIn("\x1b", on_terminal(command, env={**os.environ, "NO_COLOR": "1"})[1])
        self.assertNotIn("\x1b", self.c.run("shard", "ls").stdout)
        for table in (
            ("nodes",),
            ("store",),
            ("model", "ls"),
            ("model", "show", "toy"),
            ("net",),
            ("info",),
        ):
            shown = re.sub(
                r"\x1b\[[0-9]+m", "", on_terminal([HELIOS, "--state", self.c.state, *table])[1]
            )
            self.assertLessEqual(max(map(len, shown.splitlines())), 80, table)

    def test_refused_imports_say_what_is_wrong_and_leave_nothing(self):
        before = wait_for(
            "the pool to hold the model", lambda: self.c.json("info")["pool"]["usedBytes"]
        )
        for args, words in (
            ((self.source, "--name", "toy"), "exists already"),
            (("/no/such/checkpoint", "--name", "a"), "/no/such/checkpoint"),
            ((self.source, "--name", "a", "--tp", 3), "tp 3 does not divide the "),
            ((self.source, "--name", "a", "--tp", 3), "use tp 1, 2"),
            ((self.source, "--name", "a b"), "a b"),
            ((self.source, "--name", "../x"), "start with"),
            ((self.source, "--name", "x" * 129), "129 characters"),
            ((self.big(), "--name", "a"), "--l3-size"),
        ):
            said = self.c.refuse("model", "import", *args)
            self.assertIn(words, said)
            self.assertNotIn("Controller.", said)  # the name of the refused call is for developers
        self.assertRegex(
            self.c.refuse("model", "import", self.big(), "--name", "a"),
            r"needs \d+\.\d MiB, but \d+\.\d MiB of 64\.0 MiB",
        )
        self.assertIn(
            "(Controller.getModel at 127.0.0.1", self.c.refuse("model", "show", "nobody", "-v")
        )
        self.assertIn(
            "too large: 1 to 4096",
            self.c.refuse("model", "import", "x", "--name", "a", "--tp", "9" * 20, code=2),
        )
        self.assertEqual(self.c.json("info")["pool"]["usedBytes"], before)
        self.assertIn("nobody", self.c.refuse("model", "rm", "nobody"))

    def big(self, layers=6):
        """A checkpoint of 13 MiB a layer; the pool has 64 MiB."""
        path = self.c.dir / f"big-{layers}"
        if not path.exists():
            checkpoints.llama(path, layers=layers, hidden=1024, vocab=61)
        return path

    def imports(self, name):
        """The row of `model ls` for that model; None: there is none."""
        return next((m for m in self.c.json("model", "ls")["items"] if m["name"] == name), None)

    def cancelled(self, end):
        """`end(process)` ends an import while L3 is stopped: it leaves no model and no shard."""
        shards = self.c.json("shard", "ls")["items"]
        before, held = {s["id"] for s in shards}, sum(s["sizeBytes"] for s in shards)
        wait_for(
            "the Controller to know the pool",
            lambda: self.c.json("info")["pool"]["usedBytes"] >= held,
        )
        models = len(self.c.json("model", "ls")["items"])  # of one version each
        used = wait_for(
            "their manifests",
            lambda: (p := self.c.json("info")["pool"])["manifests"] == models and p,
        )["usedBytes"]
        log = self.c.state / "log" / "controllerd.log"
        seen = log.read_text()
        command = [
            str(HELIOS),
            "--state",
            str(self.c.state),
            "model",
            "import",
            str(self.source),
            "--name",
            "late",
        ]
        os.kill(self.c.pid("l3d"), signal.SIGSTOP)
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            wait_for("the import to begin", lambda: self.imports("late"))
            listed = self.imports("late")
            self.assertEqual(
                (listed["state"], listed["tp"], listed["doneBytes"]), ("importing", 1, 0)
            )
            self.assertRegex(self.c.run("model", "ls").stdout, "(?m)^late +importing 0%")
            ended = end(process)
            wait_for(
                "the cancel to arrive",
                lambda: "import is cancelled name=late" in log.read_text()[len(seen) :],
            )
        finally:
            os.kill(self.c.pid("l3d"), signal.SIGCONT)
        _, text = process.communicate(timeout=60)
        self.assertEqual((process.returncode, text), (1, "helios: the import was cancelled\n"))
        self.assertNotIn("late", [m["name"] for m in self.c.json("model", "ls")["items"]])
        self.assertEqual({s["id"] for s in self.c.json("shard", "ls")["items"]}, before)
        wait_for(
            "the pool to be as it was", lambda: self.c.json("info")["pool"]["usedBytes"] == used
        )
        return ended

    def test_an_import_shows_how_far_it_is_once_it_knows(self):
        command = [
            HELIOS,
            "--state",
            self.c.state,
            "model",
            "import",
            self.big(layers=3),
            "--name",
            "shown",
        ]
        os.kill(self.c.pid("l3d"), signal.SIGSTOP)
        try:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                importing = pool.submit(on_terminal, command, stream="stderr")
                wait_for("the import to begin", lambda: self.imports("shown"))
                wait_for(
                    "some reports without a total",
                    lambda: self.c.json("model", "ls")["items"][-1]["totalBytes"] == 0,
                )
                os.kill(self.c.pid("l3d"), signal.SIGCONT)
                code, shown = importing.result(60)
        finally:
            os.kill(self.c.pid("l3d"), signal.SIGCONT)
        self.c.json("model", "rm", "shown")
        self.assertEqual(code, 0, shown)
        self.assertNotIn(" of 0 B", shown)
        self.assertRegex(
            shown, r"importing \[#{16}\] 100%  (\d+\.\d MiB) of \1  \d+\.\d [MG]iB/s\r\x1b\[K$"
        )

    def test_an_import_is_cancelled_by_ctrl_c_and_by_name(self):
        self.cancelled(lambda process: process.send_signal(signal.SIGINT))
        cancel = [str(HELIOS), "--state", str(self.c.state), "model", "cancel", "late"]
        done = self.cancelled(lambda _: subprocess.Popen(cancel, stdout=subprocess.PIPE, text=True))
        self.assertEqual(done.communicate(timeout=60)[0], "the import of late is cancelled\n")
        self.assertEqual(done.returncode, 0)
        self.assertIn("helios model ls", self.c.refuse("model", "cancel", "late"))


class Corruption(unittest.TestCase):
    def test_a_byte_that_went_bad_in_the_pool_is_found_and_named(self):
        with cluster(nodes=1, slots=1, size="64MiB") as c:
            source = c.dir / "checkpoint"
            checkpoints.llama(source)
            c.json("model", "import", source, "--name", "toy")
            shard = next(s for s in c.json("shard", "ls")["items"] if s["part"] == "layer-0001")
            offset = c.json("shard", "show", shard["id"])["offset"]
            with open(c.info["pool"], "r+b") as pool:
                pool.seek(offset + shard["sizeBytes"] - 1)
                byte = pool.read(1)
                pool.seek(-1, os.SEEK_CUR)
                pool.write(bytes([byte[0] ^ 1]))
            text = c.refuse("pull", "--model", "toy", "--out", c.dir / "out")
            self.assertIn("toy@1/pp0/tp0/layer-0001", text)
            self.assertIn("chunk 0 of 1", text)
            self.assertIn("chunks 0", c.run("shard", "show", shard["id"], "--verify").stderr)
            with open(c.info["pool"], "r+b") as pool:
                pool.seek(offset + shard["sizeBytes"] - 1)
                pool.write(byte)
            self.assertEqual(c.run("pull", "--model", "toy", "--out", c.dir / "out").returncode, 0)


if __name__ == "__main__":
    if not HELIOS.exists():
        print(f"skipped: {HELIOS} is not built")
        sys.exit(77)
    unittest.main(verbosity=2)

"""Models, shards and pulls through the command line,
checked with readers that share no code with it."""
import concurrent.futures
import json
import os
import pathlib
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, HELIOS, cluster, wait_for  # noqa: E402
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


def helios(*args, **kwargs):
    return subprocess.run(
        [str(HELIOS), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **kwargs,
    )


class Usage(unittest.TestCase):
    def commands(self):
        text = helios("help").stdout
        return [
            m[1]
            for m in re.finditer(
                r"^  ((?:node|model|shard|mem|trace|bench) [a-z]+|[a-z]+) {2,}", text, re.M
            )
        ]

    def test_every_command_has_help_and_refuses_an_unknown_flag(self):
        commands = self.commands()
        self.assertGreater(len(commands), 20)
        for command in commands:
            words = command.split()
            done = helios("help", *words)
            self.assertEqual((done.returncode, done.stderr), (0, ""), command)
            self.assertTrue(done.stdout.startswith(f"usage: helios {command}"), command)
            self.assertEqual(done.stdout, helios(*words, "--help").stdout, command)
            usage, _, page = done.stdout.partition("\n\n")
            untold = [
                f
                for f in re.findall(r"^  (-\S+)", page, re.M)
                if not any(one in usage for one in f.split(","))
            ]
            self.assertTrue(not untold or usage.endswith("[options]"), (usage, untold))
            done = helios(*words, "--no-such-flag-here")
            self.assertEqual(done.returncode, 2, command)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_a_group_of_commands_has_a_help_page_with_one_line_for_each(self):
        for group in ("node", "model", "shard", "mem", "trace", "bench"):
            members = [c.split()[1] for c in self.commands() if c.startswith(group + " ")]
            pages = [
                helios(*args)
                for args in ((group, "--help"), ("help", group), (group, "-h"), (group,))
            ]
            self.assertEqual([p.returncode for p in pages], [0, 0, 0, 2], group)
            self.assertEqual([p.stderr for p in pages[:3]], ["", "", ""])
            self.assertEqual({p.stdout + p.stderr for p in pages}, {pages[0].stdout})
            self.assertEqual(re.findall(r"^  ([a-z]+) {2,}\S", pages[0].stdout, re.M), members)

    def test_the_dump_of_the_command_tree_has_what_every_help_page_shows(self):
        tree = json.loads(helios("help", "--dump-json").stdout)
        self.assertEqual([c["name"] for c in tree["commands"]], self.commands())
        for command in tree["commands"]:
            page = helios("help", *command["name"].split()).stdout
            self.assertIn(command["summary"], page)
            flags = re.findall(r"^  (-\S+)", page, re.M)
            self.assertEqual(
                [",".join(o["flags"]) for o in command["options"]], flags, command["name"]
            )
            for option in command["options"]:
                if option["help"].endswith("; required."):
                    self.assertEqual(option["default"], "", command["name"])
        by_name = {c["name"]: c for c in tree["commands"]}
        self.assertEqual(
            by_name["submit"]["arguments"], [{"name": "FILE", "required": True, "repeated": False}]
        )
        self.assertEqual(
            by_name["store"]["arguments"], [{"name": "NODE", "required": False, "repeated": False}]
        )
        self.assertEqual(
            by_name["shard rm"]["arguments"],
            [{"name": "ID|KEY", "required": True, "repeated": True}],
        )
        self.assertEqual(by_name["pull"]["arguments"], [])
        tp = next(o for o in by_name["model import"]["options"] if o["flags"] == ["--tp"])
        self.assertEqual((tp["type"], tp["default"], tp["min"], tp["max"]), ("int", "1", 1, 4096))

    def test_the_output_format_is_taken_in_every_common_spelling(self):
        for args in (
            ("-o", "json"),
            ("-ojson",),
            ("-o=json",),
            ("--output", "json"),
            ("--output=json",),
        ):
            self.assertIn("l3.size", json.dumps(json.loads(helios(*args, "conf").stdout)), args)
            self.assertIn("l3.size", json.dumps(json.loads(helios("conf", *args).stdout)), args)

    def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe_and_with_wide(self):
        conf, env = ["conf", "--config", "/dev/null"], {
            **os.environ,
            "HELIOS_ARCHIVE_URL": "dir:/" + 30 * "deep/",
        }
        whole = helios(*conf, env=env).stdout
        self.assertGreater(max(map(len, whole.splitlines())), 150)
        self.assertNotIn("…", whole)
        for columns in (60, 80, 120):
            code, shown = on_terminal([HELIOS, *conf], columns, env=env)
            self.assertEqual(code, 0)
            self.assertLessEqual(max(map(len, shown.splitlines())), columns)
            self.assertIn("…", shown)
            self.assertEqual(len(shown.splitlines()), len(whole.splitlines()))
            for option in ("-owide", "--wide", "--output=wide"):
                self.assertEqual(on_terminal([HELIOS, *conf, option], columns, env=env), (0, whole))
        narrow = helios(*conf, env={**env, "COLUMNS": "70"}).stdout  # asked for, in a pipe too
        self.assertEqual(max(map(len, narrow.splitlines())), 70)
        self.assertEqual(
            on_terminal([HELIOS, *conf, "-o", "json"])[1], helios(*conf, "-o", "json").stdout
        )

    def test_every_program_knows_its_version_and_every_help_fits_80_columns(self):
        for program in (
            "helios",
            "helios-controller",
            "helios-l3d",
            "helios-agent",
            "helios-ranktable",
        ):
            done = subprocess.run(
                [str(BUILD / "bin" / program), "--version"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), program)
            self.assertRegex(done.stdout, rf"^{program} \d+\.\d+\.\d+\n$")
        pages = [helios("help").stdout] + [
            helios("help", *c.split()).stdout for c in self.commands()
        ]
        lines = [
            line for page in pages for line in page.splitlines() if not line.startswith("usage: ")
        ]
        self.assertEqual([line for line in lines if len(line) > 80], [])
        options = json.loads(helios("conf", "-o", "json").stdout)["items"]
        # help is not combined with other options
        self.assertEqual([o["name"] for o in options if "ikewise" in o["help"]], [])

    def test_a_reader_that_has_seen_enough_is_no_error(self):
        done = subprocess.run(
            (
                f"{HELIOS} conf --config /dev/null -o json | head -1; {HELIOS} conf --config"
                " /dev/null | head -1"
            ),
            shell=True,
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        self.assertEqual(done.stderr, "")

    def test_control_characters_of_others_never_reach_the_terminal(self):
        nasty = "a\x1b[31mb\x07c\x9b31md\u202ee\nf"
        done = helios(nasty)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("a?[31mb?c?31md?e f", done.stderr)
        shown = helios("conf", env={**os.environ, "HELIOS_AGENT_NAME": nasty})
        self.assertIn("a?[31mb?c?31md?e f ", shown.stdout)
        raw = helios("conf", "-o", "json", env={**os.environ, "HELIOS_AGENT_NAME": nasty}).stdout
        self.assertFalse(set("\x1b\x07\x9b\u202e") & set(raw))
        self.assertIn(nasty, [row["value"] for row in json.loads(raw)["items"]])

    def test_slips_of_the_hand_are_exit_2_and_one_sentence(self):
        for args, words in (
            ((), "usage"),
            (("modle", "ls"), "did you mean 'helios model ls'"),
            (("model",), "import"),
            (("nodes", "--json"), "-o json"),
            (("model", "ls", "-o", "xml"), "xml"),
            (("pull", "--model", "x"), "--out"),
            (("pull", "--model", "x@y", "--out", "f"), "version number"),
            (("shard", "show", "xyz"), "32 hexadecimal"),
            (("model", "show"), "NAME[@VERSION] is missing"),
            (("bench", "get", "--size", "4XB"), "4XB"),
            (("model", "ls", "--state"), "--state"),
        ):
            done = helios(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(words, done.stderr, args)

    def test_without_a_cluster_the_way_to_one_is_said(self):
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("HELIOS_") or k == "HELIOS_BUILD"
        }
        done = helios("--state", "/nonexistent/state", "model", "ls", env=env)
        self.assertEqual(done.returncode, 1)
        self.assertIn("helios up", done.stderr)
        done = helios("--controller", "127.0.0.1:1", "model", "ls", env=env)
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1", done.stderr)

    def test_a_controller_that_does_not_answer_is_left_at_the_deadline_that_was_set(self):
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = f"127.0.0.1:{mute.getsockname()[1]}"
            for flags, env in (
                (("--rpc-timeout", "300ms"), {}),
                ((), {"HELIOS_RPC_TIMEOUT": "300ms"}),
            ):
                start = time.monotonic()
                done = helios("--controller", address, *flags, "list", env={**os.environ, **env})
                self.assertLess(time.monotonic() - start, 8)  # the default is 10 s
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(address, done.stderr)
        done = helios("--controller", address, "--rpc-timeout", "soon", "list")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--rpc-timeout", done.stderr)

    def test_the_library_exports_its_c_abi_and_nothing_else(self):
        out = subprocess.run(
            ["nm", "-D", "--defined-only", str(BUILD / "lib" / "libhelios.so")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        names = {line.split()[2].split("@")[0] for line in out.splitlines()}
        headers = pathlib.Path(__file__).resolve().parents[2] / "include/helios"
        declared = {
            h: set(
                re.findall(
                    rf"HELIOS_API[^;(]*?\*?({h}_[a-z0-9_]+)\(", (headers / f"{h}.h").read_text()
                )
            )
            for h in ("helios", "hybridps", "maco")
        }
        self.assertGreater(len(declared["helios"]), 10)
        self.assertLessEqual(set.union(*declared.values()), names)
        self.assertEqual(names - set.union(*declared.values()), set())


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

    def test_digits_that_several_ids_begin_with_are_refused_with_the_candidates(self):
        def settled():
            """The pool, once it holds the shards and manifests of the models and nothing else."""
            shown = [
                self.c.json("model", "show", m["name"]) for m in self.c.json("model", "ls")["items"]
            ]
            pool = self.c.json("info")["pool"]
            return (
                pool
                if (pool["shards"], pool["manifests"])
                == (
                    len(self.c.json("shard", "ls")["items"]),
                    sum(len(m["versions"]) for m in shown),
                )
                else None
            )

        before = wait_for("the pool to hold the models only", settled)["usedBytes"]
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
            wait_for("the pool to hold what is left only", settled)["usedBytes"], before
        )

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
        self.assertEqual(self.c.json("model", "ls")["items"][0]["config"], model["config"])
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


class Bench(unittest.TestCase):
    def test_run_bench_names_benches_that_exist(self):
        run = (pathlib.Path(__file__).parents[2] / "run").read_text()
        known = set(re.findall(r"^  (\w+) ", helios("help", "bench").stdout, re.M)) | set(
            re.findall(r"^ +(\w+)\) .*bench/\w+\.py", run, re.M)
        )
        told = set(
            re.split(r",\s+", re.search(r"(adam, .*?); all but device without NAME", run, re.S)[1])
        )
        self.assertEqual(told - known, set())
        # needs a GPU
        self.assertEqual(
            set(re.search(r"for each in (.*?); do bench", run)[1].split()), told - {"device"}
        )

    def test_bench_get_and_import_need_no_cluster_and_leave_nothing(self):
        before = sorted(pathlib.Path("/dev/shm").glob("helios-bench-*"))
        done = helios("bench", "get", "--size", "64,1MiB", "--rounds", 1, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertLessEqual(
            {"memcpy", "helios-shm", "helios-tcp", "tcp"}, {r["system"] for r in report["rows"]}
        )
        self.assertTrue(
            all(r["n"] > 0 and r["min_us"] <= r["p50_us"] <= r["p99_us"] for r in report["rows"])
        )
        self.assertGreater(len(report["ratios"]), 3)
        done = helios("bench", "import", "--gb", "0.05", "--tp", 2, "--rounds", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(
            done.stdout.startswith("system,op,size,n,min_us,p50_us,p99_us,mean_us,gb_per_s\n")
        )
        self.assertEqual(sorted(pathlib.Path("/dev/shm").glob("helios-bench-*")), before)

    def test_bench_group_and_bodies_need_nothing_else(self):
        before = sorted(pathlib.Path("/dev/shm").glob("helios-bench-*"))
        done = helios(
            "bench", "group", "--ranks", 3, "--size", "64,300KiB", "--rounds", 2, "-o", "json"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(
            {"memcpy", "allreduce", "reduce_scatter", "alltoall"}, {r["op"] for r in report["rows"]}
        )
        self.assertTrue(all(r["n"] == 2 and r["min_us"] <= r["p50_us"] for r in report["rows"]))
        self.assertEqual(len(report["ratios"]), 6)
        self.assertEqual(sorted(pathlib.Path("/dev/shm").glob("helios-bench-*")), before)
        done = helios("bench", "bodies", "--rounds", 1, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(
            {"product", "attention", "layernorm", "softmax", "gelu"},
            {r["op"] for r in json.loads(done.stdout)["rows"]},
        )

    def test_bench_policy_says_rates_passes_and_memory(self):
        done = helios("bench", "policy", "--shards", 2000, "--passes", 2, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(
            {"reports", "report", "first pass", "pass", "full pass"},
            {r["op"] for r in report["rows"]},
        )
        ratios = {r["name"]: r for r in report["ratios"]}
        self.assertEqual(ratios["pass of 2000 shards p99 ms"]["bar"], 5)
        self.assertEqual(ratios["full pass of 2000 shards p50 ms"]["bar"], 50)
        self.assertGreater(ratios["shards judged in a pass"]["value"], 1000)
        self.assertGreater(ratios["MB of 2000 shards"]["value"], 2000 * 192 / 1e6)

    def test_bench_follow_says_how_long_the_loop_is_held_up(self):
        done = helios("bench", "follow", "--shards", 5000, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        values = {r["name"]: r["value"] for r in json.loads(done.stdout)["ratios"]}
        for what in ("start", "one version more", "a silent node"):
            longest, total = (
                values[f"{name} of {thing}, {what}, ms"]
                for name, thing in (("longest turn", "the loop"), ("all", "its turns"))
            )
            self.assertLess(0, longest)
            self.assertLess(longest, total)  # it was released in between
        self.assertLess(0, values["removal of a version, with its records, ms"])

    def test_bench_plank_compares_staging_with_the_direct_way_on_both_links(self):
        done = helios(
            "bench", "plank", "--size", "64,2MiB", "--piece", "256KiB", "--rounds", 1, "-o", "json"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(
            {"local", "local-direct", "local-plank", "tcp-direct", "tcp-plank"},
            {r["system"] for r in report["rows"]},
        )
        self.assertTrue(all(r["n"] > 0 and 0 < r["min_us"] <= r["p50_us"] for r in report["rows"]))
        self.assertEqual([r["bar"] for r in report["ratios"] if "bar" in r], [0.8, 0.8])


if __name__ == "__main__":
    if not HELIOS.exists():
        print(f"skipped: {HELIOS} is not built")
        sys.exit(77)
    unittest.main(verbosity=2)

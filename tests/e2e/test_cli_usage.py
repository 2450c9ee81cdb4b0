"""What the command line says about itself, takes and refuses without a cluster, and its
benchmarks."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, HELIOS  # noqa: E402
from support.terminal import on_terminal  # noqa: E402


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
        after = [str(BUILD / "bin" / "helios-l3d"), "--size", "1GiB", "--version"]
        self.assertIn("helios-l3d ", subprocess.check_output(after, text=True, timeout=60))
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

    def test_what_can_not_be_written_is_an_error(self):
        for command in (
            "helios --version",
            "helios help",
            "helios list --help",
            "helios conf --config /dev/null",
            "helios-controller --version",
            "helios-l3d --help",
            "helios-agent --help",
            "helios-ranktable --version",
            "helios-ranktable --help",
            "helios-ranktable lint --help",
        ):
            for to in (">/dev/full", ">&-"):
                done = subprocess.run(
                    f"exec {BUILD}/bin/{command} {to}",
                    shell=True,
                    text=True,
                    capture_output=True,
                    check=False,
                    timeout=60,
                )
                self.assertEqual(done.returncode, 1, (command, to))
                self.assertIn("stdout", done.stderr, (command, to))

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
            (("store", ""), "NODE is empty"),
            (("up", "--address", ""), "--address"),
            (("topo", ""), "FILE.xml is empty"),
            (("conf", ""), "is empty"),
            (("conf", "--config", ""), "--config"),
            (("shard", "rm", "aa", ""), "ID|KEY is empty"),
            (("shard", "ls", "--model", ""), "--model"),
            (("shard", "ls", "--model="), "--model"),
            (("submit", "job.yaml", "--key", ""), "--key"),
            (("model", "diff", "a", "b", "--tensor", ""), "--tensor"),
            (("model", "import", "dir", "--name", "m", "--iteration", ""), "--iteration"),
            (("mem", "trace", "t.json", "--svg", ""), "--svg"),
            (("mem", "trace", "t.json", "--csv", "-", "--svg", "-"), "stdout"),
            (("mem", "trace", "t.json", "--csv", "-", "-o", "json"), "stdout"),
            (("sim", "--generate", "scan", "--out", ""), "--out"),
            (("validate", "--rows", ""), "--rows"),
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

"""`helios sim`: traces from files and from seeds, tables and JSON, and what it refuses."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import HELIOS  # noqa: E402

HEADER = "t_seconds,node,shard,size_bytes,op\n"
POLICIES = ["helios", "lru", "lfu", "sieve", "s3fifo", "wtinylfu", "gdsf", "static", "optimal"]
GB = 10**9


def sim(*args, text=None):
    return subprocess.run(
        [HELIOS, "sim", *map(str, args)],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Sim(unittest.TestCase):
    def shown(self, *args, text=None):
        done = sim(*args, "-o", "json", text=text)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, code, words, *args, text=None):
        done = sim(*args, text=text)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_waits_and_bytes_of_a_small_trace_are_those_worked_out_by_hand(self):
        # 12.5 GB from the archive: 6.25 s; by another node from L3: 1 s; again on the first one,
        # from L2: 0.125 s
        size = 12.5 * GB
        text = HEADER + "".join(
            f"{t},{node},w,{size:.0f},read\n" for t, node in ((0, "a"), (10, "b"), (20, "a"))
        )
        shown = self.shown("--trace", "-", "--policy", "lru", "--l1", 0, text=text)
        self.assertEqual(shown["world"]["loads"], 3)
        self.assertEqual(shown["world"]["backbone_bps"], 100 * GB)
        (lru,) = shown["policies"]
        self.assertEqual(lru["hits"], {"l1": 0, "l2": 1, "other_node": 0, "l3": 1, "l4": 1})
        self.assertAlmostEqual(lru["wait_s"], 7.375)
        self.assertAlmostEqual(lru["wait_p99_s"], 6.25)
        self.assertEqual(lru["bytes"]["backbone"], {"read": 2 * size, "moved": 0})
        self.assertEqual(lru["bytes"]["archive"], {"read": size, "moved": 0})

    def test_the_rates_and_sizes_that_are_given_count(self):
        text = HEADER + "".join(f"{t * 10},a,w,{GB},read\n" for t in range(3))

        def wait(*args):
            return self.shown("--trace", "-", "--policy", "lru", *args, text=text)["policies"][0][
                "wait_s"
            ]

        base = wait("--l1", 0)
        self.assertAlmostEqual(base, 0.5 + 2 * 0.01)
        self.assertAlmostEqual(wait(), 0.5)  # again from L1
        self.assertAlmostEqual(wait("--l1", 0, "--l2", 0), 0.5 + 2 * 0.08)
        self.assertAlmostEqual(wait("--l1", 0, "--l2", 0, "--l3", 0), 3 * 0.5)
        self.assertAlmostEqual(wait("--l1", 0, "--inside", "80Gbit"), 0.5 + 2 * 0.1)
        self.assertAlmostEqual(wait("--l1", 0, "--l2", 0, "--backbone", "10Gbit"), 3 * 0.8)
        self.assertAlmostEqual(wait("--archive", "8Gbit"), 1)

    def test_a_written_trace_gives_what_the_made_up_one_gives(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.csv"
            done = sim("--generate", "training", "--seed", 5, "--nodes", 3, "--out", path)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            self.assertTrue(path.read_text().startswith(HEADER))
            made = self.shown("--generate", "training", "--seed", 5, "--nodes", 3)
            read = self.shown("--trace", path)
            self.assertEqual(made, read)
            self.assertEqual([p["policy"] for p in read["policies"]], POLICIES)
            self.assertEqual(read["world"]["nodes"], 3)
            bound = read["policies"][-1]
            self.assertEqual(set(bound), {"policy", "bound", "wait_s", "wait_mean_s", "wait_p99_s"})
            for p in read["policies"]:
                self.assertGreaterEqual(p["wait_s"], bound["wait_s"] * (1 - 1e-9), p["policy"])
            other = self.shown(
                "--generate", "training", "--seed", 6, "--nodes", 3, "--policy", "lru"
            )
            self.assertNotEqual(other["policies"][0]["wait_s"], read["policies"][1]["wait_s"])

    def test_a_warmed_pool_has_what_nobody_has_read_before(self):
        text = HEADER + f"0,a,m/1,{GB},read\n100,b,m/2,{GB},read\n"
        for warm, l3, wait in (("off", 0, 0.5 + 0.5), ("on", 1, 0.5 + 0.08)):
            shown = self.shown("--trace", "-", "--policy", "helios", "--warm", warm, text=text)
            self.assertEqual(shown["world"]["warm"], warm)
            self.assertEqual(shown["policies"][0]["hits"]["l3"], l3)
            self.assertAlmostEqual(shown["policies"][0]["wait_s"], wait)

    def test_what_a_gang_is_planned_to_read_is_fetched_ahead_where_placement_is_on(self):
        text = (
            HEADER + f"0,b,w,{GB},read\n10,a,w,{GB},plan\n10,c,w,{GB},plan\n"
            f"11,c,w,{GB},unplan\n40,a,w,{GB},read\n"
        )
        for placement, local, ahead, vain in (("observe", 0, 0, 0), ("on", GB, 2 * GB, GB)):
            (run,) = self.shown(
                "--trace", "-", "--policy", "helios", "--placement", placement, text=text
            )["policies"]
            self.assertEqual(
                [
                    run[k]
                    for k in ("planned_bytes", "planned_local_bytes", "ahead_bytes", "vain_bytes")
                ],
                [GB, local, ahead, vain],
            )
        done = sim("--trace", "-", "--policy", "helios", "--placement", "on", text=text)
        self.assertIn(
            "100.0% of it in their nodes' memory; fetched ahead 1.9 GiB, 50.0% of it in vain",
            done.stdout,
        )

    def test_the_table_has_a_row_for_each_policy_and_says_on_what(self):
        done = sim("--generate", "training", "--nodes", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertIn("on 2 nodes", lines[0])
        self.assertIn("each node L1 16.0 GiB, L2 64.0 GiB; L3 1.0 TiB", lines[1])
        self.assertEqual([line.split()[0] for line in lines[3:-1]], POLICIES)
        self.assertEqual(lines[-2].split()[-1], "1.00")
        self.assertRegex(
            lines[-1],
            r"^planned gangs read .* GiB, 0.0% of it in their nodes' memory; fetched ahead 0 B",
        )

    def test_what_cannot_be_carried_out_is_refused(self):
        self.refused(2, "--trace FILE")
        for flag, value in (("--seed", 3), ("--nodes", 3), ("--out", "y")):
            self.refused(2, f"{flag} needs --generate", "--trace", "-", flag, value)
        self.refused(2, "exclude each other", "--trace", "-", "--generate", "scan")
        self.refused(2, "policy", "--generate", "scan", "--policy", "belady")
        self.refused(2, "nodes", "--generate", "scan", "--nodes", 0)
        self.refused(1, "/nowhere/trace.csv", "--trace", "/nowhere/trace.csv")
        self.refused(
            1,
            "stdin: line 2, column 1: t_seconds",
            "--trace",
            "-",
            text=HEADER + "nan,a,w,1,read\n",
        )
        self.refused(1, "stdin: line 1, column 1", "--trace", "-", text="")
        self.refused(
            1,
            "stdin: line 3, column 1: the time goes back",
            "--trace",
            "-",
            text=HEADER + "2,a,w,1,read\n1,a,w,1,read\n",
        )


if __name__ == "__main__":
    unittest.main()

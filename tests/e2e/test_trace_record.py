#!/usr/bin/python3
"""`helios trace record` on a real cluster: exactly what its processes read and commit,
in the form that `helios sim` reads."""
from __future__ import annotations

import collections
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

from support import checkpoints  # noqa: E402
from support.cluster import BUILD, HELIOS, Cluster, wait_for  # noqa: E402

os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
from helios import _abi  # noqa: E402

# Each rank writes one part of a new version, and reads it back, twice, once everything is visible.
WRITER = """
import ctypes, os, sys, time
sys.path.insert(0, sys.argv[1])
from helios import _abi
rank = int(os.environ["GLOBAL_RANK"])
client = _abi.Client(os.environ["HELIOS_CONTROLLER"])
bytes_ = ctypes.create_string_buffer(4096 * (rank + 1))
split = _abi.Split(tp=1, pp=2)
attempt = int(os.environ["HELIOS_ATTEMPT"])
version = client.version_open("w", os.environ["HELIOS_JOB"], attempt, 1, rank, 2,
                              _abi.LAYOUT_UNCHECKED, split, create=split)
tensor = _abi.TensorRef("x", "U8", (len(bytes_),), ctypes.addressof(bytes_))
client.version_put("w", version, rank, 0, f"layer-{rank:04d}", [tensor])
client.version_commit("w", version, rank, None)
for _ in range(600):
    try:
        shards = client.request_shards("w", version, rank, 0).shards
        break
    except Exception:
        time.sleep(0.1)
for shard in shards:
    for _ in range(2):
        bytes(client.map(shard).buffer())
client.close()
"""


class TraceRecord(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ.update(HELIOS_STORE_SOCKET="", HELIOS_NODE="")
        cls.c = Cluster.of_class(cls, tcp=True, slots=1)
        source, _ = checkpoints.llama(cls.c.dir / "hf")
        cls.c.json("model", "import", source, "--name", "m", "--tp", 1, "--pp", 1)
        cls.shards = {s["id"]: s for s in cls.c.json("shard", "ls", "--model", "m")["items"]}

    def client(self, node):
        os.environ["HELIOS_NODE"] = node
        client = _abi.Client(self.c.info["controller"])
        self.addCleanup(client.close)
        return client

    def read(self, node, times):
        """Reads all shards in a process of that node, which reports its reads when it ends."""
        client = self.client(node)
        for shard in client.request_shards("m", -1, 0, 0).shards:
            for _ in range(times):
                bytes(client.map(shard).buffer())
        client.close()

    def record(self, out, *args):
        """Starts a recording; returns once it has begun."""
        command = [
            str(HELIOS),
            "--state",
            str(self.c.state),
            "trace",
            "record",
            "--out",
            str(out),
            *args,
        ]
        made = subprocess.Popen(
            command, env=self.c.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(made.stdout.close)
        self.addCleanup(made.stderr.close)
        self.addCleanup(made.wait, 60)
        self.addCleanup(made.kill)
        self.assertIn("recording accesses", made.stderr.readline())
        return made

    def ends(self, recording, code=0):
        """Ctrl-C twice: the second one ends the wait for late reports.
        Returns its stdout and the rest of its stderr."""
        recording.send_signal(signal.SIGINT)
        self.assertIn("waiting 6 s", recording.stderr.readline())
        recording.send_signal(signal.SIGINT)
        out, err = recording.communicate(timeout=60)
        self.assertEqual(recording.returncode, code, err)
        return out, err

    def accesses(self, model):
        """How many reads of the model's shards the Controller has been told of."""
        listed = self.c.json("shard", "ls", "--model", model)["items"]
        return sum(s["accesses"] for s in listed)

    def rows(self, text):
        rows = list(csv.DictReader(text.splitlines()))
        times = [float(r["t_seconds"]) for r in rows]
        self.assertEqual(times, sorted(times))
        self.assertGreaterEqual(times[0], 0)
        return rows

    def counts(self, rows):
        return collections.Counter(
            (r["node"], r["shard"], int(r["size_bytes"]), r["op"]) for r in rows
        )

    def test_a_trace_has_exactly_the_reads_of_its_time_and_can_be_simulated(self):
        self.read("node-0", 7)  # before it
        out = self.c.dir / "trace.csv"
        recording = self.record(out, "-o", "json")
        self.read("node-0", 3)
        self.read("node-1", 1)
        self.read("", 2)
        self.assertFalse(out.exists())
        said, _ = self.ends(recording)
        self.read("node-0", 1)  # after it
        wanted = {
            (node, i, s["sizeBytes"], "read"): times
            for i, s in self.shards.items()
            for node, times in (("node-0", 3), ("node-1", 1), ("-", 2))
        }
        self.assertEqual(self.counts(self.rows(out.read_text())), wanted)
        said = json.loads(said)
        self.assertEqual(
            (said["accesses"], said["shards"], said["nodes"]),
            (6 * len(self.shards), len(self.shards), 3),
        )
        self.assertEqual(
            (said["before"], said["unknown"], said["lost"], said["out"]), (0, 0, 0, str(out))
        )
        shown = json.loads(self.c.run("sim", "--trace", out, "-o", "json").stdout)
        self.assertEqual(shown["world"]["accesses"], 6 * len(self.shards))
        self.assertEqual(shown["world"]["bytes"], sum(s["sizeBytes"] for s in self.shards.values()))

    def test_what_ranks_commit_is_a_write_of_their_node_before_its_reads(self):
        script = self.c.dir / "writer.py"
        script.write_text(WRITER)
        recording = self.record("-", "-o", "json")
        job = self.c.submit(
            "jobName: writer\nparallelism: {pipeline_parallel_size: 2}\nresources:"
            f" {{ranks_per_slot: 1}}\ncommand: [/usr/bin/python3, {script}, {ROOT / 'python'}]\n"
        )
        done = self.c.wait_job(job, "succeeded", "failed")
        self.assertEqual(done["state"], "succeeded", self.c.log(job))
        text, said = self.ends(recording)
        self.assertEqual((json.loads(said)["out"], json.loads(said)["accesses"]), ("-", 6))
        nodes = {r["rank"]: k["node"] for k in done["plan"]["containers"] for r in k["ranks"]}
        self.assertEqual(len(set(nodes.values())), 2)
        wanted = collections.Counter()
        for s in self.c.json("shard", "ls", "--model", "w")["items"]:
            for op, times in (("write", 1), ("read", 2)):
                wanted[nodes[s["pp"]], s["id"], s["sizeBytes"], op] = times
        self.assertEqual(len(wanted), 4)
        self.assertEqual(self.counts(self.rows(text)), wanted)
        self.assertEqual(
            self.c.run("sim", "--trace", "-", "--policy", "lru", input=text).returncode, 0
        )

    def test_a_recording_ends_by_itself_and_says_what_it_has_not(self):
        none = self.c.dir / "none.csv"
        self.assertIn(
            "no process has reported an access",
            self.c.run("trace", "record", "--out", none, "--for", "1ms").stderr,
        )
        self.assertFalse(none.exists())
        out = self.c.dir / "timed.csv"
        gone = self.c.take(checkpoints.llama(self.c.dir / "gone", seed=5)[0], "--tp", 1, "--pp", 1)
        client = self.client("node-1")
        listed = client.request_shards(gone, -1, 0, 0).shards
        bytes(client.map(listed[0]).buffer())
        # its following reads are not reported for five seconds from then on, or until it is closed
        wait_for("the report of its first read", lambda: self.accesses(gone) == 1)
        recording = self.record(out, "--for", "5s")
        # first, because times of reads are those of a clock that ticks every few ms
        self.read("node-1", 1)
        for shard in listed:
            bytes(client.map(shard).buffer())
        self.c.json("model", "rm", gone)
        client.close()
        _, err = recording.communicate(timeout=60)
        self.assertEqual(recording.returncode, 1)
        self.assertIn("the trace is incomplete", err)
        self.assertIn(f"{len(listed)} were of shards that the Controller does not know", err)
        self.assertEqual(
            self.counts(self.rows(out.read_text())),
            {("node-1", i, s["sizeBytes"], "read"): 1 for i, s in self.shards.items()},
        )

    def test_a_controller_that_starts_again_ends_it_with_what_came_before(self):
        out = self.c.dir / "cut.csv"
        before = self.accesses("m")
        recording = self.record(out)
        self.read("node-0", 1)
        wait_for("the report", lambda: self.accesses("m") == before + len(self.shards))
        recording.send_signal(signal.SIGINT)  # it fetches all accesses before it says so
        self.assertIn("waiting 6 s", recording.stderr.readline())
        self.c.kill("controllerd")
        self.c.up()
        _, err = recording.communicate(timeout=90)
        self.assertEqual(recording.returncode, 1)
        self.assertIn("this recording of accesses has ended", err)
        self.assertIn(f"{out} has what came before", err)
        self.assertEqual(
            self.counts(self.rows(out.read_text())),
            {("node-0", i, s["sizeBytes"], "read"): 1 for i, s in self.shards.items()},
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

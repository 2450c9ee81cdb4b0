#!/usr/bin/python3
"""`helios validate` on real daemons: each row that can be carried out here passes on a good cluster
and fails on a bad one, what is missing here is named, and nothing is left behind."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "chaos")]
sys.dont_write_bytecode = True

import poolfile  # noqa: E402
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, HELIOS, cluster, wait_for  # noqa: E402

TOPO = ROOT / "tests" / "data" / "topo"
QUICK = {
    "HELIOS_PLACEMENT_INTERVAL": "100ms",
    "HELIOS_PLACEMENT_GRACE": "100ms",
    "HELIOS_PLACEMENT_RETRY": "200ms",
    "HELIOS_POLICY_RESIDENCE": "1s",
    "HELIOS_HEARTBEAT": "200ms",
    "HELIOS_GC_INTERVAL": "500ms",
}
PATIENT = ("--time", "10m", "--row-time", "60s")  # so that a busy machine does not fail
DATA = {"data.local", "data.evict", "data.prefetch", "data.fluid"}
ROWS = DATA | {
    "paths.device",
    "paths.operations",
    "plank.cx4",
    "plank.cx6",
    "plank.fallback",
    "speed.read.cx4",
    "speed.read.cx6",
    "speed.write",
    "speed.plank.latency",
    "speed.plank.bandwidth",
}


class Validate(unittest.TestCase):
    def start(self, env=None, up=(), **options):
        world = cluster(
            up=("--l2-size", "64MiB", "--devices", "emu:16MiB", *up),
            env={**QUICK, **(env or {})},
            **options,
        )
        self.c = world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)

    def far_agent(self, name="far"):
        """A node that counts as another host than those of `helios up`."""
        ready, pool = self.c.dir / f"{name}.json", f"/dev/shm/helios-test-{name}-{os.getpid()}.l2"
        agent = subprocess.Popen(
            [
                BUILD / "bin" / "helios-agent",
                "--name",
                name,
                "--host-id",
                name,
                "--state",
                self.c.dir / name,
                "--controller",
                self.c.info["controller"],
                "--l2-size",
                "64MiB",
                "--l2-pool",
                pool,
                "--devices",
                "emu:16MiB",
                "--listen",
                "127.0.0.1:0",
                "--data-listen",
                "127.0.0.1:0",
                "--migrate-listen",
                "127.0.0.1:0",
                "--rank-address",
                "127.0.0.1",
                "--ready-file",
                ready,
            ],
            env=self.c.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def end():
            agent.terminate()
            agent.wait(60)
            for path in (pool, pool + ".sock"):
                pathlib.Path(path).unlink(missing_ok=True)

        self.addCleanup(end)
        wait_for(
            "the node",
            lambda: any(
                n["node"]["name"] == name and n["state"] == "ready"
                for n in self.c.json("nodes")["items"]
            ),
        )

    def validate(self, *args, code=0):
        """The rows by id. Checks that nothing of the run is left."""
        done = self.c.run("validate", *PATIENT, *args, "-o", "json")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual(told["failed"] == 0, code == 0)
        self.assert_clean()
        return {row["id"]: row for row in told["rows"]}

    def models(self):
        return [m["name"] for m in self.c.json("model", "ls")["items"]]

    def assert_clean(self):
        self.assertEqual(self.models(), [])
        self.assertTrue(
            all(
                j["state"] in ("succeeded", "cancelled", "failed")
                for j in self.c.json("list")["items"]
            )
        )

        def empty():
            tiers = [t for s in self.c.json("store")["items"] for t in s["tiers"]]
            return all(t["shards"] == 0 and t["usedBytes"] == 0 for t in tiers)

        wait_for("all tiers to be empty", empty)

    def result(self, rows, **expected):
        """`plank_cx4="pass"` of the row plank.cx4."""
        told = {name.replace(".", "_"): row["result"] for name, row in rows.items()}
        self.assertEqual({k: told[k] for k in expected}, expected, json.dumps(rows, indent=1))

    # ---- what passes

    def test_on_a_local_cluster_what_can_be_carried_out_passes_and_the_rest_is_named(self):
        self.start()
        rows = self.validate()
        self.assertEqual(set(rows), ROWS)
        absent = "not on this hardware"
        self.result(
            rows,
            paths_device="pass",
            data_local="pass",
            data_evict="pass",
            data_prefetch="pass",
            data_fluid="switched off",
            paths_operations=absent,
            plank_cx4=absent,
            plank_cx6=absent,
            plank_fallback=absent,
            speed_read_cx4=absent,
            speed_write=absent,
            speed_plank_latency=absent,
        )
        self.assertIn("data port", rows["speed.read.cx4"]["missing"])
        self.assertIn("two hosts", rows["paths.operations"]["missing"])
        self.assertIn("observe", rows["data.fluid"]["missing"])
        for name in ("data.local", "data.evict", "data.prefetch"):
            # the policy moved nothing, and the row says so
            self.assertIn("decided", rows[name]["found"])
        for row in rows.values():
            self.assertEqual(row["missing"] == "", row["result"] in ("pass", "fail"), row)
        table = self.c.run("validate", *PATIENT, "--rows", "paths")
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertRegex(table.stdout, r"paths.device +pass +>= 100 % +4 of 4 copies")
        self.assertIn("1 passed, 0 failed, 1 not carried out", table.stdout)

    def test_where_the_policy_is_on_its_moves_are_carried_out_and_what_it_moves_often_stays_in_l2(
        self,
    ):
        # the policy takes both shards to L2 before a move to L1 has shown that on one host L2 is
        # no nearer than the pool
        self.start(env={"HELIOS_PLACEMENT_POLICY": "on", "HELIOS_POLICY_RESIDENCE": "5s"})
        rows = self.validate("--rows", "data")
        self.result(
            rows, data_local="pass", data_evict="pass", data_prefetch="pass", data_fluid="pass"
        )
        for row in rows.values():
            self.assertNotIn("decided", row["found"])
        self.c.json("conf", "policy.low_pct=0")  # nothing comes to L1, however often it was moved
        rows = self.validate("--rows", "data.fluid", "--row-time", "8s", code=1)
        self.result(rows, data_fluid="fail")

    def test_between_hosts_paths_and_faults_are_carried_out_over_the_network(self):
        self.start(
            tcp=True,
            nodes=1,
            env={
                "HELIOS_AGENT_HOST_ID": "near",
                "HELIOS_AGENT_NIC_CLASS": "cx4",
                "HELIOS_PLANE_MIGRATION_RATE": "1Mbit",
            },
        )
        self.far_agent()
        rows = self.validate("--rows", "paths,plank,speed", "--topology", TOPO / "power-2slots.xml")
        self.result(
            rows,
            paths_device="pass",
            paths_operations="pass",
            plank_cx4="pass",
            plank_cx6="pass",
            plank_fallback="pass",
            speed_write="pass",
            speed_read_cx4="not on this hardware",
            speed_plank_bandwidth="not on this hardware",
        )
        self.assertIn("zmq 4", rows["paths.operations"]["found"])  # two sizes, written and migrated
        self.assertIn("ucx-tagged 2", rows["paths.operations"]["found"])
        self.assertIn("option agent.nic_class", rows["plank.cx4"]["found"])
        self.assertFalse(rows["plank.cx4"]["decidedOnly"])
        self.assertTrue(rows["plank.cx6"]["decidedOnly"])
        self.assertIn("for the ConnectX-5 of", rows["plank.cx6"]["found"])
        self.assertIn("no byte was sent", rows["plank.cx6"]["found"])
        self.assertIn("RDMA", rows["speed.read.cx4"]["missing"])
        self.assertGreater(rows["speed.read.cx4"]["value"], 0)  # over TCP: shown, and not judged
        self.assertIn("emulated", rows["speed.plank.bandwidth"]["missing"])
        self.assertGreater(rows["speed.write"]["value"], 80)

    def test_the_class_of_the_nic_comes_from_the_agents_topology_file_and_the_row_says_so(self):
        xml = TOPO / "x86-2slots.xml"
        self.start(
            tcp=True,
            nodes=1,
            env={"HELIOS_AGENT_HOST_ID": "near", "HELIOS_AGENT_TOPOLOGY": str(xml)},
        )
        row = self.validate("--rows", "plank.cx4")["plank.cx4"]
        self.assertEqual((row["result"], row["value"]), ("pass", 100), row)
        self.assertIn(f"topology file {xml}", row["found"])
        self.assertIn("8 of 8 copies", row["found"])

    # ---- what fails

    def test_a_target_that_is_not_reached_fails_its_row(self):
        self.start(
            tcp=True,
            nodes=1,
            env={"HELIOS_AGENT_HOST_ID": "near", "HELIOS_PLANE_MIGRATION_RATE": "100000Gbit"},
        )
        self.far_agent()
        rows = self.validate("--rows", "speed.write", code=1)
        self.result(rows, speed_write="fail")
        self.assertLess(rows["speed.write"]["value"], 80)
        self.assertIn(
            "1 row of the validation failed",
            self.c.run("validate", *PATIENT, "--rows", "speed.write").stderr,
        )

    def test_a_policy_that_does_not_decide_in_time_fails(self):
        self.start(env={"HELIOS_PLACEMENT_INTERVAL": "1h"})
        rows = self.validate("--row-time", "8s", "--rows", "data", code=1)
        self.result(rows, data_local="fail", data_evict="fail", data_prefetch="fail")
        self.assertIn("0 of 2 shards", rows["data.local"]["found"])

    def damage(self, stop, least):
        """Flips a bit in each shard of more than `least` bytes in the pool, once."""
        pool, done = pathlib.Path(self.c.info["pool"]), set()
        while not stop.is_set():
            for entry in poolfile.sealed(pool).values():
                if entry.size > least and entry.id not in done:
                    done.add(entry.id)
                    poolfile.flip(pool, entry.offset + entry.size // 2, 3)
            time.sleep(0.02)

    def validate_damaged(self, rows, least):
        stop = threading.Event()
        thread = threading.Thread(target=self.damage, args=(stop, least))
        thread.start()
        try:
            return self.validate("--rows", rows, code=1)
        finally:
            stop.set()
            thread.join()

    def test_damaged_bytes_fail_the_rows_that_copy_between_hosts(self):
        self.start(
            tcp=True, nodes=1, env={"HELIOS_AGENT_HOST_ID": "near", "HELIOS_AGENT_NIC_CLASS": "cx4"}
        )
        self.far_agent()
        rows = self.validate_damaged("paths.operations,plank.cx4,plank.fallback", 0)
        self.result(rows, paths_operations="fail", plank_cx4="fail", plank_fallback="fail")

    def test_damaged_bytes_fail_the_row_that_meets_them_and_no_other(self):
        self.start()
        # data.local reads small shards, and takes long enough for the large one to be damaged
        rows = self.validate_damaged("data.local,paths.device", 6 << 20)
        self.result(rows, data_local="pass", paths_device="fail")
        self.assertRegex(rows["paths.device"]["found"], "CRC|checksum|damaged")

    # ---- what is refused, and what is left behind

    def test_a_row_that_is_not_there_is_refused(self):
        self.start(nodes=1)
        self.assertIn(
            "no row 'plan'", self.c.refuse("validate", "--rows", "plank.cx4,plan", code=2)
        )

    def test_a_topology_file_that_cannot_be_read_is_refused_before_anything_runs(self):
        self.start(nodes=1)
        told = self.c.refuse(
            "validate", *PATIENT, "--rows", "paths", "--topology", "/nonexistent.xml"
        )
        self.assertIn("/nonexistent.xml can't be read: No such file", told)
        self.assertEqual(self.c.json("list")["items"], [])  # no ranks were started

    def test_a_controller_that_is_away_is_waited_for_until_the_deadline(self):
        self.start(nodes=1)
        self.c.kill("controllerd")
        done = self.c.run("validate", "--time", "1s")
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(
            done.stderr,
            r"trying again for up to 1 s\n(.*\n)*.*gave up after 1 s, and nothing was made",
        )
        waiting = subprocess.Popen(
            [HELIOS, "--state", self.c.state, "validate", *PATIENT, "--rows", "paths.device"],
            env=self.c.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.c.up()
        out, err = waiting.communicate(timeout=120)
        self.assertEqual(waiting.returncode, 0, err)
        # the node may come back later than it
        self.assertRegex(out, "paths.device +(pass|not on this hardware)")

    def test_nothing_is_taken_from_others(self):
        self.start(nodes=1, slots=1, size="16MiB")
        self.c.submit(
            "jobName: others\nparallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1,"
            " data_parallel_size: 1}\ncommand: [sleep, '600']\n"
        )
        job = self.c.json("list")["items"][0]["id"]
        self.c.wait_job(job, "running")
        done = self.c.run("validate", *PATIENT, "--rows", "data", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(done.stdout)["rows"]:
            self.assertEqual(
                row["result"],
                "not enough room" if row["id"] != "data.fluid" else row["result"],
                row,
            )
        self.assertEqual(self.c.job(job)["state"], "running")
        self.c.json("cancel", job)

    def test_a_full_pool_gets_no_scratch_model(self):
        self.start(nodes=1, slots=1, size="8MiB")
        checkpoints.llama(self.c.dir / "toy")
        for i in range(100):
            if self.c.run("model", "import", self.c.dir / "toy", "--name", f"m{i}").returncode != 0:
                break
        out = self.c.run("validate", "--rows", "data.local").stdout
        self.assertRegex(out, r"data.local +not enough room ")
        self.assertIn("; no scratch model was made\n", out)

    def test_ctrl_c_removes_the_scratch_model_and_its_job(self):
        self.start(env={"HELIOS_PLACEMENT_INTERVAL": "1h"})
        process = subprocess.Popen(
            [HELIOS, "--state", self.c.state, "validate", *PATIENT, "--rows", "data.local"],
            env=self.c.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for("the job of the readers", lambda: self.c.json("list")["items"])
        self.assertEqual(len(self.models()), 1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (1, ""), err)
        self.assertIn("stopped by a signal", err)
        self.assert_clean()

    def test_without_time_rows_that_wait_say_how_much_they_need(self):
        self.start(env={"HELIOS_POLICY_RESIDENCE": "1h"})
        done = self.c.run(
            "validate", "--time", "5m", "--row-time", "60s", "--rows", "data.prefetch", "-o", "json"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)["rows"][0]
        self.assertEqual(row["result"], "not enough time", row)
        self.assertRegex(row["missing"], r"in place for 3600 s; --time 36\d\ds is enough")


if __name__ == "__main__":
    unittest.main(verbosity=2)

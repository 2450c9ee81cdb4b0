"""Every job of a real cluster has a rank table: at first marked as incomplete, then complete,
and after a restart with the same ranks."""
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, ROOT, Daemon, cluster, wait_for  # noqa: E402

# A rank records what the table says when it starts, waits until it is complete, and then for its
# own end. cp would fail on a file that is replaced during the copy.
RANK = """
cat "$RANK_TABLE_FILE" > %(dir)s/$RANK.$HELIOS_ATTEMPT.first
env > %(dir)s/$RANK.$HELIOS_ATTEMPT.env
until grep -q '"completed"' "$RANK_TABLE_FILE"; do sleep 0.1; done
cat "$RANK_TABLE_FILE" > %(dir)s/.$RANK && mv %(dir)s/.$RANK %(dir)s/$RANK.$HELIOS_ATTEMPT.whole
while [ ! -e %(dir)s/end ]; do sleep 0.2; done
"""

JOB = """
jobName: table
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: %(tp)d}
resources: {ranks_per_slot: 1}
restarts: 2
%(more)s
command: [/bin/sh, -ec, %(rank)s]
"""


def job(directory, more="", tp=2):
    return JOB % {"rank": json.dumps(RANK % {"dir": directory}), "more": more, "tp": tp}


def notes(directory, attempt, kind, ranks=4):
    """What the ranks recorded, once all have."""
    files = [directory / f"{rank}.{attempt}.{kind}" for rank in range(ranks)]
    wait_for(f"{kind} of attempt {attempt}", lambda: all(f.exists() for f in files))
    return [f.read_text() for f in files]


def environment(text):
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def ranks_of(table):
    """Rank -> (server, device) of a table in format v2."""
    return {
        int(d["rank_id"]): (s["server_id"], d["device_id"])
        for s in table["server_list"]
        for d in s["device"]
    }


class RankTables(unittest.TestCase):
    def test_a_gang_gets_its_table_and_a_restarted_one_the_same_ranks(self):
        with cluster() as c:
            name = c.submit(job(c.dir))
            c.wait_job(name, "running")
            tables = [json.loads(t) for t in notes(c.dir, 1, "whole")]
            self.assertTrue(all(t == tables[0] for t in tables))
            plan = c.job(name)["plan"]["containers"]
            slot = {r["rank"]: (p["node"], str(p["numaId"])) for p in plan for r in p["ranks"]}
            self.assertEqual(ranks_of(tables[0]), slot)  # two slots a node, numbered 0 and 1
            self.assertTrue(
                all(d["device_ip"] for s in tables[0]["server_list"] for d in s["device"])
            )
            self.assertEqual(c.json("ranktable", name), tables[0])

            seen = [environment(t) for t in notes(c.dir, 1, "env")]
            path = pathlib.Path(seen[0]["RANK_TABLE_FILE"])
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o644)
            self.assertEqual(os.listdir(path.parent), [path.name])  # no temporary file is left
            self.assertEqual([e["GROUP_RANK"] for e in seen], ["0", "1", "2", "3"])
            self.assertEqual({e["GROUP_WORLD_SIZE"] for e in seen}, {"4"})
            self.assertEqual({e["TORCHELASTIC_RESTART_COUNT"] for e in seen}, {"0"})

            pid = c.job(name)["containers"][3]["ranks"][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            again = [json.loads(t) for t in notes(c.dir, 2, "whole")]
            self.assertEqual(sorted(ranks_of(again[0])), [0, 1, 2, 3])
            seen = [environment(t) for t in notes(c.dir, 2, "env")]
            self.assertEqual({e["TORCHELASTIC_RESTART_COUNT"] for e in seen}, {"1"})
            (c.dir / "end").touch()
            c.wait_job(name, "succeeded")

    def test_while_a_part_of_the_gang_has_not_started_the_table_says_so(self):
        with cluster(env={"HELIOS_NODE_LOST": "60s"}) as c:
            os.kill(c.pid("node-1"), signal.SIGSTOP)
            try:
                name = c.submit(job(c.dir))
                wait_for("rank 0 to start", (c.dir / "0.1.first").exists)
                self.assertEqual(
                    json.loads(wait_for("its note", (c.dir / "0.1.first").read_text)),
                    {"status": "initializing"},
                )
                self.assertEqual(c.json("ranktable", name), {"status": "initializing"})
                self.assertEqual(list(c.dir.glob("*.whole")), [])
            finally:
                os.kill(c.pid("node-1"), signal.SIGCONT)
            self.assertEqual(len(ranks_of(json.loads(notes(c.dir, 1, "whole")[0]))), 4)
            self.assertEqual(c.job(name)["attempt"], 1)
            (c.dir / "end").touch()
            c.wait_job(name, "succeeded")

    def test_the_formats(self):
        with cluster() as c:
            name = c.submit(job(c.dir, more="rankTable: v1"))
            tables = [json.loads(t) for t in notes(c.dir, 1, "whole")]
            pods = tables[0]["group_list"][0]["instance_list"]
            self.assertEqual([p["pod_name"] for p in pods], [f"{name}.{i}" for i in range(4)])
            self.assertEqual(c.json("ranktable", name), tables[0])
            v2 = c.json("ranktable", name, "--json", "v2")
            self.assertEqual(v2["version"], "1.0")
            super_pods = c.json("ranktable", name, "--json", "1.2")
            self.assertEqual(super_pods["version"], "1.2")
            self.assertEqual(
                [s["server_id"] for s in super_pods["super_pod_list"][0]["server_list"]],
                ["node-0", "node-1"],
            )
            self.assertIn("not one of v1, v2, 1.2", c.refuse("ranktable", name, "--json", "v3"))
            self.assertIn("does not exist", c.refuse("ranktable", "nobody"))
            (c.dir / "end").touch()
            c.wait_job(name, "succeeded")

    def test_a_table_that_was_lost_is_made_again_when_agent_or_controller_come_back(self):
        with cluster() as c:
            name = c.submit(job(c.dir))
            whole = json.loads(notes(c.dir, 1, "whole")[0])
            files = [
                pathlib.Path(environment(t)["RANK_TABLE_FILE"]) for t in notes(c.dir, 1, "env")
            ]
            for daemon in ("node-0", "controllerd"):
                files[0].write_text('{"status":"initializing"}')
                c.kill(daemon)
                c.up()
                wait_for(
                    f"the table after {daemon}", lambda: json.loads(files[0].read_text()) == whole
                )
            self.assertEqual(
                {json.dumps(json.loads(f.read_text())) for f in files}, {json.dumps(whole)}
            )
            self.assertEqual(c.job(name)["attempt"], 1)
            self.assertEqual(c.json("ranktable", name), whole)
            (c.dir / "end").touch()
            c.wait_job(name, "succeeded")

    def test_a_node_that_is_back_at_another_address_is_in_all_tables_of_the_gang(self):
        with cluster() as c:
            name = c.submit(job(c.dir, more="recovery: {mode: replace}"))
            notes(c.dir, 1, "whole")
            seen = [environment(t) for t in notes(c.dir, 1, "env")]
            self.assertFalse(pathlib.Path(seen[3]["HELIOS_MEETING"]).exists())
            with Daemon(c, "node-0").again("--rank-address", "127.0.0.5"):
                for e in seen:
                    table, meeting = pathlib.Path(e["RANK_TABLE_FILE"]), pathlib.Path(
                        e["HELIOS_MEETING"]
                    )
                    wait_for("the new address", lambda f=table: "127.0.0.5" in f.read_text())
                    self.assertEqual(json.loads(table.read_text()), c.json("ranktable", name))
                    self.assertEqual(
                        meeting.read_text().splitlines()[:2],
                        ["MASTER_ADDR=127.0.0.5", f"MASTER_PORT={e['MASTER_PORT']}"],
                    )
                self.assertEqual(c.job(name)["attempt"], 1)
                (c.dir / "end").touch()
                c.wait_job(name, "succeeded")

    def test_ranks_with_gpus_find_what_torch_and_nccl_want(self):
        power = ROOT / "tests" / "data" / "topo" / "power-2slots.xml"
        addresses = [f"10.9.0.{i}" for i in range(8)]
        with cluster(
            nodes=1,
            slots=2,
            up=("--topology", power),
            env={"HELIOS_AGENT_DEVICE_ADDRESSES": ",".join(addresses)},
        ) as c:
            slots = c.json("nodes")["items"][0]["node"]["slots"]
            gpus = sorted(g["id"] for s in slots for g in s["gpus"])
            name = c.submit(job(c.dir, tp=1))
            table = json.loads(notes(c.dir, 1, "whole", 2)[0])
            placed = {
                r["rank"]: r["gpu"] for p in c.job(name)["plan"]["containers"] for r in p["ranks"]
            }
            self.assertEqual(
                {r: d for r, (_, d) in ranks_of(table).items()},
                {r: str(gpus.index(g)) for r, g in placed.items()},
            )
            self.assertEqual(
                {
                    int(d["rank_id"]): d["device_ip"]
                    for s in table["server_list"]
                    for d in s["device"]
                },
                {r: addresses[gpus.index(g)] for r, g in placed.items()},
            )
            hcas = {s["numaId"]: {n["name"] for n in s["nics"]} for s in slots}
            for rank, text in enumerate(notes(c.dir, 1, "env", 2)):
                seen = environment(text)
                self.assertEqual(seen["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")
                visible = seen["CUDA_VISIBLE_DEVICES"].split(",")
                self.assertEqual(gpus[int(visible[int(seen["LOCAL_RANK"])])], placed[rank])
                self.assertEqual(seen["NCCL_SOCKET_IFNAME"], "lo")
                numa = c.job(name)["plan"]["containers"][rank]["numaId"]
                self.assertEqual(set(seen["NCCL_IB_HCA"].removeprefix("=").split(",")), hcas[numa])
            (c.dir / "end").touch()
            c.wait_job(name, "succeeded")

    def test_an_address_of_a_device_that_is_none_is_refused(self):
        for given, why in (
            ("10.0.0.1,roce1", "'roce1' is not an IP address"),
            ("10.0.0.1,", "ends with a comma"),
        ):
            done = subprocess.run(
                [
                    BUILD / "bin" / "helios-agent",
                    "--state",
                    "/nonexistent",
                    "--device-addresses",
                    given,
                ],
                text=True,
                capture_output=True,
                check=False,
                timeout=60,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"--device-addresses{':' if 'IP' in why else ''} {why}", done.stderr)


if __name__ == "__main__":
    unittest.main()

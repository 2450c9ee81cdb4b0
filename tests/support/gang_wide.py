"""A gang of a thousand ranks: a mixin as in gang_scenarios.py."""
from __future__ import annotations

import json

from support.cluster import wait_for
from support.gang_world import World

# 126 pods of eight ranks; one rank waits for the table of all.
WIDE = """
jobName: wide
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 8, data_parallel_size: 63}
dockerImage: registry.example/train:1
resources: {ranks_per_slot: 8}
restarts: 1
env: {PRICE: "$5"}
command:
- /bin/sh
- -c
- |
  [ $RANK != 999 ] || until grep -q '"completed"' "$RANK_TABLE_FILE"; do sleep 0.2; done
  [ $RANK != 999 ] || cp "$RANK_TABLE_FILE" DIR/table
  echo "$HELIOS_ATTEMPT $RANK $PIPELINE_PARALLEL_RANK $TENSOR_PARALLEL_RANK \\
  $DATA_PARALLEL_RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $PRICE"
  [ $RANK.$HELIOS_ATTEMPT != 999.1 ] || { echo what went wrong; exit 7; }
"""


class WideGangs(World):
    def test_a_gang_of_a_thousand_ranks(self):
        c = self.start_cluster()
        job = c.submit(WIDE.replace("DIR", str(c.dir)))
        # from the list, which does not print a thousand ranks each time
        wait_for(
            "the job to end",
            lambda: c.json("list")["items"][0]["state"] in ("succeeded", "failed"),
            400,
        )
        c.wait_job(job, "succeeded")
        described = c.job(job)
        self.assertEqual(described["attempt"], 2)
        self.assertIn(
            "rank 999 exited with code 7",
            next(e["text"] for e in described["events"] if e["kind"] == "container-failed"),
        )
        told = {}
        for (pod, _), container in self.volcano.logs.items():
            if pod.startswith(f"helios-{job}-a2-"):
                words = container.lines[-1][1].split()
                told[int(words[1])] = (pod, *words)
        self.assertEqual(sorted(told), list(range(1008)))
        for container in described["plan"]["containers"]:
            for r in container["ranks"]:
                self.assertEqual(
                    told[r["rank"]],
                    (
                        container["node"],
                        "2",
                        str(r["rank"]),
                        str(r["pp"]),
                        str(r["tp"]),
                        str(r["dp"]),
                        "0",
                        "1008",
                        f"helios-{job}-a2-c0-0.helios-{job}-a2",
                        "$5",
                    ),
                )
        table = json.loads((c.dir / "table").read_text())
        self.assertEqual(
            [(s["server_id"], [d["rank_id"] for d in s["device"]]) for s in table["server_list"]],
            [
                (p["node"], [str(r["rank"]) for r in p["ranks"]])
                for p in described["plan"]["containers"]
            ],
        )
        self.assertEqual(c.log(job, 998).split()[:2], ["2", "998"])
        doc = self.objects("vcjobs")[f"helios-{job}-a2"]
        self.assertEqual(
            ([t["replicas"] for t in doc["spec"]["tasks"]], doc["spec"]["minAvailable"]),
            ([63, 63], 126),
        )
        # none from the first attempt
        self.assertEqual({p.split("-c")[0] for p in self.objects("pods")}, {f"helios-{job}-a2"})
        self.api.delete("vcjobs", self.namespace, f"helios-{job}-a2")
        self.wait_gone(120)
        self.assertEqual(self.volcano.made, [f"helios-{job}-a1", f"helios-{job}-a2"])

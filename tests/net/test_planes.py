"""Three separate networks: each listener listens on its own network,
and traffic went where the counters say."""
import json
import re
import unittest

import hosts
from cluster import Cluster, crcs, ids
from hosts import BUILD, wait_for

MIB = 1 << 20
NETWORKS = [
    word
    for n, plane in enumerate(hosts.PLANES, 1)
    for word in (f"--plane-{plane}", f"10.77.{n}.0/24")
]


class World(Cluster):
    """Every daemon has the same options: networks in CIDR form, and addresses without a host."""

    def _daemon(self, host, program, *args):
        host.planes = lambda: NETWORKS + ["--metrics-listen", ":0"]
        return super()._daemon(host, program, *args)

    def start_l3(self, port=7402, data_port=7403):
        return self._daemon(
            self.a,
            "helios-l3d",
            "--pool",
            self.a.dir / "pool",
            "--socket",
            self.a.dir / "l3.sock",
            "--size",
            self.size,
            "--plane-backbone-rate",
            "10Gbit",
        )

    def start_agent(self, host):
        return self._daemon(
            host,
            "helios-agent",
            "--name",
            f"node-{host.name}",
            "--controller",
            self.address,
            "--state",
            self.lab.dir / f"agent-{host.name}",
            "--l2-size",
            "64MiB",
            "--host-id",
            host.name,
        )

    def plane(self, daemon, plane):
        return next(
            r
            for r in self.helios(self.a, "net")["planes"]
            if (r["daemon"], r["plane"]) == (daemon, plane)
        )

    def scrape(self, host, process):
        """GET /metrics over the network, from a host, as {sample: value}."""
        url = f"http://{process.ready['metrics']}/metrics"
        text = host.sh(
            f"/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\","
            " timeout=10).read().decode())'"
        )
        return {m[1]: float(m[2]) for m in re.finditer(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.M)}


class Planes(unittest.TestCase):
    def setUp(self):
        self.lab = self.enterContext(hosts.Lab())
        self.a, self.b = self.lab.a, self.lab.b
        # Its neighbour discovery would be counted on networks without traffic.
        for host in self.lab.hosts:
            host.sh("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
        self.world = World(self.lab)

    def received(self):
        return {plane: self.b.received(plane) for plane in hosts.PLANES}

    def test_each_address_is_on_its_own_network(self):
        agent = self.world.start_agent(self.b)
        self.assertRegex(self.world.l3.ready["address"], r"^10\.77\.3\.1:7402$")
        self.assertRegex(self.world.l3.ready["dataAddress"], r"^10\.77\.1\.1:\d+$")
        self.assertRegex(self.world.controller.ready["address"], r"^10\.77\.3\.1:7400$")
        self.assertRegex(agent.ready["address"], r"^10\.77\.3\.2:\d+$")
        self.assertRegex(agent.ready["dataAddress"], r"^10\.77\.1\.2:\d+$")
        self.assertRegex(agent.ready["migrateAddress"], r"^10\.77\.2\.2:\d+$")
        self.assertRegex(agent.ready["metrics"], r"^10\.77\.3\.2:\d+$")
        for row in self.world.helios(self.a, "net")["planes"]:
            if row["daemon"] == "node-B" and row["plane"] != "inside":
                # The names of the interfaces on these hosts.
                self.assertEqual(row["interface"], row["plane"])

    def test_bytes_travel_where_they_are_counted(self):
        self.world.import_model()
        before = self.received()
        rank = self.world.rank(self.b)
        found = rank.ask({"op": "list", "model": "m"})
        total = sum(s[2] for s in found["shards"])
        got = rank.ask({"op": "read", "ids": ids(found)})
        self.assertEqual((got["crcs"], got["path"]), (crcs(found), "tcp"))
        after = self.received()
        self.assertGreaterEqual(after["backbone"] - before["backbone"], total)
        self.assertLess(after["management"] - before["management"], total // 20)
        self.assertEqual(after["migration"], before["migration"])

        rank.popen.stdin.close()  # its last report is sent when it ends
        self.assertEqual(rank.popen.wait(20), 0)
        row = wait_for(
            "the rank's report",
            lambda: (r := self.world.plane("ranks", "backbone"))["receivedOps"] and r,
        )
        self.assertEqual(
            (row["receivedOps"], row["receivedBytes"], row["failed"]),
            (len(found["shards"]), total, 0),
        )
        self.assertGreater(row["p50Us"], 0)
        self.assertGreaterEqual(row["p99Us"], row["p50Us"])
        row = self.world.plane("l3", "backbone")
        self.assertGreaterEqual(row["sentBytes"], total)
        self.assertEqual(
            (row["address"], row["interface"], row["rateBitsPerSecond"]),
            ("10.77.1.1", "backbone", 10e9),
        )
        self.assertIsNotNone(row["busyPercent"])
        paths = [
            r
            for r in self.world.helios(self.a, "net")["paths"]
            if r["daemon"] == "controller" and r["operation"] == "read"
        ]
        self.assertEqual(
            [(r["path"], r["reason"], r["text"], r["ops"]) for r in paths],
            [("tcp", "no-rdma", "the backbone has no RDMA to this peer", len(found["shards"]))],
        )
        text = self.a.run("helios", "--controller", self.world.address, "net").stdout
        self.assertIn("the backbone has no RDMA to this peer", text)

    def test_a_rank_of_the_pools_host_uses_no_network(self):
        self.world.import_model()
        before = self.world.plane("l3", "backbone")["sentBytes"]
        rank = self.world.rank(self.a)
        found = rank.ask({"op": "list", "model": "m"})
        self.assertEqual(rank.ask({"op": "read", "ids": ids(found)})["path"], "shm")
        rank.popen.stdin.close()
        self.assertEqual(rank.popen.wait(20), 0)
        row = wait_for(
            "the rank's report",
            lambda: (r := self.world.plane("ranks", "inside"))["receivedOps"] and r,
        )
        self.assertEqual(row["receivedBytes"], sum(s[2] for s in found["shards"]))
        self.assertEqual(self.world.plane("ranks", "backbone")["receivedOps"], 0)
        self.assertEqual(self.world.plane("l3", "backbone")["sentBytes"], before)

    def test_a_write_is_counted_by_the_rank_and_by_the_pool(self):
        self.world.import_model()
        rank = self.world.rank(self.b)
        wrote = rank.ask({"op": "write", "model": "m", "bytes": 4 * MIB})
        self.assertEqual(wrote["status"], "OK", wrote)
        rank.popen.stdin.close()
        self.assertEqual(rank.popen.wait(20), 0)
        wait_for(
            "the rank's report",
            lambda: self.world.plane("ranks", "backbone")["sentBytes"] >= 4 * MIB,
        )
        self.assertGreaterEqual(self.world.plane("l3", "backbone")["receivedBytes"], 4 * MIB)
        for daemon in ("controller", "l3"):
            self.assertIn(
                (daemon, "write", "ucx-tagged", "backbone-write", "ok"),
                [
                    (r["daemon"], r["operation"], r["path"], r["reason"], r["result"])
                    for r in self.world.helios(self.a, "net")["paths"]
                ],
            )

    def test_a_migration_goes_over_the_migration_network(self):
        self.world.import_model()
        here, there = self.world.start_agent(self.a), self.world.start_agent(self.b)
        listing = self.world.helios(self.a, "shard", "ls", "--model", "m")["items"]
        shard = max(listing, key=lambda s: s["sizeBytes"])
        common = {
            "id": shard["id"],
            "sizeBytes": shard["sizeBytes"],
            "crc32": int(shard["crc32"], 16),
            "tier": "L2",
            "numaId": -1,
            "operation": "migrate",
            "timeoutMs": 20000,
        }
        agent = self.world.caller(self.a, here.ready["address"], "Agent")
        l3 = self.world.l3.ready
        made = agent.ask(
            "storeCopy "
            + json.dumps(
                {
                    "request": {
                        **common,
                        "operation": "read",
                        "sourceTier": "L3",
                        "sourceAddress": l3["address"],
                        "sourceDataAddress": l3["dataAddress"],
                    }
                }
            )
        )
        self.assertIn("copy", made)
        before = self.received()
        sent = agent.ask(
            "storeSend "
            + json.dumps({"request": {**common, "targetAddress": there.ready["migrateAddress"]}})
        )
        self.assertEqual(
            (sent["copy"]["path"], sent["copy"]["reason"]), ("zmq", "migration-net"), sent
        )
        after = self.received()
        self.assertGreaterEqual(after["migration"] - before["migration"], shard["sizeBytes"])
        self.assertEqual(after["backbone"], before["backbone"])
        self.assertLess(after["management"] - before["management"], shard["sizeBytes"] // 20)
        for daemon, way in (("node-A", "sentBytes"), ("node-B", "receivedBytes")):
            self.assertGreaterEqual(self.world.plane(daemon, "migration")[way], shard["sizeBytes"])
            self.assertIn(
                (daemon, "migrate", "zmq", "migration-net", "ok"),
                [
                    (r["daemon"], r["operation"], r["path"], r["reason"], r["result"])
                    for r in self.world.helios(self.a, "net")["paths"]
                ],
            )

    def test_metrics_come_by_http_and_by_rpc(self):
        self.world.import_model()
        agent = self.world.start_agent(self.b)
        l3 = self.world.scrape(self.b, self.world.l3)
        self.assertEqual(l3["helios_up"], 1)
        self.assertEqual(l3['helios_tier_bytes{tier="L3",name="pool",state="quota"}'], 192 * MIB)
        self.assertGreater(l3['helios_shards{tier="L3"}'], 0)
        self.assertGreater(l3['helios_plane_ops_total{plane="management",direction="received"}'], 0)
        self.assertEqual(self.world.scrape(self.a, agent)['helios_containers'], 0)
        nodes = wait_for(
            "the node to be ready",
            lambda: (m := self.world.scrape(self.b, self.world.controller))[
                'helios_nodes{state="ready"}'
            ]
            and m,
        )
        self.assertGreater(nodes["helios_catalogue_shards"], 0)
        for name in ("controller", "l3", "node-B"):
            text = self.world.helios(self.a, "metrics", name)["text"]
            self.assertIn("# TYPE helios_plane_bytes_total counter", text)
        self.assertIn(
            "there is no node 'nobody'", self.world.helios(self.a, "metrics", "nobody", check=False)
        )

    def test_what_a_rank_reports_wrongly_is_refused_and_not_counted(self):
        controller = self.world.caller(self.a, self.world.address, "Controller")
        good = {
            "plane": "backbone",
            "operation": "read",
            "path": "direct",
            "reason": "one-sided",
            "ops": 3,
            "bytes": 30,
            "latency": [0, 2, 1],
            "latencyNs": 1300,
        }
        bad = {
            "plane": {**good, "plane": "nowhere"},
            "operation": {**good, "operation": "steal"},
            "path": {**good, "path": "x" * 1000},
            "reason": {**good, "reason": 'a"b\\c\n'},
        }
        for field, report in {**bad, "path: missing": {}}.items():
            answer = controller.ask("reportAccess " + json.dumps({"transfers": [good, report]}))
            self.assertEqual(answer["status"], "EINVAL")
            self.assertIn(f"field transfers[1].{field}", answer["error"])
        failed = {**good, "failed": True, "ops": 2, "bytes": 0, "latency": [], "latencyNs": 0}
        answer = controller.ask("reportAccess " + json.dumps({"transfers": [good, failed]}))
        self.assertNotIn("error", answer)
        long = {**good, "latency": [1] * 1000, "ops": 2**63 - 1}
        controller.ask("reportAccess " + json.dumps({"transfers": [long]}))
        row = self.world.plane("ranks", "backbone")
        self.assertEqual((row["failed"], row["receivedBytes"]), (2, 60))
        words = {
            (r["path"], r["reason"])
            for r in self.world.helios(self.a, "net")["paths"]
            if r["operation"] == "read"
        }
        self.assertEqual(words, {("direct", "one-sided")})

    def test_a_network_that_is_not_here_is_refused_with_what_is(self):
        done = self.a.run(
            "helios-l3d",
            "--plane-backbone",
            "10.99.0.0/16",
            "--pool",
            self.a.dir / "other",
            check=False,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(
            "plane.backbone: no interface that is up has an address in 10.99.0.0/16; this host has",
            done.stderr,
        )
        self.assertIn("backbone 10.77.1.1/24", done.stderr)


if __name__ == "__main__":
    assert BUILD.exists()
    hosts.main()

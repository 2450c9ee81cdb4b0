#!/usr/bin/python3
"""What reads leave in their node's L2: fetched once for all of its ranks,
and evicted before anything else."""
from __future__ import annotations

import ctypes
import os
import pathlib
import re
import signal
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

from support import checkpoints  # noqa: E402
from support.cluster import BUILD, wait_for  # noqa: E402
from support.store_case import StoreCase  # noqa: E402

os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
from helios import _abi, _loader, errors  # noqa: E402

DEADLINE_S = 30


class DeviceView(_loader.Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("device", ctypes.c_char * 96),
    ]


class Keep(StoreCase):
    def start_apart(self, **options):
        """Ranks of these nodes don't find the pool on their host:
        its socket is removed once the daemons run."""
        self.start(**options)
        os.unlink(self.c.info["socket"])

    def metric(self, name, node="node-0"):
        return sum(
            float(x)
            for x in re.findall(
                rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.c.run("metrics", node).stdout, re.M
            )
        )

    def fetched(self, node="node-0"):
        """Copies that the Agent has made, over any path."""
        lines = re.findall(
            r'^helios_path_total\{op="read",[^}]*\} (\d+)$',
            self.c.run("metrics", node).stdout,
            re.M,
        )
        return sum(map(int, lines))

    def kept(self, node="node-0"):
        return self.metric("helios_l2_kept_shards", node)

    def tiers(self, node="node-0"):
        """The node's row of `helios store`."""
        return next(x for x in self.c.json("store")["items"] if x["node"] == node)["tiers"]

    def l2(self, node="node-0"):
        return next(x for x in self.tiers(node) if x["tier"] == "L2" and not x.get("kind"))

    def shards(self, client):
        return sorted(client.request_shards("m", -1, 0, 0).shards, key=lambda s: -s.size)

    def read(self, client, shard):
        return bytes(client.map(shard).buffer())

    def store_file(self, node="node-0"):
        return pathlib.Path(self.nodes[node]["storeSocket"].removesuffix(".sock"))

    def test_ranks_of_a_node_fetch_a_shard_once_and_find_it_there_without_the_pool(self):
        self.start_apart()
        ranks = [self.client("node-0") for _ in range(4)]
        shard = self.shards(ranks[0])[0]
        whole = self.read(self.client(), shard)  # of no node: over the network, and nothing is kept
        self.assertEqual(self.kept(), 0)
        got = [None] * len(ranks)

        def read(i):
            got[i] = self.read(ranks[i], shard)

        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(ranks))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, [whole] * len(ranks))
        self.assertEqual(self.metric("helios_l2_kept_loads_total"), 1)
        self.assertEqual(self.fetched(), 1)
        self.assertEqual({r.stats()["path"] for r in ranks}, {"shm"})
        l2 = self.l2()
        self.assertEqual((l2["usedBytes"], l2["shards"], l2["keptShards"]), (0, 0, 1))
        self.assertGreaterEqual(l2["keptBytes"], shard.size)
        self.assertEqual(self.metric("helios_l2_kept_bytes"), l2["keptBytes"])
        name = f"{shard.id[0]:016x}{shard.id[1]:016x}"
        # its second copy cannot be counted on
        wait_for(
            "the Controller to hear that the node keeps something",
            lambda: [
                (x["tier"], x["node"], x["kept"], x["sizeBytes"])
                for x in self.c.json("shard", "show", name)["copies"]
            ]
            == [("L3", "", False, shard.size), ("L2", "node-0", True, shard.size)],
        )
        self.assertRegex(
            self.c.run("shard", "show", name).stdout, r"L2 +node-0 .*kept after a read"
        )
        self.c.kill("l3d")
        late = self.client("node-0")
        self.assertEqual(self.read(late, shard), whole)
        late.close()  # reports its reads
        wait_for(
            "the Agent to be told of it", lambda: self.metric("helios_l2_kept_hits_total") >= 1
        )
        wait_for(
            "the Controller to be told of the tier",
            lambda: 'helios_rank_reads_total{tier="L2"} '
            in self.c.run("metrics", "controller").stdout
            and not re.search(
                r'helios_rank_reads_total\{tier="L2"\} 0\b',
                self.c.run("metrics", "controller").stdout,
            ),
        )

    def test_a_reader_goes_on_by_itself_when_the_agent_dies_or_hangs_while_it_loads(self):
        self.start_apart()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            client = self.client("node-0")
            first, second = self.shards(client)[:2]
            shard = first if number == signal.SIGKILL else second
            l3d, agent = self.c.pid("l3d"), self.c.pid("node-0")
            os.kill(l3d, signal.SIGSTOP)
            got = []
            begun = time.monotonic()
            reader = threading.Thread(
                target=lambda c=client, s=shard, g=got: g.append(self.read(c, s))
            )
            reader.start()
            # by then it waits for the Agent, which waits for L3;
            # it has to succeed in any other order, too
            time.sleep(0.3)
            os.kill(agent, number)
            os.kill(l3d, signal.SIGCONT)
            reader.join(DEADLINE_S)
            took = time.monotonic() - begun
            if number == signal.SIGSTOP:
                os.kill(agent, signal.SIGCONT)
            self.assertEqual([len(x) for x in got], [shard.size])
            self.assertLess(took, DEADLINE_S / 2)
            self.assertEqual(client.stats()["path"], "tcp")
            client.close()
            if number == signal.SIGKILL:
                self.c.up()

    def test_what_is_kept_outlives_the_agent(self):
        self.start_apart()
        client = self.client("node-0")
        shard = self.shards(client)[0]
        whole = self.read(client, shard)
        self.assertEqual(self.kept(), 1)
        client.close()
        self.c.kill("node-0")
        self.c.up()
        self.assertEqual(self.kept(), 1)
        self.assertEqual(self.l2()["shards"], 0)
        client = self.client("node-0")
        self.assertEqual(self.read(client, shard), whole)
        self.assertEqual(client.stats()["path"], "shm")
        self.assertEqual(self.metric("helios_l2_kept_loads_total"), 0)

    def test_placed_copies_have_the_room_first(self):
        self.start_apart(size="192MiB")
        source, _ = checkpoints.llama(self.c.dir / "big", layers=8, hidden=640, ffn=960)
        self.c.json("model", "import", source, "--name", "big", "--tp", 1, "--pp", 1)
        client = self.client("node-0")
        # of 11.7 MiB; the L2 has 64
        shards = [s for s in client.request_shards("big", -1, 0, 0).shards if s.size > 8 << 20]
        self.assertEqual(len(shards), 8)
        kept = [self.read(client, s) for s in shards[:5]]
        self.assertEqual(self.kept(), 5)
        del kept
        # two are there already; all kept copies have to make room for the others
        for shard in shards[3:]:
            self.c.json("shard", "copy", f"{shard.id[0]:016x}{shard.id[1]:016x}", "--to", "node-0")
        l2 = self.l2()
        self.assertEqual(l2["shards"], 5)
        self.assertEqual(l2["keptShards"], 0)
        # full of placed copies: none is evicted for a reader, whose read succeeds anyway
        self.assertEqual(len(self.read(client, shards[0])), shards[0].size)
        self.assertEqual(client.stats()["path"], "tcp")
        self.assertEqual((self.l2()["shards"], self.l2()["keptShards"]), (5, 0))

    def test_an_order_makes_a_kept_copy_a_placed_one_without_a_transfer(self):
        self.start_apart()
        client = self.client("node-0")
        shard = self.shards(client)[0]
        whole = self.read(client, shard)
        before = self.fetched()
        name = f"{shard.id[0]:016x}{shard.id[1]:016x}"
        self.c.json("shard", "copy", name, "--to", "node-0")
        self.assertEqual(self.fetched(), before)
        self.assertEqual((self.l2()["shards"], self.l2()["keptShards"]), (1, 0))
        self.assertIn(
            ("L2", "node-0"),
            [
                (x["tier"], x["node"])
                for x in self.c.json("shard", "show", name)["copies"]
                if not x["kept"]
            ],
        )
        self.assertEqual(self.read(client, shard), whole)

    def test_copies_of_a_removed_version_go(self):
        self.start_apart()
        client = self.client("node-0")
        shards = self.shards(client)
        for shard in shards:
            self.read(client, shard)
        self.assertEqual(self.kept(), len(shards))
        self.c.json("model", "rm", "m")
        wait_for("the kept copies to go", lambda: self.kept() == 0)
        with self.assertRaises(errors.HeliosError):
            self.read(client, shards[0])

    def test_a_bad_kept_copy_is_passed_over_and_goes(self):
        self.start_apart()
        client = self.client("node-0")
        shard = self.shards(client)[0]
        whole = self.read(client, shard)
        store = self.store_file()
        at = store.read_bytes().find(whole)
        self.assertGreater(at, 0)
        with store.open("r+b") as f:
            f.seek(at + 100)
            f.write(bytes([whole[100] ^ 1]))
        self.assertEqual(self.read(client, shard), whole)
        self.assertEqual(client.stats()["path"], "tcp")
        wait_for("the bad copy to go", lambda: self.kept() == 0)
        self.assertEqual(self.l2()["shards"], 0)  # and no order has replaced it
        self.assertEqual(self.read(client, shard), whole)
        self.assertEqual(self.kept(), 1)

    def test_without_a_share_nothing_is_kept(self):
        self.start_apart(env={"HELIOS_AGENT_L2_KEEP": "0"})
        client = self.client("node-0")
        shard = self.shards(client)[0]
        self.assertEqual(len(self.read(client, shard)), shard.size)
        self.assertEqual(client.stats()["path"], "tcp")
        self.assertEqual(self.kept(), 0)

    def test_a_share_of_a_device_keeps_what_ranks_map_of_it(self):
        self.start_apart()
        client = self.client("node-0")
        shard, other = self.shards(client)[:2]
        whole = self.read(client, shard)
        transfers = self.fetched()
        lib, views = client._lib, [DeviceView(), DeviceView()]
        for view in views:  # into the device once; it is in the L2 by then
            ask = [client._use(), _abi._Id(*shard.id), ctypes.byref(view)]
            self.assertEqual(lib.helios_map_device(*ask), 0, lib.helios_last_error())
            self.assertEqual(ctypes.string_at(view.host, view.bytes), whole)
            self.assertEqual(self.fetched(), transfers + 1)
        l1 = next(t for t in self.tiers() if t["tier"] == "L1")
        self.assertEqual((l1["usedBytes"], l1["shards"], l1["keptShards"]), (0, 0, 1))
        name = f"{shard.id[0]:016x}{shard.id[1]:016x}"
        self.assertEqual(
            [x["tier"] for x in self.c.json("shard", "show", name)["copies"] if not x["kept"]],
            ["L3"],
        )
        for view in views:
            self.assertEqual(lib.helios_unmap_device(client._use(), ctypes.byref(view)), 0)
        self.c.json("shard", "copy", name, "--to", "node-0:l1")  # a placed one takes its place
        l1 = next(t for t in self.tiers() if t["tier"] == "L1")
        self.assertEqual((l1["shards"], l1["keptShards"]), (1, 0))
        view = DeviceView()  # from L3 through the L2
        ask = [client._use(), _abi._Id(*other.id), ctypes.byref(view)]
        self.assertEqual(lib.helios_map_device(*ask), 0, lib.helios_last_error())
        self.assertEqual(ctypes.string_at(view.host, view.bytes), self.read(client, other))

    def test_what_leaves_a_device_is_read_from_the_l2_when_the_pool_is_away(self):
        self.start_apart(size="192MiB")
        source, _ = checkpoints.llama(self.c.dir / "big", layers=8, hidden=640, ffn=960)
        self.c.json("model", "import", source, "--name", "big", "--tp", 1, "--pp", 1)
        client, whole = self.client("node-0"), self.client()
        # of 11.7 MiB; the device has 16
        shards = [s for s in client.request_shards("big", -1, 0, 0).shards if s.size > 8 << 20]
        wanted = [self.read(whole, s) for s in shards[:6]]

        def mapped(shard):
            view = DeviceView()
            self.assertEqual(
                client._lib.helios_map_device(
                    client._use(), _abi._Id(*shard.id), ctypes.byref(view)
                ),
                0,
                client._lib.helios_last_error(),
            )
            got = ctypes.string_at(view.host, view.bytes)
            self.assertEqual(client._lib.helios_unmap_device(client._use(), ctypes.byref(view)), 0)
            return got

        # the device has room for one of them, the L2 for five
        for shard, bytes_ in zip(shards, wanted):
            self.assertEqual(mapped(shard), bytes_)
        self.assertGreaterEqual(self.metric("helios_l1_kept_down_total"), 4)
        l1 = next(t for t in self.tiers() if t["tier"] == "L1")
        self.assertEqual((l1["keptShards"], self.l2()["shards"]), (1, 0))
        self.c.kill("l3d")
        for i in (5, 4, 3):
            self.assertEqual(mapped(shards[i]), wanted[i])

    def test_without_a_share_of_l1_no_device_keeps_anything(self):
        self.start_apart(env={"HELIOS_AGENT_L1_KEEP": "0"})
        client = self.client("node-0")
        view, shard = DeviceView(), self.shards(client)[0]
        status = client._lib.helios_map_device(
            client._use(), _abi._Id(*shard.id), ctypes.byref(view)
        )
        self.assertNotEqual(status, 0)
        self.assertIn(b"is in no device of node", client._lib.helios_last_error())
        self.assertEqual(self.kept(), 0)

    def test_a_reader_on_the_pools_host_leaves_nothing(self):
        self.start()
        client = self.client("node-0")
        for shard in self.shards(client):
            self.read(client, shard)
        self.assertEqual(client.stats()["path"], "shm")
        self.assertEqual(self.kept(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

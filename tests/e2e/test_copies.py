#!/usr/bin/python3
"""Copies of shards from the view of a rank and a user: the node's own store, healing,
other nodes' stores."""
from __future__ import annotations

import ctypes
import os
import pathlib
import struct
import sys
import threading
import time
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

from support.cluster import BUILD, wait_for  # noqa: E402
from support.store_case import StoreCase  # noqa: E402

os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
from helios import _abi, _loader  # noqa: E402

NOTICED_S = 1.0  # time to notice a dead owner
SLACK_S = 3.0  # for a loaded machine


def fault(path, kind, result):
    """Claims a cell of the fault matrix (tests/net/matrix.py)."""
    print(f"\nFAULT path={path} fault={kind} result={result}", flush=True)


class DeviceView(_loader.Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("host", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("device", ctypes.c_char * 96),
    ]


class Copies(StoreCase):
    def setUp(self):
        self.start()

    def copy(self, shard, node):
        name = f"{shard.id[0]:016x}{shard.id[1]:016x}"
        self.c.json("shard", "copy", name, "--to", node)
        return name

    def pool_bytes(self, name):
        """Its place in the pool: (file, offset, size)."""
        extent = self.c.json("shard", "show", name)
        return pathlib.Path(self.c.info["pool"]), extent["offset"], extent["sizeBytes"]

    def change_crc(self, file, name):
        """Gives the shard another CRC in the index of a pool without an owner
        (mem/pool/layout.h)."""
        with open(file, "r+b") as pool:
            at = pool.read().index(struct.pack("<QQ", int(name[:16], 16), int(name[16:], 16)))
            pool.seek(at)
            hi, lo, offset, size, crc, table = struct.unpack("<QQQQII", pool.read(40))
            crc ^= 1
            pool.seek(at)
            pool.write(struct.pack("<QQQQII", hi, lo, offset, size, crc, table))
            pool.seek(at + 48)
            pool.write(
                struct.pack(
                    "<I", zlib.crc32(struct.pack("<QQQQII", hi, lo, offset, size, table, crc))
                )
            )

    def first(self, client):
        return max(client.request_shards("m", -1, 0, 0).shards, key=lambda s: s.size)

    def test_a_rank_reads_from_its_nodes_store_when_the_pools_daemon_is_dead(self):
        client = self.client("node-0")
        shard = self.first(client)
        whole = bytes(client.map(shard).buffer())
        self.copy(shard, "node-0")
        self.c.kill("l3d")
        start = time.monotonic()
        self.assertEqual(bytes(client.map(shard).buffer()), whole)
        took = time.monotonic() - start
        self.assertLess(took, NOTICED_S + SLACK_S)
        late = self.client("node-0")  # a rank that is restarted meanwhile
        self.assertEqual(bytes(late.map(shard).buffer()), whole)
        fault("shm", "kill", f"served-by-the-nodes-store ({took:.2f} s)")

    def test_a_copy_that_differs_from_the_catalogue_is_not_reported_as_made(self):
        name = self.copy(self.first(self.client()), "node-0")
        self.c.kill("node-0")
        self.change_crc(
            pathlib.Path(self.c.info["pool"].removesuffix(".pool") + "-node-0.l2"), name
        )
        self.c.up()
        copies = lambda: [
            (x["tier"], x["node"]) for x in self.c.json("shard", "show", name)["copies"]
        ]
        wait_for("the node's copy to be ignored", lambda: copies() == [("L3", "")])
        self.assertIn(
            "differs from the catalogue", self.c.refuse("shard", "copy", name, "--to", "node-0")
        )
        self.c.json("shard", "drop", name, "--from", "node-0")
        self.c.json("shard", "copy", name, "--to", "node-0")
        self.assertIn(("L2", "node-0"), copies())

    def test_a_rank_maps_the_copy_in_its_nodes_device(self):
        client = self.client("node-0")
        shard = self.first(client)
        whole = bytes(client.map(shard).buffer())
        lib, view = client._lib, DeviceView()
        ask = [client._use(), _abi._Id(*shard.id), ctypes.byref(view)]
        self.assertEqual(lib.helios_map_device(*ask), -2)  # HELIOS_ENOENT: in no device yet
        name = self.copy(shard, "node-0:l1")
        self.assertEqual(lib.helios_map_device(*ask), 0, lib.helios_last_error())
        self.assertEqual(ctypes.string_at(view.host, view.bytes), whole)
        self.assertEqual(view.device, b"emu:0")
        self.assertRegex(
            self.c.refuse("shard", "drop", name, "--from", "node-0:l1"), "pinned|in use|mapped|busy"
        )
        self.assertEqual(lib.helios_unmap_device(client._use(), ctypes.byref(view)), 0)
        self.assertEqual(lib.helios_unmap_device(client._use(), ctypes.byref(view)), -1)
        self.c.json("shard", "drop", name, "--from", "node-0:l1")
        self.assertEqual(lib.helios_map_device(*ask), -2)

    def test_another_nodes_store_serves_over_the_network_when_the_pools_daemon_is_dead(self):
        client = self.client(path="net")
        shard = self.first(client)
        whole = bytes(client.map(shard).buffer())
        self.copy(shard, "node-1")
        self.c.kill("l3d")
        start = time.monotonic()
        self.assertEqual(bytes(client.map(shard).buffer()), whole)
        took = time.monotonic() - start
        self.assertLess(took, NOTICED_S + SLACK_S)
        client.close()  # its last report
        told = 'helios_fault_total{cause="read-elsewhere",path="tcp"} 1'
        wait_for(
            "the Controller to know of it",
            lambda: told in self.c.run("metrics", "controller").stdout,
        )
        fault("tcp-read", "kill", f"served-by-another-node ({took:.2f} s)")

    def test_a_bad_byte_in_the_pool_is_healed_from_a_nodes_copy(self):
        for way in ("shm", "net"):
            client = self.client(path=way)
            shard = self.first(client)
            whole = bytes(client.map(shard).buffer())
            name = self.copy(shard, "node-0")
            pool, offset, size = self.pool_bytes(name)
            with pool.open("r+b") as f:
                f.seek(offset + size // 2)
                byte = f.read(1)
                f.seek(offset + size // 2)
                f.write(bytes([byte[0] ^ 0x10]))
            self.assertEqual(bytes(client.map(shard).buffer()), whole)
            self.assertGreater(client.stats()["crc_failures"], 0)
            pool, offset, size = self.pool_bytes(name)
            with pool.open("rb") as f:
                f.seek(offset)
                self.assertEqual(f.read(size), whole)  # the pool's own copy is good again
            fault("shm" if way == "shm" else "tcp-read", "corrupt", "healed")
            client.close()

    def test_verify_asks_every_holder_and_names_the_copy_that_is_bad(self):
        client = self.client("node-0")
        shard = self.first(client)
        whole = bytes(client.map(shard).buffer())
        for node in ("node-0", "node-1", "node-0:l1"):
            name = self.copy(shard, node)
        verified = self.c.json("shard", "show", name, "--verify")["verify"]
        self.assertTrue(verified["ok"])
        self.assertEqual(
            sorted((x["tier"], x["node"], x["device"], x["state"]) for x in verified["copies"]),
            [
                ("L1", "node-0", "emu:0", "ok"),
                ("L2", "node-0", "", "ok"),
                ("L2", "node-1", "", "ok"),
                ("L3", "", "", "ok"),
            ],
        )
        client.close()
        store = pathlib.Path(self.nodes["node-1"]["storeSocket"].removesuffix(".sock"))
        at = store.read_bytes().find(whole)
        with store.open("r+b") as f:
            f.seek(at + len(whole) - 1)
            f.write(bytes([whole[-1] ^ 1]))
        last = (len(whole) - 1) >> 20
        for drop in (None, "l3"):  # with a good copy in the pool, and without any
            if drop:
                self.c.json("shard", "drop", name, "--from", drop)
            shown = self.c.run("shard", "show", name, "--verify")
            self.assertNotEqual(shown.returncode, 0)
            lines = [
                x.removeprefix("verified    ")
                for x in shown.stdout.splitlines()
                if x.startswith("verified")
            ]
            self.assertEqual(len(lines), 3 if drop else 4)
            self.assertIn(
                f"L2 of node-1: bad: chunk {last} (bytes {last << 20} to {len(whole) - 1})", lines
            )
            self.assertEqual(sum(x.endswith(": ok, every chunk") for x in lines), len(lines) - 1)
            self.assertIn(f"L2 of node-1 (chunks {last})", shown.stderr)
        self.c.kill("l3d")  # the nodes' copies are verified without L3
        shown = self.c.run("shard", "show", name, "--verify")
        self.assertIn(f"L2 of node-1 (chunks {last})", shown.stderr)
        self.assertIn("L2 of node-0: ok, every chunk", shown.stdout)

    def test_a_bad_copy_in_the_nodes_store_is_never_served_and_is_replaced(self):
        client = self.client("node-0")
        shard = self.first(client)
        whole = bytes(client.map(shard).buffer())
        self.copy(shard, "node-0")
        store = pathlib.Path(self.nodes["node-0"]["storeSocket"].removesuffix(".sock"))
        at = store.read_bytes().find(whole)
        self.assertGreater(at, 0)
        with store.open("r+b") as f:
            f.seek(at + 100)
            f.write(bytes([whole[100] ^ 1]))
        self.c.kill("l3d")
        up = threading.Thread(target=lambda: (time.sleep(0.5), self.c.up()))
        up.start()
        self.assertEqual(bytes(client.map(shard).buffer()), whole)
        up.join()
        wait_for(
            "the store's copy to be good again", lambda: store.read_bytes().find(whole) > 0, 20
        )
        fault("shm", "corrupt", "passed-over-and-replaced")


if __name__ == "__main__":
    unittest.main(verbosity=2)

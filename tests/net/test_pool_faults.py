"""Ranks on another host than the pool: paths are reported truthfully,
and what ranks see when the pool's host fails."""
import signal
import time
import unittest

import hosts
from cluster import PEER, Cluster, crcs, ids
from hosts import SECOND, SLACK, fault, wait_for

MIB = 1 << 20
SLOW = "tbf rate 200mbit burst 64k latency 100ms"


class Paths(unittest.TestCase):
    """The path of bytes is measured, never guessed."""

    def world(self, ipc):
        lab = self.enterContext(hosts.Lab(ipc))
        world = Cluster(lab)
        world.import_model()
        return world

    def test_a_host_of_its_own_reads_over_tcp(self):
        world = self.world("own")
        rank = world.rank(world.b)
        found = rank.ask({"op": "list", "model": "m"})
        got = rank.ask({"op": "read", "ids": ids(found)})
        self.assertEqual(got["crcs"], crcs(found))
        self.assertEqual(got["path"], "tcp")
        pulled = world.b.dir / "pulled"
        world.helios(world.b, "pull", "--model", "m", "--pp", "0", "--tp", "0", "--out", pulled)
        backbone = world.b.received("backbone")
        # The bytes came twice: by the rank and by the pull.
        self.assertGreater(backbone, sum(s[2] for s in found["shards"]))
        local = world.rank(world.a)
        got = local.ask({"op": "read", "ids": ids(found)})
        self.assertEqual((got["crcs"], got["path"]), (crcs(found), "shm"))
        refused = world.b.run("helios", "--controller", world.address, "info", check=False)
        self.assertEqual(refused.returncode, 0)
        with self.assertRaises(AssertionError) as said:  # forced: there is no such socket on B
            world.rank(world.b, "shm", 3000)
        self.assertIn(f"there is no socket {world.a.dir}/l3.sock on this host", str(said.exception))

    def test_with_a_shared_ipc_namespace_and_a_reachable_socket_the_pool_is_mapped(self):
        world = self.world("shared")
        rank = world.rank(world.b)
        found = rank.ask({"op": "list", "model": "m"})
        before = world.b.received("backbone")
        got = rank.ask({"op": "read", "ids": ids(found)})
        self.assertEqual((got["crcs"], got["path"]), (crcs(found), "shm"))
        self.assertLess(world.b.received("backbone") - before, 65536)  # not a byte of the shards
        net = world.rank(world.b, "net")
        got = net.ask({"op": "read", "ids": ids(found)})
        self.assertEqual((got["crcs"], got["path"]), (crcs(found), "tcp"))


class Reads(unittest.TestCase):
    def setUp(self):
        self.lab = self.enterContext(hosts.Lab())
        self.a, self.b = self.lab.a, self.lab.b
        self.world = Cluster(self.lab)
        self.world.import_model()
        self.data = self.world.l3.ready.get("dataAddress") or f"{self.a.ip('backbone')}:7403"
        self.used = self.world.used()

    def slow(self):
        if (why := hosts.lacks(SLOW)) is not None:
            self.skipTest(why)
        self.a.slow("backbone", SLOW)
        self.b.slow("backbone", SLOW)

    def full_speed(self):
        self.a.slow("backbone", "")
        self.b.slow("backbone", "")

    def bytes_moved(self, host, count=2 * MIB):
        start = host.received("backbone")
        wait_for(
            f"{count} bytes to reach {host.name}", lambda: host.received("backbone") - start > count
        )

    def getter(self):
        """Reads the pool of A again and again."""
        process = self.b.start(PEER, "get", self.data, 16 * MIB, 30000, 1000000)
        self.assertEqual((connected := process.line())["status"], "OK", connected["error"])
        return process

    def putter(self, size=24 * MIB):
        process = self.b.start(PEER, "put", self.data, size, 30000)
        self.assertEqual((connected := process.line())["status"], "OK", connected["error"])
        return process

    def noticed(self, path, kind, at, done):
        seconds = done["at"] - at
        print(f"noticed path={path} fault={kind} seconds={seconds:.2f} bar={SECOND}")
        self.assertIn(done["status"], ("EUNAVAIL", "ETIMEDOUT"), done["error"])
        self.assertIn(self.data, done["error"])
        self.assertLess(seconds, SECOND + SLACK)

    def assert_reads_again(self, rank=None):
        self.full_speed()
        rank = rank or self.world.rank(self.b)
        found = rank.ask({"op": "list", "model": "m"})
        got = rank.ask({"op": "read", "ids": ids(found)}, 40)
        self.assertEqual((got["status"], got.get("crcs")), ("OK", crcs(found)), got["error"])
        return rank

    def assert_exact(self):
        wait_for(
            f"{self.used} to be used, not {self.world.used()}",
            lambda: self.world.used() == self.used,
        )

    def struck(self, kind, strike, repair, put):
        """One transfer over TCP that is hit in the middle."""
        self.slow()
        path = "tcp-put" if put else "tcp-read"
        process = self.putter() if put else self.getter()
        self.bytes_moved(self.a if put else self.b)
        at = strike()
        self.noticed(path, kind, at, process.line())
        repair()
        self.assert_reads_again()
        self.assert_exact()
        fault(path, kind, "noticed-repaired")

    def restart(self):
        self.world.l3 = self.world.start_l3()

    def now(self, action, *args):
        at = time.monotonic()
        action(*args)
        return at

    def test_an_owner_killed_in_a_read(self):
        self.struck("kill", self.world.l3.kill, self.restart, put=False)

    def test_an_owner_killed_in_a_put(self):
        self.struck("kill", self.world.l3.kill, self.restart, put=True)

    def test_an_owner_frozen_in_a_read(self):
        l3 = self.world.l3
        self.struck(
            "stop",
            lambda: self.now(l3.signal, signal.SIGSTOP),
            lambda: l3.signal(signal.SIGCONT),
            put=False,
        )

    def test_an_owner_frozen_in_a_put(self):
        l3 = self.world.l3
        self.struck(
            "stop",
            lambda: self.now(l3.signal, signal.SIGSTOP),
            lambda: l3.signal(signal.SIGCONT),
            put=True,
        )

    def test_a_link_that_goes_away_in_a_read(self):
        self.struck(
            "link-down",
            lambda: self.now(self.b.link, "backbone", "down"),
            lambda: self.b.link("backbone", "up"),
            put=False,
        )

    def test_a_link_that_goes_away_in_a_put(self):
        self.struck(
            "link-down",
            lambda: self.now(self.b.link, "backbone", "down"),
            lambda: self.b.link("backbone", "up"),
            put=True,
        )

    def test_a_rank_that_dies_in_a_read_or_a_put_leaves_nothing_at_the_owner(self):
        self.slow()
        self.assert_reads_again()
        self.slow()
        quiet = self.world.l3.fds()
        for start, watched in ((self.getter, self.b), (self.putter, self.a)):
            process = start()
            self.bytes_moved(watched)
            process.kill()
        self.assert_exact()
        wait_for(
            f"{quiet} descriptors at most, there are {self.world.l3.fds()}",
            lambda: self.world.l3.fds() <= quiet + 2,
        )

    def test_a_rank_waits_for_an_owner_that_comes_back(self):
        rank = self.world.rank(self.b)
        found = rank.ask({"op": "list", "model": "m"})
        self.slow()
        rank.tell({"op": "read", "ids": ids(found)})
        self.bytes_moved(self.b)
        self.world.l3.kill()
        self.restart()
        self.full_speed()
        got = rank.line(40)
        self.assertEqual((got["status"], got.get("crcs")), ("OK", crcs(found)), got["error"])
        self.assert_exact()

    def test_a_rank_that_waited_in_vain_says_for_whom_and_how_long(self):
        rank = self.world.rank(self.b, timeout_ms=1500)
        found = rank.ask({"op": "list", "model": "m"})
        self.world.l3.kill()
        got = rank.ask({"op": "read", "ids": ids(found)})
        self.assertIn(got["status"], ("Unavailable", "TimedOut"), got["error"])
        self.assertLess(got["seconds"], 1.5 + SLACK)
        print(got["error"])
        self.assertIn("10.77.", got["error"])

    def test_a_slow_link_that_loses_packets_only_takes_longer(self):
        drops = "tbf rate 100mbit burst 16k limit 24k"
        if (why := hosts.lacks(drops)) is not None:
            self.skipTest(why)
        rank = self.world.rank(self.b)
        self.a.slow("backbone", drops)
        self.b.slow("backbone", drops)
        found = rank.ask({"op": "list", "model": "m"})
        got = rank.ask({"op": "read", "ids": ids(found)[:1]})
        self.assertEqual((got["status"], got.get("crcs")), ("OK", crcs(found)[:1]), got["error"])
        fault("tcp-read", "slow-link", "ok")
        got = rank.ask({"op": "write", "model": "m", "bytes": 2 * MIB})
        self.assertEqual((got["status"], got.get("visible")), ("OK", True), got["error"])
        self.assertRegex(self.a.sh("tc -s qdisc show dev backbone"), r"dropped [1-9]")
        fault("tcp-put", "slow-link", "ok")

    def test_a_full_pool_refuses_a_put_and_an_import_and_stays_exact(self):
        rank = self.world.rank(self.b)
        room = self.world.pool()["capacityBytes"] - self.used[0]
        got = rank.ask({"op": "write", "model": "m", "bytes": room + MIB})
        self.assertEqual(got["status"], "NoSpace", got["error"])
        self.assert_exact()
        fault("tcp-put", "full", "refused-exact")
        big = self.world.make_model("big", hidden=2048, ffn=4096, layers=3, vocab=1000)
        said = self.world.helios(
            self.a, "model", "import", big, "--name", "big", "--tp", "1", "--pp", "1", check=False
        )
        self.assertIsInstance(said, str)
        self.assertIn("free", said)
        self.assert_exact()
        got = rank.ask({"op": "write", "model": "m", "bytes": 4 * MIB, "step": 2})
        self.assertEqual((got["status"], got.get("visible")), ("OK", True), got["error"])
        self.assert_reads_again(rank)


if __name__ == "__main__":
    hosts.main()

"""Migration between two hosts while the peers die, freeze, fill up and the link fails."""
import signal
import time
import unittest
import uuid

import hosts
from hosts import BUILD, SECOND, SLACK, fault, wait_for

PEER = BUILD / "tests" / "net_peer"
MIB = 1 << 20
SIZE = 24 * MIB
CHUNK = 256 << 10
SLOW = "tbf rate 200mbit burst 64k latency 100ms"  # 24 MiB take a second


class Migration(unittest.TestCase):
    def setUp(self):
        self.lab = self.enterContext(hosts.Lab())
        self.a, self.b = self.lab.a, self.lab.b

    def receiver(self, room=64 * MIB, window=2 * MIB, keep=30000, port=7411):
        process = self.b.start(
            PEER, "recv", f"{self.b.ip('migration')}:{port}", room, window, keep, stdin=True
        )
        process.address = process.line()["address"]
        process.quiet = process.fds()
        return process

    def sender(self, receiver, ident=None, size=SIZE, dead=1000, timeout=30000, zstd="off"):
        process = self.a.start(
            PEER,
            "send",
            receiver.address,
            size,
            ident or uuid.uuid4().hex,
            CHUNK,
            dead,
            timeout,
            zstd,
        )
        process.crc = process.line()["crc"]
        return process

    def slow(self):
        if (why := hosts.lacks(SLOW)) is not None:
            self.skipTest(why)
        self.a.slow("migration", SLOW)

    def some_chunks(self, receiver, count=12):
        return wait_for(
            f"{count} chunks to arrive",
            lambda: (s := receiver.ask("stats"))["chunks"] >= count and s,
        )

    def assert_ended(self, receiver, used=0):
        """Waits until nothing is open or held, and no descriptor is left."""
        stats = wait_for(
            "nothing to be open", lambda: (s := receiver.ask("stats"))["open"] == 0 and s
        )
        self.assertEqual(stats["used"], used)
        wait_for(
            f"{receiver.quiet} descriptors, there are {receiver.fds()}",
            lambda: receiver.fds() <= receiver.quiet,
        )

    def assert_says(self, done, status, receiver):
        self.assertEqual(done["status"], status, done["error"])
        for word in (receiver.address, "shard 0000000000005a5a", "over zmq", " s: "):
            self.assertIn(word, done["error"])

    def assert_stored(self, done, sender, receiver):
        self.assertEqual(done["status"], "OK", done["error"])
        self.assertEqual(receiver.ask("stats")["crc"], sender.crc)

    def noticed(self, kind, at, done):
        seconds = done["at"] - at
        print(f"noticed path=zmq fault={kind} seconds={seconds:.2f} bar={SECOND}")
        self.assertLess(seconds, SECOND + SLACK)

    def test_a_receiver_killed_in_the_middle_is_noticed_and_its_successor_takes_all(self):
        self.slow()
        receiver, ident = self.receiver(), uuid.uuid4().hex
        sender = self.sender(receiver, ident)
        self.some_chunks(receiver)
        at = receiver.kill()
        done = sender.line()
        self.noticed("kill", at, done)
        self.assert_says(done, "EUNAVAIL", receiver)
        self.a.slow("migration", "")
        receiver = self.receiver()
        sender = self.sender(receiver, ident)
        self.assert_stored(done := sender.line(), sender, receiver)
        self.assertEqual((done["had"], done["sent"]), (0, done["chunks"]))
        self.assert_ended(receiver, used=SIZE)
        fault("zmq-migrate", "kill", "noticed-resent")

    def test_a_sender_killed_in_the_middle_is_continued_by_another_with_what_is_missing(self):
        self.slow()
        receiver, ident = self.receiver(), uuid.uuid4().hex
        sender = self.sender(receiver, ident)
        self.some_chunks(receiver)
        sender.kill()
        self.a.slow("migration", "")
        sender = self.sender(receiver, ident)
        self.assert_stored(done := sender.line(), sender, receiver)
        self.assertGreaterEqual(done["had"], 12)
        self.assertEqual(done["had"] + done["sent"], done["chunks"])
        self.assertEqual(receiver.ask("stats")["chunks"], done["chunks"])
        self.assert_ended(receiver, used=SIZE)

    def test_a_sender_that_never_comes_back_is_forgotten_and_its_memory_is_free(self):
        self.slow()
        receiver = self.receiver(keep=300)
        sender = self.sender(receiver)
        self.assertEqual(self.some_chunks(receiver)["used"], SIZE)
        sender.kill()
        self.assert_ended(receiver)
        self.assertEqual(receiver.ask("stats")["aborted"], 1)

    def test_a_link_that_goes_away_is_noticed_and_the_rest_follows_when_it_is_back(self):
        self.slow()
        receiver, ident = self.receiver(), uuid.uuid4().hex
        sender = self.sender(receiver, ident)
        self.some_chunks(receiver)
        at = time.monotonic()
        self.b.link("migration", "down")
        done = sender.line()
        self.noticed("link-down", at, done)
        self.assert_says(done, "EUNAVAIL", receiver)
        had = receiver.ask("stats")
        self.assertEqual(had["open"], 1)  # it keeps the chunks that have arrived
        self.b.link("migration", "up")
        self.a.slow("migration", "")
        sender = self.sender(receiver, ident)
        self.assert_stored(done := sender.line(), sender, receiver)
        self.assertGreaterEqual(done["had"], had["chunks"])
        self.assertEqual(done["had"] + done["sent"], done["chunks"])
        self.assert_ended(receiver, used=SIZE)
        fault("zmq-migrate", "link-down", "noticed-resumed")

    def test_a_link_that_blinks_costs_nothing_but_time(self):
        self.slow()
        receiver = self.receiver()
        sender = self.sender(receiver, dead=10000)
        self.some_chunks(receiver)
        self.b.link("migration", "down")
        time.sleep(0.7)  # the fault itself: longer than a TCP retransmission
        self.b.link("migration", "up")
        self.assert_stored(done := sender.line(), sender, receiver)
        self.assertLessEqual(done["sent"], done["chunks"] + 16)
        self.assert_ended(receiver, used=SIZE)

    def test_a_frozen_receiver_is_noticed_and_continues_when_it_wakes(self):
        self.slow()
        receiver, ident = self.receiver(), uuid.uuid4().hex
        sender = self.sender(receiver, ident)
        self.some_chunks(receiver)
        at = time.monotonic()
        receiver.signal(signal.SIGSTOP)
        done = sender.line()
        self.noticed("stop", at, done)
        self.assert_says(done, "EUNAVAIL", receiver)
        receiver.signal(signal.SIGCONT)
        self.a.slow("migration", "")
        sender = self.sender(receiver, ident)
        self.assert_stored(done := sender.line(), sender, receiver)
        self.assertGreaterEqual(done["had"], 12)
        self.assertEqual(done["had"] + done["sent"], done["chunks"])
        self.assert_ended(receiver, used=SIZE)
        fault("zmq-migrate", "stop", "noticed-resumed")

    def test_a_full_receiver_says_so_and_takes_it_once_there_is_room(self):
        receiver = self.receiver(room=SIZE + SIZE // 2)
        first, second = self.sender(receiver), None
        self.assert_stored(first.line(), first, receiver)
        second = self.sender(receiver)
        done = second.line()
        self.assert_says(done, "ENOSPC", receiver)
        self.assertIn(
            f"{SIZE} bytes do not fit, {SIZE // 2} of {SIZE + SIZE // 2} are free", done["error"]
        )
        self.assert_ended(receiver, used=SIZE)
        receiver.ask("empty")
        second = self.sender(receiver)
        self.assert_stored(second.line(), second, receiver)
        self.assert_ended(receiver, used=SIZE)
        fault("zmq-migrate", "full", "refused-exact")

    def test_a_slow_link_with_losses_is_not_mistaken_for_a_dead_peer(self):
        drops = (  # a queue so short that it loses packets all the time
            "tbf rate 60mbit burst 16k limit 24k"
        )
        if (why := hosts.lacks(drops)) is not None:
            self.skipTest(why)
        self.a.slow("migration", drops)
        receiver = self.receiver()
        sender = self.sender(receiver, size=8 * MIB)
        self.assert_stored(done := sender.line(), sender, receiver)
        self.assertGreater(done["seconds"], 8 * MIB * 8 / 60e6 * 0.8)  # the link was slow indeed
        lost = self.a.sh("tc -s qdisc show dev migration")
        self.assertRegex(lost, r"dropped [1-9]")
        self.assert_ended(receiver, used=8 * MIB)
        fault("zmq-migrate", "slow-link", "ok")

    def test_compression_is_chosen_on_a_slow_link_and_not_on_a_fast_one(self):
        receiver = self.receiver()
        fast = self.sender(receiver, zstd="auto")
        self.assert_stored(on_fast := fast.line(), fast, receiver)
        self.slow()
        seconds, done = {}, None
        # What compression costs is measured on a busy machine.
        for mode in ("off", "auto", "auto", "auto", "auto"):
            receiver.ask("empty")
            sender = self.sender(receiver, zstd=mode)
            self.assert_stored(done := sender.line(), sender, receiver)
            seconds[mode] = done["seconds"]
            if done["wire"] < SIZE * 0.9:
                break
        print(
            f"zstd auto: {done['wire'] / SIZE:.2f} of the bytes and"
            f" {seconds['auto'] / seconds['off']:.2f} of the time on 200 Mbit/s,"
            f" {on_fast['wire'] / SIZE:.2f} of the bytes at full speed"
        )
        # The first chunks go uncompressed, until the line is known.
        self.assertLess(done["wire"], SIZE * 0.9)
        if on_fast["seconds"] * 16 < seconds["off"]:  # on a busy machine no link is fast
            self.assertGreater(on_fast["wire"], done["wire"])

    def test_a_link_with_delay_and_loss(self):
        netem = "netem delay 20ms 5ms loss 1%"
        if (why := hosts.lacks(netem)) is not None:
            self.skipTest(why)
        self.a.slow("migration", netem)
        receiver = self.receiver()
        sender = self.sender(receiver, size=8 * MIB)
        self.assert_stored(sender.line(), sender, receiver)
        self.assert_ended(receiver, used=8 * MIB)


if __name__ == "__main__":
    hosts.main()

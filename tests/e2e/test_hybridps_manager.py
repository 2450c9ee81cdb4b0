#!/usr/bin/python3
"""hybridps.Manager: the table of a node's memory, used by two processes."""
from __future__ import annotations

import os
import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

needs.torch()
from hybridps import HybridPSError, Manager  # noqa: E402
from hybridps.manager import HOST, Ticket, Use  # noqa: E402

KIB = 1024


class Table(unittest.TestCase):
    def setUp(self):
        self.name = f"helios-test-manager-{os.getpid()}-{self.id().rsplit('.', 1)[-1]}"
        self.one = Manager(self.name, 64 * KIB, [16 * KIB, 32 * KIB])
        self.addCleanup(self.one.close)

    def child(self, do):
        """What `do` returns in a process of its own, which has the table open and dies with it."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                said = do(Manager(self.name))
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, str(said).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            said = file.read()
        os.waitpid(child, 0)
        return said

    def test_what_is_added_and_removed_is_seen_by_all(self):
        self.one.add(10 * KIB)
        self.one.add(4 * KIB, 0)
        self.assertEqual(self.child(lambda m: m.use()), str(Use(64 * KIB, 10 * KIB, 0, 0, 2)))
        self.assertEqual(self.child(lambda m: m.use(0)), str(Use(16 * KIB, 4 * KIB, 0, 0, 2)))
        self.one.remove(3 * KIB)
        self.assertEqual(self.one.use().used, 7 * KIB)
        self.assertEqual(self.one.devices, 2)
        with self.assertRaisesRegex(HybridPSError, "5120|4096"):
            self.one.remove(5 * KIB, 0)
        self.assertEqual(self.one.use(0).used, 4 * KIB)

    def test_room_is_found_and_kept(self):
        self.one.add(60 * KIB)
        first = self.one.schedule(8 * KIB, refer_device=1)
        self.assertEqual((first.device, first.size), (1, 8 * KIB))  # the host has no room
        self.assertEqual(self.one.schedule(30 * KIB - 6 * KIB, 0).device, 1)  # 0 is too small
        self.assertEqual(self.one.use(1), Use(32 * KIB, 0, 32 * KIB, 0, 1))
        self.assertIn("HybridPSError", self.child(lambda m: m.schedule(17 * KIB)))
        self.one.add(first)
        self.assertEqual(self.one.use(1), Use(32 * KIB, 8 * KIB, 24 * KIB, 8 * KIB, 1))
        with self.assertRaises(HybridPSError):
            self.one.add(first)  # a ticket can be used once
        again = self.one.schedule(4 * KIB)
        self.assertEqual(again.device, HOST)
        self.one.cancel(again)
        self.assertEqual(self.one.use().reserved, 0)

    def test_who_ends_gives_back(self):
        self.assertEqual(self.child(lambda m: (m.add(5 * KIB), m.use().mine)[1]), str(5 * KIB))
        with Manager(self.name, reap_ms=1) as other:
            end = time.monotonic() + 30
            while other.use().used > 0 and time.monotonic() < end:
                other.add(1)  # each caller checks for dead processes, at most every millisecond
                other.remove(1)
            self.assertEqual(other.use().used, 0)
            other.add(2 * KIB)
            self.assertEqual(self.one.use().used, 2 * KIB)
        self.assertEqual(self.one.use().used, 0)

    def test_what_it_refuses(self):
        for wrong in (-1, 1.5, "8", None, 1 << 63):
            with self.subTest(wrong), self.assertRaises(HybridPSError):
                self.one.add(wrong)
        for device in (-2, 2, "0", None, 1 << 40):
            with self.subTest(device=device), self.assertRaises(HybridPSError):
                self.one.add(1, device)
        for arguments in ((self.name, 1), (self.name + "-none",), ("a/b", 1), ("x", 0, [1])):
            with self.subTest(arguments), self.assertRaises(HybridPSError):
                Manager(*arguments)
        with self.assertRaises(HybridPSError):
            self.one.cancel(Ticket(0, 1, 999))
        inherited = self.one
        self.assertIn("HybridPSError", self.child(lambda m: inherited.add(1)))
        self.one.close()
        with self.assertRaisesRegex(HybridPSError, "closed"):
            self.one.use()


if __name__ == "__main__":
    unittest.main()

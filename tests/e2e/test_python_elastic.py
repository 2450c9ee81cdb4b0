#!/usr/bin/python3
"""The parts of the Python package with which a rank goes on when others are lost, without daemons:
where ranks meet, which connections are cut, what checksums say about replicas."""
from __future__ import annotations

import datetime
import os
import pathlib
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

import helios  # noqa: E402
from helios import _lost, _replicas, elastic  # noqa: E402


class Meeting(unittest.TestCase):
    def test_a_group_that_did_not_come_about_uses_up_no_name(self):
        """Otherwise this process would look for the next meeting under another name
        than the replacement does."""
        limit = datetime.timedelta(milliseconds=300)
        store = torch.distributed.HashStore()
        store.set_timeout(limit)
        with self.assertRaises(RuntimeError):
            torch.distributed.init_process_group(
                "gloo", store=store, rank=0, world_size=2, timeout=limit
            )
        elastic._Meeting._drop(None)
        self.assertEqual(torch.distributed.distributed_c10d._group_count, 0)

    def test_of_two_processes_of_a_rank_the_one_in_the_later_container_stays(self):
        with mock.patch.dict(
            os.environ,
            {
                "WORLD_SIZE": "2",
                "GLOBAL_RANK": "1",
                "DATA_PARALLEL_SIZE": "2",
                "DATA_PARALLEL_RANK": "1",
            },
        ):
            store = torch.distributed.HashStore()
            store.set("generation", "1")
            old, new = elastic._Meeting("gloo", 1), elastic._Meeting("gloo", 1)
            self.assertEqual(old._claim(store), 1)
            with mock.patch.dict(os.environ, {"HELIOS_CONTAINER": "2"}):
                self.assertEqual(new._claim(store), 2)
                # replaced in its container
                self.assertEqual(elastic._Meeting("gloo", 1)._claim(store), 3)
            with self.assertRaises(SystemExit) as ended:
                old._claim(store)
            self.assertEqual(ended.exception.code, 77)


class Lost(unittest.TestCase):
    """What a rank does once its Agent names a lost server."""

    def test_connections_to_a_lost_server_are_cut_and_no_others(self):
        with socket.create_server(("127.0.0.2", 0)) as far, socket.create_server(
            ("127.0.0.1", 0)
        ) as near:
            ends = [
                socket.create_connection(s.getsockname(), source_address=("127.0.0.1", 0))
                for s in (far, near)
            ]
            for end in ends:
                self.addCleanup(end.close)
            self.assertEqual(_lost.cut({"127.0.0.3"}), 0)
            # the near one is this host's own
            self.assertEqual(_lost.cut({"::ffff:127.0.0.2", "127.0.0.1"}), 1)
            self.assertEqual(ends[0].recv(1), b"")
            ends[1].settimeout(0.05)
            with self.assertRaises(TimeoutError):
                ends[1].recv(1)

    def test_a_file_that_appears_tells_where_the_ranks_meet_and_wakes_who_waits(self):
        near = socket.create_server(("127.0.0.1", 0))
        told = {"MASTER_PORT": str(near.getsockname()[1])}
        with tempfile.TemporaryDirectory() as home, mock.patch.dict(
            os.environ, told, HELIOS_MEETING=f"{home}/meeting"
        ):
            self.assertEqual(_lost.master(), ("", ""))
            # on a busy machine the watcher runs only once the file is there
            late: list[threading.Thread] = []
            with mock.patch.object(threading.Thread, "start", lambda thread: late.append(thread)):
                _lost.watch()
            with socket.create_server(("127.0.0.2", 0)) as far, near:
                end = socket.create_connection(
                    far.getsockname(), source_address=("127.0.0.1", 0), timeout=60
                )
                self.addCleanup(end.close)
                stranger = socket.create_connection(near.getsockname(), timeout=60)
                self.addCleanup(stranger.close)
                pathlib.Path(home, "new").write_text(
                    "MASTER_ADDR=10.0.0.7\nMASTER_PORT=20007\nLOST=127.0.0.2\n"
                )
                os.rename(f"{home}/new", f"{home}/meeting")
                late[0].start()
                self.assertEqual(end.recv(1), b"")  # until it is cut
                self.assertEqual(stranger.recv(1), b"")  # where rank 0 was
            self.assertEqual(_lost.master(), ("10.0.0.7", "20007"))


class Replicas(unittest.TestCase):
    """What checksums say about replicas."""

    @staticmethod
    def said(*sums: dict, places: str = "") -> dict:
        places = places or "a" * len(sums)
        told = {
            rank: (place, _replicas._digest(s)) for rank, (place, s) in enumerate(zip(places, sums))
        }
        return _replicas.judge(told, dict(enumerate(sums)))

    def test_the_odd_one_of_three_is_named_with_tensor_and_mib(self):
        good = {"a": [1, 2], "b": [3, 4, 5]}
        self.assertEqual(self.said(good, good, good), {})
        self.assertEqual(
            self.said(good, {"a": [1, 2], "b": [3, 4, 9]}, good),
            {1: "has other bytes than 2 of its replicas in 'b', MiB 2"},
        )
        self.assertEqual(
            self.said({"a": [1, 2]}, good, good),
            {0: "has other bytes than 2 of its replicas in 'b', MiB 0"},
        )

    def test_of_two_nothing_tells_which_is_right(self):
        said = self.said({"a": [1]}, {"a": [2]})
        self.assertEqual(
            said,
            {
                0: "has other bytes than rank 1 in 'a', MiB 0; it is not known which is right",
                1: "has other bytes than rank 0 in 'a', MiB 0; it is not known which is right",
            },
        )

    def test_ranks_of_other_places_are_no_replicas(self):
        one, two = {"a": [1]}, {"b": [2]}
        self.assertEqual(self.said(one, two, one, two, places="xyxy"), {})
        self.assertEqual(list(self.said(one, two, one, {"b": [3]}, one, two, places="xyxyxy")), [3])

    def test_checksums_are_of_each_mib(self):
        data = torch.arange((1 << 18) * 2 + 3, dtype=torch.float32)
        before = helios._abi.checksums(data.data_ptr(), data.numel() * 4)
        data[(1 << 18) + 5] += 1
        after = helios._abi.checksums(data.data_ptr(), data.numel() * 4)
        self.assertEqual([a == b for a, b in zip(before, after)], [True, False, True])
        self.assertEqual(helios._abi.checksums(0, 0), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

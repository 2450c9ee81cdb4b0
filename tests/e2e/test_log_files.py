"""The logs of a local cluster's daemons stay below their size."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import cluster, wait_for  # noqa: E402

SIZE = 4096


LAST = "jobName: last\ncommand: 'true'\n"


class LogFiles(unittest.TestCase):
    def test_a_full_log_is_rotated_and_old_ones_go(self):
        small = {"HELIOS_LOG_MAX_SIZE": str(SIZE), "HELIOS_LOG_KEEP": "1"}
        with cluster(nodes=1, env=small) as c:
            log = c.state / "log" / "controllerd.log"
            old = c.state / "log" / "controllerd.log.1"

            def full():
                """Adds a few lines; returns whether another file has been rotated since `inode`."""
                c.submit("jobName: talk\ncommand: 'true'\n")
                return old.exists() and old.stat().st_ino != inode

            inode = None
            wait_for("the log to be rotated", full)
            self.assertGreaterEqual(old.stat().st_size, SIZE)
            self.assertIn("state loaded", old.read_text())  # its first line
            self.assertEqual(log.stat().st_mode & 0o777, 0o600)
            inode = old.stat().st_ino
            wait_for("the log to be rotated again", full)
            self.assertNotIn("state loaded", old.read_text())
            self.assertEqual(
                sorted(p.name for p in log.parent.glob("controllerd.log*")), [log.name, old.name]
            )
            # A line can be written just before the file is rotated, and is then in the old one.
            wait_for(
                "a line in the new file",
                lambda: f"job submitted job={c.submit(LAST)} " in log.read_text(),
            )

    def test_nothing_is_rotated_where_the_size_is_0(self):
        with cluster(nodes=1, env={"HELIOS_LOG_MAX_SIZE": "0", "HELIOS_LOG_LEVEL": "debug"}) as c:
            c.wait_job(c.submit("jobName: one\ncommand: 'true'\n"), "succeeded")
            self.assertEqual([p.name for p in (c.state / "log").glob("*.1")], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""The matrix and the summary report what the log says, and nothing else."""
import contextlib
import io
import pathlib
import sys
import unittest
from unittest import mock

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]

import hosts  # noqa: E402
import matrix  # noqa: E402
import summary  # noqa: E402

LOG = """\
1/3 Testing: net_test_frame
1/3 Test: net_test_frame
Output:
[ RUN      ] frames_come_twice
FAULT path=zmq-migrate fault=duplicate result=dropped
[       OK ] frames_come_twice
Test Passed.
2/3 Test: net_pool
test_kill (__main__.Reads.test_kill) ... noticed
FAULT path=tcp-read fault=kill result=noticed
ok
FAULT path=tcp-read fault=earthquake result=ok
Test Passed.
3/3 Test: net_bad
FAULT path=tcp-put fault=kill result=noticed
Test Failed.
"""


class Matrix(unittest.TestCase):
    def test_a_log_becomes_cells_and_problems(self):
        cells, problems = matrix.read(LOG.splitlines())
        self.assertEqual(
            cells,
            {
                ("zmq-migrate", "duplicate"): [("dropped", "net_test_frame: frames_come_twice")],
                ("tcp-read", "kill"): [("noticed", "net_pool: test_kill")],
            },
        )
        self.assertEqual(len(problems), 2)
        self.assertIn("fault=earthquake, which is no cell", problems[0])
        self.assertIn("net_bad failed", problems[1])

    def test_the_table_names_tests_reasons_and_gaps(self):
        text = "\n".join(matrix.table(matrix.read(LOG.splitlines())[0]))
        self.assertRegex(text, r"(?m)^tcp-read +\| noticed \[1\] \| - ")
        self.assertIn("[1] net_pool: test_kill\n[2] net_test_frame: frames_come_twice\n", text)
        self.assertRegex(text, r"n/a shm link-down, shm slow-link.*: no network on this path")
        self.assertRegex(text, r"not shown in this run: shm kill, ")
        for path, fault in matrix.NOT_APPLICABLE:
            self.assertIn(path, matrix.PATHS)
            self.assertIn(fault, matrix.FAULTS)

    def test_a_full_run_must_show_every_cell_unless_its_tests_were_skipped(self):
        cells = matrix.read(LOG.splitlines())[0]
        missing = matrix.gaps(cells, matrix.skips(LOG.splitlines()))
        self.assertEqual(
            len(missing), len(matrix.PATHS) * len(matrix.FAULTS) - len(matrix.NOT_APPLICABLE) - 2
        )
        self.assertTrue(any(m.startswith("path=tcp-put fault=kill: ") for m in missing))
        log = (
            LOG + "4/4 Test: net_test_pool_faults\n"
            "test_a (x.y.test_a) ... skipped 'no sch_tbf'\nTest Passed.\n"
        )
        excused = matrix.gaps(cells, matrix.skips(log.splitlines()))
        self.assertEqual(
            {m.split()[0] for m in excused}, {"path=shm", "path=plank", "path=archive-dir"}
        )
        log = LOG + f"4/4 Test: net_test_pool_faults\n{said_without_namespaces()}Test Passed.\n"
        self.assertEqual(matrix.gaps(cells, matrix.skips(log.splitlines())), excused)
        whole = {(p, f): [("ok", "t")] for p in matrix.PATHS for f in matrix.FAULTS}
        self.assertEqual(matrix.gaps(whole, set()), [])


def said_without_namespaces():
    """The output of a test of this folder on a machine that allows no namespaces."""
    said = io.StringIO()
    with mock.patch.object(
        hosts, "missing", lambda: "no namespaces here"
    ), contextlib.redirect_stdout(said):
        try:
            hosts.main()
        except SystemExit as end:
            assert end.code == 77
    return said.getvalue()


class Summary(unittest.TestCase):
    def test_what_passed_failed_and_was_skipped_is_counted_and_named(self):
        log = (
            LOG
            + "4/5 Test: net_hosts\n"
            + said_without_namespaces()
            + "Test Passed.\n5/5 Test: mem_dir\n[  SKIPPED ] a_full_disk\n"
            "[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] a_full_disk\n"
            "test_a (x.y.test_a) ... skipped 'no sch_tbf'\nTest Passed.\n"
        )
        self.assertEqual(
            summary.summary(summary.read(log.splitlines())),
            [
                "skipped net_hosts: no namespaces here",
                "skipped in mem_dir: a_full_disk",
                "skipped in mem_dir: test_a: no sch_tbf",
                "FAILED net_bad",
                "3 passed, 1 failed, 1 skipped",
            ],
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

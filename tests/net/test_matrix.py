"""The matrix says what the log says, and nothing else."""
import unittest

import matrix

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
        self.assertEqual(cells, {("zmq-migrate", "duplicate"): [("dropped", "net_test_frame: frames_come_twice")],
                                 ("tcp-read", "kill"): [("noticed", "net_pool: test_kill")]})
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
        self.assertEqual(len(missing), len(matrix.PATHS) * len(matrix.FAULTS) - len(matrix.NOT_APPLICABLE) - 2)
        self.assertTrue(any(m.startswith("path=tcp-put fault=kill: ") for m in missing))
        log = LOG + "4/4 Test: net_test_pool_faults\ntest_a (x.y.test_a) ... skipped 'no sch_tbf'\nTest Passed.\n"
        excused = matrix.gaps(cells, matrix.skips(log.splitlines()))
        self.assertEqual({m.split()[0] for m in excused}, {"path=shm", "path=plank", "path=archive-dir"})
        whole = {(p, f): [("ok", "t")] for p in matrix.PATHS for f in matrix.FAULTS}
        self.assertEqual(matrix.gaps(whole, set()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""What tests/summary.py makes of the log of a run."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import summary  # noqa: E402

LOG = """\
1/3 Test: hw_test_some
[ RUN      ] one
[  REASON  ] no daemon here
[  SKIPPED ] one
[ RUN      ] two
[  SKIPPED ] two
[  SKIPPED ] 2 test(s), listed below:
[  SKIPPED ] one
[  SKIPPED ] two
Test time =   1.50 sec
Test Passed.
2/3 Test: e2e_test_whole
skipped: no engine
Test Pass Reason:
3/3 Test: e2e_test_cases
test_wide (__main__.Wide.test_wide) ... skipped 'too few processors'
Test Failed.
"""


class Summary(unittest.TestCase):
    def test_each_skipped_case_is_named_once_with_its_reason(self):
        self.assertEqual(
            summary.summary(summary.read(LOG.splitlines())),
            [
                "skipped e2e_test_whole: no engine",
                "skipped in hw_test_some: one: no daemon here",
                "skipped in hw_test_some: two",
                "FAILED e2e_test_cases",
                "1 passed, 1 failed, 1 skipped",
            ],
        )

    def test_a_test_that_took_long_is_told(self):
        self.assertEqual([t.seconds for t in summary.read(LOG.splitlines())], [1.5, 0.0, 0.0])


if __name__ == "__main__":
    unittest.main()

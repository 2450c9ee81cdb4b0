"""Half a minute of ./run chaos: random faults during imports, pulls, saves, jobs, copies, reads from the archive."""
import pathlib
import subprocess
import sys
import unittest

CHAOS = pathlib.Path(__file__).resolve().parent.parent / "chaos" / "run.py"
MINUTES = "0.5"


class Chaos(unittest.TestCase):
    def test_nothing_is_lost_wrong_or_left_over_after_random_faults(self):
        self.assertEqual(subprocess.run([sys.executable, CHAOS, MINUTES], check=False, timeout=600).returncode, 0)

    def test_what_is_broken_on_purpose_fails_the_run_with_its_seed(self):
        for fault, words in (("planted wrong byte", "wrong bytes: base@1"), ("planted loss", "committed and no longer there"),
                             ("planted leak", "leaked: files in /dev/shm"), ("planted gang kill", "healthy gang was touched")):
            with self.subTest(fault):
                done = subprocess.run([sys.executable, CHAOS, "2", "--seed", "1", "--rounds", "1", "--phase", "pull", "--fault", fault],
                                      capture_output=True, text=True, check=False, timeout=120)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertRegex(done.stdout, f"FAILED in round 1 .* of seed 1: .*{words}")


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Half a minute of ./run chaos: random faults during imports, pulls, saves, jobs, copies,
reads from the archive."""
import pathlib
import subprocess
import sys
import unittest

CHAOS = pathlib.Path(__file__).resolve().parent.parent / "chaos" / "run.py"
MINUTES = "0.5"


class Chaos(unittest.TestCase):
    def test_nothing_is_lost_wrong_or_left_over_after_random_faults(self):
        self.assertEqual(
            subprocess.run([sys.executable, CHAOS, MINUTES], check=False, timeout=600).returncode, 0
        )

    def test_what_is_broken_on_purpose_fails_the_run_with_its_seed(self):
        faults = {
            "planted wrong byte": "wrong bytes: base@1",
            "planted loss": "committed and no longer there",
            "planted leak": "leaked: files in /dev/shm",
            "planted gang kill": "healthy gang was touched",
        }
        # each in its own cluster, after the previous failure
        rounds = ["--rounds", str(len(faults)), "--keep-going"]
        done = subprocess.run(
            [
                sys.executable,
                CHAOS,
                "8",
                "--seed",
                "1",
                *rounds,
                "--phase",
                "pull",
                *(word for fault in faults for word in ("--fault", fault)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for fault, words in faults.items():
            self.assertRegex(
                done.stdout,
                rf"FAILED in round \d+ \(pull x {fault}\) of seed 1: .*{words}",
                done.stderr,
            )


if __name__ == "__main__":
    unittest.main(verbosity=2)

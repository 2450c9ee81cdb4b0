"""A Controller that is stopped, or waits for its disk,
takes no node for silent and starts nothing twice."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import HELIOS, ROOT, cluster, wait_for  # noqa: E402

# A node is silent after 2 s, and the job gives it up at once.
QUICK = {"HELIOS_NODE_LOST": "2s", "HELIOS_HEARTBEAT": "200ms"}
JOB = """
jobName: %s
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'while [ ! -e %s ]; do sleep 0.2; done']
nodeLostAfter: 2s
onNodeLost: restart
"""


class Stalls(unittest.TestCase):
    def untouched(self, c, job):
        """The job ran on, and its node was never reported as lost."""
        seen = c.job(job)
        self.assertEqual((seen["state"], seen["attempt"]), ("running", 1))
        self.assertEqual([e["kind"] for e in seen["events"] if e["kind"].startswith("node")], [])
        self.assertNotIn("node is lost", (c.state / "log" / "controllerd.log").read_text())

    def test_pauses_of_the_controller_touch_no_job(self):
        with cluster(nodes=1, env=QUICK) as c:
            job = c.submit(JOB % ("runs", c.dir / "stop"))
            c.wait_job(job, "running")
            pid = c.pid("controllerd")
            for seconds in (1.5, 3, 8):  # this is what is tested, not a wait for something
                os.kill(pid, signal.SIGSTOP)
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
                self.untouched(c, job)
            (c.dir / "stop").touch()
            self.assertEqual(c.wait_job(job, "succeeded")["attempt"], 1)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_a_slow_disk_makes_the_controller_neither_deaf_nor_forgetful(self):
        with tempfile.TemporaryDirectory(prefix="helios-slow-") as home:
            library, wait = f"{home}/slow_disk.so", pathlib.Path(home, "ms")
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-o", library, ROOT / "tests/support/slow_disk.c"],
                check=True,
            )
            wait.write_text("0")
            with cluster(
                nodes=1, env={**QUICK, "LD_PRELOAD": library, "SLOW_DISK": str(wait)}
            ) as c:
                job = c.submit(JOB % ("runs", c.dir / "stop"))
                c.wait_job(job, "running")
                path = c.dir / "second.yaml"
                path.write_text(JOB % ("second", c.dir / "stop"))
                for ms in ("3000", "7000"):
                    wait.write_text(ms)
                    submit = subprocess.Popen(
                        [HELIOS, "--state", c.state, "submit", path],
                        env=c.env,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                    answers = 0
                    # it waits for the disk, and other calls are answered
                    while submit.poll() is None:
                        self.assertEqual(c.json("nodes")["items"][0]["state"], "ready")
                        answers += submit.poll() is None
                    self.assertEqual((submit.wait(), submit.communicate()[1]), (0, ""))
                    self.assertGreater(answers, 2)
                    self.untouched(c, job)
                wait.write_text("0")
                (c.dir / "stop").touch()
                self.assertEqual(c.wait_job(job, "succeeded")["attempt"], 1)
                wait_for(
                    "the others to end",
                    lambda: {j["state"] for j in c.json("list")["items"]} == {"succeeded"},
                )
                self.assertEqual(len(c.json("list")["items"]), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)

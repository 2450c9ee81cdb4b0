#!/usr/bin/python3
"""./run bench kube [--real]: how soon Helios shows why a gang on Kubernetes waits,
and how soon a gang runs again.

Runs against an API server in this process; with --real also against kube-apiserver (./run test-k8s
builds it). Volcano and the kubelet are simulated, so the figures exclude their time and that of
pulling an image. Exits with 1 if a bar is missed."""
import argparse
import os
import pathlib
import signal
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "k8s"), str(ROOT / "bench")]
sys.dont_write_bytecode = True

from bars import Bars  # noqa: E402
from support import gang_scripted, gang_world  # noqa: E402
from support.cluster import leave_by_signals, wait_for  # noqa: E402

REASON_S, RESTART_S = 2, 5  # bars
REASONS, RESTARTS = 20, 6  # of either kind
STEP_S = 0.01
BEGUN = "touch %s/begun.$RANK.$HELIOS_ATTEMPT; exec sleep 600"


def until(condition, seconds=60):
    """Measures how long it takes. wait_for is too coarse:
    its step is as long as what is measured."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"nothing within {seconds} s")
        time.sleep(STEP_S)
    return time.monotonic() - began


def show(bars, what, times, bar):
    times.sort()
    print(f"{what}: {len(times)} times, median {times[len(times) // 2]:.2f} s")
    bars.judge(f"{what}, the longest", times[-1], bar, " s")


class Measured(gang_world.World):
    """The measurements on one API server; `bars` and `name` are the bench's."""

    def runTest(self):  # pylint: disable=invalid-name # unittest's
        c = self.start_cluster()
        self.measure_reasons(c)
        self.measure_restarts(c)

    def measure_reasons(self, c):
        """From the write of the PodGroup's condition to the command that shows it,
        which takes 20 ms itself."""
        self.volcano.slots = 0
        job = c.submit(self.plain("exit 0"))
        wait_for("it to wait", lambda: "NotEnoughResources" in c.job(job)["reason"])
        self.volcano.paused = True
        times = []
        for n in range(REASONS):
            said = f"{n} of 2 tasks fit, says the bench"
            self.api.patch(
                "podgroups",
                self.namespace,
                f"helios-{job}-a1-group",
                {
                    "status": {
                        "phase": "Inqueue",
                        "conditions": [
                            {
                                "type": "Unschedulable",
                                "status": "True",
                                "transitionID": str(n),
                                "reason": "NotEnoughResources",
                                "message": said,
                            }
                        ],
                    }
                },
                status=True,
            )
            times.append(until(lambda: said in c.job(job)["reason"]))  # noqa: B023 # asked at once
        self.volcano.paused = False
        c.json("cancel", job)
        c.wait_job(job, "cancelled")
        self.volcano.slots = 1000
        show(self.bars, f"{self.name}: a reason is shown after Volcano states it", times, REASON_S)

    def begun(self, attempt):
        return all((self.cluster.dir / f"begun.{rank}.{attempt}").exists() for rank in range(4))

    def measure_restarts(self, c):
        """Measures from the end of a rank or a pod until the last rank of the next attempt runs its
        program. These ranks make no steps, so without their own back-off setting most of that time
        would be the wait."""
        job = c.submit(
            self.plain(BEGUN % c.dir).replace(
                "restarts: 0",
                f"restarts: {2 * RESTARTS}\nrecovery: {{backoff: 100ms, backoffMax: 100ms}}",
            )
        )
        until(lambda: self.begun(1))
        times = {"a rank is killed": [], "a pod is deleted": []}
        for attempt in range(1, 2 * RESTARTS + 1):
            c.wait_job(job, "running")
            pod = f"helios-{job}-a{attempt}-c1-0"
            if attempt % 2 == 1:
                os.killpg(self.volcano.logs[pod, "local-1"].process.pid, signal.SIGKILL)
            else:
                self.api.delete("pods", self.namespace, pod)
            what = "a rank is killed" if attempt % 2 == 1 else "a pod is deleted"
            times[what].append(until(lambda: self.begun(attempt + 1)))  # noqa: B023 # asked at once
        for what, some in times.items():
            show(self.bars, f"{self.name}: a gang runs again after {what}", some, RESTART_S)


class OnScriptedServer(gang_scripted.Scripted, Measured, unittest.TestCase):
    name = "scripted"


def real():
    import test_gangs  # pylint: disable=import-outside-toplevel # it needs the server's programs

    class OnRealServer(Measured, test_gangs.OnServer):
        name = "kube-apiserver"

    return OnRealServer


def main():
    parser = argparse.ArgumentParser(prog="./run bench kube", description=__doc__)
    parser.add_argument("--real", action="store_true", help="also against kube-apiserver")
    args = parser.parse_args()
    bars = Bars()
    leave_by_signals()
    for kind in [OnScriptedServer] + ([real()] if args.real else []):
        kind.bars = bars
        kind.setUpClass()
        result = unittest.TestResult()
        kind().run(result)
        for _, why in result.failures + result.errors:
            sys.exit(why)
    return bars.status()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""The output of ranks as a user reads it: every attempt, every rank, to the end,
whatever dies meanwhile."""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from support.cluster import HELIOS, Cluster, alive, cluster, small_disk, wait_for  # noqa: E402

JOB = """jobName: %s
parallelism: {pipeline_parallel_size: %d, tensor_parallel_size: %d, data_parallel_size: 1}
resources: {memory: 64MiB}
restarts: %d
command: |
"""


def job(script, name="job", pp=1, tp=1, restarts=0):
    return JOB % (name, pp, tp, restarts) + "".join(
        f"  {line}\n" for line in script.strip().splitlines()
    )


def command(c, *args):
    return [str(HELIOS), "--state", str(c.state), *map(str, args)]


@contextlib.contextmanager
def following(c, *args):
    """`helios ARGS` in the background: its output goes to files,
    so that it never waits for the test."""
    out, err = c.dir / "follow.out", c.dir / "follow.err"
    with open(out, "wb") as to, open(err, "wb") as errors, subprocess.Popen(
        command(c, *args), stdout=to, stderr=errors, env=c.env
    ) as process:
        try:
            yield process, out, err
        finally:
            process.kill()


def raw(c, *args):
    done = subprocess.run(
        command(c, *args), capture_output=True, env=c.env, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr.decode()


class Follow(unittest.TestCase):
    def test_every_line_of_every_attempt_is_shown_once_and_in_order(self):
        script = """
        for i in $(seq 1 300); do echo "attempt $HELIOS_ATTEMPT line $i"; done
        sleep 0.3
        echo "attempt $HELIOS_ATTEMPT Traceback: the reason"
        printf "attempt $HELIOS_ATTEMPT without end"
        [ $HELIOS_ATTEMPT = 4 ] || exit 3
        """
        expected = []
        for attempt in range(1, 5):
            expected += [f"attempt {attempt} line {i}" for i in range(1, 301)]
            expected += [
                f"attempt {attempt} Traceback: the reason",
                f"attempt {attempt} without end",
            ]
        with cluster(nodes=2, slots=1) as c:
            for run in range(3):
                name = c.submit(job(script, restarts=3))
                code, out, err = raw(c, "logs", "-f", "--attempt", 1, name)
                self.assertEqual(
                    (code, out.decode().splitlines()), (0, expected), f"run {run}: {err}"
                )
                code, out, err = raw(c, "logs", name, "--attempt", 2, "--tail", 5)
                self.assertEqual((code, out.decode().splitlines()), (0, expected[599:604]), err)

    def test_a_failed_job_ends_the_follower_with_its_reason(self):
        with cluster(nodes=2, slots=2) as c:
            name = c.submit(
                job(
                    (
                        "echo rank $RANK; [ $RANK != 2 ] || { sleep 0.3; echo the culprit; exit 5;"
                        " }; sleep 60"
                    ),
                    pp=2,
                    tp=2,
                )
            )
            code, out, err = raw(c, "logs", "-f", name)
            self.assertEqual((code, out), (1, b"rank 0\n"))
            self.assertIn("rank 2", err.splitlines()[0])  # not the one that was shown
            self.assertRegex(err.splitlines()[-1], f"{name}.*failed.*code 5")
            code, out, err = raw(c, "logs", name)
            self.assertEqual((code, out), (0, b"rank 2\nthe culprit\n"))
            self.assertIn("rank 2", err)
            self.assertEqual(raw(c, "logs", name, "--rank", 1)[:2], (0, b"rank 1\n"))
            waiting = c.submit(job("sleep 60"))
            with following(c, "logs", "-f", waiting) as (process, _, err):
                c.wait_job(waiting, "running")
                c.json("cancel", waiting)
                self.assertEqual(process.wait(30), 1)
                self.assertIn("cancelled", err.read_text())

    def test_daemons_that_are_killed_do_not_end_it(self):
        with cluster(nodes=1, slots=1) as c:
            stop = c.dir / "stop"
            name = c.submit(
                job(
                    f"i=0; while [ ! -e {stop} ]; do i=$((i+1)); echo line $i; sleep 0.01; done;"
                    " echo last $i"
                )
            )
            with following(c, "logs", "-f", name) as (process, out, err):
                for daemon, how in (
                    ("controllerd", signal.SIGKILL),
                    ("node-0", signal.SIGKILL),
                    ("controllerd", signal.SIGTERM),
                    ("node-0", signal.SIGTERM),
                ):
                    before, pid, told = (
                        out.stat().st_size,
                        c.pid(daemon),
                        err.read_text().count("trying again"),
                    )
                    wait_for("lines", lambda b=before: out.stat().st_size > b + 100)
                    os.kill(pid, how)
                    wait_for(f"{daemon} to end", lambda p=pid: not alive(p))
                    wait_for(
                        "the loss to be told",
                        lambda t=told: err.read_text().count("trying again") > t,
                    )
                    c.up()
                    before = out.stat().st_size
                    wait_for(
                        f"lines after {daemon} was killed",
                        lambda b=before: out.stat().st_size > b + 100,
                    )
                stop.touch()
                self.assertEqual(process.wait(60), 0, err.read_text())
                self.assertIn("connected again", err.read_text())
                lines = out.read_text().splitlines()
            self.assertEqual(
                lines, [f"line {i}" for i in range(1, len(lines))] + [f"last {len(lines) - 1}"]
            )
            self.assertEqual(c.job(name)["attempt"], 1)

    def test_it_gives_up_when_nobody_comes_back(self):
        with cluster(nodes=1, slots=1) as c:
            name = c.submit(job("echo begun; sleep 60"))
            with following(c, "logs", "-f", name, "--retry", "1s") as (process, out, err):
                wait_for("output", lambda: out.read_text() == "begun\n")
                c.kill("controllerd")
                self.assertEqual(process.wait(30), 1)
                self.assertIn("gave up after 1 s", err.read_text())

    def test_all_ranks_write_whole_lines_that_are_never_mixed(self):
        script = (
            'i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo "r$RANK line $i'
            ' 0123456789012345678901234567890123456789"; done; printf "r$RANK end"'
        )
        with cluster(nodes=2, slots=2) as c:
            name = c.submit(job(script, pp=2, tp=2))
            for flags in (("-f",), (), ("--tail", 5)):
                code, out, err = raw(c, "logs", name, "--all", *flags)
                self.assertEqual(code, 0, err)
                seen = {rank: [] for rank in range(4)}
                for line in out.decode().splitlines():
                    rank, text = re.fullmatch(r"\[rank (\d)\] r\1 (.*)", line).groups()
                    seen[int(rank)].append(text)
                wanted = [
                    f"line {i} 0123456789012345678901234567890123456789" for i in range(1, 4001)
                ] + ["end"]
                for rank in range(4):
                    self.assertEqual(
                        seen[rank], wanted[-5:] if "--tail" in flags else wanted, (rank, flags)
                    )


class Read(unittest.TestCase):
    def test_earlier_attempts_stay_on_their_nodes(self):
        with cluster(nodes=2, slots=1) as c:
            wrote = f"{c.dir}/wrote-$HELIOS_ATTEMPT"  # rank 1 fails when both have
            name = c.submit(
                job(
                    (
                        'echo "attempt $HELIOS_ATTEMPT rank $RANK"; [ $RANK = 1 ] || touch'
                        f' {wrote}; until [ -e {wrote} ]; do sleep 0.02; done; [ $HELIOS_ATTEMPT ='
                        ' 3 ] || [ $RANK = 0 ] || exit 1; sleep 0.5'
                    ),
                    pp=2,
                    restarts=2,
                )
            )
            c.wait_job(name, "succeeded")
            for attempt in (1, 2, 3):
                for rank in (0, 1):
                    self.assertEqual(
                        raw(c, "logs", name, "--attempt", attempt, "--rank", rank)[:2],
                        (0, f"attempt {attempt} rank {rank}\n".encode()),
                    )
            # which failed
            self.assertEqual(raw(c, "logs", name, "--attempt", 1)[1], b"attempt 1 rank 1\n")
            self.assertEqual(
                c.json("logs", name, "--attempt", 2, "--all")[1]["text"], "attempt 2 rank 1\n"
            )
            self.assertIn("attempt 4", c.refuse("logs", name, "--attempt", 4))
            self.assertIn("rank 2", c.refuse("logs", name, "--rank", 2))
            c.kill("controllerd")
            c.kill("node-0")
            c.up()
            self.assertEqual(
                raw(c, "logs", name, "--attempt", 1, "--all")[:2],
                (0, b"[rank 0] attempt 1 rank 0\n[rank 1] attempt 1 rank 1\n"),
            )

    def test_they_are_there_after_down_and_up(self):
        with cluster(nodes=1, slots=1) as c:
            name = c.submit(
                job("echo attempt $HELIOS_ATTEMPT; [ $HELIOS_ATTEMPT = 2 ]", restarts=1)
            )
            c.wait_job(name, "succeeded")
            c.down("--keep")
            c.up()
            self.assertEqual(raw(c, "logs", name)[:2], (0, b"attempt 2\n"))
            self.assertEqual(raw(c, "logs", name, "--attempt", 1)[:2], (0, b"attempt 1\n"))

    def test_a_job_that_failed_before_its_ranks_ran_says_why(self):
        with cluster(nodes=1, slots=1) as c:
            for script, why in (
                ("workdir: /no/such/place\ncommand: [echo, hi]\n", "/no/such/place"),
                ("command: [/no/such/program]\n", "/no/such/program"),
            ):
                name = c.submit(job("").replace("command: |\n", script))
                c.wait_job(name, "failed")
                for flags in ((), ("--all",), ("-f",)):
                    code, out, err = raw(c, "logs", name, *flags)
                    self.assertEqual((code, out), (1, b""))
                    self.assertIn(why, err)
            self.assertEqual(c.run("logs", c.submit(job("true")), "-f").returncode, 0)

    def test_a_head_that_was_dropped_is_marked_and_lines_stay_whole(self):
        with cluster(nodes=1, slots=1, env={"HELIOS_AGENT_LOG_MAX": "256KiB"}) as c:
            name = c.submit(
                job(r"seq -f 'line %.0f' 1 400000; printf 'bytes \377\376 \n'; printf 'the end'")
            )
            c.wait_job(name, "succeeded")
            for flags, prefix in (((), ""), (("--all",), "[rank 0] "), (("-f",), "")):
                code, out, err = raw(c, "logs", name, *flags)
                self.assertEqual(code, 0, err)
                lines = out.split(b"\n")
                self.assertRegex(lines[0].decode(), re.escape(prefix) + r"\[4\.\d MiB dropped.*\]$")
                first = int(
                    re.fullmatch(re.escape(prefix) + r"line (\d+)", lines[1].decode()).group(1)
                )
                self.assertGreater(first, 300000)
                self.assertEqual(
                    lines[1 : 400000 - first + 2],
                    [f"{prefix}line {i}".encode() for i in range(first, 400001)],
                )
                self.assertEqual(
                    lines[400000 - first + 2 : 400000 - first + 4],
                    [f"{prefix}bytes ".encode() + b"\xff\xfe ", f"{prefix}the end".encode()],
                )
            self.assertEqual(
                raw(c, "logs", name, "--tail", 5)[1],
                b"line 399998\nline 399999\nline 400000\nbytes \xff\xfe \nthe end",
            )
            self.assertEqual(raw(c, "logs", name, "--tail", 1)[1], b"the end")
            self.assertEqual(raw(c, "logs", name, "--tail", 0)[1], b"")
            whole = raw(c, "logs", name)[1]
            self.assertEqual(raw(c, "logs", name, "--tail", 10**9)[1], whole)
            self.assertIn("?? ", c.json("logs", name, "--tail", 2)["text"])

    def test_flags_that_make_no_sense_are_refused(self):
        with cluster(nodes=1, slots=1) as c:
            name = c.submit(job("echo x"))
            c.wait_job(name, "succeeded")
            for flags in (
                ("--all", "--rank", 0),
                ("--tail", 3, "--offset", 1),
                ("-f", "-o", "json"),
                ("--tail", "1k"),
                ("--attempt", -1),
            ):
                c.refuse("logs", name, *flags, code=2)


class Wait(unittest.TestCase):
    def test_submit_waits_for_the_end_and_has_its_exit_status(self):
        with cluster(nodes=1, slots=1) as c:
            path = c.dir / "wait.yaml"
            path.write_text(job("echo hello; sleep 0.3"))
            code, out, err = raw(c, "submit", path, "--wait")
            self.assertEqual((code, out, err), (0, b"job-1\n", ""))
            self.assertEqual(c.job("job-1")["state"], "succeeded")
            self.assertEqual(raw(c, "submit", path, "--logs"), (0, b"job-2\nhello\n", ""))
            path.write_text(job("echo bad; exit 7"))
            code, out, err = raw(c, "submit", path, "--wait")
            self.assertEqual((code, out), (1, b"job-3\n"))
            self.assertRegex(err, "job-3 failed.*code 7")
            self.assertEqual(raw(c, "submit", path, "--wait", "--logs")[:2], (1, b"job-4\nbad\n"))
            c.refuse("submit", path, "--logs", "-o", "json", code=2)
            done = c.run("submit", path, "--wait", "-o", "json")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, '"state": "failed"')


class FullDisk(unittest.TestCase):
    def setUp(self):
        self.disk = self.enterContext(small_disk(self, "4m"))

    def shims(self):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if b"shim\0" + bytes(self.disk) in path.read_bytes():
                    found.append(path.parent.name)
        return found

    @contextlib.contextmanager
    def cluster(self):
        c = Cluster(nodes=1, slots=1, size="16MiB")
        c.state = self.disk / "state"
        try:
            c.up()
            yield c
        finally:
            c.run("down", "--purge")
            shutil.rmtree(c.dir)

    def fill(self):
        with contextlib.suppress(OSError):
            (self.disk / "rest").write_bytes(bytes(4 << 20))

    def test_a_rank_goes_on_without_its_output_and_the_job_says_so(self):
        with self.cluster() as c:
            go = c.dir / "go"
            loud = c.submit(
                job(
                    f"seq 1 2000000; touch {c.dir}/wrote; while [ ! -e {go} ]; do sleep 0.05; done;"
                    " echo after; exit 9"
                )
            )
            wait_for("all to be written", (c.dir / "wrote").exists)
            warned = wait_for("the warning", lambda: (d := c.job(loud))["warning"] and d)
            self.assertRegex(warned["warning"], "log of rank 0.*No space left")
            self.assertEqual(warned["state"], "running")
            self.assertIn("No space left", c.run("list").stdout)
            self.assertIn("No space left", c.run("describe", loud).stdout)
            self.assertEqual(raw(c, "logs", loud)[1].decode().splitlines()[:2], ["1", "2"])
            self.fill()
            self.assertIn("make room", c.refuse("node", "reserve", "node-0,node-0", "--for", "1h"))
            # all of it is taken back
            self.assertEqual(c.json("nodes")["items"][0]["reservedUntilMs"], 0)
            go.touch()
            # there was room for its status
            self.assertRegex(c.wait_job(loud, "failed", seconds=20)["reason"], "code 9")
            (self.disk / "rest").unlink()
            mute = c.submit(job("echo word; sleep 1000"))
            wait_for("the warning", lambda: c.job(mute)["warning"])
            silent = c.run("logs", mute)  # all that it wrote was dropped
            self.assertEqual(silent.stdout, "")
            self.assertRegex(silent.stderr, "warning: log of rank 0.*No space left")
            c.down("--keep")
            wait_for("the shims to end", lambda: not self.shims())

    def test_output_goes_on_behind_a_marked_gap_when_there_is_room_again(self):
        with self.cluster() as c:
            stop = c.dir / "stop"
            name = c.submit(
                job(
                    f"i=0; while [ ! -e {stop} ]; do i=$((i+1)); echo line $i; "
                    "sleep 0.002; done; echo last"
                )
            )
            wait_for("output", lambda: b"line 20" in raw(c, "logs", name)[1])
            self.fill()
            wait_for("the warning", lambda: c.job(name)["warning"])
            (self.disk / "rest").unlink()
            gap = wait_for(
                "the gap to be marked",
                lambda: re.search(
                    rb"\n\[[^]]* dropped: No space left on device\]\nline (\d+)\n",
                    raw(c, "logs", name)[1],
                ),
            )
            stop.touch()
            self.assertIn("dropped", c.wait_job(name, "succeeded")["warning"])
            lines = raw(c, "logs", name)[1].decode().splitlines()
            numbers = [int(line[5:]) for line in lines if line.startswith("line ")]
            self.assertEqual(numbers, sorted(set(numbers)))
            self.assertEqual((numbers[0], lines[-1]), (1, "last"))
            at = numbers.index(int(gap.group(1)))
            self.assertGreater(numbers[at] - numbers[at - 1], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)

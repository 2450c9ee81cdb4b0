#!/usr/bin/python3
"""What a user sees of nodes and jobs: load, health, the first failure, and where the time went."""
from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from fcntl import ioctl

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

from support.cluster import BUILD, HELIOS, Cluster, small_disk, wait_for  # noqa: E402

JOB = """jobName: %s
parallelism: {pipeline_parallel_size: %d, tensor_parallel_size: 1, data_parallel_size: 1}
restarts: %d
command: |
"""
PARTS = (
    "queueMs",
    "placeMs",
    "imageMs",
    "pullMs",
    "startMs",
    "stepMs",
    "saveMs",
    "stallMs",
    "lostMs",
    "replayMs",
)


def job(script, name="job", ranks=1, restarts=0):
    return JOB % (name, ranks, restarts) + "".join(
        f"  {line}\n" for line in script.strip().splitlines()
    )


class Screen:
    """A program on a terminal: its output, and keys sent to it."""

    def __init__(self, command, env, columns=80, lines=24):
        self.master, slave = pty.openpty()
        self.resize(columns, lines, slave)
        self.before = termios.tcgetattr(slave)
        variables = {k: v for k, v in env.items() if k != "COLUMNS"} | {"TERM": "xterm"}
        self.program = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True
        )
        self.slave, self.text = slave, ""

    def resize(self, columns, lines, fd=None):
        ioctl(
            self.master if fd is None else fd,
            termios.TIOCSWINSZ,
            struct.pack("HHHH", lines, columns, 0, 0),
        )

    def read(self):
        while select.select([self.master], [], [], 0)[0]:
            self.text += os.read(self.master, 65536).decode()
        return self.text

    def frames(self):
        """Each picture without colours, in lines."""
        pictures = self.read().split("\x1b[H")[1:]
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", p).split("\r\n") for p in pictures]

    def close(self):
        self.program.kill()
        self.program.wait()
        os.close(self.master)
        os.close(self.slave)


class Telemetry(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, nodes=2, slots=1)

    def shown(self, *args, **env):
        done = subprocess.run(
            [HELIOS, "--state", self.c.state, *args],
            capture_output=True,
            text=True,
            env=self.c.env | env,
            check=False,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def measured(self, name):
        """The load of the job's container, once a heartbeat has reported it."""

        def look():
            loads = [x for n in self.c.json("nodes")["items"] for x in n["telemetry"]["containers"]]
            return next((x for x in loads if x["id"].startswith(name + ".")), None)

        return wait_for(f"the load of {name}", look)

    def test_a_running_container_is_measured_and_shown(self):
        name = self.c.submit(
            job(
                "exec python3 -c 'import time; kept = bytearray(60 << 20); time.sleep(600)'",
                "eater",
            )
        )
        self.c.wait_job(name, "running")
        wait_for("its memory", lambda: self.measured(name)["memoryBytes"] > 50 << 20)
        load = self.measured(name)
        self.assertLess(load["memoryBytes"], 1 << 30)
        self.assertGreaterEqual(load["processes"], 1)
        self.assertIn(load["source"], ("cgroup v2", "cgroup v1", "processes"))
        node = next(
            n for n in self.c.json("nodes")["items"] if any(s["job"] == name for s in n["slots"])
        )
        self.assertEqual([s["numaId"] for s in node["telemetry"]["slots"]], [0])
        self.assertEqual(node["telemetry"]["troubles"], [])
        self.assertLess(abs(node["clockAheadMs"]), 10000)
        self.assertIn("helios_slot_cpu_busy_ratio{slot=\"0\"}", self.shown("metrics", "node-0"))
        top = self.c.json("top")
        self.assertIn(name, [j["id"] for j in top["jobs"]])
        shown = self.shown("top", "--once", COLUMNS="80")
        self.assertRegex(shown, rf"(?m)^{name} .*running")
        self.assertLessEqual(max(map(len, shown.splitlines())), 80)
        self.c.json("cancel", name)

    def test_top_is_live_on_a_terminal_follows_its_size_and_ends_with_q(self):
        screen = Screen(
            [str(HELIOS), "--state", str(self.c.state), "top", "--interval", "200ms"], self.c.env
        )
        try:
            wait_for("two pictures", lambda: len(screen.frames()) > 2)
            frame = screen.frames()[1]
            self.assertIn("q ends", frame[0])
            self.assertTrue(any(line.startswith("node-1:0") for line in frame), frame)
            self.assertLessEqual(max(map(len, frame)), 80)
            screen.resize(40, 4)
            wait_for("a picture of 4 lines", lambda: len(screen.frames()[-2]) == 4)
            self.assertIsNone(screen.program.poll())
            os.write(screen.master, b"q")
            self.assertEqual(screen.program.wait(60), 0)
            self.assertTrue(screen.read().endswith("\x1b[?25h\x1b[?1049l"), screen.text[-40:])
            self.assertEqual(termios.tcgetattr(screen.slave), screen.before)
        finally:
            screen.close()

    def test_the_first_failure_is_kept_over_restarts_of_all_daemons(self):
        script = """
        [ $RANK = 1 ] || {
            trap '' TERM
            until [ -e @ ]; do sleep 0.05; done
            sleep 0.3; echo the echo of it; exit 9
        }
        for i in $(seq 1 300); do echo "line $i"; done
        echo "the reason"
        touch @
        exit 5
        """
        name = self.c.submit(
            job(script.replace("@", str(self.c.dir / "first")), "failing", ranks=2)
        )
        self.c.wait_job(name, "failed")
        first = wait_for("the first failure", lambda: self.failure(name))
        self.assertEqual(
            (first["rank"], first["attempt"], first["kind"], first["exitCode"]), (1, 1, "exit", 5)
        )
        lines = first["log"].splitlines()
        self.assertEqual((lines[0], lines[-1], len(lines)), ("line 102", "the reason", 200))
        shown = self.shown("logs", "--first-failure", name)
        self.assertIn(f"attempt 1: rank 1 on {first['node']} exited with code 5", shown)
        self.assertTrue(shown.endswith("line 300\nthe reason\n"))
        self.assertIn("attempt 1: rank 1 on", self.shown("describe", name))
        for daemon in ("controllerd", "node-0", "node-1"):
            self.c.kill(daemon)
        self.c.up()
        self.assertEqual(wait_for("the first failure again", lambda: self.failure(name)), first)
        self.assertIn(
            "no attempt of job", self.c.refuse("logs", "--first-failure", self.succeeded())
        )

    def test_want_of_memory_names_limit_and_rank_and_shows_the_kernels_words(self):
        script = """
        [ $RANK = 1 ] || exec sleep 1000
        python3 -c 'kept = bytearray(300 << 20)'
        exit 3
        """
        name = self.c.submit(job(script, "hungry", ranks=2) + "resources: {memory: 64MiB}\n")
        end = self.c.wait_job(name, "failed", "running")
        if "can't be set" in end["containers"][0]["message"]:
            self.c.json("cancel", name)
            self.skipTest("no memory controller can be written here")
        self.assertIn(
            "rank 1 exited with code 3 (out of memory: the container's limit is 64 MiB)",
            self.c.wait_job(name, "failed")["reason"],
        )
        first = wait_for("the first failure", lambda: self.failure(name))
        self.assertEqual((first["kind"], first["rank"]), ("memory", 1))
        if os.access("/dev/kmsg", os.R_OK):  # of a child of the rank
            self.assertRegex(
                self.shown("logs", "--first-failure", name),
                r"Memory cgroup out of memory: Killed process \d+ \(python3\)",
            )

    def test_reported_steps_become_goodput(self):
        program = self.c.dir / "steps.py"
        program.write_text(
            "import time, helios\nfor step in range(100000):\n    time.sleep(0.05)\n   "
            " helios.report(step, 1.0, 10)\n"
        )
        name = self.c.submit(job(f"exec python3 {program}", "steps"))
        ledger = wait_for("steps", lambda: (x := self.c.job(name)["ledger"])["steps"] > 20 and x)
        self.assertTrue(ledger["reported"])
        self.assertEqual(sum(ledger[part] for part in PARTS), ledger["wallMs"])
        self.assertGreater(ledger["stepMs"], 20 * 50 * 0.9)
        self.assertGreater(ledger["startMs"], 0)
        self.assertGreaterEqual(ledger["tokens"], 10 * ledger["steps"])
        self.assertEqual(ledger["replayMs"], 0)
        self.assertGreater(ledger["goodput"], 0)
        self.c.json("cancel", name)

    def failure(self, name):
        done = subprocess.run(
            [HELIOS, "--state", self.c.state, "-o", "json", "logs", "--first-failure", name],
            capture_output=True,
            env=self.c.env,
            check=False,
            timeout=60,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def succeeded(self):
        name = self.c.submit(job("true", "fine"))
        self.c.wait_job(name, "succeeded")
        return name

    def test_the_time_ledger_sums_to_the_wall_time_over_a_restart_of_the_controller(self):
        began = time.monotonic()
        name = self.c.submit(job("sleep 600", "timed"))
        self.c.wait_job(name, "running")
        submitted = time.monotonic()
        self.c.kill("controllerd")
        self.c.up()
        asked = time.monotonic()
        ledger = self.c.job(name)["ledger"]
        wall_ms = 1000 * (time.monotonic() - began)
        self.assertEqual(sum(ledger[part] for part in PARTS), ledger["wallMs"])
        self.assertLessEqual(ledger["wallMs"], wall_ms)
        self.assertGreaterEqual(ledger["wallMs"], 1000 * (asked - submitted))
        self.assertGreater(ledger["stepMs"], 0)
        self.assertFalse(ledger["reported"])
        self.c.json("cancel", name)
        self.c.wait_job(name, "cancelled")
        over = self.c.job(name)["ledger"]
        self.assertEqual(sum(over[part] for part in PARTS), over["wallMs"])
        self.assertEqual(self.c.job(name)["ledger"], over)  # it stays the same
        self.assertRegex(self.shown("describe", name), r"(?m)^time .*lost .*goodput 0\.0%")

    def test_z_a_node_whose_log_disk_is_full_gets_nothing_until_there_is_room(self):
        c, disk = self.c, self.enterContext(small_disk(self, "256m"))
        agent = [
            BUILD / "bin" / "helios-agent",
            "--name",
            "small",
            "--state",
            disk / "agent",
            "--listen",
            f"unix:{c.dir}/small.sock",
            "--controller",
            c.info["controller"],
            "--data-listen",
            "",
            "--migrate-listen",
            "",
        ]
        with subprocess.Popen(
            agent, env=c.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:

            def reason():
                return next(
                    (n["reason"] for n in c.json("nodes")["items"] if n["node"]["name"] == "small"),
                    None,
                )

            try:
                wait_for("the node", lambda: reason() == "")
                (disk / "rest").write_bytes(bytes(250 << 20))
                wait_for(
                    "the full disk to be told", lambda: "(agent.log_free): make room" in reason()
                )
                (disk / "rest").unlink()
                wait_for("the node to be free again", lambda: reason() == "")
            finally:
                process.terminate()


class Health(unittest.TestCase):
    """One node whose site script, GPUs and clock the test controls."""

    @classmethod
    def setUpClass(cls):
        directory = pathlib.Path(
            cls.enterClassContext(tempfile.TemporaryDirectory(prefix="helios-health-"))
        )
        cls.script, cls.gpus = directory / "site", directory / "gpus"
        cls.site("echo the fan stands still; exit 3")
        cls.gpus.write_text("00000000:3B:00.0 GPU-a 40 1024\n")
        cls.c = Cluster.of_class(
            cls,
            nodes=1,
            slots=1,
            env={
                "HELIOS_AGENT_HEALTH": "true",
                "HELIOS_AGENT_HEALTH_SCRIPT": str(cls.script),
                "HELIOS_AGENT_HEALTH_DEADLINE": "60s",
                "NVML_STUB": str(cls.gpus),
                "HELIOS_AGENT_NVML": str(BUILD / "tests" / "libnvml_stub.so"),
            },
        )

    @classmethod
    def site(cls, text):
        cls.script.write_text("#!/bin/sh\n" + text + "\n")
        cls.script.chmod(0o755)

    def node(self, name="node-0"):
        return next((n for n in self.c.json("nodes")["items"] if n["node"]["name"] == name), None)

    def test_1_a_node_that_fails_gets_nothing_and_the_second_failure_drains_it(self):
        why = "script: exit code 3: the fan stands still"
        self.assertIn(why, self.node()["reason"])
        self.assertIn("node-0 gets no new containers: health: " + why, self.c.run("nodes").stdout)
        self.c.kill("controllerd")
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        wait_for("the node to tell of its test once more", lambda: why in self.node()["reason"])
        self.assertEqual(self.node()["drainedMs"], 0)  # that is still its first failure
        name = self.c.submit(job("true", "waits"))
        self.c.wait_job(name, "pending")
        self.site("echo fine")
        self.assertRegex(self.c.run("node", "test", "node-0").stdout, r"(?m)^script +passed +fine")
        self.c.wait_job(name, "succeeded")
        self.site("exit 1")
        self.assertIn("is not fit: script: exit code 1", self.c.refuse("node", "test", "node-0"))
        self.assertIn("it failed its health test twice in an hour", self.node()["drainReason"])
        self.site("true")
        self.c.run("node", "test", "node-0")
        self.assertEqual(self.node()["reason"], "")
        self.assertNotEqual(self.node()["drainedMs"], 0)  # people have to end that
        self.c.json("node", "undrain", "node-0")
        self.assertIn("does not exist", self.c.refuse("node", "test", "nowhere"))

    def test_2_a_node_is_there_while_it_is_tested_and_gets_containers_then(self):
        end = self.c.dir / "tested"
        self.site(f"until [ -e {end} ]; do sleep 0.05; done")
        self.c.kill("node-0")
        with self.c.start(*self.c.up_args) as up:
            node = wait_for(
                "the test",
                lambda: (n := self.node())
                and n["reason"] == "health: its first test is still running"
                and n,
            )
            self.assertEqual((node["state"], node["node"]["health"]["state"]), ("ready", "testing"))
            name = self.c.submit(job("true", "early"))
            self.c.wait_job(name, "pending")
            end.touch()
            self.assertEqual(up.wait(self.c.limit), 0)
        wait_for("the end of the test", lambda: self.node()["reason"] == "")
        self.c.wait_job(name, "succeeded")

    def test_3_a_gpu_that_vanishes_keeps_new_containers_away_until_it_is_back(self):
        gpu = wait_for("the GPU", lambda: self.node()["telemetry"]["gpus"])[0]
        self.assertEqual(
            (gpu["id"], gpu["uuid"], gpu["memoryUsedBytes"]), ("0000:3b:00.0", "GPU-a", 1 << 30)
        )
        self.assertIn(
            'helios_gpu_busy_ratio{gpu="0000:3b:00.0"} 0.4000',
            self.c.run("metrics", "node-0").stdout,
        )
        self.gpus.write_text("00000000:3B:00.0 lost\n")
        wait_for("the loss", lambda: "GPU 0000:3b:00.0 (GPU-a) vanished" in self.node()["reason"])
        name = self.c.submit(job("true", "gpu"))
        self.c.wait_job(name, "pending")
        self.gpus.write_text("00000000:3B:00.0 GPU-a 40 1024\n")
        self.c.wait_job(name, "succeeded")

    def test_4_an_agent_whose_clock_is_ten_minutes_off_gets_nothing(self):
        controller = json.loads((self.c.state / "cluster.json").read_text())["controller"]
        state, clock = self.c.dir / "late", self.c.dir / "clock"
        clock.write_bytes(struct.pack("q", 600 * 10**9))
        env = self.c.env | {
            "LD_PRELOAD": str(BUILD / "tests" / "libclock_jump.so"),
            "HELIOS_CLOCK_FILE": str(clock),
        }
        flags = [
            "--name",
            "late",
            "--state",
            state,
            "--controller",
            controller,
            "--listen",
            f"unix:{self.c.dir}/late.sock",
            "--data-listen",
            "",
            "--migrate-listen",
            "",
            "--health=false",
        ]
        with subprocess.Popen(
            [BUILD / "bin" / "helios-agent", *flags],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as agent:
            try:
                wait_for(
                    "its clock to be told",
                    lambda: (n := self.node("late")) and "its clock is 10 min" in n["reason"],
                )
                self.assertGreater(self.node("late")["clockAheadMs"], 590000)
            finally:
                agent.terminate()


if __name__ == "__main__":
    unittest.main()

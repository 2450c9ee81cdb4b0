"""Daemons of `helios up` that end are restarted and counted,
and their exit status or signal is reported."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, HELIOS, Cluster, alive, wait_for  # noqa: E402

JOB = """jobName: long
command: [/bin/sh, -c, "echo started; exec sleep 1000"]
parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, data_parallel_size: 1}
"""


class Supervise(unittest.TestCase):
    def cluster(self, **kwargs):
        made = Cluster(**{"nodes": 1, "slots": 1, "size": "16MiB", "supervise": True, **kwargs})
        self.addCleanup(shutil.rmtree, made.dir, True)
        self.addCleanup(made.run, "down", "--purge")
        return made

    @staticmethod
    def doc(c):
        return json.loads((c.state / "cluster.json").read_text())

    def again(self, c, daemon, restarts):
        """The daemon's entry, once it serves after so many restarts."""
        return wait_for(
            f"restart {restarts} of {daemon}",
            lambda: (e := self.doc(c)[daemon]).get("restarts") == restarts
            and e["ready"]
            and alive(e["pid"])
            and e,
            seconds=60,
        )

    def test_every_daemon_that_is_killed_comes_back_where_it_was(self):
        c = self.cluster()
        c.up()
        before = self.doc(c)
        for daemon in ("l3d", "controllerd", "node-0"):
            c.kill(daemon)
            entry = self.again(c, daemon, 1)
            self.assertEqual(entry["address"], before[daemon]["address"])
            self.assertEqual(entry["end"]["how"], "killed by signal 9 (Killed)")
            self.assertRegex(
                (c.state / "log" / "supervisor.log").read_text(), f"{daemon} .*killed by signal 9"
            )
        wait_for(
            "a node",
            lambda: c.run("nodes").returncode == 0 and "ready" in c.run("nodes").stdout,
            seconds=60,
        )
        self.assertRegex(
            c.run("info").stdout, r"l3d +killed by signal 9 \(Killed\) at 20..-.*, 1 restart\n"
        )
        self.assertIn("controllerd: killed by signal 9", c.run("up").stdout)
        c.kill("l3d")
        self.again(c, "l3d", 2)

    def test_a_command_after_the_controllers_end_says_that_it_is_restarted(self):
        c = self.cluster()
        c.up()
        supervisor = self.doc(c)["supervisor"]["pid"]
        os.kill(supervisor, signal.SIGSTOP)  # which would be quicker than the command
        c.kill("controllerd")
        self.assertRegex(c.refuse("nodes"), "its supervisor restarts it .* `helios up` at once")
        os.kill(supervisor, signal.SIGCONT)
        self.again(c, "controllerd", 1)

    def test_ranks_go_on_when_their_agent_is_started_again(self):
        c = self.cluster()
        c.up()
        job = c.submit(JOB)
        wait_for("the rank", lambda: "started" in c.log(job), seconds=60)
        c.kill("node-0")
        self.again(c, "node-0", 1)
        wait_for(
            "the node",
            lambda: c.run("nodes").returncode == 0 and "ready" in c.run("nodes").stdout,
            seconds=60,
        )
        self.assertEqual((c.job(job)["state"], c.job(job)["attempt"]), ("running", 1))

    def test_down_stops_the_supervisor_and_nothing_is_left(self):
        c = self.cluster()
        c.up()
        doc = self.doc(c)
        c.kill("l3d")
        said = c.run("down")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertFalse(alive(doc["supervisor"]["pid"]))
        self.assertFalse(c.state.exists())

    def test_a_supervisor_that_is_killed_takes_nothing_along_and_up_starts_another(self):
        c = self.cluster()
        c.up()
        before = self.doc(c)
        c.kill("supervisor")
        self.assertTrue(all(alive(before[d]["pid"]) for d in ("l3d", "controllerd", "node-0")))
        self.assertEqual(c.json("up")["started"], [])
        self.assertNotEqual(self.doc(c)["supervisor"]["pid"], before["supervisor"]["pid"])
        c.kill("l3d")
        self.again(c, "l3d", 1)
        self.assertEqual(c.json("up")["started"], [])
        self.assertIn("supervisor", self.doc(c))

    def test_an_end_that_can_not_be_noted_at_once_is_noted_later(self):
        c = self.cluster()
        c.up()
        temporary = c.state / f"cluster.json.{self.doc(c)['supervisor']['pid']}.tmp"
        temporary.mkdir()  # blocks the file that replaces cluster.json
        c.kill("node-0")
        wait_for(
            "a failure",
            lambda: "cluster.json is not written"
            in (c.state / "log" / "supervisor.log").read_text(),
            seconds=60,
        )
        self.assertNotIn("end", self.doc(c)["node-0"])
        temporary.rmdir()
        self.assertEqual(self.again(c, "node-0", 1)["end"]["how"], "killed by signal 9 (Killed)")

    def test_an_up_that_can_not_write_leaves_the_supervisor_that_there_is(self):
        c = self.cluster()
        c.up()
        supervisor = self.doc(c)["supervisor"]["pid"]
        os.kill(supervisor, signal.SIGSTOP)  # which would be quicker than `up`
        c.kill("node-0")
        up = subprocess.run(
            [HELIOS, "--state", c.state, *c.up_args],
            capture_output=True,
            text=True,
            env=c.env,
            timeout=60,
            check=False,
            restore_signals=False,  # a write beyond the limit fails, as on a full disk
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )
        self.assertEqual(up.returncode, 1)
        self.assertIn("cluster.json", up.stderr)
        self.assertTrue(alive(supervisor))
        os.kill(supervisor, signal.SIGCONT)
        self.again(c, "node-0", 1)

    def test_a_cluster_without_supervisor_is_repaired_by_up_only(self):
        c = self.cluster(supervise=False)
        c.up()
        self.assertNotIn("supervisor", self.doc(c))
        c.kill("l3d")
        self.assertEqual(c.json("up")["started"], ["l3d"])  # the flag is remembered
        self.assertNotIn("supervisor", self.doc(c))

    def test_what_a_daemon_prints_before_it_ends_stands_in_its_log(self):
        c = self.cluster()
        bin_ = c.dir / "bin"
        bin_.mkdir()
        for program in ("helios", "helios-l3d", "helios-controller"):
            shutil.copy2(BUILD / "bin" / program, bin_)
        (bin_ / "helios-agent").write_text(
            f'#!/bin/sh\n[ -e {c.dir}/bad ] || exec {BUILD}/bin/helios-agent "$@"\n'
            'echo "no luck today" >&2\nexit 3\n'
        )
        (bin_ / "helios-agent").chmod(0o755)
        done = subprocess.run(
            [bin_ / "helios", "--state", c.state, *c.up_args],
            capture_output=True,
            text=True,
            env=c.env,
            timeout=120,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        (c.dir / "bad").touch()
        c.kill("node-0")
        wait_for(
            "its failed restart",
            lambda: self.doc(c)["node-0"].get("end", {}).get("how") == "ended with status 3",
            seconds=60,
        )
        self.assertIn("no luck today", (c.state / "log" / "node-0.log").read_text())
        wait_for("a second attempt", lambda: self.doc(c)["node-0"]["restarts"] >= 2, seconds=60)
        (c.dir / "bad").unlink()
        wait_for(
            "its return",
            lambda: (e := self.doc(c)["node-0"])["ready"] and alive(e["pid"]),
            seconds=60,
        )

    def test_a_pool_that_is_cut_short_ends_its_daemon_with_a_sentence_and_not_by_a_signal(self):
        c = self.cluster()
        pool = pathlib.Path(c.up()["pool"])
        agent = c.pid("node-0")
        os.truncate(pool, 0)
        entry = self.again(c, "l3d", 1)  # with an empty pool
        self.assertEqual(entry["end"]["how"], "ended with status 1")
        self.assertRegex(
            (c.state / "log" / "l3d.log").read_text(),
            f"truncated by another program.*path={pool} has=0 ",
        )
        self.assertEqual((c.pid("node-0"), alive(agent)), (agent, True))

    def test_a_pool_is_missed_where_nobody_reads_what_it_has_lost(self):
        c = self.cluster()
        pool = pathlib.Path(c.up()["pool"])
        size = pool.stat().st_size
        os.truncate(pool, size // 2)
        entry = wait_for("the daemon's end", lambda: self.doc(c)["l3d"].get("end"), seconds=60)
        self.assertEqual(entry["how"], "ended with status 1")
        log = c.state / "log" / "l3d.log"
        self.assertRegex(
            log.read_text(), f"truncated by another program.* has={size // 2} had={size}"
        )
        wait_for("what to do", lambda: "; remove the file" in log.read_text(), seconds=60)

    def test_an_agent_outlives_a_table_of_chunks_that_is_cut_short(self):
        c = self.cluster()
        c.up()
        agent = c.pid("node-0")
        maps = pathlib.Path(f"/proc/{agent}/maps").read_text().split()
        table = pathlib.Path(next(word for word in maps if word.endswith(".chunks")))
        size = table.stat().st_size
        os.truncate(table, 0)
        log = c.state / "log" / "node-0.log"
        wait_for("its word", lambda: "table of chunks is damaged" in log.read_text(), seconds=60)
        wait_for(
            "another table", lambda: table.exists() and table.stat().st_size == size, seconds=60
        )
        self.assertEqual((c.pid("node-0"), alive(agent)), (agent, True))
        self.assertNotIn("end", self.doc(c)["node-0"])

    def test_down_kills_a_daemon_that_does_not_end_and_says_so(self):
        c = self.cluster()
        c.state.mkdir()
        with subprocess.Popen(
            ["/bin/sh", "-c", "trap '' TERM; echo up; exec sleep 1000"], stdout=subprocess.PIPE
        ) as stubborn:
            self.addCleanup(stubborn.kill)
            self.assertEqual(stubborn.stdout.readline(), b"up\n")
            start = int(
                pathlib.Path(f"/proc/{stubborn.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
            )
            (c.state / "cluster.json").write_text(
                json.dumps(
                    {
                        "nodes": 0,
                        "pool": str(c.dir / "pool"),
                        "l3d": {"pid": stubborn.pid, "start": start},
                    }
                )
            )
            done = c.run("down")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, "l3d did not end within 10 s of SIGTERM; it is killed")
            self.assertEqual(stubborn.wait(), -signal.SIGKILL)
        self.assertFalse(c.state.exists())

    def test_the_caller_of_up_is_not_kept_waiting_by_the_supervisor(self):
        c = self.cluster()
        c.up()  # reads its output to the end
        pid = self.doc(c)["supervisor"]["pid"]
        self.assertEqual(os.getsid(pid), pid)
        os.kill(pid, signal.SIGTERM)
        wait_for("its end", lambda: not alive(pid))


if __name__ == "__main__":
    unittest.main()

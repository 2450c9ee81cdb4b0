"""`helios up`, `down` and the configuration: what is kept, what is removed,
what repeated or failed starts do."""
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import (  # noqa: E402
    BUILD,
    HELIOS,
    Cluster,
    alive,
    cluster,
    small_disk,
    state_of,
    wait_for,
)

JOB = """
jobName: hello
parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, data_parallel_size: 1}
command: [/bin/sh, -c, 'echo said before the end']
"""


def pool_of(state):
    """Path of the pool of a state directory: named after the FNV-1a hash of the path."""
    value = 14695981039346656037
    for byte in str(state).encode():
        value = (value ^ byte) * 1099511628211 % (1 << 64)
    return pathlib.Path(f"/dev/shm/helios-{os.getuid()}-{value:016x}.pool")


def holds(pid, path):
    """The process has the file open."""
    try:
        return any(f.samefile(path) for f in pathlib.Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # one that it has closed meanwhile
        return False


class Case(unittest.TestCase):
    supervise = False  # a test that kills a daemon restarts it

    def cluster(self, **kwargs):
        """A cluster that is not up yet, one node of 32 MiB."""
        made = Cluster(
            **{"nodes": 1, "slots": 1, "size": "32MiB", "supervise": self.supervise, **kwargs}
        )
        self.addCleanup(shutil.rmtree, made.dir, True)
        self.addCleanup(made.run, "down", "--purge")
        return made


class Down(Case):
    def test_what_keep_kept_is_removed_by_purge_only(self):
        c = self.cluster()
        pool = pathlib.Path(c.up()["pool"])
        source, _ = checkpoints.llama(c.dir / "hf", layers=2, seed=3)
        c.json("model", "import", source, "--name", "m")
        job = c.submit(JOB)
        c.wait_job(job, "succeeded")
        kept = c.down("--keep")
        self.assertEqual(
            (kept["kept"], kept["removed"], kept["models"], kept["versions"], kept["jobs"]),
            (True, False, 1, 1, 1),
        )
        again = c.run("down")  # "is it really down?"
        self.assertEqual(again.returncode, 0)
        for word in ("1 model", str(c.state), "--purge"):
            self.assertIn(word, again.stdout)
        self.assertTrue(pool.exists())
        c.json("up")
        self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["m"])
        self.assertIn("said before the end", c.log(job))  # logs survive, too
        c.down("--keep")
        gone = c.run("down", "--purge").stdout
        for word in ("removed", "32.0 MiB", "1 model", "1 version", "1 job", str(c.state)):
            self.assertIn(word, gone)
        self.assertFalse(pool.exists() or c.state.exists())
        nothing = c.down("--purge")
        self.assertEqual(
            (nothing["stopped"], nothing["removed"], nothing["kept"]), ([], False, False)
        )

    def test_a_running_cluster_that_goes_says_what_went(self):
        c = self.cluster()
        pool = pathlib.Path(c.up()["pool"])
        self.assertEqual(pool, pool_of(c.state))
        said = c.run("down").stdout
        for word in ("stopped 3 daemons", "removed", "32.0 MiB", "0 models", str(c.state)):
            self.assertIn(word, said)
        self.assertFalse(pool.exists())

    @unittest.skipUnless(os.geteuid() == 0, "another user's process takes root")
    def test_a_down_that_waited_for_another_one_finds_nothing_to_do(self):
        c = self.cluster()
        c.state.mkdir()
        file = c.state / "cluster.json"
        file.write_text(json.dumps({"nodes": 0, "pool": str(c.dir / "pool")}))
        lock = os.open(c.state / "lock", os.O_CREAT | os.O_RDWR)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            [HELIOS, "--state", c.state, "down"], stdout=subprocess.PIPE, env=c.env, text=True
        ) as down:
            wait_for("its turn", lambda: holds(down.pid, c.state / "lock"))
            file.unlink()
            fcntl.flock(lock, fcntl.LOCK_UN)
            self.assertIn("there is no cluster", down.communicate(timeout=60)[0])
        self.assertEqual(down.returncode, 0)

    def test_nothing_is_removed_from_under_a_daemon_that_can_not_be_stopped(self):
        nobody = 65534
        with tempfile.TemporaryDirectory(prefix="helios-nobody-") as directory, subprocess.Popen(
            ["sleep", "1000"]
        ) as other:
            state, pool = pathlib.Path(directory, "state"), pathlib.Path(directory, "pool")
            state.mkdir()
            pool.write_bytes(b"shards")
            start = int(
                pathlib.Path(f"/proc/{other.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
            )
            (state / "cluster.json").write_text(
                json.dumps(
                    {"nodes": 0, "pool": str(pool), "l3d": {"pid": other.pid, "start": start}}
                )
            )
            for path in (directory, state, pool, state / "cluster.json"):
                os.chown(path, nobody, nobody)
            try:
                for flags in ((), ("--purge",)):
                    done = subprocess.run(
                        [HELIOS, "--state", state, "down", *flags],
                        capture_output=True,
                        text=True,
                        timeout=60,
                        check=False,
                        user=nobody,
                        env={"HELIOS_CONFIG": ""},
                    )
                    self.assertEqual(done.returncode, 1, done.stdout)
                    self.assertRegex(done.stderr, f"l3d.*{other.pid}")
                    self.assertTrue(pool.exists())
            finally:
                other.kill()

    @unittest.skipUnless(os.geteuid() == 0, "another user's directory takes root")
    def test_a_directory_of_another_user_is_refused(self):
        for part in ("", "run", "log"):
            with self.subTest(part), tempfile.TemporaryDirectory(prefix="helios-theirs-") as state:
                theirs = pathlib.Path(state, part)
                theirs.mkdir(exist_ok=True)
                os.chown(theirs, 65534, 65534)
                done = subprocess.run(
                    [HELIOS, "--state", state, "up"],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                    env={"HELIOS_CONFIG": ""},
                )
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(str(theirs), done.stderr)
                self.assertFalse(pathlib.Path(state, "cluster.json").exists())

    def test_keep_and_purge_exclude_each_other(self):
        self.assertIn("--purge", self.cluster().refuse("down", "--keep", "--purge", code=2))

    def test_commands_say_that_the_cluster_is_down_or_its_controller(self):
        c = self.cluster()
        c.up()
        c.kill("controllerd")
        self.assertRegex(c.refuse("nodes"), "Controller.*is not running.*helios up")
        c.down("--keep")
        self.assertRegex(c.refuse("nodes"), f"the cluster of {c.state} is down; `helios up`")


class File(Case):
    """Changes STATE/cluster.json, as an earlier release or an editor might have."""

    def change(self, c, change):
        path = c.state / "cluster.json"
        doc = json.loads(path.read_text())
        change(doc)
        path.write_text(json.dumps(doc))

    def test_a_field_of_the_wrong_type_is_named_with_its_file(self):
        c = self.cluster()
        c.up()
        before = (c.state / "cluster.json").read_text()
        for change, field in (
            (lambda d: d["l3d"].update(pid="7"), "field l3d.pid"),
            (lambda d: d["flags"].update(nodes=2), "field flags.nodes"),
            (lambda d: d.update(settings=[]), "field settings"),
            (lambda d: d.update(nodes=True), "field nodes"),
        ):
            self.change(c, change)
            for command in ("info", "up", "down"):
                said = c.refuse(command)
                for word in (str(c.state / "cluster.json"), field, "expected"):
                    self.assertIn(word, said)
            (c.state / "cluster.json").write_text(before)
        (c.state / "cluster.json").write_text("{")
        self.assertIn(f"{c.state}/cluster.json:1:", c.refuse("down"))
        (c.state / "cluster.json").write_text(before)
        self.assertEqual(c.json("info")["nodes"], 1)

    def test_a_file_of_an_earlier_release_is_read(self):
        c = self.cluster(up=("--l2-size", "1MiB"))
        pool = pathlib.Path(c.up()["pool"])
        self.assertEqual(len(list(pool.parent.glob(f"{pool.stem}*.l2"))), 1)

        def age(doc):
            for key in ("nodesEver", "serving", "supervisor"):
                doc.pop(key, None)
            for key in ("l3d", "controllerd", "node-0"):
                for member in ("fills", "metrics", "storeSocket"):
                    doc[key].pop(member, None)

        self.change(c, age)
        self.assertEqual(c.json("up")["started"], [])
        self.change(c, age)
        self.assertEqual(c.json("down")["stopped"], ["controllerd", "node-0", "l3d"])
        self.assertEqual(list(pool.parent.glob(f"{pool.stem}*")), [])


class Again(Case):
    def test_up_without_flags_is_as_before(self):
        c = self.cluster(nodes=2, up=("--l2-size", "1MiB"))
        pool = pathlib.Path(c.up()["pool"])
        c.kill("node-1")
        self.assertEqual(c.json("up")["started"], ["node-1"])
        known = {n["node"]["name"]: n["node"]["incarnation"] for n in c.json("nodes")["items"]}
        daemons = json.loads((c.state / "cluster.json").read_text())
        # not the one that was killed
        self.assertEqual(known["node-1"], daemons["node-1"]["incarnation"])
        c.down("--keep")
        info = c.json("up")
        self.assertEqual((info["nodes"], len(info["started"])), (2, 4))
        self.assertEqual(c.json("conf", "l3.size")["items"][0]["value"], str(32 << 20))
        c.kill("node-1")
        c.down()
        # nor the socket of the one that was killed
        self.assertEqual(list(pool.parent.glob(f"{pool.stem}*")), [])

    def test_a_password_in_the_environment_is_remembered_for_the_owner_only(self):
        # not used by this cluster
        c = self.cluster(env={"HELIOS_KUBE_MASTER": "http://me:hush@127.0.0.1:1"})
        c.up()
        self.assertEqual((c.state / "cluster.json").stat().st_mode & 0o777, 0o600)
        shown = c.run("conf", "-o", "json").stdout
        self.assertIn("http://me:***@127.0.0.1:1", shown)
        self.assertNotIn("hush", shown)

    def test_a_flag_that_differs_from_what_runs_is_an_error(self):
        c = self.cluster()
        c.up()
        for flags, words in (
            (("--nodes", 3), "--nodes 3.*has 1"),
            (("--l3-size", "1GiB"), "32MiB.*1GiB.*--l3-size"),
            (("--slots", 2), "--slots 2"),
            (("--l2-size", "8MiB"), "8MiB.*--l2-size"),
            (("--address", "127.0.0.2"), "--address"),
        ):
            self.assertRegex(c.refuse("up", *flags), words)
        self.assertEqual(len(c.json("nodes")["items"]), 1)
        # the same as before
        self.assertEqual(c.json("up", "--nodes", 1, "--l3-size", "32MiB")["started"], [])
        c.down("--keep")
        self.assertRegex(c.refuse("up", "--l3-size", "64MiB"), "32MiB.*--purge")
        # a stopped cluster can get another shape
        self.assertEqual(len(c.json("up", "--nodes", 2)["started"]), 4)
        cpus = [
            s["cpus"]
            for n in c.json("nodes")["items"]
            if n["state"] == "ready"
            for s in n["node"]["slots"]
        ]
        self.assertEqual(len(cpus), 2)

    def test_a_kept_pool_has_its_size_when_nobody_asks_for_one(self):
        c = self.cluster()
        config = c.dir / "c.yaml"
        config.write_text("l3.size: 24MiB\n")
        c.json("up", "--config", config)
        c.down("--keep")
        config.write_text("gc.interval: 5s\n")  # read again: it no longer names a size
        c.json("up")
        rows = {r["name"]: r["value"] for r in c.json("conf")["items"]}
        self.assertEqual((rows["l3.size"], rows["gc.interval"]), (str(24 << 20), "5000ms"))
        config.write_text("gc.interval: 6s\n")
        self.assertRegex(c.refuse("up"), f"gc.interval.*5s.*6s.*{config}:1")

    def test_the_environment_is_remembered_and_a_change_is_seen(self):
        c = self.cluster(env={"HELIOS_L3_SIZE": "24MiB"})
        c.up_args = ["up"]
        c.up()
        del c.env["HELIOS_L3_SIZE"]
        self.assertEqual(c.json("up")["started"], [])
        c.env["HELIOS_L3_SIZE"] = "40MiB"
        self.assertRegex(c.refuse("up"), "24MiB.*40MiB.*environment HELIOS_L3_SIZE")


class Stopped(Case):
    """A daemon that SIGSTOP has stopped is alive, and answers no call."""

    def stop(self, c, daemon):
        pid = c.pid(daemon)
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: alive(pid) and os.kill(pid, signal.SIGCONT))
        # a process that waits for a processor stops later
        wait_for(f"{daemon} to stop", lambda: state_of(pid) == "T")
        return pid

    def refused(self, c, stopped, pid):
        """`up` must fail and name the daemon and the remedy; returns the error."""
        done = c.run("up", "--timeout", "1s")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(
            done.stderr,
            (
                rf"stopped by a signal: {stopped} \(process {pid}\).*`kill -CONT {pid}`.*`kill"
                rf" -KILL {pid}`"
            ),
        )
        return done.stderr

    def test_a_silent_agent_does_not_take_the_controller_from_the_cluster(self):
        c = self.cluster(nodes=2)
        c.up()
        pid = self.stop(c, "node-1")
        c.kill("controllerd")
        self.assertRegex(
            self.refused(c, "node-1", pid),
            "the daemons that this `up` started and that serve keep running",
        )
        self.assertTrue(alive(c.pid("controllerd")))
        self.assertEqual(c.run("info").returncode, 0)
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(c.json("up")["started"], [])

    def test_an_agent_that_counts_as_ready_still_is_not_passed_over(self):
        c = self.cluster(env={"HELIOS_NODE_LOST": "100s"})
        c.up()
        self.refused(c, "node-0", self.stop(c, "node-0"))

    def test_a_controller_that_does_not_answer_is_named(self):
        c = self.cluster()
        c.up()
        self.assertIn(
            "the Controller does not answer",
            self.refused(c, "controllerd", self.stop(c, "controllerd")),
        )

    def test_down_kills_what_is_stopped_and_ends_its_ranks(self):
        c = self.cluster()
        c.up()
        job = c.submit(JOB.replace("echo said before the end", "echo pid $$; exec sleep 1000"))
        rank = int(wait_for("the rank", lambda: "pid " in (text := c.log(job)) and text).split()[1])
        pids = {daemon: self.stop(c, daemon) for daemon in ("node-0", "l3d", "controllerd")}
        down = c.run("down")
        self.assertEqual(down.returncode, 0, down.stderr)
        for daemon, pid in pids.items():
            self.assertIn(
                f"a signal has stopped {daemon} (process {pid}); it is killed", down.stderr
            )
        self.assertFalse(any(alive(pid) for pid in [rank, *pids.values()]))
        self.assertFalse(c.state.exists())

    def test_a_supervisor_that_is_stopped_is_replaced(self):
        c = self.cluster(supervise=True)
        c.up()
        pid = self.stop(c, "supervisor")
        self.assertEqual(c.json("up")["started"], [])
        self.assertFalse(alive(pid))
        self.assertTrue(alive(c.pid("supervisor")))


class Failed(Case):
    supervise = True

    def test_a_typo_leaves_nothing(self):
        for flags, words in (
            (("--devices", "emu:32MiB"), "node-0.*--l2-size"),
            (("--topology", "/etc/passwd"), "node-0.*hwloc"),
            (("--config", "/no/such.yaml"), "/no/such.yaml"),
        ):
            c = self.cluster(up=flags)
            self.assertRegex(c.refuse(*c.up_args), words)
            self.assertFalse(c.state.exists() or pool_of(c.state).exists())
            self.assertEqual(json.loads(c.run("down", "-o", "json").stdout)["stopped"], [])

    def test_a_failed_up_of_a_kept_cluster_keeps_it(self):
        c = self.cluster()
        pool = pathlib.Path(c.up()["pool"])
        source, _ = checkpoints.llama(c.dir / "hf", layers=2, seed=3)
        c.json("model", "import", source, "--name", "m")
        c.down("--keep")
        self.assertIn("node-0", c.refuse("up", "--topology", "/etc/passwd"))
        self.assertTrue(pool.exists())
        self.assertEqual(c.json("down")["stopped"], [])
        c.json("up")
        self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["m"])

    def stopped_half_way(self, c, end):
        """`up` while its Controller hangs; `end(process)` ends the wait.
        Returns the output of `up`."""
        bin_ = c.dir / "bin"
        bin_.mkdir()
        for program in ("helios", "helios-l3d"):
            shutil.copy2(BUILD / "bin" / program, bin_)
        (bin_ / "helios-controller").write_text(
            "#!/bin/sh\necho thinking about it >&2\nexec sleep 1000\n"
        )
        (bin_ / "helios-controller").chmod(0o755)
        command = [bin_ / "helios", "--state", c.state, *c.up_args]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=c.env
        ) as up:
            wait_for(
                "the Controller",
                lambda: (c.state / "cluster.json").exists()
                and "controllerd" in json.loads((c.state / "cluster.json").read_text()),
            )
            doc = json.loads((c.state / "cluster.json").read_text())
            end(up, doc)
            _, said = up.communicate(timeout=60)
        self.assertEqual(up.returncode, 1)
        self.assertFalse(c.state.exists())
        self.assertFalse(pathlib.Path(doc["pool"]).exists())
        self.assertFalse(any(alive(doc[name]["pid"]) for name in ("l3d", "controllerd")))
        return said

    def test_an_interrupted_up_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.assertIn(
                "interrupted",
                self.stopped_half_way(self.cluster(), lambda up, _: up.send_signal(number)),
            )

    def test_an_up_that_waits_in_vain_says_what_the_log_says_and_leaves_nothing(self):
        c = self.cluster(up=("--timeout", "1s"))
        self.assertRegex(
            self.stopped_half_way(c, lambda up, _: None), "controllerd.*1 s.*thinking about it"
        )

    def test_a_daemon_that_is_killed_is_told_by_its_signal(self):
        said = self.stopped_half_way(
            self.cluster(), lambda _, doc: os.kill(doc["controllerd"]["pid"], signal.SIGKILL)
        )
        self.assertRegex(said, "controllerd.*killed by signal 9")

    def test_a_full_disk_leaves_no_pool(self):
        for size in ("16k", "32k", "48k"):
            with small_disk(self, size) as directory:
                command = [HELIOS, "--state", f"{directory}/state", "up", "--l3-size", "8MiB"]
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    env={**os.environ, "HELIOS_CONFIG": ""},
                    timeout=60,
                    check=False,
                )
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, "No space left|is full|disk")
                self.assertFalse(pool_of(f"{directory}/state").exists())


class Filling(Case):
    """A pool daemon that fills 1 of 64 MiB and goes on when a file appears:
    works on machines of any speed."""

    SLOW = """#!/bin/sh
pool=$(echo "$*" | sed 's/.*--pool \\([^ ]*\\).*/\\1/')
truncate -s 64M "$pool"
dd if=/dev/zero of="$pool" bs=1M count=1 conv=notrunc 2>/dev/null
while [ ! -e {go} ]; do sleep 0.2; done
rm "$pool"
exec {real} "$@"
"""

    def slow(self, c):
        """Programs with a slow pool daemon; returns the command line of `up`."""
        bin_ = c.dir / "bin"
        bin_.mkdir()
        for program in ("helios", "helios-controller", "helios-agent"):
            shutil.copy2(BUILD / "bin" / program, bin_)
        (bin_ / "helios-l3d").write_text(
            self.SLOW.format(go=c.dir / "go", real=BUILD / "bin/helios-l3d")
        )
        (bin_ / "helios-l3d").chmod(0o755)
        return [bin_ / "helios", "--state", c.state, *c.up_args]

    def test_progress_is_shown_on_a_terminal_and_none_of_it_stays(self):
        c = self.cluster()
        main, side = pty.openpty()
        with subprocess.Popen(self.slow(c), stdout=side, stderr=side, env=c.env) as up:
            os.close(side)
            seen, deadline = b"", time.monotonic() + 30
            while b"l3d: 1.0 MiB of 64.0 MiB" not in seen and time.monotonic() < deadline:
                if select.select([main], [], [], 1)[0]:
                    seen += os.read(main, 4096)
            (c.dir / "go").touch()
            while True:
                try:
                    part = os.read(main, 4096)
                except OSError:  # the terminal's other end is closed
                    break
                if not part:
                    break
                seen += part
        os.close(main)
        self.assertIn("l3d: 1.0 MiB of 64.0 MiB", seen.decode())
        self.assertRegex(seen.decode().rsplit("\x1b[K", 1)[1], r"^up: 1 node")
        self.assertEqual(up.returncode, 0)

    def test_without_a_terminal_a_line_says_how_far_it_is(self):
        c = self.cluster()
        with subprocess.Popen(
            self.slow(c), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=c.env
        ) as up:
            line = up.stderr.readline()
            (c.dir / "go").touch()
            up.communicate(timeout=60)
        self.assertIn("l3d: 1.0 MiB of 64.0 MiB", line)
        self.assertEqual(up.returncode, 0)

    def test_without_progress_the_timeout_ends_it_and_says_how_far_it_was(self):
        c = self.cluster(up=("--timeout", "1s"))
        done = subprocess.run(
            self.slow(c), capture_output=True, text=True, env=c.env, timeout=60, check=False
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "l3d is still filling.*1.0 MiB of 64.0 MiB.*1 s.*--timeout")
        self.assertFalse(c.state.exists() or pool_of(c.state).exists())


class Configuration(Case):
    def free_port(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            return server.getsockname()[1]

    def test_up_takes_file_environment_and_flags_in_the_documented_order(self):
        c = self.cluster(env={"HELIOS_AGENT_L2_SIZE": "16MiB", "HELIOS_GC_INTERVAL": "7s"})
        port = self.free_port()
        (c.dir / "c.yaml").write_text(
            f"l3: {{size: 40MiB, listen: '127.0.0.1:{port}'}}\n"
            "agent: {l2_size: 8MiB, name: foo}\ngc.interval: 9s\nnode_lost: 11s\n"
        )
        info = c.json("up", "--config", c.dir / "c.yaml")
        self.assertEqual(info["l3"], f"127.0.0.1:{port}")
        self.assertEqual([n["node"]["name"] for n in c.json("nodes")["items"]], ["foo"])
        rows = {row["name"]: row for row in c.json("conf")["items"]}
        for name, value, origin, daemons in (
            ("l3.size", str(40 << 20), f"file {c.dir}/c.yaml:1", ["l3"]),
            ("agent.l2_size", str(16 << 20), "environment HELIOS_AGENT_L2_SIZE", ["foo"]),
            ("gc.interval", "7000ms", "environment HELIOS_GC_INTERVAL", ["controller"]),
            ("node_lost", "11000ms", f"file {c.dir}/c.yaml:4", ["controller"]),
            ("heartbeat", "1000ms", "default", ["controller"]),
            ("rpc.timeout", "10000ms", "default", ["controller", "foo"]),
        ):
            row = rows[name]
            self.assertEqual(
                (row["value"], row["origin"], row["daemons"]), (value, origin, daemons), name
            )
        tiers = {t["name"]: t["quotaBytes"] for t in c.json("nodes")["items"][0]["node"]["tiers"]}
        self.assertEqual(tiers["host"], 16 << 20)
        c.down("--keep")
        self.assertRegex(c.refuse("up", "--l3-size", "32MiB"), "40MiB.*32MiB")
        c.down("--purge")
        c.json("up", "--config", c.dir / "c.yaml", "--l3-size", "32MiB")
        self.assertEqual(
            [(r["value"], r["origin"]) for r in c.json("conf", "l3.size")["items"]],
            [(str(32 << 20), "flag --size")],
        )

    def test_an_option_of_one_node_is_refused_for_several(self):
        c = self.cluster(nodes=2, env={"HELIOS_AGENT_NAME": "foo"})
        self.assertRegex(c.refuse(*c.up_args), "agent.name.*HELIOS_AGENT_NAME.*--nodes is 2")

    def test_conf_narrows_and_shows_what_a_file_would_give(self):
        c = self.cluster()
        (c.dir / "c.yaml").write_text("l3.size: 128MiB\narchive.url: s3://me:hush@host/x\n")
        rows = {r["name"]: r for r in c.json("conf", "--config", c.dir / "c.yaml")["items"]}
        self.assertEqual(
            (rows["l3.size"]["value"], rows["l3.size"]["origin"]),
            (str(128 << 20), f"file {c.dir}/c.yaml:1"),
        )
        self.assertNotIn("hush", json.dumps(rows))
        self.assertEqual(
            {r["name"] for r in c.json("conf", "tier", "--config", c.dir / "c.yaml")["items"]},
            {"tier.high", "tier.low"},
        )
        self.assertIn(
            "'l3.size'", c.refuse("conf", "l3.sise", "--config", c.dir / "c.yaml", code=2)
        )
        offline = c.run("conf", "l3.size", "-o", "json")
        self.assertEqual(
            (offline.returncode, json.loads(offline.stdout)["items"][0]["origin"]), (0, "default")
        )
        self.assertIn("no cluster", offline.stderr)

    def test_the_cluster_is_found_by_the_users_file_and_nearer_names_come_first(self):
        with cluster(nodes=1, slots=1, size="32MiB") as c, tempfile.TemporaryDirectory() as home:
            env = {k: v for k, v in c.env.items() if not k.startswith(("HELIOS_", "XDG_"))}
            env.update(HOME=home, HELIOS_BUILD=str(BUILD))
            config = pathlib.Path(home, ".config/helios/helios.yaml")
            config.parent.mkdir(parents=True)

            def nodes(*flags, code=0, **more):
                done = subprocess.run(
                    [HELIOS, *flags, "nodes"],
                    capture_output=True,
                    text=True,
                    env={**env, **more},
                    timeout=60,
                    check=False,
                )
                self.assertEqual(done.returncode, code, done.stderr)
                return done.stdout + done.stderr

            config.write_text(f"controller.address: {c.info['controller']}\n")
            self.assertIn("node-0", nodes())
            # as the machine's Agents have it
            config.write_text(f"agent.controller: {c.info['controller']}\n")
            self.assertIn("node-0", nodes())
            config.write_text("controller.address: 127.0.0.1:1\n")
            self.assertIn("127.0.0.1:1", nodes(code=1))
            for flags, more in (
                (("--controller", c.info["controller"]), {}),
                ((), {"HELIOS_CONTROLLER": c.info["controller"]}),
                (("--state", str(c.state)), {}),
                ((), {"HELIOS_STATE": str(c.state)}),
                (("--state", str(c.state)), {"HELIOS_CONTROLLER": "127.0.0.1:1"}),
                (("--controller", c.info["controller"]), {"HELIOS_STATE": "/no/such"}),
            ):
                self.assertIn("node-0", nodes(*flags, **more))
            self.assertIn(
                "127.0.0.1:1",
                nodes(code=1, HELIOS_CONTROLLER="127.0.0.1:1", HELIOS_STATE=str(c.state)),
            )
            # a named cluster is not replaced by another
            self.assertIn("no cluster", nodes("--state", f"{home}/none", code=1))


if __name__ == "__main__":
    if not HELIOS.exists():
        print(f"skipped: {HELIOS} is not built")
        sys.exit(77)
    unittest.main(verbosity=2)

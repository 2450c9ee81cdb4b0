"""The programs as a user runs them: a cluster starts, models and jobs pass through it, daemons die,
nothing is lost."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, HELIOS, ROOT, Cluster, alive, cluster, wait_for  # noqa: E402
from support.terminal import on_terminal  # noqa: E402

SLEEPER = """
jobName: sleeper
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 2, data_parallel_size: 1}
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'echo rank $RANK of $WORLD_SIZE; env;
                        while [ ! -e %s ]; do sleep 0.2; done; echo bye']
"""


def processes_of(state):
    """Command lines that contain the state directory."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if str(state).encode() in line and int(entry.parts[2]) != os.getpid():
            found.append(line)
    return found


class UpAndDown(unittest.TestCase):
    def test_down_leaves_nothing_behind(self):
        c = Cluster()
        try:
            info = c.up()
            pool = pathlib.Path(info["pool"])
            self.assertTrue(pool.exists())
            nodes = c.json("nodes")["items"]
            self.assertEqual([n["state"] for n in nodes], ["ready", "ready"])
            self.assertEqual([len(n["slots"]) for n in nodes], [2, 2])
            self.assertEqual(c.up()["started"], [])  # a second time: nothing to do
            self.assertIn("--nodes 1", c.refuse("up", "--nodes", 1))
            stopped = c.down()
            self.assertEqual(sorted(stopped["stopped"]), ["controllerd", "l3d", "node-0", "node-1"])
            self.assertFalse(pool.exists())
            self.assertFalse(c.state.exists())
            wait_for("every process to be gone", lambda: not processes_of(c.state))
            self.assertEqual(c.down()["stopped"], [])  # again: fine
        finally:
            c.run("down", "--purge")
            shutil.rmtree(c.dir, ignore_errors=True)

    @unittest.skipUnless(
        socket.has_ipv6 and pathlib.Path("/proc/net/if_inet6").exists(), "this host has no IPv6"
    )
    def test_on_ipv6(self):
        for address in ("::1", "[::1]"):
            with cluster(nodes=1, up=("--address", address)) as c:
                self.assertRegex(c.info["controller"], r"^\[::1\]:\d+$")

    def test_a_config_file_reaches_every_daemon_and_each_has_a_metrics_port(self):
        def free_from(port):
            try:
                for p in range(port, port + 4):
                    with socket.create_server(("127.0.0.1", p)):
                        pass
                return port
            except OSError:
                return None

        port = next(filter(None, map(free_from, range(21000, 31000, 7))))
        for way in ("flag", "environment"):
            c = Cluster(up=("--config", "up.yaml") if way == "flag" else ())
            config = c.dir / "up.yaml"
            config.write_text(
                "plane: {backbone: lo, backbone_rate: 25Gbit}\nmetrics.listen:"
                f" 127.0.0.1:{port}\n"
            )
            if way == "environment":
                c.env["HELIOS_CONFIG"] = str(config)
            else:
                c.up_args[-1] = str(config)
            try:
                c.up()
                for i, daemon in enumerate(("l3d", "controllerd", "node-0", "node-1")):
                    said = json.loads((c.state / "cluster.json").read_text())[daemon]["metrics"]
                    self.assertEqual(said, f"127.0.0.1:{port + i}")
                    with urllib.request.urlopen(f"http://{said}/metrics", timeout=10) as answer:
                        text = answer.read().decode()
                    self.assertRegex(
                        text, r'helios_plane_info\{plane="backbone",[^}]*interface="lo"'
                    )
                c.down()
                config.write_text("plane: {backbon: lo}\n")
                self.assertIn("did you mean 'plane.backbone'", c.refuse(*c.up_args))
                self.assertFalse((c.state / "cluster.json").exists())  # before anything was started
            finally:
                c.run("down", "--purge")
                shutil.rmtree(c.dir, ignore_errors=True)

    def test_down_ends_the_ranks_of_an_agent_that_died(self):
        with cluster() as c:
            stop = c.dir / "stop"
            c.wait_job(c.submit(SLEEPER % stop), "running")
            c.kill("node-0")
            c.down()
            self.assertFalse(c.state.exists())
            wait_for("every rank to be gone", lambda: not processes_of(stop))

    def test_an_up_that_fails_or_is_killed_half_way_is_taken_down_or_finished(self):
        c = Cluster()
        try:
            bin_ = c.dir / "bin"
            bin_.mkdir()
            for program in ("helios", "helios-l3d"):
                shutil.copy2(BUILD / "bin" / program, bin_)
            up = [bin_ / "helios", "--state", c.state, *c.up_args]
            done = subprocess.run(up, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("controllerd", done.stderr)
            self.assertFalse(c.state.exists())
            self.assertFalse(processes_of(c.state))
            with subprocess.Popen(up) as killed:
                wait_for("the first daemon", lambda: (c.state / "cluster.json").exists())
                killed.kill()
            pool = pathlib.Path(c.up()["pool"])
            self.assertEqual([n["state"] for n in c.json("nodes")["items"]], ["ready", "ready"])
            c.down()
            wait_for("every process to be gone", lambda: not processes_of(c.state))
            self.assertFalse(pool.exists())
        finally:
            c.run("down", "--purge")
            shutil.rmtree(c.dir, ignore_errors=True)

    def test_a_pool_daemon_that_can_not_listen_leaves_no_pool(self):
        with socket.socket() as taken, tempfile.TemporaryDirectory() as directory:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            command = [
                BUILD / "bin" / "helios-l3d",
                "--listen",
                f"127.0.0.1:{taken.getsockname()[1]}",
                "--size",
                "8MiB",
                "--pool",
                f"{directory}/pool",
                "--socket",
                f"{directory}/sock",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("in use", done.stderr)
            self.assertEqual(os.listdir(directory), [])

    def test_a_pool_too_large_is_one_sentence(self):
        c = Cluster(size="900TiB")
        try:
            self.assertIn("--l3-size", c.refuse(*c.up_args, code=2))  # bad usage
            c.up_args[-1] = "8TiB"
            text = c.refuse(*c.up_args)
            self.assertIn("l3d", text)
            self.assertFalse(processes_of(c.state))
        finally:
            c.run("down", "--purge")
            shutil.rmtree(c.dir, ignore_errors=True)


class Models(unittest.TestCase):
    def test_import_show_pull_remove(self):
        with cluster() as c:
            directory, tensors = checkpoints.llama(c.dir / "hf", layers=2, seed=3)
            before = c.json("info")["pool"]["usedBytes"]
            done = c.json(
                "model",
                "import",
                directory,
                "--name",
                "m",
                "--tp",
                2,
                "--pp",
                2,
                "--vocab-divisor",
                1,
            )
            self.assertGreater(done["shards"], 0)
            # `info` shows the pool as the Controller last saw it; extents are rounded up.
            wait_for(
                "the pool to hold it", lambda: c.json("info")["pool"]["usedBytes"] >= done["bytes"]
            )
            self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["m"])
            out = c.dir / "r.safetensors"
            c.json("pull", "--model", "m", "--pp", 1, "--tp", 0, "--out", out)
            names, data = checkpoints.read(out)
            self.assertEqual(data["decoder.final_layernorm.weight"], tensors["model.norm.weight"])
            self.assertIn(
                "already exists",
                c.refuse("model", "import", directory, "--name", "m", "--tp", 1, "--pp", 1).replace(
                    "exists already", "already exists"
                ),
            )
            self.assertIn(
                "'nope'", c.refuse("pull", "--model", "nope", "--pp", 0, "--tp", 0, "--out", out)
            )
            self.assertRegex(
                c.refuse("pull", "--model", "m", "--pp", 7, "--tp", 0, "--out", out), "pp 7"
            )
            self.assertGreater(c.json("model", "rm", "m")["bytes"], 0)
            self.assertEqual(c.json("model", "ls")["items"], [])
            wait_for("the pool to be empty", lambda: c.json("info")["pool"]["usedBytes"] == before)

    def test_bad_checkpoints_are_one_sentence_and_leak_nothing(self):
        with cluster() as c:
            good, _ = checkpoints.llama(c.dir / "hf", layers=2, seed=3)
            for name, damage, expected in checkpoints.DAMAGES:
                bad = c.dir / name
                shutil.copytree(good, bad)
                damage(bad)
                text = c.refuse("model", "import", bad, "--name", "bad", "--tp", 2, "--pp", 2)
                self.assertRegex(text, expected, name)
            self.assertRegex(
                c.refuse("model", "import", good, "--name", "bad", "--tp", 3, "--pp", 1), "3"
            )
            self.assertRegex(
                c.refuse("model", "import", good, "--name", "bad", "--tp", 1, "--pp", 5), "5"
            )
            info = c.json("info")
            self.assertEqual(
                (info["shards"], info["pool"]["shards"], info["pool"]["usedBytes"]), (0, 0, 0)
            )
            c.json("model", "import", good, "--name", "good", "--tp", 2, "--pp", 2)

    def test_an_import_larger_than_the_pool_says_so_and_frees_all(self):
        with cluster(size="1MiB") as c:
            big, _ = checkpoints.llama(c.dir / "hf", layers=2, hidden=256, seed=1)
            self.assertRegex(
                c.refuse("model", "import", big, "--name", "big", "--tp", 1, "--pp", 1),
                "pool|space",
            )
            self.assertEqual(c.json("info")["pool"]["usedBytes"], 0)

    def test_a_controller_killed_during_an_import_leaves_no_half_model(self):
        with cluster(size="1GiB", env={"HELIOS_GC_GRACE": "0", "HELIOS_GC_INTERVAL": "200ms"}) as c:
            big, _ = checkpoints.llama(c.dir / "hf", layers=8, hidden=1024, seed=1)
            for daemon in ("controllerd", "l3d"):
                command = [
                    str(HELIOS),
                    "--state",
                    str(c.state),
                    "model",
                    "import",
                    str(big),
                    "--name",
                    "big",
                    "--tp",
                    "2",
                    "--pp",
                    "2",
                ]
                with subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ) as importing:
                    wait_for("the import to write", lambda: c.json("info")["pool"]["usedBytes"] > 0)
                    c.kill(daemon)
                    importing.wait(60)
                c.up()
                models = [m["name"] for m in c.json("model", "ls")["items"]]
                self.assertIn(models, ([], ["big"]))  # all or nothing
                if models:
                    c.json("model", "rm", "big")
                wait_for(
                    "orphans to be freed", lambda: c.json("info")["pool"]["usedBytes"] == 0, 30
                )


class Jobs(unittest.TestCase):
    def test_ranks_get_their_identity_and_logs_are_kept(self):
        with cluster() as c:
            stop = c.dir / "stop"
            job = c.submit(SLEEPER % stop)
            described = c.wait_job(job, "running")
            self.assertRegex(c.run("describe", job).stdout, rf"{job}\.1\.0 +running +- ")
            slots = {(k["node"], k["numaId"]) for k in described["plan"]["containers"]}
            self.assertEqual(len(slots), 4)
            where = {
                r["rank"]: (k["node"], r["pp"], r["tp"])
                for k in described["plan"]["containers"]
                for r in k["ranks"]
            }
            self.assertEqual(where[0][0], where[1][0])  # a tensor group on one server
            self.assertNotEqual(where[0][0], where[2][0])  # stages on different servers
            stop.touch()
            c.wait_job(job, "succeeded")
            for rank in range(4):
                text = c.log(job, rank)
                self.assertIn(f"rank {rank} of 4", text)
                self.assertIn("bye", text)
                for line in (
                    f"GLOBAL_RANK={rank}",
                    f"PIPELINE_PARALLEL_RANK={rank // 2}",
                    f"TENSOR_PARALLEL_RANK={rank % 2}",
                    "DATA_PARALLEL_RANK=0",
                    "CONTROLLER_L3_CACHE_ADDRESS=",
                    f"HELIOS_JOB={job}",
                    "HELIOS_ATTEMPT=1",
                    "MASTER_ADDR=",
                ):
                    self.assertIn(line, text)
            for flags, shown in (
                ((), text),
                (("--offset", 3), text[3:]),
                (("--tail", 2), "".join(text.splitlines(True)[-2:])),
                (("--offset", 1 << 30), ""),
                (("-f", "--offset", 1 << 30), ""),
            ):
                self.assertEqual(c.run("logs", job, "--rank", 3, *flags).stdout, shown, flags)
            self.assertTrue(
                all(s["job"] == "" for n in c.json("nodes")["items"] for s in n["slots"])
            )

    def test_a_controller_restart_loses_nothing_and_readopts_ranks(self):
        with cluster() as c:
            directory, _ = checkpoints.llama(c.dir / "hf", layers=2, seed=3)
            c.json("model", "import", directory, "--name", "m", "--tp", 2, "--pp", 2)
            shards = c.json("shard", "ls")["items"]
            stop = c.dir / "stop"
            job = c.submit(SLEEPER % stop)
            before = c.wait_job(job, "running")
            pids = [r["pid"] for k in before["containers"] for r in k["ranks"]]
            c.kill("controllerd")
            self.assertEqual([p for p in pids if not alive(p)], [], before["containers"])
            self.assertEqual(c.up()["started"], ["controllerd"])
            after = c.job(job)
            self.assertEqual((after["state"], after["attempt"]), ("running", 1))
            self.assertTrue(all(alive(p) for p in pids))
            again = c.json("shard", "ls")["items"]
            self.assertEqual([s["id"] for s in again], [s["id"] for s in shards])
            stop.touch()
            c.wait_job(job, "succeeded")

    def test_agent_and_pool_daemon_restarts_are_survived(self):
        with cluster() as c:
            directory, _ = checkpoints.llama(c.dir / "hf", layers=2, seed=3)
            c.json("model", "import", directory, "--name", "m", "--tp", 2, "--pp", 2)
            stop = c.dir / "stop"
            job = c.submit(SLEEPER % stop)
            pids = [r["pid"] for k in c.wait_job(job, "running")["containers"] for r in k["ranks"]]
            c.kill("node-0")
            c.kill("l3d")
            self.assertEqual(sorted(c.up()["started"]), ["l3d", "node-0"])
            self.assertTrue(all(alive(p) for p in pids))
            c.json("pull", "--model", "m", "--pp", 0, "--tp", 0, "--out", c.dir / "x")
            stop.touch()
            done = c.wait_job(job, "succeeded")
            self.assertEqual(done["attempt"], 1)

    def test_an_agent_that_a_service_manager_restarts_at_another_port_keeps_its_ranks(self):
        with cluster(nodes=1, slots=1) as c, contextlib.ExitStack() as stack:

            def agent():
                log = stack.enter_context(open(c.dir / "own.log", "a", encoding="utf-8"))
                process = subprocess.Popen(
                    [
                        BUILD / "bin/helios-agent",
                        "--name",
                        "own",
                        "--controller",
                        c.info["controller"],
                        "--state",
                        c.dir / "own",
                        "--rank-address",
                        "127.0.0.1",
                    ],
                    env=c.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                stack.callback(process.wait, 30)
                stack.callback(process.terminate)
                return process

            def registered(times):
                wait_for(
                    "the agent to register",
                    lambda: (c.dir / "own.log").read_text().count("agent: registered") == times,
                )

            c.kill("node-0")
            first = agent()
            registered(1)
            wait_for(
                "node-0 to be lost",
                lambda: [
                    n["node"]["name"] for n in c.json("nodes")["items"] if n["state"] == "ready"
                ]
                == ["own"],
            )
            stop = c.dir / "stop"
            job = c.submit((SLEEPER % stop).replace("_size: 2", "_size: 1"))
            [pid] = [r["pid"] for k in c.wait_job(job, "running")["containers"] for r in k["ranks"]]
            first.kill()
            first.wait()
            agent()
            registered(2)
            self.assertTrue(alive(pid))
            stop.touch()
            self.assertEqual(c.wait_job(job, "succeeded")["attempt"], 1)

    def test_a_killed_rank_restarts_the_gang_and_then_the_job_fails_with_its_reason(self):
        with cluster() as c:
            text = SLEEPER % (c.dir / "never") + "restarts: 1\n"
            job = c.submit(text)
            for attempt in (1, 2):
                running = wait_for(
                    f"attempt {attempt}",
                    lambda a=attempt: (d := c.job(job))["state"] == "running"
                    and d["attempt"] == a
                    and d,
                    30,
                )
                pid = running["containers"][2]["ranks"][0]["pid"]
                self.assertGreater(pid, 0)
                os.kill(pid, signal.SIGKILL)
            failed = c.wait_job(job, "failed")
            self.assertRegex(failed["reason"], "rank 2.*(signal 9|killed)")
            self.assertTrue(
                all(s["job"] == "" for n in c.json("nodes")["items"] for s in n["slots"])
            )

    def test_cancel_ends_every_process(self):
        with cluster() as c:
            job = c.submit(SLEEPER % (c.dir / "never"))
            pids = [r["pid"] for k in c.wait_job(job, "running")["containers"] for r in k["ranks"]]
            c.json("cancel", job)
            c.wait_job(job, "cancelled")
            wait_for("ranks to end", lambda: not any(alive(p) for p in pids))
            self.assertIn(
                f"job {job} is cancelled",
                c.refuse("drill", "--job", job, "--faults", "kill,bitflip"),
            )

    def test_a_name_that_means_several_jobs_is_refused_with_their_ids(self):
        with cluster(nodes=1, slots=2) as c:
            text = (
                "jobName: dup\ncommand: [/bin/sh, -c, 'echo of $HELIOS_JOB; while [ ! -e %s/%d ];"
                " do sleep 0.2; done']\n"
            )
            one, two = (c.submit(text % (c.dir, i)) for i in (1, 2))
            for job in (one, two):
                c.wait_job(job, "running")
            for command in ("cancel", "describe", "logs"):
                self.assertRegex(c.refuse(command, "dup"), f"'dup'.*{one}, {two}")
            self.assertEqual({j["state"] for j in c.json("list")["items"]}, {"running"})
            (c.dir / "2").touch()
            c.wait_job(two, "succeeded")
            self.assertEqual(c.job("dup")["id"], one)  # the only one that has not ended
            self.assertIn(f"of {one}", c.log("dup"))
            self.assertEqual(c.job(two)["state"], "succeeded")
            done = c.run("cancel", "dup")
            self.assertTrue(done.stdout.startswith(f"{one}: "), done.stdout + done.stderr)
            c.wait_job(one, "cancelled")
            self.assertEqual(c.job("dup")["id"], two)  # all have ended: the newest
            self.assertEqual(c.json("cancel", "dup"), {"state": "succeeded", "id": two})

    def test_a_job_that_has_no_room_waits_and_then_runs(self):
        with cluster() as c:
            stop = c.dir / "stop"
            first = c.submit(SLEEPER % stop)
            c.wait_job(first, "running")
            second = c.submit(SLEEPER % stop)
            self.assertEqual(c.job(second)["state"], "pending")
            self.assertRegex(c.job(second)["reason"], "4 .*0 ")
            stop.touch()
            c.wait_job(first, "succeeded")
            c.wait_job(second, "succeeded")

    def test_the_list_of_jobs_is_newest_first_with_times_and_fits_the_terminal(self):
        with cluster(nodes=1, slots=1) as c:
            text = (
                "jobName: %s\nparallelism: {tensor_parallel_size: 1}\n"
                "command: [/bin/sh, -c, '%s']\n"
            )
            jobs = [c.submit(text % ("tick", "sleep 1.2"))]
            done = c.wait_job(jobs[0], "succeeded")
            jobs.append(c.submit(text % ("tick", "true")))
            c.wait_job(jobs[1], "succeeded")
            jobs.append(
                c.submit(text % ("tock", "exit 3") + "workdir: /no/such/" + "long/" * 40 + "\n")
            )
            c.wait_job(jobs[2], "failed")
            listed = c.json("list")["items"]
            self.assertEqual([j["id"] for j in listed], jobs[::-1])
            self.assertEqual([j["id"] for j in c.json("list", "--last", 1)["items"]], jobs[2:])
            for key in ("plan", "yaml", "containers", "events"):
                self.assertNotIn(key, listed[1])
            self.assertEqual(len(c.job(jobs[1])["events"][0]["kind"]) > 0, True)
            self.assertGreaterEqual(done["finishedMs"] - done["startedMs"], 1000)
            table = c.run("list").stdout.splitlines()
            self.assertEqual([line.split()[0] for line in table], ["JOB", *jobs[::-1]])
            elapsed = float(re.search(r" ([0-9.]+)s(?: |$)", table[3])[1])  # of the first job
            passed = (done["finishedMs"] - done["startedMs"]) / 1000
            self.assertEqual(elapsed, int(passed * 10) / 10)  # completed tenths of a second
            self.assertIn("long/long", table[1])
            code, shown = on_terminal([HELIOS, "--state", c.state, "list"])
            plain = re.sub(r"\x1b\[[0-9]+m", "", shown).splitlines()
            self.assertEqual((code, len(plain)), (0, 4))
            self.assertLessEqual(max(map(len, plain)), 80)
            self.assertIn("\x1b[31mfailed\x1b[0m", shown)
            # prefixes of ids
            self.assertEqual(c.job("toc")["id"], jobs[2])
            self.assertEqual(c.run("logs", "toc").stdout, c.run("logs", jobs[2]).stdout)
            self.assertEqual(c.job("tick")["id"], jobs[1])  # a name means its newest job
            said = c.refuse("describe", "tic", code=2)
            self.assertTrue(jobs[0] in said and jobs[1] in said, said)
            self.assertIn("'tock-", c.refuse("cancel", jobs[2][:-1] + "99"))

    def test_bad_job_files_are_one_sentence_with_their_place(self):
        with cluster() as c:
            cases = [
                (
                    SLEEPER.replace("tensor_parallel_size: 2", "tensor_paralel_size: 2"),
                    "job.yaml:3:.*tensor_parallel_size",
                ),
                (
                    SLEEPER.replace("pipeline_parallel_size: 2", "pipeline_parallel_size: 0"),
                    "job.yaml:3:.*pipeline_parallel_size",
                ),
                (
                    SLEEPER.replace("pipeline_parallel_size: 2", "pipeline_parallel_size: 200"),
                    "slots",
                ),
                # the list is not closed: libyaml's position is after the last line
                ("jobName: [", "job.yaml:2:1:"),
                (SLEEPER + "model: {name: nope}\n", "'nope'"),
                ("jobName: x\ncommand: 'true'\n\0restarts: many\n", "NUL"),
                (f"jobName: x\ncommand: 'true'\nworkdir: {'d' * 65530}\n", "workdir has"),
            ]
            for text, expected in cases:
                path = c.dir / "job.yaml"
                path.write_text(text % () if "%s" not in text else text % "x")
                self.assertRegex(c.refuse("submit", path), expected)
            self.assertEqual(c.json("list")["items"], [])
            self.assertIn("gone.yaml", c.refuse("submit", c.dir / "gone.yaml"))

    def test_plan_and_submit_refuse_the_same_jobs_with_the_same_words(self):
        with cluster() as c:
            spec = ROOT / "examples" / "spec-job.yaml"  # the specification's own, for Kubernetes
            line = 1 + spec.read_text().splitlines().index(
                next(n for n in spec.read_text().splitlines() if "dockerImage" in n)
            )
            path = c.dir / "job.yaml"
            cases = [
                (spec.read_text(), f"job.yaml:{line}:1: dockerImage: "),
                ("jobName: x\ncommand: 'true'\nmounts: ['/a:/b']\n", "job.yaml:3:1: mounts: "),
                ("jobName: x\n", "command"),
                ("jobName: x\nmodel: {name: gone}\ncommand: 'true'\n", "'gone'"),
                (f"jobName: x\ncommand: 'true'\nworkdir: {'d' * 65530}\n", "workdir has"),
                (
                    "jobName: x\ncommand: 'true'\nresources: {gpus_per_rank: 1}\n",
                    "can never run here.*GPU",
                ),
            ]
            for text, expected in cases:
                path.write_text(text)
                told = [
                    c.refuse(command, path).replace(f"Controller.{command}Job", "")
                    for command in ("plan", "submit")
                ]
                self.assertRegex(told[0], expected)
                self.assertRegex(told[1], expected)
            self.assertEqual(c.json("list")["items"], [])

    def test_the_exit_status_of_plan_says_whether_the_job_fits_now(self):
        with cluster() as c:
            path = c.dir / "job.yaml"
            for size, status, never in ((2, 0, False), (4, 1, True)):
                path.write_text(
                    SLEEPER.replace("tensor_parallel_size: 2", f"tensor_parallel_size: {size}")
                    % "x"
                )
                self.assertEqual(c.run("plan", path).returncode, status)
                done = c.run("plan", path, "-o", "json")
                self.assertEqual(done.returncode, status, done.stderr)
                plan = json.loads(done.stdout)  # printed in either case
                self.assertEqual(
                    (plan["feasible"], plan["never"], plan["worldSize"]),
                    (status == 0, never, 2 * size),
                )
            job = c.submit(SLEEPER % (c.dir / "stop"))
            c.wait_job(job, "running")
            path.write_text(SLEEPER % "x")
            self.assertIn("would wait", c.refuse("plan", path))
            (c.dir / "stop").touch()
            c.wait_job(job, "succeeded")


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/python3
"""Trainings that lose ranks equal undisturbed ones: a gang that is restarted as a whole
equals the unsliced reference, and one whose lost ranks are replaced while the others stay
equals that one to the last bit."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
ROOT = needs.ROOT
sys.path.insert(0, str(ROOT / "examples"))

from support.cluster import Cluster, Daemon, alive, start_of, wait_for  # noqa: E402

import helios  # noqa: E402
import hf_llama  # noqa: E402
import reference_loss  # noqa: E402

torch.set_num_threads(1)
STEPS, SAVE, RANKS = 48, 8, 2
FOREVER = 1000000  # steps of a job that is cancelled
SPEAKS = 1  # of the last stage, the rank that prints the loss


class Replace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory(prefix="helios-replace-")
        cls.addClassCleanup(home.cleanup)
        cls.text = pathlib.Path(home.name, "text")
        cls.text.write_bytes(b"".join(b"the %d. quick brown fox; " % (i * i) for i in range(400)))
        model = hf_llama.Llama(
            hf_llama.Config(
                hidden_size=32,
                intermediate_size=48,
                max_position_embeddings=32,
                tie_word_embeddings=True,
            )
        )
        model.init_weights(seed=3)
        cls.hf = pathlib.Path(home.name, "hf")
        hf_llama.save(model, cls.hf)
        cls.c = Cluster.of_class(cls, nodes=2, slots=2, env={"HELIOS_JOB_HANG_AFTER": "6s"})
        cls.c.json("model", "import", f"{home.name}/hf", "--name", "m", "--tp", 1, "--pp", RANKS)

    def submit(self, steps: int = STEPS, save: int = SAVE, batch: int = 8, **more) -> str:
        return self.c.submit(
            json.dumps(
                {
                    "jobName": "replace",
                    "model": {"name": "m", "version": 1},
                    "parallelism": {"pipeline_parallel_size": RANKS},
                    "resources": {"ranks_per_slot": 1},
                    "nodeLostAfter": "60s",
                    "env": {"HELIOS_LIBRARY": os.environ["HELIOS_LIBRARY"]},
                    "command": [
                        sys.executable,
                        str(ROOT / "examples" / "train_gpt.py"),
                        f"--steps={steps}",
                        f"--save-every={save}",
                        f"--batch={batch}",
                        "--micro-batches=2",
                        f"--text={self.text}",
                        "--timeout=30",
                    ],
                    **more,
                }
            )
        )

    def lines(self, job: str, kind: str) -> list[dict]:
        head = f"HELIOS_{kind} "
        return [
            json.loads(line[len(head) :])
            for line in self.c.log(job, SPEAKS).splitlines()
            if line.startswith(head)
        ]

    def ranks(self, job: str) -> list[dict]:
        return [r for c in self.c.job(job)["containers"] for r in c["ranks"]]

    def steps_from(self, job: str, generation: int, count: int = RANKS) -> list[dict]:
        """The ranks, once all of them train in that generation."""

        def training():
            ranks = self.ranks(job)
            told = [r.get("progress", {}) for r in ranks]
            return (
                len(ranks) == count
                and all(p.get("generation", 0) >= generation and p["steps"] > 0 for p in told)
                and ranks
            )

        return wait_for(f"steps of generation {generation} of {job}", training, 120)

    def losses(self, job: str) -> list[float]:
        """The losses of the first steps; a step that was made twice must have the same loss both
        times, to the last bit."""
        losses: dict[int, float] = {}
        for p in self.lines(job, "PROGRESS"):
            self.assertEqual(losses.setdefault(p["step"], p["loss"]), p["loss"], p)
        return [losses[step] for step in range(STEPS)]

    def end(self, job: str) -> None:
        self.c.run("cancel", job)
        self.c.wait_job(job, "cancelled", "failed", "succeeded")

    def events(self, job: str, kind: str) -> list[str]:
        return [e["text"] for e in self.c.job(job)["events"] if e["kind"] == kind]

    def restarted(self) -> list[float]:
        """The curve of a gang that was restarted as a whole equals the unsliced model's."""
        job = self.submit(restarts=2)
        wait_for("the first version", lambda: self.lines(job, "SAVED"))
        os.kill(self.ranks(job)[0]["pid"], signal.SIGKILL)
        done = self.c.wait_job(job, "succeeded", "failed", seconds=120)
        self.assertEqual(
            (done["state"], done["attempt"]), ("succeeded", 2), self.c.log(job, SPEAKS)
        )
        self.assertEqual(self.events(job, "rank-replaced"), [])
        pulls = [
            json.loads(line.removeprefix("HELIOS_PULL "))
            for rank in range(RANKS)
            for line in self.c.log(job, rank).splitlines()
            if line.startswith("HELIOS_PULL ")
        ]
        steps = {p["step"] for p in pulls}  # logs are of the last attempt
        self.assertEqual(len(steps), 1, pulls)
        # the kill came after one of its saves
        self.assertLessEqual(steps, set(range(SAVE, STEPS, SAVE)), pulls)
        self.assertEqual({(p["path"], p["crc_failures"]) for p in pulls}, {("shm", 0)})
        losses = {p["step"]: p["loss"] for p in self.lines(job, "PROGRESS")}
        want = reference_loss.curve(self.hf, STEPS, 8, 1e-3, text=[str(self.text)])
        self.assertEqual(max(losses), STEPS - 1)
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, want[step], delta=1e-4, msg=f"step {step}")
        with helios.Session(self.c.info["controller"]) as session:
            moments = session.load_state_dict("m", kind="optim")
            self.assertEqual((session.meta()["step"], session.meta()["job"]), (STEPS, job))
            self.assertEqual(len(moments), 2 * len(session.load_state_dict("m")))
        return losses

    def accounted(self, job: str) -> None:
        """The parts of its time sum to the wall time, and each recovery's
        times are in the metrics."""
        now, seen = time.time() * 1000, self.c.job(job)
        ledger = seen["ledger"]
        parts = sum(ms for key, ms in ledger.items() if key.endswith("Ms") and key != "wallMs")
        self.assertEqual(parts, ledger["wallMs"])
        self.assertAlmostEqual(
            ledger["wallMs"] / (now - seen["submittedMs"]), 1, delta=0.01 + 1000 / ledger["wallMs"]
        )
        self.assertGreater(ledger["lostMs"], 0, ledger)
        # of another rank, which can be a step ahead
        made = [p["step"] for p in self.lines(job, "PROGRESS")]
        self.assertAlmostEqual(
            ledger["replayed"], len(made) - len(set(made)), delta=2, msg=str(ledger)
        )
        if ledger["replayed"] == 0:
            self.assertEqual(ledger["replayMs"], 0, ledger)
        elif ledger["replayed"] > len(self.events(job, "recovered")):
            # a gang is starting, or lost, up to its first step's end
            self.assertGreater(ledger["replayMs"], 0, ledger)
        counts = {
            line.split('"')[1]: int(line.split()[-1])
            for line in self.c.run("metrics", "controller").stdout.splitlines()
            if line.startswith("helios_recovery_seconds_count")
        }
        self.assertEqual(set(counts), {"start", "join", "load", "step", "total"})
        self.assertGreaterEqual(min(counts.values()), 2)

    def test_a_lost_rank_is_replaced_and_the_curve_stays_what_it_is(self):
        want = self.restarted()
        job = self.submit(FOREVER, recovery={"mode": "replace"}, spares=1)
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        wait_for("a version of its own", lambda: self.lines(job, "SAVED"))
        os.kill(before[0]["pid"], signal.SIGKILL)  # rank 0, where the ranks meet
        second = self.steps_from(job, 2)
        wait_for("the first recovery to be told", lambda: self.events(job, "recovered"))
        os.kill(second[1]["pid"], signal.SIGSTOP)  # the stop makes it fail

        def replaced_too():  # on a busy machine the gang may have met once more before
            ranks = self.steps_from(job, 3)
            return ranks[1]["pid"] != second[1]["pid"] and ranks

        third = wait_for("rank 1 to be replaced", replaced_too, 120)
        wait_for("the second one", lambda: len(self.events(job, "recovered")) == 2)
        self.assertRegex(
            "\n".join(self.events(job, "stalled")),
            r"(?m)^rank 1 on \S+ has made no step for .*: its process is stopped$",
        )
        wait_for(
            "the steps of the other job",
            lambda: max(p["step"] for p in self.lines(job, "PROGRESS")) >= STEPS - 1,
            120,
        )
        curve = self.losses(job)
        self.assertEqual({step: curve[step] for step in want}, want)
        self.assertEqual(self.c.job(job)["attempt"], 1)

        self.assertEqual(second[1]["pid"], before[1]["pid"], "the survivor keeps its process")
        self.assertNotEqual(second[0]["pid"], before[0]["pid"])
        self.assertEqual(third[0]["pid"], second[0]["pid"])
        self.assertNotEqual(third[1]["pid"], second[1]["pid"])
        replaced = self.events(job, "rank-replaced")
        self.assertEqual([text.split(" on ")[0] for text in replaced], ["rank 0", "rank 1"])
        self.assertIn("killed by signal 9", replaced[0])
        self.assertEqual(len(self.events(job, "recovered")), 2)
        self.accounted(job)
        self.end(job)
        for pid in (before[0]["pid"], second[1]["pid"], third[0]["pid"], third[1]["pid"]):
            wait_for(f"process {pid} to be gone", lambda pid=pid: not alive(pid))

    def shim(self, node: str, container: str) -> int:
        return int(
            (self.c.state / "agents" / node / "containers" / container / "shim.pid")
            .read_text()
            .split()[0]
        )

    def master_port(self, node: str, container: str) -> int:
        spec = json.loads(
            (self.c.state / "agents" / node / "containers" / container / "spec.json").read_text()
        )
        return int(next(v["value"] for v in spec["env"] if v["key"] == "MASTER_PORT"))

    @staticmethod
    def listen(port: int) -> socket.socket | None:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            return None

    def kill_server(self, node: str) -> None:
        """Kills Agent, shims and ranks at once, as when the power fails."""
        agent, shims = self.c.pid(node), []
        for lock in (self.c.state / "agents" / node / "containers").glob("*/shim.pid"):
            pid, start = map(int, lock.read_text().split()[:2])
            # otherwise the shim has ended, and the pid may belong to a daemon of another test
            if start_of(pid) == start:
                shims.append(pid)
        children = [
            int(pid)
            for shim in shims
            for pid in pathlib.Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
        ]
        for pid in (agent, *shims, *children):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)

    def parked(self, job: str) -> list[tuple[str, int]]:
        """Node and number of the running parked containers."""
        shown = self.c.job(job)
        states = {c["id"].rsplit(".", 1)[1]: c["state"] for c in shown["containers"]}
        return [
            (p["node"], p["index"])
            for p in shown["plan"]["containers"]
            if not p["ranks"] and states[str(p["index"])] == "running"
        ]

    def test_a_server_is_lost_and_its_rank_goes_on_in_a_spare_slot_of_another(self):
        beside = self.c.submit(
            json.dumps(
                {
                    "jobName": "beside",
                    "resources": {"ranks_per_slot": 1},
                    "command": ["/bin/sleep", "1000"],
                }
            )
        )
        self.addCleanup(self.end, beside)
        self.c.wait_job(beside, "running")
        job = self.submit(FOREVER, recovery={"mode": "replace"}, spareSlots=1, nodeLostAfter="6s")
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        plan = self.c.job(job)["plan"]["containers"]
        gone, stays = plan[0]["node"], plan[1]["node"]
        self.assertEqual([(c["node"], c["ranks"]) for c in plan[2:]], [(stays, [])])
        self.assertRegex(self.c.run("describe", job).stdout, rf"(?m)^ *2 +{stays}:\d +\S+ +spare")
        wait_for("a version of its own", lambda: self.lines(job, "SAVED"))
        wait_for("the spare", lambda: self.c.job(job)["containers"][2]["state"] == "running")
        port = self.master_port(gone, f"{job}.1.0")
        self.kill_server(gone)  # with rank 0, where the ranks meet
        # another process's, on the other server
        with wait_for("its port to be free", lambda: self.listen(port)):
            after = {r["rank"]: r for r in self.steps_from(job, 2)}
        self.assertNotEqual(self.master_port(stays, f"{job}.1.2"), port)
        seen = self.c.job(job)
        self.assertEqual((seen["attempt"], seen["state"]), (1, "running"))
        self.assertEqual(after[1]["pid"], before[1]["pid"], "the survivor keeps its process")
        self.assertEqual(
            [c["node"] for c in seen["plan"]["containers"] if c["ranks"]], [stays, stays]
        )
        self.assertEqual(
            self.events(job, "spare-used"),
            [f"container 2, parked on {stays}, takes the place of container 0"],
        )
        self.assertIn("silent for", self.events(job, "node-lost")[0])
        reached = max(p["step"] for p in self.lines(job, "PROGRESS"))
        wait_for(
            "a version after that",
            lambda: any(p["step"] > reached for p in self.lines(job, "SAVED")),
        )
        self.losses_agree(job)
        self.assertEqual(self.events(job, "spare-added"), [])  # there is no free slot
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)  # the server is back
        wait_for(
            "a spare in place of the one that was used", lambda: self.parked(job) == [(gone, 3)]
        )
        self.steps_from(job, 2)
        self.assertEqual(self.c.job(job)["attempt"], 1)

    def test_a_container_is_lost_on_a_server_that_stays_and_its_rank_goes_on(self):
        job = self.submit(FOREVER, recovery={"mode": "replace"}, spareSlots=1)
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        wait_for("a version of its own", lambda: self.lines(job, "SAVED"))
        wait_for("the spare", lambda: len(self.parked(job)) == 1)
        gone, spare = self.c.job(job)["plan"]["containers"][0]["node"], self.parked(job)[0]
        self.c.kill(gone)  # the Agent
        for pid in (self.shim(gone, f"{job}.1.0"), before[0]["pid"]):
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        second = {r["rank"]: r for r in self.steps_from(job, 2)}
        self.assertEqual(second[1]["pid"], before[1]["pid"], "the survivor keeps its process")
        self.assertEqual(
            self.events(job, "spare-used"),
            [f"container 2, parked on {spare[0]}, takes the place of container 0"],
        )
        self.assertRegex(
            self.events(job, "container-lost")[0],
            (
                rf"^container 0 on {gone} was lost: the container's shim \(process \d+\) ended"
                r" without a result"
            ),
        )
        wait_for(
            "a spare in place of the one that was used",
            lambda: [index for _, index in self.parked(job)] == [3],
        )

        # the parked container is lost, too
        os.kill(self.shim(self.parked(job)[0][0], f"{job}.1.3"), signal.SIGKILL)
        wait_for("another one in its slot", lambda: [index for _, index in self.parked(job)] == [4])
        self.losses_agree(job)
        self.assertEqual((self.c.job(job)["attempt"], self.c.job(job)["state"]), (1, "running"))

    def test_a_lost_container_without_a_spare_slot_is_started_again_where_it_was(self):
        job = self.submit(FOREVER, recovery={"mode": "replace"})
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        wait_for("a version of its own", lambda: self.lines(job, "SAVED"))
        place = self.c.job(job)["plan"]["containers"][0]
        # with rank 0, where the ranks meet
        os.kill(self.shim(place["node"], f"{job}.1.0"), signal.SIGKILL)
        second = {r["rank"]: r for r in self.steps_from(job, 2)}
        seen = self.c.job(job)
        self.assertEqual((seen["attempt"], seen["state"], seen["restarts"]), (1, "running", 0))
        self.assertEqual(second[1]["pid"], before[1]["pid"], "the survivor keeps its process")
        now = seen["plan"]["containers"][0]
        self.assertEqual(
            [now[k] for k in ("node", "numaId", "cpus")],
            [place[k] for k in ("node", "numaId", "cpus")],
        )
        self.assertEqual(
            self.events(job, "container-replaced"),
            [f"container 2 takes the slot of container 0 on {place['node']}"],
        )
        wait_for("the first process to be gone", lambda: not alive(before[0]["pid"]))
        self.losses_agree(job)

    def test_containers_whose_records_are_gone_are_replaced_and_their_processes_end(self):
        job = self.submit(FOREVER, recovery={"mode": "replace"})
        self.addCleanup(self.end, job)
        first = self.steps_from(job, 1)
        wait_for("a version of its own", lambda: self.lines(job, "SAVED"))
        nodes = [c["node"] for c in self.c.job(job)["plan"]["containers"]]
        home = self.c.state / "agents" / nodes[0] / "containers" / f"{job}.1.0"
        self.c.kill(nodes[0])  # the Agent
        shutil.rmtree(home)
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        second = {r["rank"]: r for r in self.steps_from(job, 2)}
        self.assertEqual(second[1]["pid"], first[1]["pid"], "the survivor keeps its process")
        self.assertFalse(alive(first[0]["pid"]))
        self.assertEqual(
            self.events(job, "container-lost"),
            [f"container 0 on {nodes[0]} was lost: it vanished from its node"],
        )
        self.assertEqual(
            self.events(job, "container-replaced"),
            [f"container 2 takes the slot of container 0 on {nodes[0]}"],
        )

        home = self.c.state / "agents" / nodes[1] / "containers" / f"{job}.1.1"
        self.c.kill(nodes[1])
        (home / "spec.json").write_text("{")  # of a running rank
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        third = {r["rank"]: r for r in self.steps_from(job, 3)}
        self.assertEqual(third[0]["pid"], second[0]["pid"], "the survivor keeps its process")
        self.assertFalse(alive(second[1]["pid"]))
        self.losses_agree(job)
        seen = self.c.job(job)
        self.assertEqual((seen["attempt"], seen["state"], seen["restarts"]), (1, "running", 0))

    def test_a_rank_of_a_silent_agent_is_ended_by_another_agent_of_its_machine(self):
        job = self.submit(
            FOREVER, save=FOREVER, recovery={"mode": "replace"}, spareSlots=1, nodeLostAfter="6s"
        )
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        wait_for("the spare", lambda: len(self.parked(job)) == 1)
        silent, stays = (self.c.job(job)["plan"]["containers"][i]["node"] for i in (1, 0))
        agent = self.c.pid(silent)
        os.kill(agent, signal.SIGSTOP)
        try:
            # no save is refused: there is none
            after = {r["rank"]: r for r in self.steps_from(job, 2)}
            self.assertEqual(after[0]["pid"], before[0]["pid"], "the survivor keeps its process")
            self.assertFalse(alive(before[1]["pid"]))
            self.assertIn(
                f"container of a silent Agent of this machine was ended id={job}.1.1",
                (self.c.state / "log" / f"{stays}.log").read_text(),
            )
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_for("a spare in the slot that it had", lambda: self.parked(job) == [(silent, 3)])
        self.assertEqual((self.c.job(job)["attempt"], self.c.job(job)["state"]), (1, "running"))

    def test_a_rank_that_lives_on_unseen_saves_nothing_and_ends(self):
        agents = {"node-0": self.c.pid("node-0")}
        self.addCleanup(self.c.up)
        # otherwise another Agent of the machine ends the rank
        moved = Daemon(self.c, "node-1").again("--host-id", "elsewhere")
        agents["node-1"] = self.enterContext(moved).pid
        job = self.submit(FOREVER, recovery={"mode": "replace"}, spareSlots=1, nodeLostAfter="6s")
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        wait_for("a version of its own", lambda: self.lines(job, "SAVED"))
        wait_for("the spare", lambda: len(self.parked(job)) == 1)
        silent, stays = (self.c.job(job)["plan"]["containers"][i]["node"] for i in (1, 0))
        agent, home = agents[silent], self.c.state / "agents" / silent / "containers" / f"{job}.1.1"
        # its rank goes on, and nothing on this machine has cut its connections
        os.kill(agent, signal.SIGSTOP)
        try:
            after = {r["rank"]: r for r in self.steps_from(job, 2)}
            self.assertEqual(after[0]["pid"], before[0]["pid"], "the survivor keeps its process")
            self.assertEqual(
                [c["node"] for c in self.c.job(job)["plan"]["containers"] if c["ranks"]],
                [stays, stays],
            )
            self.assertRegex(
                (home / "rank-1.log").read_text(),
                (
                    rf"container 1 of attempt 1 of job '{job}' was given up and can't (begin|commit"
                    r" to) a version"
                ),
            )
            wait_for("the process of before to end", lambda: not alive(before[1]["pid"]))
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_for("a spare in the slot that it had", lambda: self.parked(job) == [(silent, 3)])
        self.assertFalse(alive(before[1]["pid"]))
        self.losses_agree(job)
        self.assertEqual((self.c.job(job)["attempt"], self.c.job(job)["state"]), (1, "running"))

    def losses_agree(self, job: str) -> None:
        losses: dict[int, float] = {}
        for p in self.lines(job, "PROGRESS"):
            self.assertEqual(losses.setdefault(p["step"], p["loss"]), p["loss"], p)

    def slow_down(self, job: str, rank: dict) -> None:
        """Waits until it is reported as slow. It is slowed down while the test asks, too:
        on a busy machine that takes long."""
        over = threading.Event()

        def slow() -> None:
            while not over.is_set():  # it gets a tenth of the time
                os.kill(rank["pid"], signal.SIGSTOP)
                time.sleep(0.09)
                os.kill(rank["pid"], signal.SIGCONT)
                time.sleep(0.01)

        slower = threading.Thread(target=slow)
        slower.start()
        try:
            wait_for(
                "the slow rank to be named",
                lambda: any(
                    text.startswith(f"rank {rank['rank']} on ") for text in self.events(job, "slow")
                ),
                120,
            )
        finally:
            over.set()
            slower.join()

    def test_a_drill_names_ranks_and_kinds_and_finds_no_step_changed(self):
        job = self.submit(
            FOREVER,
            batch=6,
            recovery={"mode": "replace"},
            spares=1,
            parallelism={"data_parallel_size": 3},
        )
        self.addCleanup(self.end, job)
        self.steps_from(job, 1, 3)
        self.assertIn(
            "'fire' is not one of kill,stop,",
            self.c.run("drill", "--job", job, "--faults", "kill,fire").stderr,
        )
        faults = ["stop", "oom", "exit", "link", "disk", "bitflip"]
        done = self.c.run(
            "drill", "--job", job, "--faults", ",".join(faults), "--pause", "1s", "-o", "json"
        )
        self.assertTrue(done.stdout, done.stderr)
        report, told = json.loads(done.stdout), self.c.job(job)["events"]
        self.assertEqual(report["refused"], [])
        for f in report["faults"]:
            self.assertEqual((f["made"], f["recovered"]), (1, 1), (f, told))
            if " is slow: " not in f["wrong"]:  # on a machine that others use any rank can be slow
                self.assertEqual(
                    (f["named"], f["unnamed"]), (int(f["fault"] != "link"), 0), (f, told)
                )
        self.assertEqual((report["differing"], report["jumps"]), (0, 0), report)
        self.assertGreater(report["repeated"], 0, report)
        ranks = self.ranks(job)  # which take turns
        # one more where a replacement was lost as well, on a busy machine
        for rank, faults in zip(ranks, (1, 1, 2)):
            self.assertGreaterEqual(rank["replaced"], faults, told)
        self.slow_down(job, ranks[1])

    def test_a_rank_is_replaced_while_agents_are_away_and_when_the_controller_is_back(self):
        job = self.submit(FOREVER, recovery={"mode": "replace"}, spares=1)
        self.addCleanup(self.end, job)
        before = self.steps_from(job, 1)
        pages = [pathlib.Path(c["stepsFile"]) for c in self.c.job(job)["containers"]]

        def again():
            """Both ranks have made a step of the next generation: words 2 and 7 of their pages."""
            words = [struct.unpack("8Q", page.read_bytes()[:64]) for page in pages]
            return all(word[2] > 1 and word[7] > 0 for word in words)

        for daemon in ("node-0", "node-1"):
            self.c.kill(daemon)
        os.kill(before[0]["pid"], signal.SIGKILL)
        wait_for("steps without an Agent", again)
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        second = self.steps_from(job, 2)
        self.assertEqual((second[1]["pid"], second[0]["replaced"]), (before[1]["pid"], 1))
        self.c.kill("controllerd")  # loading asks it where the shards are
        os.kill(second[1]["pid"], signal.SIGKILL)
        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        third = self.steps_from(job, 3)
        self.assertEqual(
            (third[0]["pid"], third[1]["replaced"], self.c.job(job)["attempt"]),
            (second[0]["pid"], 1, 1),
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

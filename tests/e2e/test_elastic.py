#!/usr/bin/python3
"""A gang with a range of data parallel sizes: it loses a server, goes on with two of three
replicas, and has three again when the server is back. The loss equals that of the unsliced model
with the same global batch at every size."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
ROOT = needs.ROOT
sys.path.insert(0, str(ROOT / "examples"))

from support.cluster import Cluster, alive, wait_for  # noqa: E402

import hf_llama  # noqa: E402
import reference_loss  # noqa: E402

torch.set_num_threads(1)
FOREVER, SAVE, BATCH = 1000000, 4, 6
REPLICAS = {"min": 2, "max": 3}
# The example slowed down to five steps a second:
# the reference repeats the steps made while servers go and come.
PACED = """import sys, time, helios, train_gpt
report = helios.report
helios.report = lambda *values: (report(*values), time.sleep(0.2))
sys.exit(train_gpt.main(sys.argv[1:]))
"""


def parent(pid: int) -> int:
    """The shim of a rank: killing it removes what would restart the rank."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Elastic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory(prefix="helios-elastic-")
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
        cls.c = Cluster.of_class(cls, nodes=3, slots=1, env={"HELIOS_QUEUE_LIST": "main quota=3"})
        cls.c.json("model", "import", f"{home.name}/hf", "--name", "m", "--tp", 1, "--pp", 1)

    def spec(self, sizes, **more) -> str:
        return json.dumps(
            {
                "jobName": "elastic",
                "model": {"name": "m", "version": 1},
                "parallelism": {"data_parallel_size": sizes},
                "resources": {"ranks_per_slot": 1},
                "nodeLostAfter": "5s",
                "recovery": {"mode": "replace", "growAfter": "1s"},
                "env": {"HELIOS_LIBRARY": os.environ["HELIOS_LIBRARY"]},
                "workdir": str(ROOT / "examples"),
                "command": [
                    sys.executable,
                    "-c",
                    PACED,
                    f"--steps={FOREVER}",
                    f"--save-every={SAVE}",
                    f"--batch={BATCH}",
                    "--micro-batches=1",
                    f"--text={self.text}",
                    "--timeout=60",
                ],
                **more,
            }
        )

    def ranks(self, job: str) -> list[dict]:
        return sorted(
            (r for c in self.c.job(job)["containers"] for r in c["ranks"]), key=lambda r: r["rank"]
        )

    def steps_with(self, job: str, count: int, generation: int) -> list[dict]:
        """The ranks, once so many of them train in that generation or a later one."""

        def training():
            doc, ranks = self.c.job(job), self.ranks(job)
            told = [r.get("progress", {}) for r in ranks]
            return (
                doc["worldSize"] == len(ranks) == count and ranks
                if all(p.get("generation", 0) >= generation and p["steps"] > 0 for p in told)
                else None
            )

        return wait_for(f"steps of {count} ranks of {job}", training, 120)

    def steps(self, log: str) -> list[tuple[int, float]]:
        head = "HELIOS_PROGRESS "
        lines = [
            json.loads(line[len(head) :]) for line in log.splitlines() if line.startswith(head)
        ]
        return [(p["step"], p["loss"]) for p in lines]

    def events(self, job: str, kind: str) -> list[str]:
        return [e["text"] for e in self.c.job(job)["events"] if e["kind"] == kind]

    def held(self) -> int:
        return sum(q["slots"] for q in self.c.json("queue")["queues"])

    def lose(self, node: str, rank: dict) -> None:
        """Kills the server's processes all at once: no Agent reports the end of the others."""
        shim = parent(rank["pid"])
        self.c.kill(node)
        for pid in (shim, rank["pid"]):
            os.kill(pid, signal.SIGKILL)
        wait_for("the rank to be gone", lambda: not alive(rank["pid"]))

    def check_losses(self, steps: list[tuple[int, float]]) -> None:
        want = reference_loss.curve(
            self.hf, max(s for s, _ in steps) + 1, BATCH, 1e-3, text=[str(self.text)]
        )
        for step, loss in steps:
            self.assertAlmostEqual(loss, want[step], delta=1e-4, msg=f"step {step}")

    def test_a_gang_goes_on_without_a_server_and_grows_when_it_is_back(self):
        job = self.c.submit(self.spec(REPLICAS))
        self.addCleanup(self.c.run, "cancel", job)
        before = self.steps_with(job, 3, 1)
        wait_for("a version of its own", lambda: "HELIOS_SAVED" in self.c.log(job, 0))
        first = self.steps(self.c.log(job, 0))
        # the server of rank 0, where the ranks meet
        place = self.c.job(job)["plan"]["containers"][0]["node"]
        self.lose(place, before[0])

        second = self.steps_with(job, 2, 2)
        self.assertEqual(
            [r["pid"] for r in second],
            [r["pid"] for r in before[1:]],
            "the others keep their processes",
        )
        doc = self.c.job(job)
        self.assertEqual(
            (doc["attempt"], doc["nodeLosses"], doc["replicas"], doc["resizes"]), (1, 0, 2, 1)
        )
        self.assertEqual(self.events(job, "resized"), ["the gang goes on with 2 of 3 ranks"])
        self.assertEqual(self.held(), 2)
        self.assertIn(
            "it has 2 of at most 3 replicas and grows when", self.c.json("explain", job)["text"]
        )
        table = json.loads(self.c.run("ranktable", job).stdout)
        self.assertEqual(json.dumps(table).count('"rank_id"'), 2, table)

        self.assertEqual(self.c.run(*self.c.up_args).returncode, 0)
        third = self.steps_with(job, 3, 3)
        self.assertEqual([r["pid"] for r in third[:2]], [r["pid"] for r in second])
        self.assertNotIn(third[2]["pid"], [r["pid"] for r in before])
        self.assertEqual(
            self.events(job, "resized")[1:], ["the gang goes on with 3 ranks, it had 2"]
        )
        self.assertEqual((self.c.job(job)["attempt"], self.held()), (1, 3))
        at = third[0]["progress"]["step"]
        wait_for("steps of all three", lambda: self.steps(self.c.log(job, 0))[-1][0] > at)

        later = self.steps(self.c.log(job, 0))  # of the rank that used to be 1
        self.assertEqual(later[0][0] % SAVE, 0, "from a version on")
        self.assertLessEqual(later[0][0], first[-1][0] + 1)
        self.assertEqual(
            [step for step, _ in later],
            list(range(later[0][0], later[-1][0] + 1)),
            "no step is lost or made again by the growth",
        )
        self.assertIn('"rank": 2, "pp": 0, "tp": 0, "dp": 2', self.c.log(job, 2))
        self.check_losses(first + later)

    def test_what_can_not_be_is_refused_with_its_place(self):
        for sizes, said in (
            ({"min": 3, "max": 2}, "data_parallel_size: min 3 is more than max 2"),
            ({"min": 0, "max": 2}, "data_parallel_size.min: is 0, must be from 1 to"),
            (
                {"min": 4, "max": 9},
                "can never run in queue main: it needs 4 slots and the quota is 3",
            ),
        ):
            path = self.c.dir / "bad.yaml"
            path.write_text(self.spec(sizes))
            self.assertIn(said, self.c.refuse("submit", path))


if __name__ == "__main__":
    unittest.main(verbosity=2)

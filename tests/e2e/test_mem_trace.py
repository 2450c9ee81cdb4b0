"""`helios mem trace`: table, CSV, JSON and picture of one iteration agree with
the trace and its replay."""
import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import HELIOS  # noqa: E402

MIB = 1 << 20
KINDS = ("param", "grad", "p32", "momentum", "variance", "other")
SVG = "{http://www.w3.org/2000/svg}"


def training(layers, room):
    """Forward, backward and an optimizer on the device, under a tide."""
    chunks = [
        {
            "id": f"{kind}{i}",
            "kind": kind,
            "bytes": 8 * MIB,
            "init": "none" if kind == "grad" else "cpu",
        }
        for kind in ("param", "momentum", "grad")
        for i in range(layers)
    ]
    moments = []
    for i in list(range(layers)) + list(reversed(range(layers))):
        backward = len(moments) >= layers
        need = [[f"param{i}", "gpu", "r"]] + ([[f"grad{i}", "gpu", "w"]] if backward else [])
        moments.append(
            {
                "stage": "BWD" if backward else "FWD",
                "op": f'layer "{i}" <&>',
                "need": need,
                "avail": (room - i // 2) * 8 * MIB,
                "free": [],
            }
        )
    for i in range(layers):
        moments.append(
            {
                "stage": "ADAM",
                "op": "",
                "avail": room * 8 * MIB,
                "free": [f"grad{i}"],
                "need": [
                    [f"{k}{i}", "gpu", "r" if k == "grad" else "w"]
                    for k in ("param", "momentum", "grad")
                ],
            }
        )
    return {
        "chunks": chunks,
        "iteration": moments,
        "iterations": 3,
        "capacity": (room + 1) * 8 * MIB,
    }


def run(command, *args, rc=0):
    done = subprocess.run(
        [str(HELIOS), "mem", command, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == rc, (done.returncode, done.stderr)
    return done.stdout if rc == 0 else done.stderr


class Trace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.trace = training(8, 7)
        self.path = self.folder / "trace.json"
        self.path.write_text(json.dumps(self.trace))

    def test_the_table_is_the_replay_moment_by_moment(self):
        for policy in ("opt", "lru"):
            for mode in ("move", "copy"):
                options = ("--policy", policy, "--mode", mode)
                replay = json.loads(run("replay", self.path, *options, "-o", "json"))["per_iter"]
                for iteration in (0, 1):
                    self.check(self.csv(*options, "--iteration", iteration), replay[iteration])

    def csv(self, *options):
        run("trace", self.path, "--csv", self.folder / "out.csv", *options)
        return list(csv.DictReader(io.StringIO((self.folder / "out.csv").read_text())))

    def check(self, rows, moved):
        self.assertEqual(len(rows), len(self.trace["iteration"]))
        for row, moment in zip(rows, self.trace["iteration"]):
            self.assertEqual((row["stage"], row["op"]), (moment["stage"], moment["op"]))
            self.assertEqual(int(row["available"]), moment["avail"])
            self.assertEqual(int(row["capacity"]) - int(row["others"]), moment["avail"])
            self.assertEqual(sum(int(row[f"device_{k}"]) for k in KINDS), int(row["chunks"]))
            self.assertLessEqual(int(row["chunks"]), moment["avail"])
            for kind in ("param", "grad", "momentum"):
                needed = sum(8 * MIB for n in moment["need"] if n[0].startswith(kind))
                self.assertGreaterEqual(int(row[f"device_{kind}"]), needed)
        self.assertEqual({k: sum(int(r[k]) for r in rows) for k in ("h2d", "d2h")}, moved)

    def test_the_json_file_is_the_trace_and_the_output_the_table(self):
        run("trace", self.path, "--json", self.folder / "again.json")
        again = json.loads((self.folder / "again.json").read_text())
        self.assertEqual(again, self.trace)
        doc = json.loads(run("trace", self.path, "-o", "json"))
        rows = self.csv()
        self.assertEqual(doc["capacity"], self.trace["capacity"])
        self.assertEqual(
            [m["device"]["param"] for m in doc["moments"]], [int(r["device_param"]) for r in rows]
        )
        self.assertIn("FWD", run("trace", self.path))

    def areas(self, root, css):
        """The heights of an area's outline, one number per moment."""
        path = next(p.get("d") for p in root.iter(SVG + "path") if p.get("class") == css)
        return [float(step.split("H")[0].split()[1]) for step in path.split("L")[1:]]

    def test_the_picture_shows_what_the_table_says(self):
        run("trace", self.path, "--svg", self.folder / "out.svg")
        text = (self.folder / "out.svg").read_text()
        root = xml.fromstring(text)
        rows = self.csv()
        words = "|".join(t.text or "" for t in root.iter(SVG + "text"))
        for word in (
            "parameters",
            "gradients",
            "optimizer state",
            "activations and others",
            "capacity 64.0 MiB",
            "bytes on the device",
            "bytes moved",
            "moment of the iteration",
            "FWD",
            "BWD",
            "ADAM",
        ):
            self.assertIn(word, words)
        self.assertIn("prefers-color-scheme:dark", text)
        top, bottom = 84, 470  # of the plot: capacity and nothing

        def height(bytes_):
            return bottom - (bottom - top) * bytes_ / self.trace["capacity"]

        for css, value in (
            ("param", lambda r: int(r["device_param"])),
            (
                "state",
                lambda r: sum(
                    int(r[f"device_{k}"]) for k in ("param", "grad", "p32", "momentum", "variance")
                ),
            ),
            ("reserved", lambda r: int(r["available"])),
        ):
            drawn = self.areas(root, css)
            self.assertEqual(len(drawn), len(rows))
            for y, row in zip(drawn, rows):
                self.assertAlmostEqual(y, height(value(row)), delta=0.06)

    def test_an_iteration_that_the_trace_does_not_have_is_refused(self):
        self.assertIn(
            "no iteration 3; it has 0 to 2", run("trace", self.path, "--iteration", 3, rc=1)
        )
        self.assertIn("BWD", run("trace", self.path, "--iteration", 2))

    def test_what_was_written_is_said(self):
        out = self.folder / "out.svg"
        done = subprocess.run(
            [str(HELIOS), "mem", "trace", str(self.path), "--svg", str(out)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        self.assertEqual((done.stdout, done.stderr), ("", f"wrote {out}\n"))

    def test_many_moments_are_drawn_in_groups(self):
        self.trace["iteration"] = self.trace["iteration"] * 60  # 1440
        self.path.write_text(json.dumps(self.trace))
        run("trace", self.path, "--policy", "lru", "--svg", self.folder / "out.svg")
        self.assertEqual(
            len(self.areas(xml.fromstring((self.folder / "out.svg").read_text()), "param")), 720
        )

    def test_what_is_no_trace_or_does_not_fit_is_said_and_no_file_written(self):
        bad = self.folder / "bad.json"
        bad.write_text("{")
        self.assertIn("bad.json", run("trace", bad, "--svg", self.folder / "none.svg", rc=1))
        self.trace["iteration"][3]["avail"] = 5
        self.path.write_text(json.dumps(self.trace))
        self.assertIn(
            "moment 3 (FWD", run("trace", self.path, "--svg", self.folder / "none.svg", rc=1)
        )
        self.assertFalse((self.folder / "none.svg").exists())
        run("trace", rc=2)
        run("trace", self.path, "--policy", "best", rc=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""helios mem estimate through the command line; needs no cluster."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import HELIOS  # noqa: E402

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}


def estimate(*args, rc=0):
    done = subprocess.run(
        [str(HELIOS), "mem", "estimate", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == rc, done.stderr
    return done.stdout if rc == 0 else done.stderr


class Estimate(unittest.TestCase):
    def test_a_config_and_its_directory_say_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            path.write_text(json.dumps(GPT2))
            doc = json.loads(estimate(path, "-o", "json"))
            self.assertEqual(doc, json.loads(estimate(folder, "-o", "json")))
            self.assertEqual(doc["parameters"], 124439808)
            self.assertEqual(doc["bytes"], 16 * 124439808)
            self.assertEqual([k["perParameter"] for k in doc["kinds"]], [2, 2, 4, 4, 4])
            self.assertGreaterEqual(doc["l2"]["bytes"], doc["bytes"])
            self.assertNotIn("assumed", doc)
            reuse = json.loads(estimate(path, "--gradients", "reuse", "-o", "json"))
            self.assertEqual(reuse["bytes"], 14 * 124439808)
            single = json.loads(estimate(path, "--dtype", "fp32", "-o", "json"))
            self.assertEqual([k["perParameter"] for k in single["kinds"]], [4, 4, 4, 4])

    def test_the_world_shares_the_optimizer_s_state(self):
        doc = json.loads(estimate("1.5B", "--world", 3, "-o", "json"))
        alone = json.loads(estimate("1.5B", "-o", "json"))
        self.assertEqual(doc["parameters"], 1500000000)
        self.assertEqual(doc["l2"]["perProcess"] * 3, doc["l2"]["bytes"])
        self.assertGreaterEqual(doc["l2"]["perProcess"], 1500000000 * (2 + 2 + (4 + 4 + 4) / 3))
        self.assertLess(doc["l2"]["perProcess"], 1.05 * 1500000000 * 8)
        self.assertGreaterEqual(alone["l2"]["bytes"], alone["bytes"])
        self.assertGreater(doc["assumed"]["layers"], 0)
        text = estimate("1.5B")
        self.assertIn("device (L1), smallest", text)
        self.assertIn("config.json gives the real shape", text)
        # the range printed for chunks can contain the bytes printed
        count, low, high = re.search(
            r"(\d+) chunks of ([0-9.]+) MiB to ([0-9.]+) MiB", text
        ).groups()
        self.assertLess(int(count) * float(low) * 2**20, alone["kinds"][0]["bytes"])
        self.assertGreater(int(count) * float(high) * 2**20, alone["kinds"][0]["bytes"])

    def test_nonsense_is_a_usage_error_and_a_bad_config_a_failure(self):
        for text in ("0", "-1B", "1.5X", "nan", "1e30", "/no/such/config.json"):
            self.assertIn(
                "neither a number of parameters",
                estimate("--", text, rc=2) if text[0] == "-" else estimate(text, rc=2),
            )
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            for bad in (
                "",
                "{",
                "[]",
                '{"model_type": "gpt2"}',
                json.dumps(GPT2 | {"n_layer": -1}),
            ):
                path.write_text(bad)
                self.assertIn("config.json", estimate(path, rc=1))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/python3
"""`helios model verify`: every kind of version is proved from its bytes,
and a damaged byte is located in any of them."""
from __future__ import annotations

import itertools
import json
import pathlib
import random
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import Cluster, wait_for  # noqa: E402
from support.kill_case import poolfile  # noqa: E402

import helios  # noqa: E402

E, FE, H = 4, 8, 32


def mixtral(home):
    """A llama's attention with four experts in each of two layers."""
    checkpoints.llama(home, hidden=H, ffn=FE)
    header, data = checkpoints.read(home / "model.safetensors")
    tensors = {n: (header[n]["shape"], data[n]) for n in data if ".mlp." not in n}
    rng = random.Random(5)
    for layer in range(2):
        at = f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{at}.gate.weight"] = ([E, H], rng.randbytes(4 * E * H))
        for e, (w, shape) in itertools.product(
            range(E), (("w1", [FE, H]), ("w2", [H, FE]), ("w3", [FE, H]))
        ):
            tensors[f"{at}.experts.{e}.{w}.weight"] = (shape, rng.randbytes(4 * FE * H))
    checkpoints.write(home / "model.safetensors", tensors)
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(
        json.dumps(config | {"model_type": "mixtral", "num_local_experts": E})
    )
    return home


def lora(home, base):
    rng, tensors = random.Random(6), {}
    for layer, (name, rows) in itertools.product(range(2), (("q_proj", H), ("v_proj", H // 2))):
        at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        tensors |= {
            f"{at}.lora_A.weight": ([4, H], rng.randbytes(16 * H)),
            f"{at}.lora_B.weight": ([rows, 4], rng.randbytes(16 * rows)),
        }
    home.mkdir()
    checkpoints.write(home / "adapter_model.safetensors", tensors)
    (home / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "base_model_name_or_path": base,
                "r": 4,
                "lora_alpha": 8,
                "target_modules": ["q_proj", "v_proj"],
            }
        )
    )
    return home


class Verify(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tmp = tempfile.TemporaryDirectory(prefix="helios-e2e-verify-")
        cls.addClassCleanup(tmp.cleanup)
        cls.archive = pathlib.Path(tmp.name) / "archive"
        cls.c = Cluster(
            nodes=1,
            slots=1,
            size="128MiB",
            env={
                "HELIOS_ARCHIVE_URL": f"dir:{cls.archive}",
                "HELIOS_GC_INTERVAL": "200ms",
                "HELIOS_L3_QUARANTINE": "100ms",
            },
        )
        cls.addClassCleanup(shutil.rmtree, cls.c.dir, ignore_errors=True)
        cls.addClassCleanup(cls.c.run, "down")
        cls.c.up()
        cls.source, _ = checkpoints.llama(cls.c.dir / "llama", hidden=H)
        cls.count = 0

    def load(self, source, *sizes):
        Verify.count += 1
        self.c.json("model", "import", source, "--name", f"m{Verify.count}", *sizes)
        return f"m{Verify.count}"

    def save(self, name, tp_size=1, pp_size=1, ep_size=1, etp_size=0, dp_size=1, read=None, **how):
        """What every rank of that gang reads from the model,
        saved with state in its parameters' shape."""
        Verify.count += 1
        for pp, dp, tp in itertools.product(range(pp_size), range(dp_size), range(tp_size)):
            etp = etp_size or tp_size
            rank = helios.Rank(
                job=f"j{Verify.count}",
                model=name,
                pp=pp,
                tp=tp,
                dp=dp,
                pp_size=pp_size,
                tp_size=tp_size,
                dp_size=dp_size,
                ep=(dp * tp_size + tp) // etp % ep_size,
                ep_size=ep_size,
                etp_size=etp,
                world_size=pp_size * dp_size * tp_size,
                global_rank=(pp * dp_size + dp) * tp_size + tp,
            )
            with helios.Session(self.c.info["controller"], rank=rank) as me:
                state = {n: t.clone() for n, t in me.load_state_dict(read or name).items()}
                optim = {
                    f"exp_avg.{n}": t * 2 for n, t in state.items() if dp == 0 or ".experts." in n
                }
                saved = me.save_state_dict(state, 1, optim=optim, **how)
        self.assertTrue(saved.visible)
        return saved.version

    def proved(self, name, version):
        """Proved by the import or the last commit, and again from its bytes."""
        shown = {v["version"]: v for v in self.c.json("model", "show", name)["versions"]}[version]
        self.assertTrue(shown["proved"], shown["unproved"])
        found = self.c.json("model", "verify", f"{name}@{version}")
        self.assertTrue(found["ok"] and found["proved"], found)
        self.assertEqual((found["shards"], found["troubles"]), (shown["shards"], []))
        return found

    def test_a_version_at_another_size_than_the_models_is_proved(self):
        name = self.load(self.source, "--tp", 1, "--pp", 2)
        self.proved(name, 1)
        self.proved(name, self.save(name, tp_size=2, pp_size=1))

    def test_cuts_are_no_part_of_the_version(self):
        name = self.load(self.source)
        before = self.proved(name, 1)
        self.c.json("model", "reshard", name, "--tp-size", 2)
        self.assertTrue(
            any(s["derived"] for s in self.c.json("shard", "ls", "--model", name)["items"])
        )
        self.assertEqual(self.proved(name, 1)["shards"], before["shards"])

    def test_experts_of_several_ranks_are_proved(self):
        home = mixtral(self.c.dir / "mixtral")
        name = self.load(home, "--tp", 2, "--ep", 2, "--etp", 1)
        self.proved(name, 1)
        self.proved(name, self.save(name, tp_size=2, ep_size=2, etp_size=1))
        self.proved(name, self.save(name, tp_size=1, ep_size=4, etp_size=1, dp_size=4))

    def test_adapters_are_proved(self):
        base = self.load(self.source, "--tp", 2)
        name = self.load(lora(self.c.dir / "lora", base), "--base", base)
        self.proved(name, 1)
        version = self.save(name, tp_size=2)
        self.proved(name, version)
        self.assertTrue(
            json.loads(
                self.c.run("model", "diff", f"{name}@1", f"{name}@{version}", "-o", "json").stdout
            )["equal"]
        )
        self.proved(name, self.save(name, tp_size=1))  # reads a cut of it

    def test_a_model_that_a_save_made_is_proved_where_its_config_is_known(self):
        source = self.load(self.source, "--tp", 2)
        config = json.loads((self.c.dir / "llama" / "config.json").read_text())
        version = self.save("", tp_size=2, read=source, model="made", config=config)
        self.proved("made", version)
        self.save("", tp_size=2, read=source, model="bare")
        found = self.c.json("model", "verify", "bare")
        self.assertEqual((found["ok"], found["proved"]), (True, False))
        self.assertIn("no Hugging Face config", found["unproved"])

    def shard(self, name):
        """One shard of the version, and its bytes in the pool: (key, file, offset)."""
        s = next(
            s
            for s in self.c.json("shard", "ls", "--model", name)["items"]
            if s["part"] == "layer-0001"
        )
        return s, f"{name}@1/pp{s['pp']}/tp{s['tp']}/layer-0001"

    def flip(self, file, at):
        with file.open("r+b") as f:
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 4]))

    def flip_pooled(self, shard):
        extent = self.c.json("shard", "show", shard["id"])
        self.flip(pathlib.Path(self.c.info["pool"]), extent["offset"] + extent["sizeBytes"] - 9)

    def archived(self, shard):
        path = self.archive / shard["id"][:2] / f"{shard['id']}.safetensors"
        wait_for("the shard to be archived", path.exists)
        wait_for(
            "the catalogue to know of it",
            lambda: "L4"
            in {
                c["tier"]
                for c in self.c.json("shard", "show", shard["id"])["copies"]
                if not c["kept"]
            },
        )
        return path

    def test_a_byte_that_changed_in_the_pool_is_named_and_healed(self):
        name = self.load(self.source)
        shard, key = self.shard(name)
        self.archived(shard)
        self.flip_pooled(shard)
        text = self.c.refuse("model", "verify", name)
        self.assertIn(
            (
                f"{name}@1 is not whole: {key}: "
                f"shard {shard['id']} fails its checksum in L3 (chunks 0)"
            ),
            text,
        )
        self.assertIn("another copy is good", text)
        self.assertNotIn("shard drop", text)
        wait_for(
            "verify's own read to have it healed",
            lambda: self.c.run("model", "verify", name).returncode == 0,
        )

    def test_a_byte_that_changed_in_the_archive_is_named(self):
        name = self.load(self.source)
        shard, key = self.shard(name)
        path = self.archived(shard)
        self.flip(path, path.stat().st_size - 9)
        done = self.c.run("model", "verify", name, "-o", "json")
        self.assertEqual(done.returncode, 1)
        found = json.loads(done.stdout)
        self.assertEqual((found["ok"], found["proved"], len(found["troubles"])), (False, False, 1))
        self.assertIn(
            f"{key}: shard {shard['id']} fails its checksum in L4 (as a whole)",
            found["troubles"][0],
        )

    def test_a_version_that_is_in_the_archive_only_is_read_there_and_not_loaded(self):
        name = self.load(self.source)
        shards = self.c.json("shard", "ls", "--model", name)["items"]
        for shard in shards:
            self.archived(shard)
            self.c.json("shard", "drop", shard["id"], "--from", "l3")
        found = self.proved(name, 1)
        self.assertEqual((found["copies"], found["archived"]), (found["shards"], len(shards)))
        pool = set(poolfile.sealed(pathlib.Path(self.c.info["pool"])))
        self.assertEqual(pool & {s["id"] for s in shards}, set())
        self.assertIn(
            f"archived    {len(shards)} of them only in the archive",
            self.c.run("model", "verify", name).stdout,
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

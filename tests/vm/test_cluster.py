"""The programs together, with the data backbone on the RDMA device."""
import contextlib
import json
import pathlib
import shutil
import subprocess

from harness import test
from l3d import NETWORK, slow_cluster
from prepare import packets
from support import checkpoints
from support.cluster import BUILD, wait_for


def toy(c):
    directory, tensors = checkpoints.llama(c.dir / "hf", layers=2, hidden=256, ffn=512, seed=5)
    c.json("model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1)
    return tensors


def pulled(c, path):
    out = c.dir / f"{path}.safetensors"
    told = c.json(
        "pull",
        "--model",
        "toy",
        "--pp",
        0,
        "--tp",
        0,
        "--path",
        path,
        "--timeout",
        "300s",
        "--out",
        out,
    )
    return told, out


def pulled_over_rdma(c, note):
    told, out = pulled(c, "net")
    note(json.dumps(told))
    assert told["path"] == "rdma" and told["crcFailures"] == 0, told
    return told, out


@test("a pull over the network reads from helios-l3d over rdma; its bytes are the checkpoint's")
def pull(note):
    with slow_cluster(slots=1, env=NETWORK) as c:
        tensors = toy(c)
        before = packets()
        told, out = pulled_over_rdma(c, note)
        after = packets()
        assert after[1] - before[1] > told["bytes"] // 4096, (before, after)
        header, data = checkpoints.read(out)
        assert header["__metadata__"]["helios.part"], header["__metadata__"]
        for layer in range(2):
            for ours, theirs in (
                (f"decoder.layers.{layer}.mlp.linear_fc2.weight", "mlp.down_proj.weight"),
                (
                    f"decoder.layers.{layer}.self_attention.linear_proj.weight",
                    "self_attn.o_proj.weight",
                ),
            ):
                assert data[ours] == tensors[f"model.layers.{layer}.{theirs}"], ours
        _, mapped = pulled(c, "shm")
        assert mapped.read_bytes() == out.read_bytes()


@test(
    "after helios-l3d has been killed and restarted, a new pull reads its new incarnation over rdma"
)
def restart(note):
    with slow_cluster(slots=1, env=NETWORK) as c:
        toy(c)
        _, out = pulled(c, "net")
        good = out.read_bytes()
        c.kill("l3d")
        assert c.up()["started"] == ["l3d"]
        told, out = pulled_over_rdma(c, note)
        assert out.read_bytes() == good


@contextlib.contextmanager
def far_agent(c, name):
    """An Agent that cannot see this cluster's directory, as on another host:
    it can use only the network."""
    state, pool = f"/tmp/{name}", f"/dev/shm/{name}.l2"
    command = [
        "unshare",
        "-m",
        "sh",
        "-ec",
        f"mount -t tmpfs none {c.dir}; exec \"$@\"",
        "sh",
        BUILD / "bin/helios-agent",
        "--name",
        name,
        "--host-id",
        name,
        "--controller",
        c.info["controller"],
        "--state",
        state,
        "--rank-address",
        "127.0.0.1",
        "--l2-size",
        "32MiB",
        "--l2-pool",
        pool,
    ]
    with open(f"{name}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, env=c.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_for(f"{name} to register", lambda: name in json.dumps(c.json("nodes")), 300)
        yield
    finally:
        process.terminate()
        process.wait(60)
        # Otherwise the next one of this name would adopt it.
        pathlib.Path(pool).unlink(missing_ok=True)
        shutil.rmtree(state, ignore_errors=True)


@test(
    "an Agent that has only the network copies a shard into its L2 over rdma, and it is good there"
)
def copy(note):
    with slow_cluster(slots=1, env=NETWORK, tcp=True) as c, far_agent(c, "far"):
        toy(c)
        shard = max(c.json("shard", "ls")["items"], key=lambda s: s["sizeBytes"])
        before = packets()
        done = c.json("shard", "copy", shard["id"], "--to", "far:l2")
        after = packets()
        note(json.dumps(done))
        assert done["transport"] == "rdma" and done["crc32"] == shard["crc32"], (done, shard)
        assert after[1] - before[1] > shard["sizeBytes"] // 4096, (before, after)
        shown = c.json("shard", "show", shard["id"], "--verify")
        note(json.dumps(shown)[:2000])


@test(
    "a node's L2 is the source of another node's: read over rdma,"
    " and good there when the first is gone"
)
def copy_from_l2(note):
    with slow_cluster(slots=1, env=NETWORK, tcp=True) as c, far_agent(c, "near"), far_agent(
        c, "far"
    ):
        toy(c)
        _, mapped = pulled(c, "shm")
        shard = max(c.json("shard", "ls")["items"], key=lambda s: s["sizeBytes"])
        c.json("shard", "copy", shard["id"], "--to", "near:l2")
        c.json("shard", "drop", shard["id"], "--from", "l3")
        before = packets()
        done = c.json("shard", "copy", shard["id"], "--to", "far:l2")
        after = packets()
        note(json.dumps(done))
        assert done["transport"] == "rdma" and done["crc32"] == shard["crc32"], (done, shard)
        assert after[1] - before[1] > shard["sizeBytes"] // 4096, (before, after)
        c.json("shard", "drop", shard["id"], "--from", "near:l2")
        # The only copy now; a reader finds it there and checks it.
        told, out = pulled(c, "net")
        note(json.dumps(told))
        assert told["crcFailures"] == 0 and out.read_bytes() == mapped.read_bytes(), told

#!/usr/bin/python3
"""HybridPS in a job: ranks find the node's table and L3 through their environment, their chunks
appear among the node's tiers, what does not fit in the host's memory is spilled to L3, and a killed
rank leaves nothing behind."""
import copy
import ctypes
import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from helios import _loader
from support import checkpoints
from support.cluster import BUILD, cluster, wait_for
from support.ranks import ranks

CHUNK = 1 << 20


class ManagerOptions(_loader.Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("host_bytes", ctypes.c_uint64),
        ("device_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("devices", ctypes.c_uint32),
        ("lock_ms", ctypes.c_int),
        ("reap_ms", ctypes.c_int),
    ]


RANK = """
import os, sys, time
from hybridps import _abi
pool = _abi.Pool("emu:2MiB", "lru", "copy", 1 << 20, 3 << 20, None, 0)
ids = [pool.add(f"t{i}", _abi.PARAM, 1 << 20) for i in range(10)]
pool.layout()
for place in (_abi.HOST, _abi.DEVICE):
    for i in ids:
        group = _abi.Bundle([i], place, True)
        pool.access(group)
        pool.release(group)
print("pid", os.getpid(), "spilled", pool.stats()["spilled"], flush=True)
time.sleep(120)
"""


class Platform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = cluster(
            nodes=1, slots=1, size="64MiB", up=["--l2-size", "8MiB", "--devices", "emu:4MiB"]
        )
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        (cls.c.dir / "rank.py").write_text(RANK)

    def tiers(self):
        return {
            (n["node"], t["name"]): t for n in self.c.json("store")["items"] for t in n["tiers"]
        }

    def start(self):
        """A running rank: its pid, and the bytes it has spilled."""
        job = self.c.submit(
            "jobName: chunks\nrestarts: 0\nparallelism: {pipeline_parallel_size: 1,"
            " tensor_parallel_size: 1, data_parallel_size: 1}\ncommand: [/usr/bin/python3,"
            f" {self.c.dir}/rank.py]\n"
        )
        words = wait_for(
            "the rank", lambda: (t := self.c.log(job)).endswith("\n") and t.split(), 60
        )
        self.assertEqual(words[0], "pid", words)
        return job, int(words[1]), int(words[3])

    def test_chunks_are_among_the_tiers_until_the_rank_is_killed(self):
        empty = self.tiers()
        self.assertNotIn(("node-0", "chunks"), empty)
        job, pid, spilled = self.start()
        self.assertGreater(spilled, 0)
        tiers = self.tiers()
        device, host = tiers["node-0", "chunks:0"], tiers["node-0", "chunks"]
        self.assertEqual((device["tier"], host["tier"]), ("L1", "L2"))
        self.assertEqual(device["usedBytes"], 2 * CHUNK)
        self.assertEqual(host["usedBytes"], 3 * CHUNK)
        self.assertEqual(host["processes"], [{"pid": pid, "usedBytes": 3 * CHUNK}])
        self.assertEqual(host["kind"], "chunks")
        self.assertEqual(spilled % CHUNK, 0)
        lying = tiers["", "pool"]["usedBytes"] - empty["", "pool"]["usedBytes"]
        self.assertGreaterEqual(lying, spilled)
        self.assertLess(lying, spilled + 10 * (128 << 10))
        # readers do not find them
        self.assertEqual(tiers["", "pool"]["shards"], empty["", "pool"]["shards"])

        self.assertRegex(self.c.run("store").stdout, rf"pid {pid} +- +3\.0 MiB")
        wait_for("the heartbeat", lambda: "2.0 MiB+3.0 MiB" in self.c.run("nodes").stdout)
        metrics = self.c.run("metrics", "node-0").stdout
        self.assertIn('helios_tier_bytes{tier="L2",name="chunks",state="used"} 3145728', metrics)
        self.assertIn('helios_tier_bytes{tier="L1",name="chunks:0",state="used"} 2097152', metrics)
        self.assertIn(f'helios_chunk_bytes{{tier="L2",name="chunks",pid="{pid}"}} 3145728', metrics)

        os.kill(pid, signal.SIGKILL)
        self.c.wait_job(job, "failed")
        after = wait_for(
            "what it had to be given back",
            lambda: ("node-0", "chunks") not in (t := self.tiers()) and t,
            10,
        )
        self.assertEqual(after["", "pool"]["usedBytes"], empty["", "pool"]["usedBytes"])
        self.assertNotIn("helios_chunk_bytes{", self.c.run("metrics", "node-0").stdout)

    def test_the_agent_and_l3_may_be_restarted_under_a_rank(self):
        job, pid, spilled = self.start()
        self.c.kill("node-0")
        self.c.kill("l3d")
        self.c.up()
        tiers = wait_for(
            "the rank's chunks again", lambda: ("node-0", "chunks") in (t := self.tiers()) and t
        )
        self.assertEqual(tiers["node-0", "chunks"]["processes"][0]["pid"], pid)
        self.assertGreaterEqual(tiers["", "pool"]["usedBytes"], spilled)
        self.c.run("cancel", job)
        self.c.wait_job(job, "cancelled")
        wait_for("the pool to be empty", lambda: self.tiers()["", "pool"]["usedBytes"] == 0)


try:
    import torch
except ModuleNotFoundError:
    torch = None
else:
    os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
    import helios
    import hybridps

    class Tree(torch.nn.Module):
        """Children by the names of parameters."""

        def grow(self, name, value):
            head, _, rest = name.partition(".")
            if not rest:
                self.register_parameter(head, torch.nn.Parameter(value))
                return
            child = dict(self.named_children()).get(head)
            if child is None:
                child = (
                    Stage()
                    if name.count(".") < 3
                    and not isinstance(self, Stage)
                    and head not in ("decoder", "layers")
                    else Tree()
                )
                self.add_module(head, child)
            child.grow(rest, value)

    class Stage(Tree):
        """Uses every element of every parameter below it."""

        def forward(self, x):
            for p in self.parameters():
                rows = p.reshape(8, -1)
                x = torch.tanh(x + (rows * rows).mean(1) + rows.mean(1))
            return x

    class Net(Tree):
        def forward(self, x):
            for module in self.modules():
                if isinstance(module, Stage):
                    x = module(x)
            return (x * x).sum()


@unittest.skipIf(torch is None, "python3-torch is not installed")
class Training(unittest.TestCase):
    """A model that does not fit in the host's memory, beside a real L3."""

    @classmethod
    def setUpClass(cls):
        context = cluster(nodes=1, slots=1, size="256MiB")
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        checkpoints.llama(cls.c.dir / "toy", layers=6, hidden=128, ffn=512, vocab=256)
        cls.c.json("model", "import", cls.c.dir / "toy", "--name", "toy", "--tp", 1, "--pp", 1)

    def session(self):
        session = helios.init(self.c.info["controller"], rank=helios.Rank(model="toy"))
        self.addCleanup(helios.close)
        return session

    def make(self):
        """A model with the newest version's values, and an optimizer with its state."""
        session = self.session()
        net = Net()
        generator = torch.Generator().manual_seed(1)
        moments = session.load_state_dict(kind="optim")
        for name, value in session.load_state_dict(copy=True).items():
            # the imported version is random in every bit
            net.grow(
                name, value if moments else torch.randn(value.shape, generator=generator) * 0.1
            )
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        hybridps.restore_optimizer(optimizer, net, moments)
        return net, optimizer

    @staticmethod
    def train(net, optimizer, first, steps):
        losses = []
        for step in range(first, first + steps):
            optimizer.zero_grad(set_to_none=True)
            loss = net(torch.linspace(-1, 1, 8) * (step + 1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def manage(self, net, optimizer, limited=True):
        """The host has room for parameters and gradients, and an eighth of the rest."""
        data = sum(p.numel() * 4 for p in net.parameters())
        limit = (2 * data + data // 4) * limited
        client = hybridps.manage(
            net,
            optimizer,
            device=f"emu:{data}",
            whole=(Stage,),
            chunk_bytes=256 << 10,
            host_bytes=limit,
            spill=self.c.info["socket"],
        )
        self.addCleanup(client.close)
        return client, limit

    def pool_used(self):
        return next(
            t["usedBytes"]
            for n in self.c.json("store")["items"]
            for t in n["tiers"]
            if t["name"] == "pool"
        )

    def read_in_child(self, optimizer):
        """Runs in a fork of the training process."""
        read, refused = 0, []
        for state in optimizer.state.values():
            try:
                self.assertTrue(bool(state["exp_avg"].isfinite().all()))
                read += 1
            except hybridps.HybridPSError as error:
                refused.append(str(error))
        for words in refused:
            self.assertRegex(
                words, r'tensor ".*exp_avg.*" can.t be read in a forked child: .* below the host'
            )
        return "read all but what was spilled" if refused else f"{read} read, none refused"

    def test_a_host_that_is_smaller_than_the_model_s_data_gives_the_same_bits(self):
        plain, theirs = self.make()
        expected = self.train(plain, theirs, 0, 5)
        net, optimizer = self.make()
        before = self.pool_used()
        client, limit = self.manage(net, optimizer)
        with client:
            self.assertEqual(self.train(net, optimizer, 0, 5), expected)
            stats = client.stats()
            self.assertLessEqual(stats["host_peak"], limit)
            self.assertGreater(stats["spilled"], limit // 4)
            self.assertGreaterEqual(self.pool_used() - before, stats["spilled"])
            self.assertEqual(
                ranks(lambda _: self.read_in_child(optimizer), world=1)[0],
                "read all but what was spilled",
            )
            states = optimizer.state_dict()["state"]
        for a, b in zip(plain.parameters(), net.parameters()):
            self.assertTrue(torch.equal(a, b))
        for i, state in theirs.state_dict()["state"].items():
            for key, value in state.items():
                self.assertTrue(torch.equal(value, states[i][key]), key)
                self.assertTrue(torch.equal(value, optimizer.state_dict()["state"][i][key]), key)
        wait_for("the pool to be as before", lambda: self.pool_used() == before)

    def test_a_limit_that_only_the_node_sets_gives_the_same_bits(self):
        """As with helios-agent --chunk-memory: Adam's state yields and is spilled."""
        net, optimizer = self.make()
        expected = self.train(*self.make(), 0, 4)
        data = sum(p.numel() * 4 for p in net.parameters())
        limit = 2 * data + data // 4
        name = f"helios-test-limit-{os.getpid()}"
        table = ManagerOptions(
            name=name.encode(),
            host_bytes=limit,
            device_bytes=(ctypes.c_uint64 * 1)(4 * data),
            devices=1,
        )
        lib, manager = hybridps._abi.load_library(), ctypes.c_void_p()
        self.assertEqual(lib.hybridps_manager_open(ctypes.byref(table), ctypes.byref(manager)), 0)
        self.addCleanup(lib.hybridps_manager_close, manager)
        with hybridps.manage(
            net,
            optimizer,
            device=f"emu:{data}",
            whole=(Stage,),
            chunk_bytes=256 << 10,
            manager=name,
            spill=self.c.info["socket"],
        ) as client:
            self.assertEqual(self.train(net, optimizer, 0, 4), expected)
            stats = client.stats()
            self.assertEqual(stats["host_limit"], limit)
            self.assertLessEqual(stats["host_peak"], limit)
            self.assertGreater(stats["spilled"], limit // 4)

    def test_a_checkpoint_goes_from_the_chunks_to_the_pool_without_a_second_copy(self):
        for limited in (False, True):
            with self.subTest(limited=limited):
                self.check_checkpoint(limited)

    def check_checkpoint(self, limited):
        net, optimizer = self.make()
        client, _ = self.manage(net, optimizer, limited)
        with client:
            self.train(net, optimizer, 0, 3)
            session = helios.session()
            session.load_state_dict()
            grown = peak_growth(
                lambda: setattr(self, "saved", helios.save_state_dict(client, step=3 + limited))
            )
            self.assertTrue(self.saved.visible)
            total = sum(p.numel() * 12 for p in net.parameters())
            self.assertGreaterEqual(self.saved.bytes, total)
            print(
                f"saved {self.saved.bytes} bytes, resident memory grew by {grown} at the most",
                file=sys.stderr,
            )
            if not limited:  # otherwise what comes back is mapped twice: in the pool, and here
                self.assertLess(grown, total // 5)  # the largest part is a ninth
            value = {k: v.clone() for k, v in net.state_dict().items()}
            state = copy.deepcopy(optimizer.state_dict()["state"])
            goes_on = self.train(net, optimizer, 3, 3)
        again, other = self.make()
        self.assertEqual(helios.version(), self.saved.version)
        for name, loaded in again.state_dict().items():
            self.assertTrue(torch.equal(loaded, value[name]), name)
        for i, theirs in other.state_dict()["state"].items():
            self.assertEqual(set(theirs), {"exp_avg", "exp_avg_sq", "step"})
            for key in theirs:
                self.assertTrue(torch.equal(theirs[key], state[i][key]), key)
        resumed, _ = self.manage(again, other, limited)
        with resumed:
            self.assertEqual(self.train(again, other, 3, 3), goes_on)


def status(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def peak_growth(call):
    """How far resident memory peaked above its level before, in bytes."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


if __name__ == "__main__":
    unittest.main()

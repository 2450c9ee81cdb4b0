#!/usr/bin/python3
"""Tensors of helios.load_state_dict on a real cluster: they may be written, and nobody else sees it;
helios.init() finds the cluster; the process ends in silence with tensors wherever they live."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

try:
    import torch
except ImportError as missing:
    print(f"skipped: torch is not installed ({missing})")
    sys.exit(77)

from support import checkpoints  # noqa: E402
from support.cluster import BUILD, HELIOS, cluster  # noqa: E402

if not HELIOS.exists():
    print(f"skipped: {HELIOS} is not built")
    sys.exit(77)
os.environ["HELIOS_LIBRARY"] = str(BUILD / "lib" / "libhelios.so.0")

import helios  # noqa: E402

torch.set_num_threads(1)


def same(a, b):
    """Bit for bit: random bytes have NaNs among them."""
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


class Mapped(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = cls.enterClassContext(cluster(nodes=1, size="64MiB"))
        home = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="helios-m-")))
        directory, cls.bytes = checkpoints.llama(home / "hf")
        done = cls.world.run("model", "import", directory, "--name", "toy", "--tp", "1", "--pp", "1")
        assert done.returncode == 0, done.stderr
        cls.controller = cls.world.info["controller"]

    def setUp(self):
        self.session = self.enterContext(helios.Session(self.controller))

    def load(self, **options):
        return self.session.load_state_dict("toy", **options)

    def python(self, code, **env):
        """Run a program with the package; its exit status, output and errors."""
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CONTROLLER": self.controller, **env}
        for name in ("HELIOS_STATE", "HELIOS_CONTROLLER", "CONTROLLER_L3_CACHE_ADDRESS"):
            if name not in env or env[name] is None or env[name] == "":
                env.pop(name, None)
        return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, text=True,
                              capture_output=True, timeout=100, check=False)

    def test_a_write_in_place_is_the_process_own_and_the_pool_keeps_its_bytes(self):
        for path in ("shm", "net"):
            with self.subTest(path), helios.Session(self.controller, path=path) as session:
                first, second = session.load_state_dict("toy"), session.load_state_dict("toy")
                before = {name: t.clone() for name, t in first.items()}
                for tensor in first.values():
                    tensor.mul_(2)
                third = session.load_state_dict("toy", copy=True)
                for name, tensor in before.items():
                    self.assertTrue(same(first[name], tensor * 2), name)
                    self.assertTrue(same(second[name], tensor), name)
                    self.assertTrue(same(third[name], tensor), name)
                norm = torch.frombuffer(bytearray(self.bytes["model.norm.weight"]),
                                        dtype=torch.float32)
                self.assertTrue(same(third["decoder.final_layernorm.weight"], norm))

    def test_an_optimizer_trains_the_pulled_tensors_themselves(self):
        state = self.load()
        plain = {name: t.clone() for name, t in state.items()}
        for tensors in (state, plain):
            params = [torch.nn.Parameter(t) for t in tensors.values()]
            optimizer = torch.optim.SGD(params, lr=0.5)
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
        for name, tensor in plain.items():
            self.assertTrue(same(state[name], tensor), name)

    def test_memory_is_taken_for_the_pages_that_are_written_and_no_others(self):
        def private():
            lines = pathlib.Path("/proc/self/smaps").read_text().splitlines()
            inside = total = 0
            for line in lines:
                if "-" in line.split(" ")[0]:
                    inside = ".pool" in line
                elif inside and line.startswith("Anonymous:"):
                    total += int(line.split()[1])
            return total

        state = self.load()
        sum(float(t.float().sum()) for t in state.values())
        self.assertEqual(private(), 0)
        state["decoder.final_layernorm.weight"].zero_()  # 256 bytes
        self.assertIn(private(), range(1, 129))  # KiB: one page, two where it lies on a border

    def test_the_process_ends_in_silence_wherever_tensors_live(self):
        done = self.python("""
            import os, sys
            import helios
            from helios import _abi
            helios.init(os.environ["CONTROLLER"])
            session = helios.session()
            def load():
                return session.load_state_dict("toy")
            class Node:
                pass
            cycle = Node()
            cycle.me, cycle.tensors = cycle, load()
            in_globals = sys.kept_late = load()
            def frame():
                local = load()
                yield
                yield local
            sys.generator = frame()
            next(sys.generator)
            sys.module_kept = _abi
        """)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_tensor_that_outlives_the_module_globals_goes_in_silence(self):
        done = self.python("""
            import os, sys
            import helios
            from helios import _abi, _tensors, session
            with helios.Session(os.environ["CONTROLLER"]) as opened:
                kept = opened.load_state_dict("toy")
            for module in (helios, _abi, _tensors, session):
                for name in list(vars(module)):
                    if not name.startswith("__"):
                        vars(module)[name] = None
            del kept, opened
            print("dropped")
        """)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "dropped\n", ""))


if __name__ == "__main__":
    unittest.main()

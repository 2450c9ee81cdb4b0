#!/usr/bin/python3
"""Tensors of helios.load_state_dict on a real cluster: they can be written, and no other
process sees it; helios.init() finds the cluster; the process ends without messages
wherever its tensors are."""
from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
ROOT = needs.ROOT

from support import checkpoints  # noqa: E402
from support.cluster import cluster  # noqa: E402

import helios  # noqa: E402

torch.set_num_threads(1)


def same(a, b):
    """Bit for bit: random bytes include NaNs."""
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


class World(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = cls.enterClassContext(cluster(nodes=1, tcp=True, size="64MiB"))
        home = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="helios-m-")))
        directory, cls.bytes = checkpoints.llama(home / "hf")
        done = cls.world.run(
            "model", "import", directory, "--name", "toy", "--tp", "1", "--pp", "1"
        )
        assert done.returncode == 0, done.stderr
        cls.controller = cls.world.info["controller"]
        cls.home = home / "user"
        (cls.home / ".local/state").mkdir(parents=True)
        (cls.home / ".local/state/helios").symlink_to(cls.world.state)

    def setUp(self):
        self.session = self.enterContext(helios.Session(self.controller))

    def load(self, **options):
        return self.session.load_state_dict("toy", **options)

    def python(self, code, alone=False, **env):
        """Run a program with the package; its exit status, output and errors. `alone`: in an
        interpreter of its own, including its teardown."""
        outside = {
            k: v for k, v in os.environ.items() if not k.startswith(("HELIOS_", "CONTROLLER_"))
        }
        if not env:  # a process that knows the cluster's directory finds the secret there
            env = {"HELIOS_AUTH_SECRET_FILE": os.environ["HELIOS_AUTH_SECRET_FILE"]}
        env = {
            **outside,
            "HELIOS_LIBRARY": os.environ["HELIOS_LIBRARY"],
            "CONTROLLER": self.controller,
            "PYTHONPATH": str(ROOT / "python"),
            **env,
        }
        command = (
            [sys.executable, "-c", textwrap.dedent(code)]
            if alone
            else needs.command("-c", textwrap.dedent(code))
        )
        return subprocess.run(
            command, env=env, text=True, capture_output=True, timeout=100, check=False
        )


class Mapped(World):
    def test_a_session_that_is_dropped_leaves_no_thread_and_no_descriptor(self):
        def used():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        self.load()
        before = used()
        for _ in range(3):
            kept = helios.Session(self.controller).load_state_dict("toy")
            self.assertGreater(used(), before)  # its tensors keep it
            del kept
        gc.collect()
        self.assertEqual(used(), before)

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
                norm = torch.frombuffer(
                    bytearray(self.bytes["model.norm.weight"]), dtype=torch.float32
                )
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
        # KiB: one page, or two if it crosses a page boundary
        self.assertIn(private(), range(1, 129))

    def test_the_process_ends_in_silence_wherever_tensors_live(self):
        done = self.python(
            """
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
        """,
            alone=True,
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_tensor_that_outlives_the_module_globals_goes_in_silence(self):
        done = self.python(
            """
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
        """,
            alone=True,
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "dropped\n", ""))


class Find(World):
    """Outside of a job, and without an address."""

    INIT = """
        import helios, sys
        try:
            helios.init()
            print(len(helios.load_state_dict("toy")))
        except helios.HeliosError as error:
            print(type(error).__name__, error)
    """

    def test_the_local_cluster_is_found_as_the_command_finds_it(self):
        for env in ({"HELIOS_STATE": str(self.world.state)}, {"HOME": str(self.home)}):
            done = self.python(self.INIT, **env)
            self.assertEqual((done.stdout, done.stderr), (f"{len(self.load())}\n", ""))

    def test_a_configuration_file_names_the_controller(self):
        with tempfile.TemporaryDirectory() as home:
            path = pathlib.Path(home) / ".config/helios/helios.yaml"
            path.parent.mkdir(parents=True)
            path.write_text(
                f"controller:\n  address: {self.controller}\n"
                f"auth:\n  secret_file: {os.environ['HELIOS_AUTH_SECRET_FILE']}\n"
            )
            done = self.python(self.INIT, HOME=home)
            self.assertEqual((done.stdout, done.stderr), (f"{len(self.load())}\n", ""))
            path.write_text("controller:\n  address: 127.0.0.1:1\n")
            self.assertRegex(self.python(self.INIT, HOME=home).stdout, "Unavailable .*127.0.0.1:1")

    def test_without_a_cluster_it_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as empty:
            for env in ({"HELIOS_STATE": empty}, {"HOME": empty}):
                text = self.python(self.INIT, **env).stdout
                self.assertTrue(text.startswith("Unavailable "), text)
                for word in ("not in a Helios job", "`helios up`", 'controller="HOST:7400"', empty):
                    self.assertIn(word, text)

    def test_a_cluster_that_is_down_is_named(self):
        with tempfile.TemporaryDirectory() as state:
            path = pathlib.Path(state) / "cluster.json"
            path.write_text('{"controller": "127.0.0.1:1"}')
            text = self.python(self.INIT, HELIOS_STATE=state).stdout
            self.assertRegex(text, f"Unavailable .*{state} is down; `helios up`")
            path.write_text("{}")
            text = self.python(self.INIT, HELIOS_STATE=state).stdout
            self.assertRegex(text, f"Unavailable .*`helios up` in {state} did not finish")


if __name__ == "__main__":
    unittest.main()

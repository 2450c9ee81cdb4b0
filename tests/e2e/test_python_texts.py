#!/usr/bin/python3
"""What the Python packages say about wrong arguments and a missing torch,
and what an editor completes."""
from __future__ import annotations

import ast
import copy
import enum
import inspect
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
ROOT = needs.ROOT

import maco  # noqa: E402
from hybridps_model import hybridps  # noqa: E402


class HybridPS(unittest.TestCase):
    def refuse(self, pattern, *args, **options):
        with self.assertRaisesRegex(hybridps.HybridPSError, pattern):
            hybridps.manage(*args, **options)

    def test_a_device_without_a_size_is_refused_at_once(self):
        model = torch.nn.Linear(8, 8)
        self.refuse('"emu" has no memory.*emu:256MiB', model, None, device="emu")
        self.assertNotIn("forward", model.__dict__)

    def test_an_optimizer_of_another_model_is_refused_at_once(self):
        model, other = torch.nn.Linear(8, 8), torch.nn.Linear(3, 5)
        before = [p.data_ptr() for p in other.parameters()]
        self.refuse(
            r"optimizer Adam has none of the 2 managed parameters.*\(5, 3\)",
            model,
            torch.optim.Adam(other.parameters()),
            device="emu:1MiB",
        )
        self.assertEqual([p.data_ptr() for p in other.parameters()], before)
        self.assertIs(type(model.weight), torch.nn.Parameter)
        shared = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
        hybridps.manage(model, shared, device="emu:1MiB").close()

    def test_what_is_no_model_or_optimizer_is_refused_at_once(self):
        model = torch.nn.Linear(8, 8)
        self.refuse("^'model' is given where a torch.nn.Module belongs", "model", None)
        self.refuse("^3 is given where a torch.nn.Module belongs", [model, 3], None)
        self.refuse(r"^0\.1 is given where a torch.optim.Optimizer belongs", model, 0.1)
        self.assertNotIn("forward", model.__dict__)

    def test_an_option_of_another_type_is_refused_by_name(self):
        model = torch.nn.Linear(8, 8)
        for name, value, said in (
            ("device", torch.device("cpu"), "it is text, such as 'emu:256MiB'"),
            ("policy", 3, "it is text"),
            ("manager", 5, "it is text"),
            ("chunk_bytes", "4KiB", "it is a whole number from 0 on"),
            ("host_bytes", -5, "it is a whole number from 0 on"),
            ("prefetch", "a", "it is a whole number"),
            ("heat", 3, "it must be alpha, beta, window and tau"),
            ("group", True, "it must be a hybridps.Group"),
            ("reserved_bytes", 5, "it must be a function"),
            ("whole", torch.nn.Linear, "it must be a tuple of module types"),
            ("prefetch", 1 << 32, r"it is a whole number from -2\^31 on, below 2\^31"),
            ("plan_ahead", (1 << 32) + 6, "below"),
            ("native", "no", "it must be True or False"),
            ("keep_heap", "x", "it must be True or False"),
            ("shard", None, "it must be True or False"),
            ("one_copy", 0, "it must be True or False"),
            ("chunk_bytes", True, "it is a whole number"),
            ("whole", (int,), "it must be a tuple of module types"),
            ("seed", 1 << 64, "below"),
            ("spill_pause_ms", (1 << 32) + 1, "below"),
            ("device", "emu:1MiB\0x", "it is text"),
        ):
            self.refuse(f"^{name} is .*{said}", model, **{"device": "emu:1MiB", name: value})
        self.assertNotIn("forward", model.__dict__)
        with self.assertRaisesRegex(hybridps.HybridPSError, "^name is 3: it is text"):
            hybridps.Manager(3)
        with self.assertRaisesRegex(
            hybridps.HybridPSError, "^device_bytes is 3: it must be a list"
        ):
            hybridps.Manager("m", 4096, 3)

    def test_nothing_to_manage_is_refused(self):
        for model in (None, []):
            self.refuse(r"^model is (None|\[\]): there is nothing to manage", model, None)

    def test_what_a_client_can_not_take_is_refused_by_name(self):
        model = torch.nn.Linear(8, 8)
        with hybridps.manage(model, None, device="emu:1MiB") as client:
            for said, call in (
                ("^module is 3", lambda: client.register_module(3)),
                ("^name is 3", lambda: client.register_module(torch.nn.Linear(1, 1), 3)),
                ("^optimizer is 3", lambda: client.register_optim(3)),
                (
                    "^native is 'no'",
                    lambda: client.register_optim(torch.optim.Adam(model.parameters()), "no"),
                ),
                ("^3 is given where a parameter belongs", lambda: client.access(3)),
                ("^allreduce: tensor is 3", lambda: client.allreduce(3)),
                (
                    "^broadcast: tensor is torch.sparse_coo",
                    lambda: client.broadcast(torch.ones(1).to_sparse()),
                ),
                ("^phase is 3", lambda: client.trace(3)),
            ):
                with self.subTest(said), self.assertRaisesRegex(hybridps.HybridPSError, said):
                    call()

    def test_what_a_group_can_not_take_is_refused_by_name(self):
        good = {"name": f"texts-{os.getpid()}", "rank": 0, "world": 1}
        for name, value, said in (
            ("name", 3, "it is text"),
            ("name", "a\0b", "it is text"),
            ("rank", "0", "it is a whole number"),
            ("world", True, "it is a whole number"),
            ("timeout", 0, "a number of seconds"),
            ("timeout", 0.0001, "a number of seconds"),
            ("timeout", float("nan"), "a number of seconds"),
        ):
            with self.subTest(name, value=value), self.assertRaisesRegex(
                hybridps.HybridPSError, f"^{name} is .*{said}"
            ):
                hybridps.Group.shm(**{**good, name: value})
        with hybridps.Group.shm(**good) as group:
            for said, call in (
                ("^collective: tensor is 3", lambda: group.broadcast(3)),
                (
                    "^collective: tensor is torch.strided, meta",
                    lambda: group.allreduce(torch.ones(1, device="meta")),
                ),
                ("^src is '0'", lambda: group.broadcast(torch.ones(1), "0")),
                (
                    "lazy conjugate or negative",
                    lambda: group.allreduce_(torch._neg_view(torch.ones(1)), "max"),
                ),
            ):
                with self.subTest(said), self.assertRaisesRegex(hybridps.HybridPSError, said):
                    call()

    def test_a_function_of_reserved_bytes_that_returns_no_number_of_bytes_is_named(self):
        for value in (-1, 1.5, "x", None):
            model = torch.nn.Linear(8, 8)
            with hybridps.manage(
                model, device="emu:1MiB", reserved_bytes=lambda value=value: value
            ):
                with self.assertRaisesRegex(
                    hybridps.HybridPSError, "^the result of reserved_bytes is .*from 0 on"
                ):
                    model(torch.ones(8))

    def test_a_device_that_is_too_small_says_what_would_do(self):
        model = torch.nn.Sequential()
        model.add_module("gru", torch.nn.Linear(512, 100))  # 204800 and 400 bytes
        said = (
            r"^module gru needs 204\.0 KiB of device memory at once; "
            r"device emu:64KiB has 64\.0 KiB\. Use at least emu:204KiB"
        )
        with self.assertRaisesRegex(hybridps.HybridPSError, said):
            hybridps.manage(model, None, device="emu:64KiB", chunk_bytes=4096)
        # for which nothing is requested in advance
        with hybridps.Client("emu:64KiB", chunk_bytes=4096) as client:
            client.register_module(model)
            with self.assertRaisesRegex(hybridps.HybridPSError, said):
                model(torch.ones(1, 512))
        with hybridps.manage(model, None, device="emu:204KiB", chunk_bytes=4096), torch.no_grad():
            model(torch.ones(1, 512))

    def test_what_may_be_given_is_in_the_signature(self):
        client = inspect.signature(hybridps.Client.__init__).parameters
        for function in (hybridps.manage, hybridps.initialize):
            given = inspect.signature(function).parameters
            for name, parameter in client.items():
                if name not in ("self", "device"):
                    self.assertEqual(given[name].default, parameter.default, name)
            self.assertFalse([p for p in given.values() if p.kind is p.VAR_KEYWORD])
        with self.assertRaises(TypeError):
            hybridps.manage(torch.nn.Linear(2, 2), None, devise="emu:1MiB")

    def test_the_options_reach_the_client(self):
        with hybridps.manage(
            torch.nn.Linear(2, 2), None, "emu:1MiB", mode="move", host_bytes=1 << 20
        ) as client:
            self.assertEqual((client.state.mode, client.stats()["host_limit"]), ("move", 1 << 20))
            self.assertIn("register_module", dir(client))
            self.assertLess(len(dir(client)), 20)

    def test_the_packages_say_that_they_have_types(self):
        for name in ("helios", "hybridps", "maco"):
            self.assertTrue((ROOT / "python" / name / "py.typed").exists(), name)

    def test_completion_shows_public_names_and_each_is_typed(self):
        for package in (hybridps, maco):
            self.assertEqual(dir(package), sorted(package.__all__))
            for one in (getattr(package, name) for name in package.__all__):
                if (
                    inspect.ismodule(one)
                    or isinstance(one, type)
                    and issubclass(one, (Exception, enum.Enum))
                ):
                    continue
                signature = inspect.signature(one)
                untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
                self.assertEqual(untyped, [], one)

    def test_a_type_checker_finds_what_is_imported_late(self):
        tree = ast.parse((ROOT / "python" / "maco" / "__init__.py").read_text())
        told = {
            (line.module, name.name)
            for block in tree.body
            if isinstance(block, ast.If)
            for line in block.body
            for name in line.names
        }
        self.assertEqual(told, {(home, name) for name, home in maco._HOME.items()})

    def test_the_page_has_every_option_of_manage(self):
        page = (ROOT / "docs" / "hybridps.md").read_text()
        rows = re.findall(
            r"(?m)^\| (`[^|]+`) \|", page[page.index("## Choices") : page.index("## float16")]
        )
        named = set(re.findall(r"`(\w+)`", " ".join(rows)))
        self.assertEqual(
            set(inspect.signature(hybridps.manage).parameters) - {"model", "optimizer"}, named
        )


class Maco(unittest.TestCase):
    def test_an_option_of_another_type_is_refused_by_name(self):
        for said, call in (
            ("^group is 'x', and torch.distributed is not", lambda: maco.TaskGraph(group="x")),
            ("^parts is True", lambda: maco.TaskGraph(parts=True)),
            ("^async_result is 'no'", lambda: maco.overlap_comm(async_result="no")),
            ("^module is 3", lambda: maco.mark(3)),
        ):
            with self.subTest(said), self.assertRaisesRegex(maco.MacoError, said):
                call()
        with maco.TaskGraph(1) as graph:
            graph.add_task(maco.TaskType.NOP)
            with self.assertRaisesRegex(maco.MacoError, "^wait is 'no'"):
                graph.execute(wait="no")


class Copies(unittest.TestCase):
    def test_what_holds_memory_of_c_is_not_copied(self):
        with maco.TaskGraph(1) as graph, hybridps.Group.shm(
            f"copies-{os.getpid()}", 0, 1
        ) as group, hybridps.manage(torch.nn.Linear(2, 2), None, "emu:1MiB") as client:
            for one, error in (
                (graph, maco.MacoError),
                (group, hybridps.HybridPSError),
                (client, hybridps.HybridPSError),
            ):
                for way in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.subTest(one=type(one).__name__, way=way.__name__):
                        with self.assertRaisesRegex(error, "can be neither copied nor pickled"):
                            way(one)


class NoTorch(unittest.TestCase):
    def test_the_interpreter_and_both_ways_out_are_named(self):
        with tempfile.TemporaryDirectory() as home:
            (pathlib.Path(home) / "torch.py").write_text(
                "raise ImportError(\"No module named 'torch'\")\n"
            )
            for code in ("import hybridps", "import helios._tensors as t; t._torch()"):
                done = subprocess.run(
                    [sys.executable, "-c", code],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                    env={**os.environ, "PYTHONPATH": f"{home}:{ROOT / 'python'}"},
                )
                self.assertEqual(done.returncode, 1)
                last = done.stderr.strip().splitlines()[-1]
                for word in (
                    sys.executable,
                    "pip install torch",
                    "python3-torch",
                    "No module named 'torch'",
                ):
                    self.assertIn(word, last)


if __name__ == "__main__":
    unittest.main()

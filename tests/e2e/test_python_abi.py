#!/usr/bin/python3
"""Every call of the Python binding against a C library that records its arguments,
and every ctypes struct against a C compiler."""
from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "bench")]
sys.dont_write_bytecode = True

if not shutil.which("cc"):
    print("skipped: no C compiler")
    sys.exit(77)

HOME = tempfile.TemporaryDirectory(prefix="helios-abi-")
FAKE = f"{HOME.name}/libhelios.so.0"
subprocess.run(
    [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-I",
        ROOT / "include",
        "-o",
        FAKE,
        ROOT / "tests/support/fake_libhelios.c",
    ],
    check=True,
)
os.environ["HELIOS_LIBRARY"] = FAKE

import maco_gpu_lib  # noqa: E402

import helios  # noqa: E402
from helios import _abi, _steps, errors  # noqa: E402

try:
    import torch
    from hybridps import _abi as hybridps_abi
    from maco import _abi as maco_abi
except ModuleNotFoundError:
    torch = None

library = _abi.library()
library.fake_calls.restype = ctypes.c_char_p
library.fake_set_bytes.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def calls() -> list[str]:
    """The library's calls since the last time."""
    return library.fake_calls().decode().splitlines()


HEADERS = [ROOT / "include/helios" / f"{name}.h" for name in ("helios", "hybridps", "maco")]
TEXT = re.sub(r"/\*.*?\*/", "", "".join(h.read_text() for h in HEADERS), flags=re.S)


def members(struct: str) -> list[str]:
    """The members that a header declares, in order."""
    body = re.search(rf"typedef struct \w+ {{([^{{}}]*)}} {struct};|{struct} {{([^{{}}]*)}};", TEXT)
    names = []
    for one in (body[1] or body[2]).split(";"):
        function = re.search(r"\(\*(\w+)\)", one)
        names += [function[1]] if function else re.findall(r"(\w+)\s*(?:\[\w+\])?\s*(?:,|$)", one)
    return names


def described(module) -> dict[str, type[ctypes.Structure]]:
    return {
        c.__name__: c
        for c in vars(module).values()
        if isinstance(c, type) and hasattr(c, "_fields_")
    }


class Structs(unittest.TestCase):
    """Everything that a module describes, field by field: names, order, offsets, sizes."""

    def compare(self, module, **structs: str) -> None:
        ours = described(module)
        self.assertEqual(set(ours), set(structs))
        rows, expected = [], []
        for name, c in structs.items():
            fields = [field for field, _ in ours[name]._fields_]
            self.assertEqual(fields, members(c), c)
            rows += [f'P("{c}", sizeof({c}), (size_t)0);']
            rows += [f'P("{c}.{f}", offsetof({c}, {f}), sizeof((({c} *)0)->{f}));' for f in fields]
            expected += [(c, ctypes.sizeof(ours[name]), 0)]
            expected += [
                (f"{c}.{f}", getattr(ours[name], f).offset, getattr(ours[name], f).size)
                for f in fields
            ]
        with tempfile.TemporaryDirectory() as home:
            source = pathlib.Path(home, "p.c")
            source.write_text(
                "".join(f'#include "{h}"\n' for h in HEADERS)
                + '#include <stddef.h>\n#include <stdio.h>\n'
                '#define P(what, a, b) printf("%s,%zu,%zu\\n", what, a, b)\n'
                f'int main(void) {{ {" ".join(rows)} return 0; }}\n'
            )
            subprocess.run(["cc", "-I", ROOT / "include", source, "-o", f"{home}/p"], check=True)
            said = subprocess.run([f"{home}/p"], check=True, capture_output=True, text=True).stdout
        found = [line.split(",") for line in said.splitlines()]
        self.assertEqual([(what, int(a), int(b)) for what, a, b in found], expected)

    def sizes(self, module) -> None:
        """The sizes that are queried when the module is loaded."""
        self.assertEqual(module._SIZES, {c: ctypes.sizeof(c) for c in described(module).values()})

    def test_what_may_grow_begins_with_its_size_and_has_an_initializer(self):
        structs = {
            name or other: body
            for body, name, other in re.findall(
                r"typedef struct \w+ {([^{}]*)} (\w+);|struct (\w+) {[^{}]*};", TEXT
            )
        }
        sized = {
            name for name in structs if name != "helios_shard" and members(name)[:1] == ["size"]
        }
        named = {
            name for name in structs if re.search(r"_(options|stats|info|spec|view)(_t)?$", name)
        }
        # those the library makes
        self.assertLessEqual(named - {"maco_plan_view", "helios_shard_view"}, sized)
        macros = dict(re.findall(r"#define (\w+)_INIT \.size = sizeof\((?:struct )?(\w+)\)", TEXT))
        self.assertEqual(macros, {re.sub(r"_t$", "", name).upper(): name for name in sized})

    def test_of_helios(self):
        self.sizes(_abi)
        self.compare(
            _abi,
            _Options="helios_options",
            _Id="helios_id",
            _Shard="helios_shard",
            _VersionSpec="helios_version_spec",
            _ShardList="helios_shard_list",
            _Names="helios_names",
            _Tensor="helios_tensor",
            _Stats="helios_stats",
            _Split="helios_split",
            _TensorName="helios_tensor_name",
            _ShardView="helios_shard_view",
            _Place="helios_place",
        )

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_of_hybridps(self):
        self.sizes(hybridps_abi)
        self.compare(
            hybridps_abi,
            _Options="hybridps_options",
            Use="hybridps_use",
            _Traffic="hybridps_traffic",
            _Stats="hybridps_stats_t",
            _Info="hybridps_tensor_info",
            _Kept="hybridps_kept",
            Adam="struct hybridps_adam",
            Transport="hybridps_transport",
            ShmOptions="hybridps_shm_options",
            NetOptions="hybridps_net_options",
        )

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_of_maco(self):
        self.sizes(maco_abi)
        self.compare(
            maco_abi,
            Task="maco_task",
            Range="maco_range",
            Op="maco_op",
            _CompileOptions="maco_compile_options",
            _Virtual="maco_virtual",
            _RuntimeOptions="maco_runtime_options",
            _CudaOptions="maco_cuda_options",
            _Overlap="maco_overlap",
        )

    def test_of_the_gpu_bench(self):
        self.compare(
            maco_gpu_lib,
            Op="maco_op",
            CompileOptions="maco_compile_options",
            CudaOptions="maco_cuda_options",
            ShmOptions="hybridps_shm_options",
            CudaInfo="maco_cuda_info",
        )
        numbers = dict(re.findall(r"MACO_(?:TASK_)?([A-Z0-9_]+) =\s*(\d+)", TEXT))
        known = {name: value for name, value in vars(maco_gpu_lib).items() if name in numbers}
        self.assertLess(20, len(known))
        self.assertEqual(known, {name: int(numbers[name]) for name in known})


class Binding(unittest.TestCase):
    def setUp(self):
        calls()

    def open(self) -> _abi.Client:
        client = _abi.Client("c:1")
        calls()
        return client

    def test_a_place_in_a_gang_is_a_number_and_variables(self):
        client = self.open()
        self.assertEqual(
            client.join_gang("gpt-1", 2, 5, 1), (3, {"RANK": "1", "MASTER_ADDR": "a=b"})
        )
        self.assertEqual(calls(), ["join_gang gpt-1 2 5 1"])
        client.close()

    def test_open_passes_options_and_turns_codes_into_exceptions(self):
        _abi.Client("c:1", "tcp://l:2", "net", 500, -1).close()
        self.assertEqual(calls(), ["open c:1 tcp://l:2 net 500 -1", "close mapped=0"])
        with self.assertRaisesRegex(errors.Unavailable, "^nobody answers at down$") as caught:
            _abi.Client("down")
        self.assertEqual(caught.exception.code, -9)

    def test_a_process_reports_as_soon_as_it_has_a_rank(self):
        with mock.patch.dict(os.environ), mock.patch.multiple(
            _steps, _report=None, _last=-1, _highest=-1
        ):
            os.environ.pop("HELIOS_STEPS", None)
            helios.report(3)  # as warm() of a parked process does
            self.assertEqual((calls(), _steps.progress()), ([], (3, 3)))
            os.environ["HELIOS_STEPS"] = "page"
            helios.report(2, 0.5, 7)
            self.assertEqual((calls(), _steps.progress()), (["report 2 0.5 7"], (2, 3)))

    def test_shard_lists_are_copied_and_freed(self):
        client = self.open()
        listed = client.request_shards("m", -1, 1, 2)
        self.assertEqual(calls(), ["request m -1 1 2 0", "free 2"])
        self.assertEqual(
            (listed.version, listed.meta_json, listed.config_json), (1 << 33, '{"step": 3}', "{}")
        )
        self.assertEqual(
            listed.shards,
            (
                _abi.Shard((1, 2), "embedding", 128, 7, 1, 4, 2),
                _abi.Shard(
                    (2**64 - 1, 4),
                    "layer-0003",
                    1 << 40,
                    2**32 - 1,
                    9,
                    5,
                    2,
                    {"layers.3.w": "layers.0.w"},
                    3,
                ),
            ),
        )
        client.request_shards("m", 5, 1, 2, _abi.Split(2, 4, 3))
        self.assertEqual(calls(), ["request m 5 1 2 0 of 2x4/3 0+0 ep 0/0", "free 2"])
        client.request_shards("m", 5, 1, 2, _abi.Split(2, 4, 3, 8, 1), 7)
        self.assertEqual(calls(), ["request m 5 1 2 7 of 2x4/3 0+0 ep 8/1", "free 2"])
        client.version_open("m", "j", 1, 2, 0, 8, split=_abi.Split(2, 4, 3))
        self.assertEqual(calls(), ["open m j 1 2 0/8 layout=0 of 2x4/3"])
        # without a sentence: the code's text
        with self.assertRaisesRegex(errors.NotFound, "general"):
            client.request_shards("m", -1, 2, 0)
        client.close()

    def test_the_client_outlives_close_until_the_last_mapping_goes(self):
        client = self.open()
        shard = client.request_shards("m", 5, 0, 0).shards[0]
        one, two = client.map(shard), client.map(shard)
        calls()
        client.close()
        with self.assertRaisesRegex(errors.InvalidArgument, "closed"):
            client.stats()
        view = memoryview(one.buffer())
        del one, two
        gc.collect()
        self.assertEqual(calls(), ["unmap 1"])
        self.assertEqual(len(view), 128)
        view.release()
        gc.collect()
        self.assertEqual(calls(), ["unmap 1", "close mapped=0"])
        client.close()
        self.assertEqual(calls(), [])

    def test_process_exit_closes_even_with_living_mappings(self):
        client = self.open()
        mapping = client.map(client.request_shards("m", 5, 0, 0).shards[1])
        self.assertIn("map ffffffffffffffff 4", calls())
        client.close(force=True)
        del mapping
        self.assertEqual(calls(), ["close mapped=1"])

    def test_a_forked_child_neither_uses_nor_closes_the_client(self):
        client = self.open()
        child = os.fork()
        if child == 0:
            try:
                client.stats()
            except errors.InvalidArgument as error:
                client.close()
                os._exit(0 if "fork" in str(error) and not calls() else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        client.close()

    def test_stats_are_all_there(self):
        client = self.open()
        self.assertEqual(
            client.stats(),
            {
                "path": "shm",
                "reads": 1,
                "read_bytes": 2,
                "read_ns": 3,
                "writes": 4,
                "write_bytes": 5,
                "write_ns": 6,
                "crc_failures": 7,
                "retries": 8,
            },
        )
        client.close()


@unittest.skipIf(torch is None, "torch is not installed")
class Package(unittest.TestCase):
    def setUp(self):
        calls()
        self.addCleanup(helios.close)

    def test_saving_hands_over_names_shapes_and_bytes(self):
        rank = helios.Rank(model="m", job="j", attempt=2, global_rank=0, world_size=1, tp=0)
        helios.init("c:1", rank=rank)
        helios.session()._parts["m"] = {"a": "layer-0001", "b": "layer-0001", "c": "head"}
        calls()
        saved = helios.save_state_dict(
            {
                "c": torch.tensor(7, dtype=torch.uint8),
                "a": torch.tensor([[1, 9], [2, 9], [3, 9]], dtype=torch.int64)[:, 0],
                "b": torch.ones(1, 2),
            },
            step=6,
            meta={"x": 1},
        )
        self.assertEqual(saved[:3], (1 << 34, True, 8192))
        self.assertEqual(
            calls(),
            [
                "open m j 2 6 0/1 layout=0 of 1x1/0",
                f"put m {1 << 34} 0 0 0 head",
                "  c U8 rank=0 first=7",
                f"put m {1 << 34} 0 0 0 layer-0001",
                "  a I64 rank=1 3 first=1",
                "  b F32 rank=2 1 2 first=0",
                f'commit m {1 << 34} 0 {{"x": 1}}',
            ],
        )

    def test_a_source_is_read_into_the_shard_when_its_turn_comes(self):
        class Source:
            shape, dtype = (2,), torch.float32

            def read_into(self, address, size):
                self.size = size
                ctypes.memset(address, 9, size)

        rank = helios.Rank(model="m", job="j", attempt=2, global_rank=0, world_size=1, tp=0)
        helios.init("c:1", rank=rank)
        helios.session()._parts["m"] = {"a": "head", "b": "head"}
        source = Source()

        class Managed:
            def helios_state(self):
                return {"a": torch.ones(1, dtype=torch.uint8)}, {"exp_avg.b": source}

        calls()
        helios.save_state_dict(Managed(), step=6)
        self.assertEqual(
            calls()[1:-1],
            [
                f"put m {1 << 34} 0 0 0 head",
                "  a U8 rank=1 1 first=1",
                f"put from m {1 << 34} 0 0 0 optim-head",
                "  exp_avg.b first=9",
            ],
        )
        self.assertEqual(source.size, 8)

        def fails(*_):
            raise ValueError("its chunk is lost")

        source.read_into = fails
        with self.assertRaisesRegex(ValueError, "its chunk is lost"):
            helios.save_state_dict(Managed(), step=7)

    def test_loading_aliases_the_mapped_bytes(self):
        data = b"".join(bytes([0, 0x3F + i]) for i in range(6))
        text = b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
        head = (128 - 12 - 8).to_bytes(8, "little") + text + b" " * (128 - 12 - 8 - len(text))
        library.fake_set_bytes(head + data, 128)
        with helios.Session("c:1", rank=helios.Rank(model="m")) as session:
            listed = session.client.request_shards("m", 1, 0, 0)
            session.client.request_shards = lambda *_: _abi.ShardList(
                4, listed.shards[:1], "{}", "{}"
            )
            state = session.load_state_dict()
        self.assertEqual(state["w"].dtype, torch.bfloat16)
        want = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(2, 3)
        self.assertTrue(torch.equal(state["w"], want))
        library.fake_set_bytes(head + bytes(12), 128)
        self.assertTrue(torch.equal(state["w"], torch.zeros(2, 3, dtype=torch.bfloat16)))
        calls()
        del state
        gc.collect()
        self.assertEqual(calls(), ["unmap 1", "close mapped=0"])


if __name__ == "__main__":
    unittest.main()

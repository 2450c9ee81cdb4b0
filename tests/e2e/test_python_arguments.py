#!/usr/bin/python3
"""Wrong arguments of every public function of the Python package: each is refused with its name,
its value and what is allowed, before a daemon is asked."""
from __future__ import annotations

import inspect
import io
import os
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

import helios  # noqa: E402
from helios import Piece, Rank, Session, errors, safetensors  # noqa: E402

# Wrong values for any argument that is a number, a text, a flag or a mapping: of another kind,
# or out of range.
INDEX = ["2", -1, 1.5, True, 1 << 31, [1]]
SIZE = [*INDEX, 0]
TEXT = [3, b"m", "a\0b", "\udc80", ["m"]]
FLAG = ["no", 1, None]
MAPPING = [3, "x", ["a"], None]
MODEL = [*TEXT, "", "m@", "m@x", "m@0", "@3"]
ONE = torch.ones(1)


class Nowhere:
    """A client that must not be called."""

    def __getattr__(self, name):
        raise AssertionError(f"client.{name} was asked")


def nested():
    if hasattr(torch, "nested"):
        return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    return torch._nested_tensor_from_mask(torch.ones(1, 2, 1), torch.tensor([[True, False]]))


def session():
    return Session(client=Nowhere(), rank=Rank(model="m", job="j"))


# function: (a call with right arguments, {parameter: wrong values})
SIZES = {name: SIZE for name in ("tp_size", "pp_size", "virtual_stages", "ep_size", "etp_size")}
PLACES = {name: INDEX for name in ("pp", "tp", "dp", "ep")}
CALLS = {
    "Session": (
        lambda **a: Session(**{"client": Nowhere(), **a}),
        {
            "controller": TEXT,
            "l3": TEXT,
            "path": [3, "tcp", ""],
            "timeout_ms": [*INDEX, None],
            "retries": ["1", -2, 101, None, True],
            "rank": [3, "0", {"pp": 1}],
        },
    ),
    "load_state_dict": (
        lambda **a: session().load_state_dict(**a),
        {
            "model": MODEL,
            "version": ["1", 0, -2, 1.5, 1 << 63],
            "kind": [3, "x", "", ["model"]],
            "copy": FLAG,
            "naming": [3, "TE", ""],
            "ranges": [
                3,
                ["a"],
                {1: (0, 1)},
                {"a": 3},
                {"a": (0,)},
                {"a": ("0", 1)},
                {"a": (-1, 1)},
                {"a": (0, 1), "module.a": (0, 1)},
            ],
            **SIZES,
            **PLACES,
        },
    ),
    "save_state_dict": (
        lambda **a: session().save_state_dict(**{"state": {"a": ONE}, "step": 1, **a}),
        {
            "state": [*MAPPING, torch.nn.Linear(1, 1)],
            "step": ["1", -1, 1.5, None, True, 1 << 63],
            "meta": [3, "x", ["a"], {"a": object()}, {"a": float("nan")}, 0, ""],
            "optim": [3, "x", [], ""],
            "model": [*MODEL, "m@3"],
            "strict": FLAG,
            "any_dtype": FLAG,
            "config": [3, "x", [], {"a": {1}}],
            **SIZES,
        },
    ),
    "report": (
        lambda **a: helios.report(**{"step": 1, **a}),
        {
            "step": ["1", -1, 1.5, True, None, 1 << 63],
            "loss": ["1", None, True, [1]],
            "tokens": ["1", -1, 1.5, True, None, 1 << 63],
        },
    ),
    "activity": (helios.activity, {"word": [3, None, "", "resting", ["saving"]]}),
    "Session.close": (lambda **a: Session(client=mock.Mock()).close(**a), {"force": FLAG}),
    "Rank": (
        Rank,
        {
            name: (
                TEXT
                if isinstance(value, str)
                else (
                    ["2", -2, 1.5, None]
                    if name == "model_version"
                    else SIZE
                    if value == 1
                    else INDEX
                )
            )
            for name, value in vars(Rank()).items()
        },
    ),
    "Rank.from_environment": (Rank.from_environment, {"env": [3, "x", [("PP", 1)]]}),
    "Piece": (
        lambda **a: Piece(**{"tensor": ONE, "shape": (1,), "start": 0, **a}),
        {
            "tensor": [3, None, [1.0], "x"],
            "shape": [3, "1", None, (-1,), ("1",), (1.0,), {1}],
            "start": ["2", -1, 1.5, True, None, 1 << 63],
        },
    ),
    "hugging_face_config": (helios.hugging_face_config, {"config": MAPPING}),
    "parts_of": (
        lambda **a: helios.parts_of(**{"config": {"unsliced": True}, "names": ["x"], **a}),
        {"config": MAPPING, "names": [3, "x", None, [3], ["a\0b"]], "pp": INDEX},
    ),
    "safetensors.parse_header": (
        lambda **a: safetensors.parse_header(**{"head": b"", "total": 0, **a}),
        {"head": [3, "x", None], "total": [*INDEX[:4], None]},
    ),
    "safetensors.read_header": (safetensors.read_header, {"path": [3, None, b"x"]}),
    "safetensors.write": (
        lambda **a: safetensors.write(**{"file": io.BytesIO(), "tensors": [], **a}),
        {"metadata": [3, "x", {1: "a"}, {"a": 1}]},
    ),
}
# Not set by the user, or of a kind that Python itself refuses by name.
OTHERS = {
    "Session": {"client"},
    "safetensors.parse_header": {"where"},
    "safetensors.write": {"file", "tensors"},
}


def parameters(name):
    owner = helios
    for part in name.split("."):
        owner = getattr(owner, part, None) or getattr(Session, part)
    return set(inspect.signature(owner).parameters) - {"self"}


class Arguments(unittest.TestCase):
    def test_every_parameter_of_every_public_function_is_here(self):
        public = {
            name
            for name in helios.__all__
            if callable(getattr(helios, name))
            and not (
                isinstance(getattr(helios, name), type)
                and issubclass(getattr(helios, name), Exception)
            )
        }
        without = {
            name
            for name in public
            if name != "Saved" and not inspect.signature(getattr(helios, name)).parameters
        }
        # init: the parameters of Session
        known = {name.split(".")[0] for name in CALLS} | without | {"init", "Saved"}
        self.assertEqual(public - known, set())
        for name, (_, wrong) in CALLS.items():
            self.assertEqual(parameters(name), set(wrong) | OTHERS.get(name, set()), name)

    def test_each_wrong_value_is_refused_by_name(self):
        for name, (call, wrong) in CALLS.items():
            for parameter, values in wrong.items():
                for value in values:
                    with self.subTest(function=name, parameter=parameter, value=value):
                        with self.assertRaises(errors.InvalidArgument) as caught:
                            call(**{parameter: value})
                        text = str(caught.exception)
                        self.assertIn(parameter, text)
                        self.assertNotIn("\n", text)
                        self.assertLess(len(text), 250)
                        if isinstance(value, (int, float, str)) and len(repr(value)) < 40:
                            self.assertIn(repr(value), text)

    def test_values_of_a_mapping_are_refused_with_their_place(self):
        for call, said in (
            (lambda: Session(client=Nowhere(), rank="0"), r"rank='0' must be a helios\.Rank"),
            (
                lambda: session().load_state_dict("m@2", 3),
                r"model='m@2' and version=3 are two versions",
            ),
            (lambda: session().save_state_dict({3: ONE}, 1), r"the state: name=3 must be a text"),
            (
                lambda: session().save_state_dict({"module.": ONE}, 1),
                r"'module\.', which is not a name",
            ),
            (
                lambda: session().save_state_dict({}, 1, optim={"a\0": ONE}),
                r"optim: name='a\\x00' has characters",
            ),
            (
                lambda: session().save_state_dict({"a": torch.empty(1, device="meta")}, 1),
                r"'a' has no data \(device meta\)",
            ),
            (
                lambda: session().save_state_dict({"a": torch.nn.LazyLinear(1).weight}, 1),
                r"'a' of a lazy module .* call the module",
            ),
            (
                lambda: session().save_state_dict({"a": nested()}, 1),
                r"'a': Helios cannot store a nested tensor.*unbind",
            ),
            (
                lambda: session().save_state_dict({"a": ONE.to_sparse()}, 1),
                r"'a': .*sparse.*to_dense",
            ),
            (
                lambda: Rank(model="m@3"),
                r"model='m@3' must be the name alone: pass the number as model_version",
            ),
            (lambda: Rank.from_environment({"RANK": 0}), "RANK=0 must be a text"),
            (
                lambda: safetensors.pack_header([("a", ["F32"], (1,))]),
                r"'a': safetensors has no dtype \['F32'\]",
            ),
            (
                lambda: safetensors.pack_header([("a", "F32", (-1,))]),
                r"'a': size in shape=-1 must be",
            ),
            (
                lambda: safetensors.pack_header([("__metadata__", "F32", (1,))]),
                "no tensor can be named '__metadata__'",
            ),
            (
                lambda: safetensors.write(io.BytesIO(), [("a", "U8", (1,), "x")]),
                r"'a': data='x' must be bytes-like",
            ),
        ):
            with self.subTest(said), self.assertRaisesRegex(errors.InvalidArgument, said):
                call()

    def test_what_counts_as_a_number_is_one(self):
        import operator

        class Number:
            def __index__(self):
                return 2

        self.assertEqual(operator.index(Piece(torch.ones(1), [torch.tensor(3)], Number()).start), 2)
        with self.assertRaises(AssertionError):  # passes on to the client
            session().load_state_dict("m", 1, tp_size=Number())

    def test_one_that_does_not_exist_is_named_by_python(self):
        for call in (
            lambda: helios.init(adress="x"),
            lambda: session().load_state_dict(tpsize=2),
            lambda: session().save_state_dict({}, 1, steps=2),
        ):
            with self.assertRaisesRegex(TypeError, "adress|tpsize|steps"):
                call()


class Pieces(unittest.TestCase):
    def test_a_piece_knows_its_place(self):
        piece = Piece(torch.ones(3, 2), torch.Size((4, 2)), 2)
        self.assertEqual((piece.shape, piece.start), ((4, 2), 2))
        Piece(torch.ones(8), (4, 2), 0)
        Piece(torch.ones(1), (), 0)
        Piece(torch.ones(0), (0, 3), 0)
        Piece(torch.ones(2, requires_grad=True), [2], 0)

    def test_what_is_no_range_of_the_tensor_is_refused(self):
        for tensor, shape, start, said in (
            (
                torch.ones(3),
                (2, 4),
                6,
                r"3 elements from 6 on are not in a tensor of shape \[2, 4\], which has 8",
            ),
            (
                torch.ones(3),
                (2,),
                0,
                r"3 elements from 0 on are not in a tensor of shape \[2\], which has 2",
            ),
            (
                torch.ones(2),
                (),
                0,
                r"2 elements from 0 on are not in a tensor of shape \[\], which has 1",
            ),
            (torch.ones(0), (4,), 5, "0 elements from 5 on"),
            (torch.ones(1, dtype=torch.complex64), (1,), 0, "cannot store torch.complex64"),
            (torch.ones(1, device="meta"), (1,), 0, "has no data"),
            (torch.ones(2).to_sparse(), (2,), 0, "to_dense"),
        ):
            with self.subTest(said), self.assertRaisesRegex(errors.InvalidArgument, said):
                Piece(tensor, shape, start)


class Program(unittest.TestCase):
    def run_module(self, *arguments):
        import subprocess

        return subprocess.run(
            [sys.executable, "-m", "helios", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(needs.ROOT / "python")},
        )

    def test_help_is_no_failure_and_a_wrong_word_is(self):
        done = self.run_module("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("usage: python -m helios info", done.stdout)
        done = self.run_module("infos")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("'infos'", done.stderr)


if __name__ == "__main__":
    unittest.main()

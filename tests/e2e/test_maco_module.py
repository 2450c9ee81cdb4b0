#!/usr/bin/python3
"""TaskGraph.from_module: the module's results, which function becomes which tasks,
what is refused."""
from __future__ import annotations

import copy
import ctypes
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.nn as nn
import torch.nn.functional as F

from maco import TaskGraph, errors  # noqa: E402
from maco_models import Dit, Llm  # noqa: E402


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.function = function
        self.parameters_ = nn.ParameterList(parameters)

    def forward(self, *args):
        return self.function(*args, *self.parameters_)


class Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.mean(0))
        return x - self.mean


class Counting(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def graph(self, module, *inputs, **options):
        made = TaskGraph.from_module(module, inputs, **options)
        self.addCleanup(made.close)
        return made

    def same(self, module, graph, *inputs, rtol=1e-5, atol=1e-5):
        with torch.no_grad():
            torch.testing.assert_close(graph(*inputs), module(*inputs), rtol=rtol, atol=atol)


class Modules(Case):
    def test_blocks_without_a_call_into_torch(self):
        mlp = nn.Sequential(
            nn.Linear(16, 64),
            nn.GELU(),
            nn.LayerNorm(64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.ReLU(inplace=True),
        ).eval()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        for module, shapes in (
            (mlp, [(4, 16)]),
            (layer.eval(), [(2, 8, 32)]),
            (Llm(), [(2, 8, 32)]),
            (Dit(), [(2, 8, 32), (2, 32)]),
        ):
            with self.subTest(type(module).__name__):

                def inputs():
                    return [torch.randn(s) for s in shapes]

                graph = self.graph(module, *inputs(), strict=True)
                self.assertEqual(graph.report()["calls"], [])
                for _ in range(3):
                    self.same(module, graph, *inputs())

    def test_the_same_bits_by_every_policy_and_number_of_workers(self):
        module, x, results = Llm(128), torch.randn(2, 64, 128), []
        for policy in ("direct", "scheduler", "static"):
            for workers in (1, 3):
                graph = self.graph(module, x, policy=policy, num_workers=workers, parts=2)
                results.append(graph(x))
                self.assertGreater(len(graph.compile().names), len(graph.tasks))
        for other in results[1:]:
            self.assertTrue(torch.equal(results[0], other))

    def test_the_same_bits_in_any_number_of_parts(self):
        module, x = Llm(128), torch.randn(2, 64, 128)
        results = [self.graph(module, x, parts=n, deterministic=True)(x) for n in (1, 2, 3, 8)]
        for other in results[1:]:
            self.assertTrue(torch.equal(results[0], other))

    def test_half_precision(self):
        module = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.LayerNorm(32)).bfloat16()
        graph = self.graph(module, torch.randn(8, 32).bfloat16(), strict=True)
        self.same(module, graph, torch.randn(8, 32).bfloat16(), rtol=3e-2, atol=3e-2)

    def test_parameters_changed_in_place_are_used(self):
        module = nn.Linear(8, 8)
        x = torch.randn(4, 8)
        graph = self.graph(module, x)
        with torch.no_grad():
            module.weight.mul_(2)
        self.same(module, graph, x)
        module.weight.data = torch.randn(8, 8)
        with self.assertRaisesRegex(errors.MacoError, "weight has moved"):
            graph(x)

    def test_results_are_new_tensors_in_the_module_s_structure(self):
        module = Of(lambda x: {"a": x * 2, "b": [x, None, 3, x[:, 1]]})
        x = torch.randn(4, 3)
        graph = self.graph(module, x)
        first = graph(x)
        graph(torch.zeros(4, 3))
        self.assertTrue(torch.equal(first["a"], x * 2))
        self.assertTrue(torch.equal(first["b"][0], x))
        self.assertEqual(first["b"][1:3], [None, 3])
        self.assertTrue(torch.equal(first["b"][3], x[:, 1]))

    def test_named_arguments(self):
        graph = TaskGraph.from_module(
            Dit(), {"x": torch.randn(1, 4, 32), "condition": torch.randn(1, 32)}
        )
        self.assertEqual(
            graph(x=torch.randn(1, 4, 32), condition=torch.randn(1, 32)).shape, (1, 4, 32)
        )

    def test_a_traced_run(self):
        graph = self.graph(Llm(), torch.randn(2, 8, 32), trace=True)
        graph(torch.randn(2, 8, 32))
        self.assertEqual(graph.compile().overlap_stats()["tasks"], len(graph.tasks))


class Functions(Case):
    """Compares each with torch, and checks what it becomes."""

    def of(self, function, *inputs, calls=0, parameters=(), tolerance=1e-5):
        module = Of(function, *parameters)
        graph = self.graph(module, *inputs)
        report = graph.report()
        self.assertEqual(sum(c["count"] for c in report["calls"]), calls, report)
        fresh = [
            torch.randn_like(x) if x.is_floating_point() and not x.isinf().any() else x
            for x in inputs
        ]
        self.same(module, graph, *fresh, rtol=tolerance, atol=tolerance)
        return report["types"]

    def test_elements(self):
        a, b, row, column = (
            torch.randn(3, 4, 6),
            torch.randn(3, 4, 6),
            torch.randn(6),
            torch.randn(3, 4, 1),
        )
        for f in (
            lambda a, b: a + b,
            lambda a, b: a - b,
            lambda a, b: a * b,
            lambda a, b: torch.add(a, b, alpha=3),
            lambda a, b: a + 2,
            lambda a, b: 2 - a,
            lambda a, b: 3 * a,
            lambda a, b: a / 3,
            lambda a, b: -a,
            lambda a, b: a**2,
            lambda a, b: a.relu(),
            lambda a, b: a.clone().add_(b).mul_(2).relu_(),
            lambda a, b: a.transpose(0, 2) * 2 + b.transpose(0, 2),
            lambda a, b: a.transpose(0, 1) + b.view(4, 3, 6),
        ):
            self.of(f, a, b)
        self.of(lambda a, b: a + b, a, row)
        self.of(lambda a, b: b + a, a, row)
        self.of(lambda a, b: a * b, a, torch.randn(3, 1, 6))
        self.of(lambda a, b: a + b, a, torch.randn(4, 6))
        self.of(lambda a, b: a + b, a, column, calls=1)
        self.of(lambda a, b: a - b, row, a, calls=1)
        self.of(lambda a: a.exp() + a.sum(-1, keepdim=True), a, calls=3)
        self.of(lambda a: a.half().float(), a)

    def test_products(self):
        a, b = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 4, 6)
        self.assertEqual(self.of(torch.matmul, a, b)["MATMUL"], 6)
        self.assertEqual(self.of(lambda a, b: a @ b[0, 0], a, b), {"MATMUL": 1})
        self.assertEqual(self.of(lambda a, b: torch.bmm(a[0], b[0]), a, b), {"MATMUL": 3})
        self.of(lambda a, b: a[0, 0].t() @ a[1, 1], a, b)
        self.of(
            lambda x, w, b: torch.addmm(b, x, w),
            torch.randn(3, 4),
            torch.randn(4, 5),
            torch.randn(5),
        )
        self.of(lambda a, b: a @ b[0, 0, :, 0], a, b, calls=1)  # a vector
        self.of(lambda a, b: torch.einsum("abij,abjk->abik", a, b), a, b, calls=1)

    def test_rows(self):
        x = torch.randn(2, 3, 8)
        self.of(lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x), x)
        self.of(lambda x: F.softmax(x, -1), x)
        self.of(lambda x: x.softmax(1), x, calls=1)
        self.of(lambda x: F.layer_norm(x, (3, 8)), x)
        self.of(
            lambda x, w, b: F.layer_norm(x, (3, 8), w, b),
            x,
            parameters=[torch.randn(3, 8), torch.randn(3, 8)],
        )
        self.of(lambda x: F.gelu(x.transpose(0, 1)), x)

    def test_copies_and_views(self):
        x = torch.randn(2, 3, 4, 5)
        for f in (
            lambda x: x.permute(0, 2, 1, 3).contiguous(),
            lambda x: x.transpose(1, 2).reshape(2, 4, 15),
            lambda x: torch.cat([x, x[:, :1]], 1),
            lambda x: torch.stack([x, x], 2),
            lambda x: x[..., 1:3].clone(),
            lambda x: x.view(6, 20).unsqueeze(0) * 1,
        ):
            self.of(f, x)
        self.of(lambda x: x.index_select(1, torch.tensor([2, 0])), x, calls=1)

    def test_writes_in_place(self):
        def f(x):
            y = x * 2
            y[:, 1] = 7
            y[:, 2].mul_(3)
            return y + x

        self.of(f, torch.randn(4, 5), calls=2)  # a column is not a row

    def test_an_input_is_written_as_the_module_writes_it(self):
        module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
        graph, x = self.graph(module, torch.randn(3, 4)), torch.randn(3, 4)
        theirs = x.clone()
        with torch.no_grad():
            torch.testing.assert_close(graph(x), module(theirs))
        self.assertTrue(torch.equal(x, theirs))
        self.assertTrue(bool((x == 0).any()))

    def test_making_a_graph_leaves_the_module_as_it_was(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Averaging())
        before = copy.deepcopy(module.state_dict())
        twin, x = copy.deepcopy(module).eval(), torch.randn(8, 4)
        random = torch.get_rng_state()
        graph = self.graph(module, x)
        self.assertTrue(torch.equal(torch.get_rng_state(), random))
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        # Averaging is compared with its own results from there on
        graph = self.graph(module.eval(), x)
        for _ in range(3):
            with torch.no_grad():
                torch.testing.assert_close(graph(x), twin(x))
        torch.testing.assert_close(module.state_dict(), twin.state_dict())

    def test_what_depends_on_no_input_is_made_once(self):
        self.assertEqual(
            self.of(lambda x: x + torch.arange(4).float().view(2, 2) * 3, torch.randn(2, 2)),
            {"ELEMENTWISE": 1},
        )

    def test_random_functions_stay_random(self):
        graph = self.graph(Of(lambda x: x + torch.rand(64)), torch.zeros(64))
        self.assertFalse(torch.equal(graph(torch.zeros(64)), graph(torch.zeros(64))))
        graph = self.graph(nn.Dropout(0.5).train(), torch.ones(1000))
        self.assertAlmostEqual((graph(torch.ones(1000)) == 0).float().mean().item(), 0.5, delta=0.1)

    def test_attention(self):
        """Torch 1.13 has it under another name, and also returns the weights."""

        def attend(q, k, v, mask=None, is_causal=False):
            if hasattr(F, "scaled_dot_product_attention"):
                return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
            return F._scaled_dot_product_attention(q, k, v, mask, 0.0, False, is_causal)[0]

        q, k, v = (torch.randn(2, 4, 9, 8) for _ in "qkv")
        mask = torch.full((9, 9), float("-inf")).triu(1)
        for f, more in (
            (attend, ()),
            (lambda *t: attend(*t, is_causal=True), ()),
            (attend, (torch.randn(9, 9),)),
            (attend, (mask,)),
            (lambda q, k, v, m: attend(q, k, v, m.expand(2, 4, 9, 9)), (mask,)),
            (lambda q, k, v: attend(q, k.transpose(1, 2).contiguous().transpose(1, 2), v), ()),
        ):
            self.assertEqual(self.of(f, q, k, v, *more)["ATTENTION"], 1)
        self.of(lambda q, k, v, m: attend(q, k, v, m), q, k, v, torch.randn(2, 4, 9, 9), calls=1)

    def test_attention_and_norms_of_torch_2(self):
        attend, (q, k, v) = getattr(F, "scaled_dot_product_attention", None), (
            torch.randn(2, 4, 9, 8) for _ in "qkv"
        )
        if attend is not None:
            few, rows = torch.randn(2, 4, 5, 8), torch.randn(2, 9, 4, 8)
            for f, inputs in (
                (lambda q, k, v: attend(q, k, v, scale=0.3), (q, k, v)),
                (lambda q, k, v: attend(q, k, v, None, 0.0, True), (q, k, v)),
                (lambda q, k, v: attend(q, k, v), (q, few, few)),
                (lambda q, k, v: attend(q, k, v), (q[0], k[0], v[0])),
                (
                    lambda *t: attend(*(x.transpose(1, 2) for x in t), is_causal=True)
                    .transpose(1, 2)
                    .reshape(2, 9, 32),
                    (rows, rows, rows),
                ),
            ):
                self.assertEqual(self.of(f, *inputs)["ATTENTION"], 1)
            self.of(lambda q, k, v: attend(q, k, v, is_causal=True), q, few, few, calls=1)
            self.of(
                lambda q, k, v, m: attend(q, k, v, m),
                q,
                k,
                v,
                torch.ones(9, 9).tril().bool(),
                calls=1,
            )
        if "enable_gqa" in (getattr(attend, "__doc__", None) or ""):  # torch 2.5
            half = torch.randn(2, 2, 9, 8)
            self.of(lambda q, k, v: attend(q, k, v, enable_gqa=True), q, half, half)
        if hasattr(nn, "RMSNorm"):  # torch 2.4
            for norm in (
                nn.RMSNorm(8),
                nn.RMSNorm(8, eps=1e-5),
                nn.RMSNorm((9, 8)),
                nn.RMSNorm(8, elementwise_affine=False),
            ):
                self.assertEqual(self.of(norm, q), {"RMSNORM": 1})
            self.of(lambda x: F.rms_norm(x.transpose(1, 2), (8,)), q)

    def test_torch_s_attention_modules(self):
        x, mask = torch.randn(2, 9, 32), torch.full((9, 9), float("-inf")).triu(1)
        new = hasattr(F, "scaled_dot_product_attention")
        attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.of(lambda x: attention(x, x, x, need_weights=False)[0], x)
        self.of(
            lambda x, m: attention(x, x, x, need_weights=False, attn_mask=m)[0],
            x,
            mask,
            calls=0 if new else 1,
        )
        self.of(lambda x: attention(x, x, x)[0], x, calls=1)  # their mean
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2)
        for mode in (True, False):
            self.of(encoder.train(mode), x)
            self.of(layer.train(mode), x)
            self.of(lambda x, m: layer(x, m), x, mask, calls=0 if new else 1)
            if new:
                for module in (layer.train(mode), encoder.train(mode)):
                    self.of(lambda x, m: module(x, m, is_causal=True), x, mask)
        decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.of(lambda x, y: decoder(x, y), x, torch.randn(2, 5, 32))

    def test_half_precision_inside(self):
        self.of(
            lambda x, w: F.linear(x.bfloat16(), w).float() + 1,
            torch.randn(8, 32),
            parameters=[torch.randn(16, 32).bfloat16()],
            tolerance=5e-2,
        )


class Refused(Case):
    def test_what_depends_on_values(self):
        x = torch.randn(4, 3)
        for i, f in enumerate(
            (
                lambda x: x * 2 if x.sum() > 0 else x,
                lambda x: x * x.max().item(),
                lambda x: x[x > 0],
                lambda x: x.nonzero(),
                lambda x: x[: int(x[0, 0].abs())],
                lambda x: torch.masked_select(x, x > 0),
                lambda x: x.tolist(),
            )
        ):
            with self.subTest(i), self.assertRaisesRegex(
                errors.UnsupportedError, "depend on values"
            ):
                self.graph(Of(f), x)

    def test_other_shapes_dtypes_and_arguments(self):
        graph = self.graph(Of(lambda x, n: x * n), torch.randn(4, 3), 2)
        with self.assertRaisesRegex(
            errors.ShapeMismatchError, r"\(5, 3\), the example had \(4, 3\)"
        ):
            graph(torch.randn(5, 3), 2)
        with self.assertRaisesRegex(errors.DTypeError, "float64"):
            graph(torch.randn(4, 3).double(), 2)
        with self.assertRaisesRegex(errors.UnsupportedError, "argument 1 is 3"):
            graph(torch.randn(4, 3), 3)
        with self.assertRaisesRegex(errors.ShapeMismatchError, "other arguments"):
            graph(torch.randn(4, 3))
        with self.assertRaisesRegex(errors.NullInputError, "argument 0 is a float"):
            graph(1.0, 2)

    def test_strict_names_what_stays_torch_s(self):
        with self.assertRaisesRegex(errors.UnsupportedError, r"exp \(1 times\): it has no task"):
            self.graph(Of(lambda x: x.exp() * 2), torch.randn(3), strict=True)

    def test_what_would_not_be_the_same_later(self):
        def mixed(x):
            with torch.autocast("cpu", torch.bfloat16):
                return x @ x

        for module, why in (
            (Counting(), "output 0 of the graph is not that"),
            (Of(mixed), "under autocast"),
            (nn.LazyLinear(3), "call the module once"),
        ):
            with self.assertRaisesRegex(errors.UnsupportedError, why):
                self.graph(module, torch.randn(3, 3))

    def test_a_gradient_through_a_graph_is_refused(self):
        head = nn.Linear(3, 2)
        graph, x = self.graph(nn.Linear(4, 3), torch.randn(2, 4)), torch.randn(2, 4)
        with self.assertRaisesRegex(
            errors.UnsupportedError, "a gradient through the graph of Linear"
        ):
            head(graph(x)).sum().backward()  # otherwise only the head would have learned
        with torch.no_grad():
            self.assertFalse(graph(x).requires_grad)
        frozen = self.graph(nn.Linear(4, 3).requires_grad_(False), x)
        self.assertFalse(frozen(x).requires_grad)
        head(frozen(x)).sum().backward()
        with self.assertRaisesRegex(errors.UnsupportedError, "a gradient through"):
            frozen(x.requires_grad_()).sum().backward()

    def test_a_module_that_has_changed_is_refused(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
        graph, x = self.graph(module, torch.randn(2, 4)), torch.randn(2, 4)
        expected = graph(x)
        module.train()
        with self.assertRaisesRegex(errors.MacoError, r"Sequential.train\(\) was called"):
            graph(x)
        module.eval()
        self.assertTrue(torch.equal(graph(x), expected))
        weight, module[0].weight = module[0].weight, nn.Parameter(torch.zeros(4, 4))
        with self.assertRaisesRegex(errors.MacoError, "0.weight was replaced"):
            graph(x)
        module[0].weight = weight
        handle = module[0].register_forward_hook(lambda *_: None)
        with self.assertRaisesRegex(errors.MacoError, "parts or hooks of 0: changed since"):
            graph(x)
        handle.remove()
        self.assertTrue(torch.equal(graph(x), expected))

    def test_an_attribute_that_forward_reads_has_changed(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.scale, self.calls, self.ones = nn.Linear(4, 4), 2.0, 0, None

            def forward(self, x):
                self.calls += 1
                if self.ones is None:
                    self.ones = torch.ones(4)
                return self.layer(x) * self.scale + self.ones

        module, x = Scaled(), torch.randn(2, 4)
        graph = self.graph(module, x)
        expected = module(x).detach()  # and it counts
        self.assertTrue(torch.allclose(graph(x), expected, atol=1e-6))
        module.scale = 3.0
        with self.assertRaisesRegex(
            errors.MacoError, "Scaled.scale: changed since the graph was made"
        ):
            graph(x)
        module.scale = 2.0
        self.assertTrue(torch.allclose(graph(x), expected, atol=1e-6))
        dropping = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        graph = self.graph(dropping, x)
        dropping[1].p = 0.1
        with self.assertRaisesRegex(errors.MacoError, "1.p: changed since"):
            graph(x)

    def test_no_module_and_nothing_to_do(self):
        with self.assertRaises(errors.NullInputError):
            TaskGraph.from_module(lambda x: x, torch.randn(3))
        with self.assertRaisesRegex(errors.UnsupportedError, "computes nothing"):
            self.graph(nn.Identity(), torch.randn(3))
        with self.assertRaisesRegex(errors.UnsupportedError, "returns a set"):
            self.graph(Of(lambda x: {x * 2}), torch.randn(3))

    def test_what_torch_does_not_see_is_found_by_the_check(self):
        memory = []

        def sly(x):
            memory.append(
                float(
                    sum(
                        ctypes.c_float.from_address(x.data_ptr() + 4 * i).value * i
                        for i in range(3)
                    )
                )
            )
            return x * memory[-1]

        with self.assertRaisesRegex(errors.UnsupportedError, "output 0 of the graph is not that"):
            self.graph(Of(sly), torch.tensor([1.0, 2.0, 5.0]))
        with self.assertRaisesRegex(errors.UnsupportedError, "depend on values"):
            self.graph(Of(lambda x: x * x.numpy()[0]), torch.randn(3))


if __name__ == "__main__":
    unittest.main()

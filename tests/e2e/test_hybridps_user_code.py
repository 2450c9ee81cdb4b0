#!/usr/bin/python3
"""Code of users who know nothing of managed memory does the same as on plain torch, bit for bit,
with less device memory than the model's parameters take, or is refused by name."""
from __future__ import annotations

import copy
import gc
import io
import pathlib
import pickle
import sys
import tempfile
import threading
import unittest
import warnings
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from hybridps_code import TIGHT, WAYS, WIDTH, Code, bits, data, layers, several, train  # noqa: E402
from hybridps_model import hybridps  # noqa: E402


class Gradients(Code):
    def test_zero_grad_between_forward_and_backward(self):
        for zero in (
            lambda m, o: o.zero_grad(),
            lambda m, o: o.zero_grad(set_to_none=True),
            lambda m, o: m.zero_grad(),
            lambda m, o: m.zero_grad(set_to_none=True),
        ):

            def use(model, optimizer):
                losses = []
                for x, y in data(5):
                    loss = F.mse_loss(model(x), y)
                    zero(model, optimizer)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                return losses

            self.same(use)

    def test_zero_grad_between_forward_and_backward_moves_nothing(self):
        model = layers()
        optimizer = torch.optim.Adam(model.parameters())
        with hybridps.manage(model, optimizer, **TIGHT) as client:
            for x, y in data(3):
                loss = F.mse_loss(model(x), y)
                before = client.stats()["total"]
                optimizer.zero_grad(set_to_none=True)
                after = client.stats()["total"]
                self.assertEqual((after["h2d"], after["d2h"]), (before["h2d"], before["d2h"]))
                loss.backward()
                optimizer.step()

    def test_gradients_are_read_between_forward_and_backward(self):
        def use(model, optimizer):
            seen = []
            for x, y in data(4):
                loss = F.mse_loss(model(x), y)
                seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                loss.backward()  # adds to the last batch's gradients
                optimizer.step()
            return seen

        self.same(use)

    def test_gradients_are_written_through_their_data(self):
        def use(model, optimizer):
            for i, (x, y) in enumerate(data(6)):
                F.mse_loss(model(x), y).backward()
                for p in model.parameters():
                    p.grad.data.mul_(0.5)
                if i % 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

        self.same(use)

    def test_gradients_that_a_failed_backward_left_are_those_of_torch(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, error):
                ctx.error = error
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                if ctx.error:
                    raise ctx.error
                return gradient, None

        class Step(nn.Module):
            error = None

            def forward(self, x):
                return Fails.apply(x, self.error)

        def make():
            return nn.Sequential(layers()[0], Step(), layers()[4])

        def use(model, optimizer):
            out = []
            for number, (x, y) in enumerate(data(6)):
                model[1].error = (None, ZeroDivisionError(), KeyboardInterrupt())[number % 3]
                try:
                    F.mse_loss(model(x), y).backward()
                except (ZeroDivisionError, KeyboardInterrupt):
                    out += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                    if number > 3:
                        optimizer.zero_grad(set_to_none=True)
                    continue
                optimizer.step()
            return out

        self.same(use, make)

    def test_gradients_that_a_hook_ends_stay_what_is_kept_of_them(self):
        def use(model, optimizer, kept, rest):
            def take(p):
                kept.append(p.grad)
                p.grad = rest(p)

            nodes = [p.expand_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
            handles = [
                node.register_hook(lambda *_, p=p: take(p))
                for node, p in zip(nodes, model.parameters())
            ]
            out = []
            for x, y in data(3):
                F.mse_loss(model(x), y).backward()
                out.append([k.clone() for k in kept])
            for handle in handles:
                handle.remove()
            return out

        def made_outside(model, optimizer):
            train(model, optimizer, data(1))
            kept = [p.grad for p in model.parameters()]
            return use(model, optimizer, kept, lambda p: None) + [k.clone() for k in kept]

        def made_in_the_hook(model, optimizer):
            return use(model, optimizer, [], lambda p: None)

        def followed_by_another(model, optimizer):
            train(model, optimizer, data(1))
            return use(model, optimizer, [p.grad for p in model.parameters()], torch.ones_like)

        for case in (made_outside, made_in_the_hook, followed_by_another):
            for make in (layers, Twice):
                with self.subTest(case=case.__name__, model=make.__name__):
                    self.same(case, make)

    def test_a_gradient_that_was_given_has_what_a_failed_backward_added_to_it(self):
        def stop(_):
            raise ZeroDivisionError

        def use(model, optimizer):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            kept = [p.grad for p in model.parameters()]
            out = model[0](data(1)[0][0])
            out.register_hook(stop)
            try:
                model[1:](out).sum().backward()
            except ZeroDivisionError:
                for k in kept:
                    k.mul_(0.5)
            return [k.clone() for k in kept] + [p.grad.clone() for p in model.parameters()]

        self.same(use)


class Twice(nn.Module):
    """A gradient arrives twice in one backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = checkpoint(self.again, self.first(x), use_reentrant=True)
        return checkpoint(self.again, torch.tanh(x), use_reentrant=True)


class Models(Code):
    def test_parameters_that_other_modules_use(self):
        class Functional(nn.Module):
            def __init__(self):
                super().__init__()
                self.own = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)
                self.lists = nn.ModuleList(
                    [
                        nn.ParameterList(
                            nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1) for _ in range(3)
                        )
                    ]
                )
                self.named = nn.ParameterDict({"scale": nn.Parameter(torch.ones(WIDTH))})
                self.layer, self.big = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

            def forward(self, x):
                for weight in self.lists[0]:
                    x = (x @ weight).tanh()
                return F.linear(F.linear(x, self.own), self.layer.weight) * self.named["scale"]

        def make():
            torch.manual_seed(1)
            return nn.Sequential(Functional(), nn.Linear(WIDTH, WIDTH), Functional())

        self.same(several, make)

    def test_weights_that_are_made_before_forward(self):
        def make():
            model = layers()
            nn.utils.weight_norm(model[0])
            nn.utils.spectral_norm(model[2])
            return model

        def within(model, optimizer):
            losses = several(model, optimizer)
            prune.l1_unstructured(model[2], "weight", 0.5)
            nn.utils.weight_norm(model[0])
            return losses + several(model, torch.optim.SGD(model.parameters(), 0.1))

        roomy = [{**way, "device": "emu:160KiB"} for way in WAYS]
        self.same(several, make, ways=roomy)
        self.same(within, ways=roomy)

    def test_parameters_are_looked_at_in_hooks_and_between_forward_and_backward(self):
        def use(model, optimizer):
            seen = []

            def look(module, *_):
                seen.append(module.weight.norm().item())
                seen.extend(p.sum().item() for p in module.parameters())

            model[1].inplace = False
            for layer in model[::2]:
                layer.register_full_backward_hook(look)
                layer.register_forward_hook(look)
            for x, y in data(3):
                optimizer.zero_grad(set_to_none=True)
                loss = F.mse_loss(model(x), y)
                seen += [p.norm().item() for p in model.parameters()] + [repr(model[0].bias)]
                loss = loss + 1e-3 * sum(p.square().sum() for p in model.parameters())
                loss.backward()
                optimizer.step()
            return seen

        self.same(use, ways=[{**way, "device": "emu:80KiB"} for way in WAYS])

    def test_a_graph_of_the_gradients(self):
        def use(model, optimizer):
            losses = []
            model[1] = nn.Tanh()
            for x, y in data(4):
                x.requires_grad_()
                optimizer.zero_grad(set_to_none=True)
                out = model(x)
                (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
                loss = F.mse_loss(out, y) + slope.square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        self.same(use)
        model = layers()
        with hybridps.manage(model, **{**TIGHT, "device": "emu:80KiB"}) as client:
            model(data(1)[0][0]).sum().backward()
            x = data(1)[0][0].requires_grad_()
            torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            self.assertEqual(client.stats()["pinned"], 36864)
        model = layers().bfloat16()
        optimizer = torch.optim.Adam(model.parameters())
        with hybridps.manage(
            model, optimizer, **{**TIGHT, "device": "emu:1MiB"}, gradients="reuse"
        ):
            x = data(1)[0][0].bfloat16().requires_grad_()
            torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "weight.data is requested between.*create_graph"
            ):
                model[0].weight.data.zero_()
        model = layers()
        with hybridps.manage(model, **{**TIGHT, "device": "emu:56KiB"}) as client:
            torch.autograd.grad(model(x.float()).sum(), x, create_graph=True)
            self.assertEqual(client.stats()["pinned"], 0)

    def test_types_that_native_adam_has_not(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).double()
                self.c = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
                self.count = nn.Parameter(torch.arange(3), requires_grad=False)
                self.nothing = nn.Parameter(torch.empty(0))

            def forward(self, x):
                return (self.b(self.a(x).double()).to(torch.complex64) @ self.c).abs()

        def make():
            torch.manual_seed(1)
            return Mixed()

        self.same(
            several, make, lambda ps: torch.optim.Adam(p for p in ps if p.requires_grad), WAYS[:2]
        )

    def test_memory_that_a_parameter_is_given(self):
        def use(model, optimizer):
            losses = several(model, optimizer)
            with torch.no_grad():
                model[0].weight.set_(torch.full((2 * WIDTH, WIDTH), 0.01))
            losses += several(model, optimizer)
            model.share_memory()
            losses += several(model, optimizer)
            model.to("cpu").float()
            return losses + several(model, optimizer)

        self.same(use)


class Parts(Code):
    def test_groups_that_are_added_and_parameters_that_thaw(self):
        def use(model, optimizer):
            del optimizer.param_groups[0]["params"][2:]
            losses = several(model, optimizer)
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 1e-4})
            model[0].requires_grad_(False)
            losses += several(model, optimizer)
            model[0].requires_grad_(True)
            return losses + several(model, optimizer)

        self.same(use)

    def test_state_from_before_goes_on_or_is_cleared_before_the_first_step(self):
        def run(change, **way):
            torch.manual_seed(1)
            model = layers()
            model.number = nn.Parameter(torch.tensor(0.5))
            model.register_forward_hook(lambda _, given, out: out * model.number)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            train(model, optimizer, data(2))
            client = hybridps.manage(model, optimizer, **way) if way else None
            change(optimizer)
            out = train(model, optimizer, data(3, 1)), list(model.parameters())
            if client:
                client.close()
            return out

        def keep(optimizer):
            pass

        def clear(optimizer):
            optimizer.state.clear()

        def clear_one(optimizer):
            optimizer.state.pop(optimizer.param_groups[0]["params"][0])

        def load_a_part(optimizer):
            groups = optimizer.state_dict()["param_groups"]
            step = torch.tensor(1.0)
            optimizer.load_state_dict({"state": {0: {"step": step}}, "param_groups": groups})

        for change in (keep, clear, clear_one):
            expected = bits(run(change))
            for way in WAYS:
                with self.subTest(change.__name__, way=way):
                    self.assertEqual(bits(run(change, **way)), expected)
        with self.assertRaisesRegex(hybridps.HybridPSError, "^optimizer.state of number has no"):
            run(load_a_part, **TIGHT)

    def test_an_optimizer_of_more_than_is_managed(self):
        for way in (None, {**TIGHT, "device": "emu:1MiB"}):
            model = layers()
            optimizer = torch.optim.Adam(model.parameters())
            client = hybridps.manage(model[2], optimizer, **way) if way else None
            out = train(model, optimizer, data(5)), list(model.parameters())
            if client:
                client.close()
            expected = (
                bits(out) if way is None else self.assertEqual(bits(out), expected)  # noqa: F821
            )

    def test_a_checkpoint_has_the_state_of_parameters_that_came_later(self):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.AdamW(model.parameters())
        with hybridps.manage(model, optimizer, device="emu:1MiB") as client:
            model.add_module("head", nn.Linear(WIDTH, 3))
            optimizer.add_param_group({"params": list(model.head.parameters())})
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            _, saved = client.helios_state()
            for name in ("0.weight", "head.weight", "head.bias"):
                self.assertLessEqual(
                    {f"{key}.{name}" for key in ("exp_avg", "exp_avg_sq", "step")}, set(saved)
                )
            self.assertTrue(
                torch.equal(
                    saved["exp_avg.head.weight"], optimizer.state[model.head.weight]["exp_avg"]
                )
            )

    def test_state_that_a_checkpoint_can_not_hold_is_refused_by_name(self):
        model = nn.Sequential(nn.Linear(WIDTH, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with hybridps.manage(model, optimizer, device="emu:1MiB") as client:
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            state = optimizer.state[model[0].weight]
            state.update(count=3, nothing=None, tenth=0.1)
            _, saved = client.helios_state()
            self.assertEqual(
                set(saved),
                {
                    "momentum_buffer.0.weight",
                    "momentum_buffer.0.bias",
                    "count.0.weight",
                    "tenth.0.weight",
                },
            )
            self.assertEqual(
                (saved["count.0.weight"].item(), saved["tenth.0.weight"].item()), (3, 0.1)
            )
            state["history"] = [torch.ones(1)]
            with self.assertRaisesRegex(
                hybridps.HybridPSError, '^optimizer.state of 0.weight has "history", a list'
            ):
                client.helios_state()
        with self.assertRaisesRegex(hybridps.HybridPSError, "^exp_avg.0.weight is a str"):
            hybridps.restore_optimizer(optimizer, model, {"exp_avg.0.weight": "x"})

    def test_a_parameter_without_elements_beside_steps_on_the_device(self):
        def run(manage):
            torch.manual_seed(4)
            model = nn.Linear(WIDTH, WIDTH)
            model.none = nn.Parameter(torch.empty(0, 3))
            optimizer = torch.optim.AdamW(model.parameters())
            client = (
                hybridps.manage(model, optimizer, device="emu:1MiB", optimizer_device="device")
                if manage
                else None
            )
            for _ in range(3):
                optimizer.zero_grad()
                (model(torch.ones(2, WIDTH)).pow(2).sum() + model.none.sum()).backward()
                optimizer.step()
            if client:
                self.assertTrue(client.state.optimizers[0].on_device)
                client.close()
            return list(model.parameters())

        self.assertEqual(bits(run(True)), bits(run(False)))

    def test_copies_are_plain_and_can_be_managed(self):
        def use(model, optimizer):
            out = several(model, optimizer)
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            for other, theirs in (
                (torch.load(file, weights_only=False), None),
                pickle.loads(pickle.dumps((model, optimizer))),
                copy.deepcopy((model, optimizer)),
            ):
                self.assertNotIn("forward", other[0].__dict__)
                self.assertIs(type(other[0].weight), nn.Parameter)
                theirs = theirs or torch.optim.Adam(other.parameters())
                with hybridps.manage(other, theirs, **TIGHT):
                    out += several(other, theirs)
                out += list(other.parameters())
            return out + several(model, optimizer)

        self.same(use)

    def test_inference_mode_comes_first(self):
        def use(model, optimizer):
            with torch.inference_mode():
                seen = model(data(1)[0][0]).sum().item()
            return [seen] + several(model, optimizer)

        self.same(use)

    def test_a_scheduler_of_before_counts_the_steps(self):
        model = layers()
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with hybridps.manage(model, optimizer, **TIGHT), warnings.catch_warnings():
            warnings.simplefilter("error")  # it would warn that step was not called
            several(model, optimizer)
            scheduler.step()

    def test_threads_take_turns(self):
        def use(model, optimizer):
            out, inputs = several(model, optimizer), data(6)
            results = [None] * len(inputs)

            def evaluate(number):
                with torch.no_grad():
                    for _ in range(10):
                        results[number] = model(inputs[number][0])

            threads = [threading.Thread(target=evaluate, args=(i,)) for i in range(len(inputs))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return out + results + several(model, optimizer)

        self.same(use)

    @unittest.skipIf(hasattr(torch, "compile"), "this has not run with torch 2")
    def test_a_client_that_is_not_closed_ends_with_its_model(self):
        def trained(manage=True):
            torch.manual_seed(3)
            model = layers()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            client = hybridps.manage(model, optimizer, device="emu:56KiB") if manage else None
            train(model, optimizer, data(3))
            return weakref.ref(client.state.pool) if client else None, model, optimizer

        expected = bits(list(trained(manage=False)[1].parameters()))
        for keep in ("nothing", "views", "parameters", "optimizer"):
            with self.subTest(keep):
                pool, model, optimizer = trained()
                kept = {
                    "nothing": [],
                    "views": [p.detach() for p in model.parameters()],
                    "parameters": list(model.parameters()),
                    "optimizer": optimizer.param_groups[0]["params"],
                }[keep]
                del model, optimizer
                gc.collect()
                self.assertEqual(pool() is None, keep == "nothing")
                with hybridps.manage(layers(), None, device="emu:56KiB"):
                    pass  # what takes memory next does not get theirs
                if kept:
                    self.assertEqual(bits(kept), expected)
                kept.clear()
                gc.collect()
                self.assertIsNone(pool())
        self.assertNotIn("data", vars(nn.Parameter))  # no class of parameters is changed any more

    def test_what_can_not_be_managed_is_refused_by_name(self):
        model = layers()
        with self.assertRaisesRegex(hybridps.HybridPSError, "compiled by torch.jit"):
            hybridps.manage(torch.jit.script(model), **TIGHT)
        with hybridps.manage(model, **TIGHT), self.assertRaisesRegex(
            hybridps.HybridPSError, "bfloat16.*close the client"
        ):
            model.bfloat16()
        with tempfile.NamedTemporaryFile() as file:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{file.name}", rank=0, world_size=1
            )
            try:
                wrapped = nn.parallel.DistributedDataParallel(model)
                with self.assertRaisesRegex(hybridps.HybridPSError, "group=hybridps.Group.torch"):
                    hybridps.manage(wrapped, **TIGHT)
                with hybridps.manage(model, **TIGHT):
                    with self.assertRaisesRegex(
                        hybridps.HybridPSError, "group=hybridps.Group.torch"
                    ):
                        wrapped(data(1)[0][0])
                    model(data(1)[0][0]).sum().backward()
            finally:
                torch.distributed.destroy_process_group()
        embedding = nn.Embedding(8, WIDTH, max_norm=0.1)
        with hybridps.manage(embedding, **TIGHT), self.assertRaisesRegex(
            hybridps.HybridPSError, "written in place"
        ):
            embedding(torch.arange(8)).sum().backward()


if __name__ == "__main__":
    unittest.main()

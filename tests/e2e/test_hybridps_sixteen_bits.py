#!/usr/bin/python3
"""16-bit parameters with masters of 32 bits, which hybridps keeps, and scaled losses: the bits of
mixed precision by hand."""
from __future__ import annotations

import copy
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from hybridps_model import WIDTH, hybridps  # noqa: E402


class Mixed(nn.Module):
    """16-bit parameters with float32 arithmetic: what this torch can do on a CPU
    in float16 as well."""

    def __init__(self, dtype):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).to(dtype)
        for layer in self.layers:
            layer.forward = self.linear.__get__(layer)

    @staticmethod
    def linear(layer, x):
        return nn.functional.linear(x, layer.weight.float(), layer.bias.float())

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def mixed(dtype, seed=5):
    torch.manual_seed(seed)
    return Mixed(dtype)


class Types(nn.Module):
    """Parameters of 16 bits and of types that native Adam does not step."""

    def __init__(self):
        super().__init__()
        self.short = mixed(torch.bfloat16)
        self.of64 = nn.Parameter(torch.linspace(-1, 1, WIDTH, dtype=torch.float64))
        self.pairs = nn.Parameter(torch.full((WIDTH,), 0.5 + 0.5j))

    def forward(self, x):
        return self.short((x * self.pairs).abs() + self.of64.float())


def masters_of(model):
    return [p.detach().float().requires_grad_() for p in model.parameters()]


def loop_with_masters(model, steps, scale=1.0, clip=None, kind=torch.optim.Adam):
    """Mixed precision by hand, as the result that hybridps has to equal. Losses, and the scales."""
    masters = masters_of(model)
    optimizer = kind(masters, lr=1e-2, weight_decay=0.01)
    losses, scales, generator = [], [], torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(8, WIDTH, generator=generator)
        for p in model.parameters():
            p.grad = None
        loss = model(x).square().mean()
        (loss * scale).backward()
        losses.append(loss.item())
        scales.append(scale)
        finite = True
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad.float() * (1.0 / scale)
            finite = finite and bool(p.grad.isfinite().all())
        if not finite:
            scale *= 0.5
            continue
        if clip:
            norm = sum(float(m.grad.double().square().sum()) for m in masters) ** 0.5
            for master, p in zip(masters, model.parameters()):
                factor = min(1.0, clip / (norm + 1e-6)) / scale
                master.grad = p.grad.float() * torch.tensor(factor, dtype=torch.float32)
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters()):
                p.copy_(master)
    return losses, scales


def loop(model, optimizer, steps, scaler=None, clip=None):
    losses, scales, generator = [], [], torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(8, WIDTH, generator=generator)
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        losses.append(loss.item())
        if scaler:
            scales.append(scaler.get_scale())
            if clip:
                scaler.clip_grad_norm_(optimizer, clip)
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return losses, scales


class SixteenBits(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def same(self, mine, theirs):
        for a, b in zip(mine.parameters(), theirs.parameters()):
            self.assertTrue(torch.equal(a, b))

    def test_float16_with_scaled_losses_skips_steps_and_ends_as_by_hand(self):
        for clip in (None, 0.01):
            plain = mixed(torch.float16)
            expected = loop_with_masters(plain, 12, 2.0**24, clip)
            self.assertLess(expected[1][-1], 2.0**24)  # some steps were skipped,
            self.assertEqual(expected[1][-1], expected[1][-4])  # and some were not
            for gradients in ("separate", "reuse"):
                for where in ("host", "device"):
                    with self.subTest(clip=clip, gradients=gradients, where=where):
                        model = mixed(torch.float16)
                        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.01)
                        scaler = hybridps.GradScaler(2.0**24)
                        with hybridps.manage(
                            model,
                            optimizer,
                            device="emu:128KiB",
                            chunk_bytes=8192,
                            gradients=gradients,
                            optimizer_device=where,
                        ):
                            self.assertEqual(loop(model, optimizer, 12, scaler, clip), expected)
                            self.same(model, plain)
                        self.same(model, plain)

    def test_a_scaler_says_what_it_can_not_do_and_keeps_its_state(self):
        scaler = hybridps.GradScaler(8.0, growth_interval=1)
        scaler.update()
        other = hybridps.GradScaler()
        other.load_state_dict(scaler.state_dict())
        self.assertEqual(other.get_scale(), 16.0)
        with self.assertRaisesRegex(hybridps.HybridPSError, "not managed"):
            scaler.step(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1))
        with self.assertRaisesRegex(hybridps.HybridPSError, "growth_factor"):
            hybridps.GradScaler(growth_factor=1.0)
        for name, value in (
            ("init_scale", 0),
            ("init_scale", float("nan")),
            ("backoff_factor", "x"),
            ("growth_interval", 0),
            ("growth_interval", 1.5),
        ):
            with self.subTest(name, value=value), self.assertRaisesRegex(
                hybridps.HybridPSError, f"^{name} is "
            ):
                hybridps.GradScaler(**{name: value})
        with self.assertRaisesRegex(hybridps.HybridPSError, "int is not managed"):
            other.step(3)

    def test_a_scaler_does_not_unscale_float16_gradients_in_place(self):
        model, scaler = mixed(torch.float16), hybridps.GradScaler(2.0**24)
        optimizer = torch.optim.Adam(model.parameters())
        with hybridps.manage(model, optimizer, device="emu:128KiB", chunk_bytes=8192):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            with self.assertRaisesRegex(hybridps.HybridPSError, "call clip_grad_norm_"):
                scaler.unscale_(optimizer)
            self.assertTrue(all(bool((p.grad == 1).all()) for p in model.parameters()))
            scaler.clip_grad_norm_(optimizer, 1.0)
            scaler.step(optimizer)

    def test_a_scaler_steps_once_before_an_update(self):
        for infinite in (False, True):
            model, scaler = mixed(torch.float16), hybridps.GradScaler(2.0**8)
            optimizer = torch.optim.Adam(model.parameters())
            with hybridps.manage(model, optimizer, device="emu:128KiB", chunk_bytes=8192):
                for p in model.parameters():
                    p.grad = torch.full_like(p, float("inf") if infinite else 1.0)
                scaler.step(optimizer)
                before = [p.clone() for p in model.parameters()]
                with self.assertRaisesRegex(
                    hybridps.HybridPSError, "step of this optimizer was called"
                ):
                    scaler.step(optimizer)
                self.assertTrue(all(map(torch.equal, before, model.parameters())))
                scaler.update()
                scaler.step(optimizer)

    def test_gradients_in_the_place_of_parameters_take_14_bytes_a_parameter_and_change_no_bit(self):
        plain = mixed(torch.bfloat16)
        expected = loop_with_masters(plain, 10, kind=torch.optim.AdamW)
        count = sum(p.numel() for p in plain.parameters())
        for where in ("host", "device"):
            for mode in ("copy", "move"):
                with self.subTest(where=where, mode=mode):
                    model = mixed(torch.bfloat16)
                    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
                    with hybridps.manage(
                        model,
                        optimizer,
                        device="emu:128KiB",
                        chunk_bytes=8192,
                        mode=mode,
                        gradients="reuse",
                        optimizer_device=where,
                    ) as client:
                        self.assertEqual(loop(model, optimizer, 10)[0], expected[0])
                        self.same(model, plain)
                        stats = client.stats()
                        self.assertGreater(stats["last"]["evictions"], 0)
                        sizes = {
                            client.state.pool.tensor(t)["kind"]: 0 for t in range(stats["tensors"])
                        }
                        for t in range(stats["tensors"]):
                            info = client.state.pool.tensor(t)
                            sizes[info["kind"]] += info["bytes"]
                        self.assertEqual(sum(sizes.values()), 14 * count)
                        self.assertNotIn(1, sizes)  # chunks of gradients

    def test_in_the_place_of_parameters_gradients_can_be_clipped_dropped_and_checkpointed(self):
        plain, model = mixed(torch.bfloat16), mixed(torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.01)
        x = torch.ones(2, WIDTH)
        with hybridps.manage(
            model,
            optimizer,
            device="emu:128KiB",
            chunk_bytes=8192,
            gradients="reuse",
            optimizer_device="host",
        ):
            model(x).square().mean().backward()
            plain(x).square().mean().backward()
            for mine, theirs in zip(model.parameters(), plain.parameters()):
                self.assertTrue(torch.equal(mine.grad, theirs.grad))
                self.assertTrue(mine.isnan().all())  # and they are not taken for values
            norms = [float(nn.utils.clip_grad_norm_(m.parameters(), 0.1)) for m in (model, plain)]
            self.assertEqual(*norms)
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, plain.state_dict()[name]), name)
            optimizer.zero_grad(set_to_none=True)
            self.assertTrue(torch.equal(model(x), plain(x)))
            plain.zero_grad(set_to_none=True)
            self.assertEqual(loop(model, optimizer, 5)[0], loop_with_masters(plain, 5)[0])
            plain.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            plain(x).square().mean().backward()
        self.same(model, plain)  # closed before the step
        for mine, theirs in zip(model.parameters(), plain.parameters()):
            self.assertTrue(torch.equal(mine.grad, theirs.grad))

    def test_values_that_are_written_stay_where_gradients_take_their_place(self):
        def write(model):
            with torch.no_grad():
                model.layers[1].weight.mul_(1.25)

        def write_in_forward(model):
            def once(layer, _):
                handle.remove()
                layer.weight.data = layer.weight.data * 1.25

            handle = model.layers[1].register_forward_pre_hook(once)

        x = torch.ones(2, WIDTH)
        for change in (write, write_in_forward):
            results = []
            for gradients in ("separate", "reuse"):
                model = mixed(torch.bfloat16)
                optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
                way = {"device": "emu:128KiB", "chunk_bytes": 8192, "gradients": gradients}
                with hybridps.manage(model, optimizer, **way):
                    for step in range(4):
                        if step == 2:
                            change(model)
                        optimizer.zero_grad(set_to_none=True)
                        model(x).square().mean().backward()
                        optimizer.step()
                results.append(model)
            with self.subTest(change.__name__):
                self.same(*results)

    def test_values_that_are_written_between_steps_without_torch_counting_it_stay(self):
        def through_data(model, *_):
            for p in model.parameters():
                p.data.mul_(0.5)

        def assigned(model, *_):
            for p in model.parameters():
                p.data = torch.full_like(p, 0.25)

        def through_an_earlier_data(_, kept, __):
            for values in kept:
                values.mul_(0.5)

        def accessed(model, _, client):
            for p in model.parameters():
                client.access(p, write=True).mul_(0.5)
                client.release(p)

        for change in (through_data, assigned, through_an_earlier_data, accessed):
            for where in ("host", "device"):
                model = mixed(torch.bfloat16)
                optimizer = torch.optim.Adam(model.parameters(), lr=0.0)  # changes nothing itself
                way = {"device": "emu:128KiB", "chunk_bytes": 8192, "optimizer_device": where}
                with hybridps.manage(model, optimizer, **way) as client:
                    keeps = change is through_an_earlier_data
                    kept = [p.data for p in model.parameters()] if keeps else []
                    loop(model, optimizer, 2)
                    change(model, kept, client)
                    expected = [p.detach().clone() for p in model.parameters()]
                    loop(model, optimizer, 1)
                    with self.subTest(change.__name__, where=where):
                        self.assertTrue(all(map(torch.equal, model.parameters(), expected)))

    def test_what_gradients_in_the_place_of_parameters_rule_out_is_said(self):
        model = mixed(torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.ones(2, WIDTH)
        with hybridps.manage(
            model, optimizer, device="emu:128KiB", chunk_bytes=8192, gradients="reuse"
        ):
            model(x).square().mean().backward()
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "accumulation needs gradients=.separate.*emu:128KiB"
            ):
                model(x)
            optimizer.step()
            first, second = model(x).square().mean(), model(x).square().mean()
            first.backward()
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "in the place of the parameter, which is needed now"
            ):
                second.backward()
            optimizer.zero_grad(set_to_none=True)
            h = x.requires_grad_()
            for _ in range(2):
                h = checkpoint(lambda v: v + model.layers[0](v), h, use_reentrant=True)
            with self.assertRaisesRegex(
                hybridps.HybridPSError, "needed (now|after its gradient has taken its place)"
            ):
                h.sum().backward()
            optimizer.zero_grad(set_to_none=True)
            self.assertTrue(model(x).isfinite().all())

    def test_gradients_do_not_take_the_place_of_values_that_no_optimizer_keeps(self):
        def adam(model, **more):
            return torch.optim.Adam(model.parameters(), lr=1e-2, **more)

        for name, make in (
            ("no optimizer", lambda model: None),
            ("another one", lambda model: torch.optim.SGD(model.parameters(), lr=1e-2)),
            ("amsgrad", lambda model: adam(model, amsgrad=True)),
            ("of a part", lambda model: adam(model.layers[0])),
        ):
            with self.subTest(name):
                model, plain = mixed(torch.bfloat16), mixed(torch.bfloat16)
                with hybridps.manage(model, make(model), device="emu:128KiB", gradients="reuse"):
                    with self.assertRaisesRegex(hybridps.HybridPSError, r"^the gradient of layers"):
                        model(torch.ones(2, WIDTH)).square().mean().backward()
                self.same(model, plain)
        model = mixed(torch.float64)  # not of 16 bits: it has a place of its own
        with hybridps.manage(model, adam(model), device="emu:256KiB", gradients="reuse"):
            model(torch.ones(2, WIDTH)).square().mean().backward()
            model.zero_grad(set_to_none=True)
        self.same(model, mixed(torch.float64))

    def test_beside_parameters_that_are_not_managed_native_adam_still_steps_the_others(self):
        for device in ("emu:64KiB", "emu:1MiB"):
            with self.subTest(device):
                model, plain = mixed(torch.bfloat16), mixed(torch.bfloat16)
                heads = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
                heads[1].load_state_dict(heads[0].state_dict())
                optimizer = torch.optim.Adam(
                    [{"params": list(m.parameters())} for m in (model, heads[0])], lr=1e-3
                )
                masters = masters_of(plain)
                by_hand = torch.optim.Adam([*masters, *heads[1].parameters()], lr=1e-3)
                x = torch.randn(8, WIDTH)
                with hybridps.manage(model, optimizer, device=device, chunk_bytes=8192):
                    for _ in range(4):
                        optimizer.zero_grad(set_to_none=True)
                        by_hand.zero_grad(set_to_none=True)
                        plain.zero_grad(set_to_none=True)
                        losses = [h(m(x)).square().mean() for h, m in zip(heads, (model, plain))]
                        self.assertEqual(*(loss.item() for loss in losses))
                        for loss in losses:
                            loss.backward()
                        for master, p in zip(masters, plain.parameters()):
                            master.grad = p.grad.float()
                        optimizer.step()
                        by_hand.step()
                        with torch.no_grad():
                            for master, p in zip(masters, plain.parameters()):
                                p.copy_(master)
                    self.same(model, plain)
                    self.same(*heads)

    def test_beside_parameters_of_other_types_native_adam_still_steps_the_others(self):
        for device in ("emu:64KiB", "emu:1MiB"):
            for scale in (None, 1024.0):
                with self.subTest(device, scale=scale):
                    model, plain = Types(), Types()
                    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                    masters = masters_of(plain.short)
                    by_hand = torch.optim.AdamW([*masters, plain.of64, plain.pairs], lr=1e-2)
                    scaler = hybridps.GradScaler(scale) if scale else None
                    with hybridps.manage(model, optimizer, device=device, chunk_bytes=8192):
                        expected = self.by_hand(plain, masters, by_hand)
                        self.assertEqual(loop(model, optimizer, 4, scaler)[0], expected)
                        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                        expected = self.by_hand(plain, masters, by_hand)
                        self.assertEqual(loop(model, optimizer, 4, scaler)[0], expected)
                    self.same(model, plain)

    @staticmethod
    def by_hand(model, masters, optimizer):
        """As loop(), with the masters of model.short."""
        losses, generator = [], torch.Generator().manual_seed(2)
        for _ in range(4):
            model.zero_grad(set_to_none=True)
            loss = model(torch.randn(8, WIDTH, generator=generator)).square().mean()
            loss.backward()
            losses.append(loss.item())
            for master, p in zip(masters, model.short.parameters()):
                master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.short.parameters()):
                    p.copy_(master)
        return losses

    @staticmethod
    def state_of_16_bits(model):
        """As torch's own Adam keeps it."""
        return [
            {
                "step": torch.tensor(3.0),
                "exp_avg": torch.full_like(p, 0.01),
                "exp_avg_sq": torch.full_like(p, 0.02),
            }
            for p in model.parameters()
        ]

    def test_state_of_16_bits_from_before_continues_in_float32(self):
        for dtype in (torch.bfloat16, torch.float16):
            results = []
            for before in (True, False):
                model = mixed(dtype)
                optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
                state = self.state_of_16_bits(model)
                if before:
                    optimizer.state.update(zip(model.parameters(), state))
                with hybridps.manage(model, optimizer, device="emu:128KiB", chunk_bytes=8192):
                    if not before:
                        groups = optimizer.state_dict()["param_groups"]
                        optimizer.load_state_dict(
                            {"state": dict(enumerate(state)), "param_groups": groups}
                        )
                    losses = loop(model, optimizer, 4)[0]
                    kept = optimizer.state_dict()["state"]
                    results.append((losses, kept))
            with self.subTest(dtype):
                self.assertEqual(results[0][0], results[1][0])
                for mine, theirs in zip(results[0][1].values(), results[1][1].values()):
                    self.assertEqual(mine.keys(), theirs.keys())
                    for key, value in mine.items():
                        self.assertEqual(value.dtype, torch.float32, key)
                        self.assertTrue(torch.equal(value, theirs[key]), key)

    def test_a_state_dict_keeps_float32_state_of_frozen_parameters_that_are_thawed_later(self):
        way = {"device": "emu:128KiB", "chunk_bytes": 8192}
        results = []
        for frozen in (False, True):
            model = mixed(torch.bfloat16)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            with hybridps.manage(model, optimizer, **way):
                loop(model, optimizer, 3)
                values, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model = mixed(torch.bfloat16)
            model.load_state_dict(values)
            model.layers[1].requires_grad_(not frozen)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            with hybridps.manage(model, optimizer, **way):
                optimizer.load_state_dict(state)
                model.requires_grad_(True)
                results.append(loop(model, optimizer, 3)[0])
        self.assertEqual(*results)

    def test_masters_that_torch_has_rounded_are_refused(self):
        model = mixed(torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with hybridps.manage(model, optimizer, device="emu:128KiB"):
            loop(model, optimizer, 1)
            state = copy.deepcopy(optimizer.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        optimizer.load_state_dict(state)  # torch's own
        with self.assertRaisesRegex(hybridps.HybridPSError, r"of layers\.0\.weight .*after manage"):
            hybridps.manage(model, optimizer, device="emu:128KiB")
        with hybridps.manage(model, torch.optim.Adam(model.parameters()), device="emu:128KiB"):
            pass  # nothing of it is managed

    @staticmethod
    def read(tensors):
        """What a checkpoint gets."""
        out = {}
        for name, value in tensors.items():
            if not isinstance(value, torch.Tensor):
                source, value = value, torch.empty(value.shape, dtype=value.dtype)
                source.read_into(value.data_ptr(), value.numel() * value.element_size())
            out[name] = value.clone()
        return out

    def test_a_checkpoint_has_the_state_by_which_torch_has_stepped(self):
        models = [mixed(torch.bfloat16) for _ in range(2)]
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in models]
        with hybridps.manage(
            models[0], optimizers[0], device="emu:1MiB", optimizer_device="host"
        ) as client:
            for model, optimizer in zip(models, optimizers):
                optimizer.param_groups[0]["maximize"] = True  # what native Adam leaves to torch
                model(torch.ones(2, WIDTH)).square().mean().backward()
                optimizer.step()
            kept = self.read(client.helios_state()[1])
        for name, p in models[1].named_parameters():
            for key, value in optimizers[1].state[p].items():
                self.assertTrue(torch.equal(kept[f"{key}.{name}"], value), f"{key}.{name}")

    def test_values_that_were_written_before_a_save_are_what_training_continues_with(self):
        model = mixed(torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        with hybridps.manage(model, optimizer, device="emu:128KiB", chunk_bytes=8192) as client:
            loop(model, optimizer, 2)
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(0.5)
            values, state = map(self.read, client.helios_state())
            whole = optimizer.state_dict()
        for loaded in (False, True):
            model = mixed(torch.bfloat16)
            model.load_state_dict(values)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
            if not loaded:
                hybridps.restore_optimizer(optimizer, model, state)
            with hybridps.manage(model, optimizer, device="emu:128KiB", chunk_bytes=8192):
                if loaded:
                    optimizer.load_state_dict(whole)
                loop(model, optimizer, 1)
                with self.subTest(loaded=loaded):
                    self.assertTrue(all(bool((p == 0.5).all()) for p in model.parameters()))


if __name__ == "__main__":
    unittest.main()

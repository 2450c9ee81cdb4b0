#!/usr/bin/python3
"""The native Adam against torch: bit for bit, and 16-bit numbers rounded as torch does."""
from __future__ import annotations

import ctypes
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

import hybridps  # noqa: E402
from helios import _loader  # noqa: E402

BUILD = needs.BUILD
LIB = ctypes.CDLL(str(BUILD / "lib" / "libhelios.so.0"))
LIB.hybridps_adam_step.argtypes = (
    [ctypes.c_void_p] * 4
    + [ctypes.c_size_t, ctypes.c_long]
    + [ctypes.c_double] * 5
    + [ctypes.c_int] * 2
)


class Adam(_loader.Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("p", ctypes.c_void_p),
        ("m", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("grad_type", ctypes.c_int),
        ("p16", ctypes.c_void_p),
        ("p16_type", ctypes.c_int),
        ("n", ctypes.c_size_t),
        ("step", ctypes.c_long),
        ("lr", ctypes.c_double),
        ("b1", ctypes.c_double),
        ("b2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("wd", ctypes.c_double),
        ("grad_scale", ctypes.c_double),
        ("adamw", ctypes.c_int),
        ("nthreads", ctypes.c_int),
    ]


def native(p, g, m, v, step, lr, b1, b2, eps, wd, adamw, threads):
    code = LIB.hybridps_adam_step(
        p.data_ptr(),
        g.data_ptr(),
        m.data_ptr(),
        v.data_ptr(),
        p.numel(),
        step,
        lr,
        b1,
        b2,
        eps,
        wd,
        adamw,
        threads,
    )
    assert code == 0, code


class AdamAsTorch(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        newer = int(torch.__version__.split(".")[0]) >= 2
        LIB.hybridps_adam_set_rounding(0 if newer else 1)

    def test_steps_are_bit_equal_to_this_torch(self):
        for n in (1, 3, 15, 17, 100, 1025, 100003):  # single and foreach
            for adamw in (0, 1):
                for wd in (0.0, 0.01):
                    for b1 in (0.9, 0.4, 0.5, 0.1, 0.0):
                        self.compare(n, adamw, wd, b1)

    def compare(self, n, adamw, wd, b1):
        torch.manual_seed(n)
        start = torch.randn(n)
        theirs = torch.nn.Parameter(start.clone())
        kind = torch.optim.AdamW if adamw else torch.optim.Adam
        optimizer = kind(
            [theirs], lr=1e-3, betas=(b1, 0.999), eps=1e-8, weight_decay=wd, foreach=False
        )
        p, m, v = start.clone(), torch.zeros(n), torch.zeros(n)
        for step in range(1, 8):
            g = torch.randn(n) * 10.0 ** (step % 5 - 2)
            theirs.grad = g.clone()
            optimizer.step()
            native(p, g, m, v, step, 1e-3, b1, 0.999, 1e-8, wd, adamw, 2)
        self.assertTrue(torch.equal(p, theirs.data), f"n {n} adamw {adamw} wd {wd} beta1 {b1}")

    def test_the_newer_rounding_is_that_of_torch_2_s_operations(self):
        LIB.hybridps_adam_set_rounding(0)
        n, lr, b2, eps = 100003, 1e-3, 0.999, 1e-8
        for adamw, wd in ((0, 0.0), (0, 0.01), (1, 0.01)):
            torch.manual_seed(1)
            q, qm, qv = torch.randn(n), torch.zeros(n), torch.zeros(n)
            p, m, v = q.clone(), torch.zeros(n), torch.zeros(n)
            for step in range(1, 6):
                g = torch.randn(n)
                d = g
                if adamw:
                    q.mul_(1 - lr * wd)
                elif wd:
                    d = g.add(q, alpha=wd)
                qm.lerp_(d, 1 - 0.9)  # torch/optim/adam.py, _single_tensor_adam
                qv.mul_(b2).addcmul_(d, d, value=1 - b2)
                denom = (qv.sqrt() / (1 - b2**step) ** 0.5).add_(eps)
                q.addcdiv_(qm, denom, value=-(lr / (1 - 0.9**step)))
                native(p, g, m, v, step, lr, 0.9, b2, eps, wd, adamw, 1)
            self.assertTrue(torch.equal(p, q) and torch.equal(m, qm) and torch.equal(v, qv))

    def test_the_step_in_torch_s_operations_is_torch_s(self):
        """What CUDA devices step with, here on the CPU."""
        from hybridps._adam import adam_by_torch

        for kind in (torch.optim.Adam, torch.optim.AdamW):
            torch.manual_seed(4)
            theirs = torch.nn.Parameter(torch.randn(10007))
            p, m, v = theirs.detach().clone(), torch.zeros(10007), torch.zeros(10007)
            optimizer = kind([theirs], lr=1e-3, weight_decay=0.01, foreach=False)
            for step in range(1, 6):
                theirs.grad = torch.randn(10007)
                optimizer.step()
                adam_by_torch(
                    p,
                    theirs.grad.clone(),
                    m,
                    v,
                    step,
                    optimizer.param_groups[0],
                    kind is torch.optim.AdamW,
                )
                self.assertTrue(torch.equal(p, theirs))

    def test_half_precision_numbers_are_read_and_rounded_as_torch_does(self):
        bits = torch.arange(-32768, 32768, dtype=torch.int16)
        n = bits.numel()
        for kind, dtype in ((1, torch.float16), (2, torch.bfloat16)):
            g = bits.view(dtype)
            # lr 0 leaves p; beta1 0 makes m the gradient as it was read (torch 1.13's rounding)
            LIB.hybridps_adam_set_rounding(1)
            for seed in range(3):
                torch.manual_seed(seed)
                random = (
                    torch.randint(-(2**31), 2**31 - 1, (n,)).to(torch.int32).view(torch.float32)
                )
                near = (random.view(torch.int32) & -8192 | seed * 4096).view(torch.float32)  # ties
                for p in (random.clone(), near.clone()):
                    keep, out = p.clone(), torch.empty(n, dtype=dtype)
                    m, v = torch.zeros(n), torch.zeros(n)
                    step = Adam(
                        p.data_ptr(),
                        m.data_ptr(),
                        v.data_ptr(),
                        g.data_ptr(),
                        kind,
                        out.data_ptr(),
                        kind,
                        n,
                        1,
                        0.0,
                        0.0,
                        0.0,
                        1.0,
                        0.0,
                        1.0,
                        0,
                        2,
                    )
                    self.assertEqual(LIB.hybridps_adam_run(ctypes.byref(step)), 0)
                    read = torch.isfinite(g.float())
                    self.assertTrue(torch.equal(m[read], g.float()[read]))
                    same = read & ~torch.isnan(keep)  # elsewhere 0 * inf made p a NaN
                    self.assertTrue(
                        torch.equal(
                            out[same].view(torch.int16), keep.to(dtype)[same].view(torch.int16)
                        )
                    )


class BesideUnmanagedParameters(unittest.TestCase):
    """One optimizer steps a managed body and a head that is not managed."""

    def setUp(self):
        torch.set_num_threads(1)

    def run_on(self, device, use, dtype=torch.float32):
        """use(optimizer, run, device) makes a step; run() is the loss. device None: plain torch."""
        torch.manual_seed(0)
        body = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)
        ).to(dtype)
        head, x = torch.nn.Linear(8, 4).to(dtype), torch.randn(4, 8, dtype=dtype)
        both = [*body.parameters(), *head.parameters()]
        optimizer = torch.optim.Adam(both, lr=1e-2, eps=1e-2, foreach=False)
        client = (
            None
            if device is None
            else hybridps.manage(
                body, optimizer, device="emu:128KiB", chunk_bytes=8192, optimizer_device=device
            )
        )
        try:
            for _ in range(4):
                use(optimizer, lambda: head(body(x)).square().mean(), device)
        finally:
            if client is not None:
                client.close()
        return [p.detach().clone() for p in both]

    def same(self, use, *args, devices=("host", "auto")):
        plain = self.run_on(None, use, *args)
        for device in devices:
            with self.subTest(device):
                self.assertTrue(all(map(torch.equal, self.run_on(device, use, *args), plain)))

    @staticmethod
    def with_closure(optimizer, run, _):
        def closure():
            optimizer.zero_grad(set_to_none=True)
            loss = run()
            loss.backward()
            return loss

        assert isinstance(optimizer.step(closure).item(), float)

    def test_a_closure_that_makes_the_gradients(self):
        self.same(self.with_closure)

    def test_a_closure_that_makes_gradients_that_native_adam_does_not_take(self):
        self.same(self.with_closure, torch.float64, devices=("host",))

    def test_a_scaled_and_clipped_loss(self):
        def use(optimizer, run, device):
            optimizer.zero_grad(set_to_none=True)
            (run() * 1024).backward()
            if device is None:
                grads = [p.grad.mul_(1 / 1024) for p in optimizer.param_groups[0]["params"]]
                norm = sum(g.double().square().sum() for g in grads).item() ** 0.5
                for g in grads:
                    g.mul_(min(1.0, 0.0625 / (norm + 1e-6)))
                optimizer.step()
                return
            scaler = hybridps.GradScaler(1024.0)
            norms.append(scaler.clip_grad_norm_(optimizer, 0.0625))
            scaler.step(optimizer)

        norms = []
        expected = self.run_on(None, use)
        for device in ("host", "auto"):
            with self.subTest(device):
                for mine, theirs in zip(self.run_on(device, use), expected):
                    self.assertTrue(torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7))
        self.assertGreater(min(norms), 0.0625)  # it was clipped

    def test_unscaled_gradients_can_be_clipped_by_torch_or_stepped_without_the_scaler(self):
        def use(optimizer, run, device):
            for clipped in (True, False):
                optimizer.zero_grad(set_to_none=True)
                (run() * 1024).backward()
                parameters, scaler = optimizer.param_groups[0]["params"], hybridps.GradScaler(
                    1024.0
                )
                if device is None:
                    for p in parameters:
                        p.grad.mul_(1 / 1024)
                else:
                    scaler.unscale_(optimizer)
                if clipped:
                    norms.append(torch.nn.utils.clip_grad_norm_(parameters, 0.0625).item())
                if device is None or not clipped:
                    scaler.update()
                    optimizer.step()
                else:
                    scaler.step(optimizer)

        norms = []
        expected = self.run_on(None, use)
        self.assertGreater(min(norms), 0.0625)  # they were clipped
        for device in ("host", "auto"):
            with self.subTest(device):
                for mine, theirs in zip(self.run_on(device, use), expected):
                    self.assertTrue(torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7))

    def test_a_step_is_skipped_when_the_head_s_gradient_is_infinite(self):
        def use(optimizer, run, device):
            optimizer.zero_grad(set_to_none=True)
            run().backward()
            optimizer.param_groups[0]["params"][-1].grad[0] = float("inf")
            if device is not None:
                hybridps.GradScaler(2.0).step(optimizer)

        self.same(use)

    def test_a_scale_is_refused_by_steps_that_would_leave_it(self):
        def use(optimizer, run, _):
            run().backward()
            optimizer.param_groups[0]["amsgrad"] = True
            hybridps.GradScaler(2.0).step(optimizer)

        with self.assertRaisesRegex(
            hybridps.HybridPSError, "have a loss's scale: only native Adam"
        ):
            self.run_on("host", use)


if __name__ == "__main__":
    unittest.main(verbosity=2)

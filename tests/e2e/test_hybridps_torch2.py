#!/usr/bin/python3
"""Code of users as in test_hybridps_user_code.py, of the kinds that only torch 2 has."""
from __future__ import annotations

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import torch.nn as nn
import torch.nn.functional as F

from hybridps_code import TIGHT, WAYS, Code, data, layers, several  # noqa: E402
from hybridps_model import hybridps  # noqa: E402


@unittest.skipUnless(hasattr(torch, "compile"), "torch 1.13 has none of these")
class Torch2(Code):
    """Parameters of a newer torch, and what it additionally allows."""

    @staticmethod
    def compiled(what):
        torch.compiler.reset()
        return torch.compile(what, backend="eager")

    def test_a_compiled_model_runs_uncompiled(self):
        def forward(model):
            model.forward = self.compiled(model.forward)
            return model

        def child(model):
            model[2] = self.compiled(model[2])
            return model

        for change in (self.compiled, forward, child):
            self.same(several, make=lambda change=change: change(layers()))
        self.same(lambda model, optimizer: several(self.compiled(model), optimizer))

    def test_compiled_code_around_a_model_finds_what_is_there(self):
        def use(model, optimizer):
            def step(x, y):
                optimizer.zero_grad()
                loss = (
                    F.mse_loss(model(x), y)
                    + sum(p.square().sum() for p in model.parameters()) * 1e-3
                )
                loss.backward()
                norm = sum(p.grad.square().sum() for p in model.parameters())
                optimizer.step()
                return loss.detach(), norm, model[0].weight.sum()

            # torch compiles its own Adam's step into one that rounds differently.
            chosen = self.compiled(step) if "_hybridps_unit" in model.__dict__ else step
            return [chosen(x, y) for x, y in data(4)]

        self.same(use)

    def test_fused_steps_are_seen(self):
        """torch does not count their writes."""
        try:
            torch.optim.SGD(layers().parameters(), lr=1e-2, fused=True)
        except (RuntimeError, TypeError) as error:
            self.skipTest(str(error))
        for kind in (
            torch.optim.Adam,
            torch.optim.AdamW,
            lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
        ):
            self.same(
                several, optimizer=lambda p, kind=kind: kind(p, lr=1e-2, fused=True), ways=WAYS[:2]
            )

    def test_rates_and_betas_that_are_tensors(self):
        def chosen(parameters):
            try:
                betas = torch.tensor(0.8), torch.tensor(0.99)
                return torch.optim.Adam(
                    parameters, lr=1e-2, betas=betas, foreach=False, capturable=False
                )
            except ValueError:  # before torch 2.6
                return torch.optim.Adam(parameters, lr=torch.tensor(1e-2), foreach=False)

        self.same(several, optimizer=chosen, ways=WAYS[:2])

    def test_scaled_losses(self):
        def use(model, optimizer):
            scaler, out = torch.amp.GradScaler("cpu", init_scale=2.0**24), []
            for x, y in data(8):
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                out.append(scaler.get_scale())
            return out

        self.same(use)

    def test_hooks_of_a_step_run(self):
        def use(model, optimizer):
            def halve(*_):
                for p in model.parameters():
                    p.grad.mul_(0.5)

            seen = []
            optimizer.register_step_pre_hook(halve)
            optimizer.register_step_post_hook(lambda *_: seen.append(model[0].weight.sum().item()))
            return several(model, optimizer) + seen

        self.same(use)

    def test_what_can_not_be_managed_is_refused_by_name(self):
        model = layers()
        handle = model[0].weight.register_post_accumulate_grad_hook(print)
        with self.assertRaisesRegex(
            hybridps.HybridPSError, "0.weight: no hooks after accumulation"
        ):
            hybridps.manage(model, **TIGHT)
        handle.remove()
        with hybridps.manage(model, **TIGHT), self.assertRaisesRegex(
            hybridps.HybridPSError, "2.bias: no hooks after"
        ):
            model[2].bias.register_post_accumulate_grad_hook(print)
        from torch.distributed._composable import replicate
        from torch.distributed.fsdp import FullyShardedDataParallel

        with tempfile.NamedTemporaryFile() as file:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{file.name}", rank=0, world_size=1
            )
            try:
                for wrapped in (
                    replicate(layers()),
                    FullyShardedDataParallel(layers(), device_id=torch.device("cpu")),
                ):
                    with self.assertRaisesRegex(
                        hybridps.HybridPSError, "group=hybridps.Group.torch"
                    ):
                        hybridps.manage(wrapped, **TIGHT)
                # if it is managed already
                for part in (lambda m: m, lambda m: m[0], lambda m: m[0][0]):
                    model = nn.Sequential(nn.Sequential(layers(), nn.ReLU()), nn.ReLU())
                    with hybridps.manage(model, **TIGHT):
                        replicate(part(model))
                        with self.assertRaisesRegex(
                            hybridps.HybridPSError, "replicate sums up.*group=hybridps.Group.torch"
                        ):
                            model(data(1)[0][0])
            finally:
                torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()

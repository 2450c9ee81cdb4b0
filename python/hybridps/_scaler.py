"""Loss scaling for float16: torch's GradScaler for managed optimizers, on any device."""
from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from ._abi import HybridPSError, check_whole
from ._adam import norm_of


@dataclasses.dataclass
class _Measured:
    """The gradients of an optimizer."""
    stepper: Any
    norm: float  # without the scale
    finite: bool
    unscaled: bool = False  # in place
    stepped: bool = False


class GradScaler:
    """``scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()``.

    Native Adam divides by the scale within its step, even for float16 gradients, which torch's own
    scaler refuses. A step is skipped when a gradient is infinite or NaN. To clip, call
    ``scaler.clip_grad_norm_(optimizer, most)`` before step: it is fused with the step, too.
    """

    def __init__(self, init_scale: float = 2.0 ** 16, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5, growth_interval: int = 2000) -> None:
        for name, value in (("init_scale", init_scale), ("growth_factor", growth_factor),
                            ("backoff_factor", backoff_factor)):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0.0 < value < math.inf:
                raise HybridPSError(f"{name} is {value!r}: it must be a finite number above 0")
        if check_whole("growth_interval", growth_interval) < 1:
            raise HybridPSError("growth_interval is 0: it must be a number of steps from 1 on")
        if growth_factor <= 1.0 or not 0.0 < backoff_factor < 1.0:
            raise HybridPSError(f"growth_factor {growth_factor} must be above 1, backoff_factor "
                                f"{backoff_factor} between 0 and 1")
        self._scale, self.growth_factor = float(init_scale), growth_factor
        self.backoff_factor, self.growth_interval = backoff_factor, growth_interval
        self._good = 0  # steps since the scale last changed
        self._measured: dict[int, _Measured] = {}  # by optimizer, since the last update

    def get_scale(self) -> float:
        return self._scale

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or several in lists, tuples and dicts, by the scale."""
        if isinstance(outputs, torch.Tensor):
            return outputs * self._scale
        if isinstance(outputs, dict):
            return {k: self.scale(v) for k, v in outputs.items()}
        return type(outputs)(self.scale(v) for v in outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale in place, to be changed before step. Not needed for
        clip_grad_norm_ and step, which divide while they step. Refuses float16 gradients: the
        smallest would become 0."""
        stepper = _stepper(optimizer)
        if any(p.dtype == torch.float16 for p in stepper.all_params() if p.requires_grad):
            raise HybridPSError("unscale_ would turn small float16 gradients into 0: to clip, call "
                                "clip_grad_norm_ of this scaler")
        measured = self._measure(optimizer)
        for p in stepper.all_params():
            if p.grad is not None:
                p.grad.mul_(1.0 / self._scale)
        measured.unscaled = True
        stepper.factor = 1.0

    def _measure(self, optimizer: torch.optim.Optimizer) -> _Measured:
        """Compute the gradients' norm once between updates; step will divide by the scale."""
        if id(optimizer) in self._measured:
            raise HybridPSError("unscale_ of this optimizer was called already since the last "
                                "update, or clip_grad_norm_ or step was")
        stepper = _stepper(optimizer)
        squares, finite = norm_of(stepper, 1.0 / self._scale)
        stepper.factor = 1.0 / self._scale
        return self._measured.setdefault(id(optimizer), _Measured(stepper, squares ** 0.5, finite))

    def clip_grad_norm_(self, optimizer: torch.optim.Optimizer, most: float) -> float:
        """The norm of all unscaled gradients, as it was when it was first asked for; step will clip
        them to ``most``."""
        measured = self._measured.get(id(optimizer)) or self._measure(optimizer)
        clip = min(1.0, most / (measured.norm + 1e-6))
        measured.stepper.factor = clip if measured.unscaled else clip / self._scale
        return measured.norm

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Take the optimizer's step, unless a gradient is not finite."""
        measured = self._measured.get(id(optimizer)) or self._measure(optimizer)
        if measured.stepped:
            raise HybridPSError("step of this optimizer was called already since the last update: "
                                "its gradients would count with the scale")
        out = optimizer.step(*args, **kwargs) if measured.finite else None
        measured.stepper.factor = 1.0
        measured.stepped = True
        return out

    def update(self, new_scale: float | None = None) -> None:
        """Call after the steps: reduces the scale when one was skipped, and raises it after
        many."""
        bad = not all(m.finite for m in self._measured.values())
        for measured in self._measured.values():
            measured.stepper.factor = 1.0  # of an optimizer that was not stepped
        self._measured.clear()
        if new_scale is not None:
            self._scale = float(new_scale)
        elif bad:
            self._scale *= self.backoff_factor
            self._good = 0
        else:
            self._good += 1
            if self._good >= self.growth_interval:
                self._scale *= self.growth_factor
                self._good = 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self._scale, "growth_factor": self.growth_factor,
                "backoff_factor": self.backoff_factor, "growth_interval": self.growth_interval,
                "_growth_tracker": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scale, self._good = float(state["scale"]), int(state["_growth_tracker"])
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]


def _stepper(optimizer: torch.optim.Optimizer) -> Any:
    stepper = getattr(optimizer, "__dict__", {}).get("_hybridps_stepper")
    if stepper is None or not stepper.native:
        raise HybridPSError(f"{type(optimizer).__name__} is not managed with native=True: "
                            "register Adam or AdamW, or use torch's own GradScaler")
    return stepper

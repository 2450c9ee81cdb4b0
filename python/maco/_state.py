"""What a module's forward reads and changes in addition to its inputs and parameters.

A graph replaces a forward only while everything that was read during tracing is unchanged
(``Guards``), and only if the forward changes nothing behind torch's back (``Kept``).
"""
from __future__ import annotations

import contextlib
import copy
import random
import sys
from typing import Any, Callable, Iterator

import torch
from torch import nn

from hybridps._tensors import tensors_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_OWN = set(nn.Module().__dict__) - {"training"} | {"forward"}
_GONE = object()


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


class Guards:
    """Create it before tracing; ``read`` records what forward reads."""

    def __init__(self, module: nn.Module) -> None:
        self.names = {id(m): path or type(m).__name__ for path, m in module.named_modules()}
        self.modules = list(module.modules())
        self.children = [tuple(m._modules.values()) for m in self.modules]
        self.hooks = [has_hooks(m) for m in self.modules]
        self.attributes: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}

    def read(self, module: nn.Module, name: str, value: Any) -> None:
        self.attributes.setdefault((id(module), name), (module.__dict__, name, value))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Within the block record what forward reads and does not set itself."""
        def seen(module: nn.Module, name: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                self.read(module, name, value)
            return value
        with watched(self.modules, seen):
            yield
        self.forget_set()

    def forget_set(self) -> None:
        """Forget attributes that forward itself has changed."""
        self.attributes = {key: held for key, held in self.attributes.items() if _same(*held)}

    def changed(self) -> str:
        """What has changed and would make forward take another path; "" if nothing has."""
        for module, children, hooks in zip(self.modules, self.children, self.hooks):
            if tuple(module._modules.values()) != children or has_hooks(module) != hooks:
                return f"parts or hooks of {self.names[id(module)]}"
        for (module_id, name), held in self.attributes.items():
            if not _same(*held):
                return f"{self.names[module_id]}.{name}"
        return ""

    def hold(self) -> bool:
        """Whether forward would take the same path."""
        return not self.changed()


def _same(attributes: dict[str, Any], name: str, value: Any) -> bool:
    now = attributes.get(name, _GONE)
    return now is value or type(now) is type(value) and isinstance(value, _PLAIN) and now == value


@contextlib.contextmanager
def watched(modules: list[nn.Module], seen: Callable[[nn.Module, str, Any], Any]) -> Iterator[None]:
    """Call seen(module, name, value) for each attribute of these modules that is read; the reader
    gets what it returns."""
    def reader(cls: type) -> Callable[[Any, str], Any]:
        real = cls.__getattribute__

        def read(module: Any, name: str) -> Any:
            value = real(module, name)
            if name in _OWN or name not in real(module, "__dict__"):
                return value
            return seen(module, name, value)
        return read
    classes = [cls for cls in {type(m): None for m in modules}]
    readers = {cls: reader(cls) for cls in classes}
    own = {cls: cls.__dict__.get("__getattribute__") for cls in classes}
    try:
        for cls in classes:
            cls.__getattribute__ = readers[cls]  # type: ignore[method-assign, assignment]
        yield
    finally:
        for cls in classes:
            if own[cls] is None:
                del cls.__getattribute__
            else:
                cls.__getattribute__ = own[cls]  # type: ignore[method-assign]


def _contents(value: Any) -> Any:
    """A fingerprint that shows whether a container was changed."""
    return {k: id(v) for k, v in value.items()} if isinstance(value, dict) else \
        set(value) if isinstance(value, set) else list(map(id, value))


class Kept:
    """A snapshot of attributes, containers, tensors that are not parameters, and generator
    states."""

    def __init__(self, module: nn.Module) -> None:
        self.attributes: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.containers: list[tuple[str, Any, Any, Any]] = []
        self.tensors: dict[int, tuple[str, torch.Tensor, int, torch.Tensor]] = {}
        self.random = _generators()
        for path, m in module.named_modules():
            name = path or type(module).__name__
            self.attributes.append((name, m.__dict__, dict(m.__dict__)))
            for key, value in m.__dict__.items():
                if isinstance(value, (list, dict, set)):
                    self.containers.append((f"{name}.{key}", value, copy.copy(value),
                                            _contents(value)))
                if key == "_buffers" or key not in _OWN:
                    self._keep(f"{name}.{key}", value)

    def _keep(self, name: str, value: Any) -> None:
        for t in tensors_of(value):
            if not isinstance(t, nn.Parameter) and id(t) not in self.tensors:
                self.tensors[id(t)] = name, t, version_of(t), t.detach().clone()

    def restore(self, attributes: bool = True) -> list[str]:
        """Restore everything, or only tensors and generators; returns the names of what had
        changed."""
        changed = self._attributes() if attributes else []
        for name, t, version, before in self.tensors.values():
            if version_of(t) != version:
                changed.append(name)
            if not torch.equal(t, before):  # batch_norm does not count a version
                with torch.no_grad(), torch.inference_mode(t.is_inference()):
                    t.copy_(before)
        if not _alike(_generators(), self.random):
            changed.append("the state of a random generator")
            torch.set_rng_state(self.random[0])
            random.setstate(self.random[1])
            if self.random[2] is not None:
                sys.modules["numpy"].random.set_state(self.random[2])
        return changed

    def _attributes(self) -> list[str]:
        changed = []
        for name, now, before in self.attributes:
            other = [k for k in {**before, **now}
                     if before.get(k, _GONE) is not now.get(k, _GONE)]
            if other:
                changed += [f"{name}.{k}" for k in other]
                now.clear()
                now.update(before)
        for name, now, before, contents in self.containers:
            if _contents(now) != contents:
                changed.append(name)
                now.clear()
                (now.extend if isinstance(now, list) else now.update)(before)
        return changed


def autocast() -> tuple[bool, bool]:
    """Whether autocast is on for GPUs, and for the CPU."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        return torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
    return torch.is_autocast_enabled(), torch.is_autocast_cpu_enabled()


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Run without gradients, and without caching autocast's casts: later calls would get these and
    have no gradient."""
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(kept)


def version_of(t: torch.Tensor) -> int:
    return -1 if t.is_inference() else t._version


def _generators() -> tuple[Any, ...]:
    """The states of torch's, Python's and numpy's generators."""
    numpy = sys.modules.get("numpy")
    return (torch.get_rng_state(), random.getstate(),
            numpy.random.get_state(legacy=False) if numpy is not None else None)


def _alike(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return torch.equal(a[0], b[0]) and a[1] == b[1] and repr(a[2]) == repr(b[2])

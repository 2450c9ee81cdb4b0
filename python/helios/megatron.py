"""Megatron-core's distributed optimizer (``--use-distributed-optimizer``): its state in pieces.

    optim = helios.megatron.optimizer_pieces(chunks, optimizer)
    helios.save_state_dict(state, step, optim=optim)
    ...
    helios.megatron.load_optimizer(chunks, optimizer, step)

`chunks` is the list of model chunks and `optimizer` the optimizer that Megatron's
``setup_model_and_optimizer`` returns. Each data-parallel rank holds ranges of its tensor rank's
parameters (``gbuf_ranges``): their main parameters in FP32 and Adam's moments. The names of the
state are ``param.decoder.…``, ``exp_avg.decoder.…`` and ``exp_avg_sq.decoder.…``. Megatron itself
is not imported.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Sequence

from . import _state, _tensors
from ._pieces import Piece
from .errors import InvalidArgument, NotFound, Unsupported

if TYPE_CHECKING:
    import torch

    from .session import Session

__all__ = ["load_optimizer", "optimizer_pieces"]

MOMENTS = ("exp_avg", "exp_avg_sq")
MAIN = "param"  # the FP32 copy of a parameter that is trained in another type


class _Owned(NamedTuple):
    """A parameter of which this rank owns a range."""

    name: str
    parameter: "torch.Tensor"
    start: int
    end: int
    main: "torch.Tensor"  # what the inner optimizer updates: a vector of end - start elements
    inner: Any


def _names(chunks: Sequence[Any]) -> dict[Any, str]:
    """{parameter: its name in a save}."""
    names = {}
    for number, chunk in enumerate(chunks):
        prefix = f"model{number}." if len(chunks) > 1 else ""
        for name, parameter in chunk.named_parameters():
            names[parameter] = prefix + _state.plain(name)
    return names


def _check(optimizer: Any) -> None:
    what = None
    if not hasattr(optimizer, "gbuf_ranges"):
        what = (f"{type(optimizer).__name__} is not a DistributedOptimizer with gradient buffers "
                "(or Megatron-FSDP's)")
    elif getattr(optimizer.config, "use_precision_aware_optimizer", False):
        what = "state of --use-precision-aware-optimizer is scaled"
    elif hasattr(optimizer.optimizer, "sub_optimizers"):
        what = "--optimizer-cpu-offload has several inner optimizers"
    if what:
        raise Unsupported(f"{what}: pass its state to save_state_dict as helios.Piece")


def _owned(chunks: Sequence[Any], optimizer: Any, spare: bool) -> Iterator[_Owned]:
    """`spare`: include ranges that another instance of the distributed optimizer also has."""
    names = _names(chunks)
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(part, "is_stub_optimizer", False):
            continue
        _check(part)
        if getattr(part, "distributed_optimizer_instance_id", 0) and not spare:
            continue
        buckets = (bucket for buffer in part.gbuf_ranges for of_type in buffer.values()
                   for bucket in of_type)
        for parameter, where in (item for bucket in buckets
                                 for item in bucket["param_map"].items()):
            if parameter not in names:
                raise InvalidArgument("the optimizer has a parameter of shape "
                                      f"{list(parameter.shape)} that none of the model's chunks "
                                      "has: pass the list of chunks that it was made for")
            group, order = part.model_param_group_index_map[parameter]
            main, name = part.optimizer.param_groups[group]["params"][order], names[parameter]
            start, end = where["param"].start, where["param"].end
            if main.numel() != end - start:
                raise Unsupported(f"the optimizer holds {main.numel()} elements of '{name}' where "
                                  f"its buffer has [{start}, {end})")
            yield _Owned(name, parameter, start, end, main, part.optimizer)


def _has_main(owned: _Owned) -> bool:
    """Whether the optimizer updates a copy instead of the parameter itself."""
    return owned.main.dtype != owned.parameter.dtype


def optimizer_pieces(chunks: Sequence[Any], optimizer: Any, /) -> dict[str, Piece]:
    """What this rank passes to save_state_dict as `optim`; every data rank passes its own.

    Raises InvalidArgument before the first step, because there is no state yet, and Unsupported for
    optimizers that store their state differently.
    """
    out = {}
    for owned in _owned(chunks, optimizer, spare=False):
        state = dict(owned.inner.state.get(owned.main) or {})
        missing = [kind for kind in MOMENTS if kind not in state]
        if missing:
            raise InvalidArgument(f"the optimizer has no {missing[0]} of '{owned.name}': it has "
                                  "made no step yet")
        tensors = {kind: state[kind] for kind in MOMENTS}
        if _has_main(owned):
            tensors[MAIN] = owned.main
        for kind, tensor in tensors.items():
            out[f"{kind}.{owned.name}"] = Piece(tensor, tuple(owned.parameter.shape), owned.start)
    return out


def load_optimizer(chunks: Sequence[Any], optimizer: Any, step: int, /, *,
                   session: "Session | None" = None,
                   **where: Any) -> None:
    """Load this rank's ranges of saved state, regardless of the layout and number of data ranks it
    had.

    `step`: number of optimizer steps made. `where` selects the version, as in load_state_dict
    (model, version, naming, sizes). The optimizer is changed only if all of its state was found.
    Load the parameters of the model first.
    """
    if session is None:
        from . import session as process_wide
        session = process_wide()
    torch = _tensors.torch_module()
    every = list(_owned(chunks, optimizer, spare=True))
    ranges = {owned.name: (owned.start, owned.end) for owned in every}
    state = session.load_state_dict(kind="optim", ranges=ranges, **where)
    for owned in every:
        for kind in (*MOMENTS, *([MAIN] if _has_main(owned) else [])):
            if f"{kind}.{owned.name}" not in state:
                raise NotFound(f"the version has no '{kind}.{owned.name}'")
    for owned in every:
        values = owned.inner.state.setdefault(owned.main, {})
        for kind in MOMENTS:
            old, new = values.get(kind), state[f"{kind}.{owned.name}"]
            if old is None:
                values[kind] = new.to(owned.main.device, torch.float32, copy=True)
            else:
                old.copy_(new)
        if _has_main(owned):
            with torch.no_grad():
                owned.main.copy_(state[f"{MAIN}.{owned.name}"])
        if isinstance(owned.inner, (torch.optim.Adam, torch.optim.AdamW)):
            values["step"] = torch.tensor(float(step))
    for inner in {id(owned.inner): owned.inner for owned in every}.values():
        # Apex and Transformer Engine
        if not isinstance(inner, (torch.optim.Adam, torch.optim.AdamW)):
            for group in inner.param_groups:
                group["step"] = step

"""One rank's view of Helios: its identity, loading its tensors and writing them back."""
from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from . import _abi, _arguments, _gang, _pieces, _replicas, _state, _steps, _tensors, layout
from ._rank import Rank, split_model
from ._naming import NAMINGS, differ, naming_of, rename
from .errors import (
    Conflict, Corrupt, HeliosError, InvalidArgument, NotFound, TimedOut, Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    import torch

KINDS = ("model", "optim", "extra", "all")
PATHS = ("auto", "shm", "net")
SIZES = ("tp_size", "pp_size", "virtual_stages", "ep_size", "etp_size")
RETRIES_MAX = 100  # of the C client


def _has_own_names(config: Mapping[str, Any]) -> bool:
    """Whether the model's tensors have names that no family's table describes."""
    return bool(config.get("unsliced") or config.get("asSaved"))


def _shown(stored: dict[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    """The tensors that belong to a position of a different split, under their names there."""
    missing = names.keys() - stored.keys()
    if missing:
        raise Corrupt(f"{where}: tensor '{min(missing)}' is not in the shard: the catalogue is "
                      "wrong; use another version")
    return {shown: stored[name] for name, shown in names.items()}


class Saved(NamedTuple):
    """Result of save_state_dict. ``visible``: this rank's commit completed the version."""

    version: int
    visible: bool
    bytes: int
    seconds: float


def _as_json(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        value = dict(_arguments.mapping(name, value, "a mapping that JSON can hold"))
        has_infinities = name == "config"  # (layout.numbers)
        return json.dumps(value, allow_nan=has_infinities)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} is not JSON: {error}") from None


def _check_save(state: Any, step: Any, optim: Any, model: Any, **flags: bool) -> None:
    if not hasattr(state, "helios_state"):
        _arguments.mapping("state", state, "a mapping of names to tensors, as module.state_dict() "
                                           "is")
    _arguments.integer("step", step, 0, _arguments.INT64_MAX)
    if optim is not None:
        _arguments.mapping("optim", optim, "a mapping of names to tensors or Pieces, or None")
    for name, value in flags.items():
        _arguments.flag(name, value)
    if model is not None and split_model(model)[1] != -1:
        raise InvalidArgument(f"{_arguments.told('model', model)} must be a name alone: a save "
                              "makes a new version")


def _layout_check(strict: bool, any_dtype: bool) -> int:
    """How much of the model's layout a save must keep."""
    if not strict:
        return _abi.LAYOUT_UNCHECKED
    return _abi.LAYOUT_ANY_DTYPE if any_dtype else _abi.LAYOUT_EXACT


def _check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    """Check that the value is one of the words, or None."""
    if value is not None and (not isinstance(value, str) or value not in words):
        raise InvalidArgument(f"{_arguments.told(name, value)} must be one of {', '.join(words)}")


def _check_place(**place: int | None) -> None:
    for name, value in place.items():
        _arguments.optional(name, value, 0)


def _ranges_of(ranges: Any) -> dict[str, tuple[int, int]]:
    """The ranges by plain name."""
    out = {}
    for name, pair in _arguments.mapping("ranges", ranges,
                                         "a mapping of parameters to (start, end)").items():
        _arguments.text("name in ranges", name)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidArgument(f"ranges: {_arguments.told(repr(name), pair)} must be (start, "
                                  "end)")
        low, high = (_arguments.integer(f"ranges: {name!r}: {what}", n, 0, _arguments.INT64_MAX)
                     for what, n in zip(("start", "end"), pair))
        if _state.plain(name) in out:
            raise InvalidArgument(f"ranges has '{_state.plain(name)}' twice, with and without the "
                                  "'module.' prefix")
        out[_state.plain(name)] = low, high
    return out


class Session:
    """A connection with the identity of a rank; ``helios.init()`` creates the process-wide one.

    Threads: use a session from one thread at a time. After fork() open another one in the child. A
    session is also a context manager that closes itself.
    """

    def __init__(self, controller: str | None = None, l3: str | None = None, *,
                 path: str | None = None, timeout_ms: int = 0, retries: int = 0,
                 rank: Rank | None = None, client: Any = None) -> None:
        """Defaults come from the rank environment.

        `path`: "auto", or "shm" / "net" to force one way of reading. `timeout_ms`: deadline of one
        operation, 0: HELIOS_READ_TIMEOUT, else 30000. `retries`: how often a bad piece is fetched
        again, 0: HELIOS_READ_RETRIES, else 3; -1 = never. `client`: for tests, an object with the
        methods of _abi.Client.
        """
        for name, value in (("controller", controller), ("l3", l3)):
            if value is not None:
                _arguments.text(name, value, "an address as 'HOST:PORT' or 'unix:PATH'")
        _check_word("path", path, PATHS)
        _arguments.integer("timeout_ms", timeout_ms, 0)
        _arguments.integer("retries", retries, -1, RETRIES_MAX)
        if rank is not None and not isinstance(rank, Rank):
            raise InvalidArgument(f"{_arguments.told('rank', rank)} must be a helios.Rank")
        self.rank = rank or Rank.from_environment()
        self.client = client or _abi.Client(controller, l3, path, timeout_ms, retries)
        self._listed: tuple[tuple[str, int, int, int], _abi.ShardList] | None = None
        # Per model: the part of each loaded name in this rank's stage, and the config.
        self._parts: dict[str, dict[str, str]] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._rules: dict[str, tuple[str, _abi.Split | None]] = {}  # config, split: a name's part
        self._splits: dict[str, _abi.Split | None] = {}  # of the save in progress
        self._naming: str | None = None  # of the last load
        self._saved: tuple[str, int] | None = None  # last commit here, if not visible then

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def become(self, rank: Rank) -> None:
        """Make this process a different rank of its gang; called by helios.elastic."""
        self.rank, self._listed, self._saved = rank, None, None
        for kept in (self._parts, self._configs, self._rules, self._splits):
            kept.clear()

    def close(self, force: bool = False) -> None:
        """Report accesses and disconnect. Tensors that alias the pool stay valid until dropped."""
        self.client.close(force=_arguments.flag("force", force))

    def _model(self, model: str | None, version: int | None = None) -> tuple[str, int]:
        if model is not None:
            name, number = split_model(model)
        else:
            name, number = self.rank.model, self.rank.model_version
        if not name:
            raise InvalidArgument("no model: set HELIOS_MODEL or pass model=" if model is None else
                                  f"{_arguments.told('model', model)} must be NAME or NAME@VERSION")
        if version is None:
            return name, number
        if version != -1:  # the newest
            _arguments.integer("version", version, 1, _arguments.INT64_MAX)
        if model is not None and number != -1 and number != version:
            raise InvalidArgument(f"{_arguments.told('model', model)} and version={version} are "
                                  "two versions: pass one")
        return name, version

    def _split(self, model: str, tp_size: int | None = None, pp_size: int | None = None,
               virtual_stages: int | None = None, ep_size: int | None = None,
               etp_size: int | None = None) -> _abi.Split | None:
        """The requested split; else the job's, for the model that it trains; else None."""
        sizes = (tp_size, pp_size, virtual_stages, ep_size, etp_size)
        if any(size is not None for size in sizes):
            return _abi.Split(
                *(_arguments.optional(name, size, 1) or 0 for name, size in zip(SIZES, sizes)))
        me = self.rank
        if me.job and me.model == model:
            return _abi.Split(me.tp_size, me.pp_size, me.virtual_stages, me.ep_size,
                              me.etp_size or me.tp_size)
        return None

    def _list(self, model: str | None = None, version: int | None = None, pp: int | None = None,
              tp: int | None = None, tp_size: int | None = None, pp_size: int | None = None,
              virtual_stages: int | None = None, ep: int | None = None,
              ep_size: int | None = None, etp_size: int | None = None) -> _abi.ShardList:
        name, number = self._model(model, version)
        pp, tp = self.rank.pp if pp is None else pp, self.rank.tp if tp is None else tp
        split = self._split(name, tp_size, pp_size, virtual_stages, ep_size, etp_size)
        ep = self.rank.ep if ep is None else ep
        shards = self.client.request_shards(name, number, pp, tp, split, *((ep,) if ep else ()))
        self._listed = ((name, number, pp, tp), shards)
        self._configs.pop(name, None)  # may be a different model of that name
        self._rules.pop(name, None)
        return shards

    def _last(self) -> _abi.ShardList:
        return self._listed[1] if self._listed else self._list()

    @_steps.around("loading", None)
    def load_state_dict(self, model: str | None = None, version: int | None = None,
                        pp: int | None = None, tp: int | None = None, kind: str = "model",
                        copy: bool = False, naming: str | None = None, dp: int | None = None,
                        tp_size: int | None = None, pp_size: int | None = None,
                        virtual_stages: int | None = None, ep: int | None = None,
                        ep_size: int | None = None, etp_size: int | None = None,
                        ranges: Mapping[str, tuple[int, int]] | None = None,
                        ) -> dict[str, "torch.Tensor"]:
        """Pull the tensors of one (pp, tp, ep) position: Megatron-core name -> tensor, CPU.

        Shapes and names are those of the rank's own modules: split by tensor parallelism, layers
        numbered from 0 in the stage. `kind` selects "model" tensors, the "optim" state that
        training wrote back (empty if there is none), the "extra" blobs of its modules (extra state:
        tensors, or BytesIO where BytesIO was saved), or "all". `version` None: the one that
        HELIOS_MODEL names, else the newest visible one.

        `tp_size`, `pp_size` and `virtual_stages` give the split in which (pp, tp) is a position.
        None: the job's, for its own model in a job; else the one that the version was saved with.
        Other stages copy no bytes. For another `tp_size`, `ep_size` (ranks that share a layer's
        experts; `ep` is the rank) or `etp_size` (ranks that share an expert) the version is cut
        once, in the pool, and its first reader waits. Extra state that differs between tensor ranks
        can't be cut, nor can optimizer state that data ranks share in a form other than whole
        tensors or Pieces: requesting it by `kind` raises Unsupported.

        `naming` is how Megatron names the norms of a layer: "local" for `--transformer-impl local`,
        "te" for Transformer Engine, Megatron's default. None: the naming that the model was
        imported with, which `naming()` returns. Tensors get these names regardless of how they were
        saved.

        Optimizer state that several data-parallel ranks saved is returned as this rank's own share,
        and only to a gang of the same data-parallel size; `dp` requests the share of one rank.
        State saved as Pieces is joined: any number of data ranks gets whole tensors. With kind
        "optim", `ranges` {parameter: (start, end)} requests those elements of the state of these
        parameters, as vectors (NotFound if one has no state).

        The tensors alias verified shared memory, copy-on-write, which lives as long as any of them.
        An in-place write goes to a private copy of the written pages; no other process or later
        load sees it. `copy=True` copies everything at once.

        Raises NotFound (no such model, version or position), InvalidArgument (optimizer state of a
        different data-parallel size, sizes that layers or tensors can't be divided by), Unsupported
        (the version can't be cut for that split), Corrupt (bytes stayed bad after every retry;
        names the shard), Unavailable, TimedOut.
        """
        _check_word("kind", kind, KINDS)
        _check_word("naming", naming, NAMINGS)
        _check_place(pp=pp, tp=tp, dp=dp, ep=ep)
        _arguments.flag("copy", copy)
        wanted = None if ranges is None else _ranges_of(ranges)
        if wanted is not None and kind != "optim":
            raise InvalidArgument("ranges= are for optimizer state: pass kind='optim', not "
                                  f"{kind!r}")
        sizes = (tp_size, pp_size, virtual_stages, ep_size, etp_size)
        listed = self._list(model, version, pp, tp, *sizes[:3], ep, *sizes[3:])
        name, _, pp, tp = self._listed[0]
        if naming and _has_own_names(self._config(name)):
            raise InvalidArgument(f"naming={naming!r}: the tensors of '{name}' have names of their "
                                  "own")
        self._naming = naming or self._model_naming(name)
        if {"optim": "optimizer state", "extra": "extra state"}.get(kind, "\0") in listed.left_out:
            raise Unsupported(f"{name}@{listed.version} at another tensor parallel size lacks "
                              f"{listed.left_out}; load with the tp_size that it was saved with")
        own = all(size is None for size in sizes) and pp == self.rank.pp
        out, optim = self._collect(listed, kind, (pp, tp), dp, copy, own)
        out.update(_pieces.joined(optim, wanted, f"{name}@{listed.version}", out))
        if not out and kind not in ("optim", "extra") and "adapter" not in self._config(name):
            # an adapter may touch no layer of a stage
            raise NotFound(f"{name}@{listed.version} has no tensors at pp {pp}, tp {tp}: "
                           "is the model imported with these sizes?")
        return out

    def _collect(self, listed: _abi.ShardList, kind: str, place: tuple[int, int], dp: int | None,
                 copy: bool,
                 own: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """The requested tensors: the model's, and optimizer state with pieces one by one. `own`:
        names are those of this rank's stage."""
        name, out, optim = self._listed[0][0], {}, {}
        pieces, prefixes = set(), ("", "")
        if kind in ("optim", "all"):
            pieces, prefixes = self._shares(listed, dp, name)
        for shard in listed.shards:
            prefix = prefixes[_state.has_experts(shard.part)]
            if shard.part not in pieces and not _state.is_chosen(shard.part, kind, prefix):
                continue
            tensors = self._read(name, listed.version, shard, place, copy)
            double = (out.keys() | optim.keys()) & tensors.keys()
            if double:
                raise Corrupt(f"{name}@{listed.version}/{shard.part}: tensor '{min(double)}' is in "
                              "another part as well")
            (optim if shard.part.startswith(_state.OPTIM) else out).update(tensors)
            if own and shard.names is None and _state.is_chosen(shard.part, "model", ""):
                parts = self._parts.setdefault(name, {})  # names are local to the stage
                parts.update(dict.fromkeys(tensors, shard.part))
        return out, optim

    def _shares(self, listed: _abi.ShardList, dp: int | None,
                model: str) -> tuple[set[str], tuple[str, str]]:
        """(parts with pieces, to be joined; prefixes of the parts with this rank's share of other
        optimizer state: first of everything else, then of experts)."""
        pieces: set[str] = set()

        def select(experts: bool) -> str:
            shards = [s for s in listed.shards if _state.has_experts(s.part) is experts]
            number, size = self._share(experts, dp)
            own = _state.share(number, size)
            shares: dict[str, list[_abi.Shard]] = {}
            for shard in shards:
                if shard.part.startswith(_state.OPTIM):
                    shares.setdefault(_state.owner(shard.part), []).append(shard)
            for group in shares.values():  # if one share of a part is in pieces, all are
                if any(_state.is_share(s.part) for s in group) and self._is_in_pieces(
                        next((s for s in group if _state.is_chosen(s.part, "optim", own)),
                             group[0])):
                    pieces.update(s.part for s in group)
            rest = [s.part for s in shards if s.part not in pieces]
            return _state.select_share(rest, number, size if dp is None else None,
                                       f"{model}@{listed.version}")

        return pieces, (select(False), select(True))

    def _is_in_pieces(self, shard: _abi.Shard) -> bool:
        names = shard.names.values() if shard.names is not None else \
            _tensors.views(self.client.map(shard), shard.part, False)
        return any(map(_pieces.is_piece, names))

    def _read(self, model: str, version: int, shard: _abi.Shard, asked: tuple[int, int],
              copy: bool) -> dict[str, Any]:
        """The shard's tensors that belong to the position, under their names there."""
        pp, tp = asked if shard.pp is None else (shard.pp, shard.tp)
        place = f"/ep{shard.ep}" if _state.has_experts(shard.part) else ""
        where = f"{model}@{version}/pp{pp}/tp{tp}{place}/{shard.part}"
        stored = _tensors.views(self.client.map(shard), where, copy, {
            "helios.model": model, "helios.version": str(version), "helios.pp": str(pp),
            "helios.tp": str(tp), "helios.part": shard.part, "helios.ep": str(shard.ep)})
        if shard.names is not None:
            stored = _shown(stored, shard.names, where)
        if shard.part.startswith(_state.EXTRA):
            return dict(_state.blob(*item) for item in stored.items())
        if _has_own_names(self._config(model)):
            return stored
        names = rename(stored, self._naming)
        tensors = {names[old]: tensor for old, tensor in stored.items()}
        if len(tensors) != len(stored):
            raise Corrupt(f"{where}: a norm exists under both namings, local and te")
        return tensors

    def model_config(self) -> dict[str, Any]:
        """Architecture, sizes and Hugging Face config (key "hf") of the model."""
        return layout.numbers(json.loads(self._last().config_json))

    def meta(self) -> dict[str, Any]:
        """What rank 0 attached to the last loaded version; {} for an imported one."""
        return json.loads(self._last().meta_json)

    def _model_naming(self, model: str) -> str:
        naming = self._config(model).get("naming", "local")
        if naming not in NAMINGS:
            raise Corrupt(f"the config of model '{model}' has the unknown naming {naming!r}")
        return naming

    def naming(self) -> str:
        """Naming of the last loaded tensors, "local" or "te" (before any load, the one that the
        model was imported with)."""
        self._last()
        return self._naming or self._model_naming(self._listed[0][0])

    def version(self) -> int:
        """Number of the last loaded version (before any load, of the newest)."""
        return self._last().version

    def _config(self, model: str, again: bool = False) -> dict[str, Any]:
        """Config of this model, even if another was loaded last. `again`: ask, even if known."""
        if again or model not in self._configs:
            known = not again and self._listed is not None and self._listed[0][0] == model
            listed = self._last() if known else self.client.request_shards(model, -1, 0, 0,
                                                                           self._split(model))
            self._configs[model] = json.loads(listed.config_json)
        return self._configs[model]

    def _rule(self, model: str) -> tuple[str, _abi.Split | None]:
        """Config and split that decide which part a tensor of this rank is saved in."""
        if model not in self._rules:
            split = self._splits.get(model)
            if split is None or _has_own_names(self._config(model)):
                config = json.dumps(self._config(model))
            else:  # any number of tensor ranks has the same layers
                stages = _abi.Split(0, split.pp, split.virtual_stages)
                config = self.client.request_shards(model, -1, 0, 0, stages).config_json
            self._rules[model] = (config, None)
        return self._rules[model]

    def _loaded_part(self, model: str, name: str, prefix: str) -> str | None:
        """The part that a tensor, or the parameter at the end of its name, was loaded from."""
        tail, parts = name, self._parts.get(model, {})
        while tail:
            part = parts.get(tail)
            if part is not None:
                return part
            tail = tail.partition(".")[2] if prefix else ""
        return None

    def _parts_of(self, model: str, names: Sequence[str], prefix: str) -> list[str]:
        """The part that each was loaded from, else the one that its name implies."""
        found = [self._loaded_part(model, name, prefix) for name in names]
        unknown = [name for name, part in zip(names, found) if part is None]
        said = iter(_abi.parts_of(*self._rule(model), self.rank.pp, unknown) if unknown else [])
        return [prefix + (next(said) if part is None else part) for part in found]

    def _find_parts(self, model: str) -> None:
        """Learn the parts from the newest version, because nothing has been loaded."""
        listed = self.client.request_shards(model, -1, self.rank.pp, self.rank.tp,
                                            self._split(model))
        parts = self._parts.setdefault(model, {})
        for shard in listed.shards:
            if _state.is_chosen(shard.part, "model", ""):
                where = f"{model}@{listed.version}/{shard.part}"
                parts.update(dict.fromkeys(_tensors.views(self.client.map(shard), where, False),
                                           shard.part))

    def _grouped(self, model: str, tensors: Mapping[str, Any],
                 prefix: str) -> dict[str, dict[str, Any]]:
        groups: dict[str, dict[str, Any]] = {}
        if tensors and model not in self._parts and _has_own_names(self._config(model)):
            self._find_parts(model)
        parts = self._parts_of(model, [_pieces.plain(name) for name in tensors], prefix)
        for part, (name, tensor) in zip(parts, tensors.items()):
            groups.setdefault(part, {})[name] = tensor
        if differ(tensors) and not _has_own_names(self._config(model)):
            # all versions of a model have its naming
            naming = self._model_naming(model)
            groups = {part: self._stored_names(values, naming) for part, values in groups.items()}
        return dict(sorted(groups.items()))

    @staticmethod
    def _stored_names(tensors: dict[str, Any], naming: str) -> dict[str, Any]:
        names = rename(tensors, naming)
        out = {names[old]: tensor for old, tensor in tensors.items()}
        if len(out) != len(tensors):
            raise InvalidArgument("a norm exists under both namings, local and te: "
                                  f"{', '.join(sorted(set(tensors) - set(out)))}")
        return out

    def _gang(self) -> str:
        """Name of the gang, which saves together."""
        if not self.rank.job and self.rank.world_size > 1:
            raise InvalidArgument(
                f"{self.rank.world_size} ranks save one version together and have no job: set "
                "HELIOS_JOB to a name that only the ranks of this run have")
        return self.rank.job or "local"

    def _groups(self, model: str, state: Any,
                optim: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
        """This rank's tensors by part, all of them checked."""
        me = self.rank
        if hasattr(state, "helios_state"):
            state, managed = state.helios_state()
            # Every data rank has all of it; rank 0 saves it.
            optim = {**(managed if self._share(False)[0] == 0 else {}), **(optim or {})}
        tensors, blobs = _state.split(state)
        optim = _state.of_optimizer(optim or {}, state)
        both = tensors.keys() & set(map(_pieces.plain, optim))
        if both:
            raise InvalidArgument(f"'{min(both)}' is in both state and optim")
        groups = {}
        for experts in (False, True):
            part = {name: value for name, value in optim.items()
                    if _state.names_expert(name) is experts}
            number, size = self._share(experts)
            if size == 1:
                part = _pieces.of_one(part)
            groups.update(self._grouped(model, part, _state.share(number, size)))
        kept = {**self._grouped(model, tensors, ""), **self._grouped(model, blobs, _state.EXTRA)}
        groups.update((part, values) for part, values in kept.items() if self._saves(part))
        return dict(sorted(groups.items()))

    def _creation(self, model: str, asked: _abi.Split | None, config: Mapping[str, Any] | None,
                  state: Any) -> dict[str, Any]:
        """What version_open needs to create the model; {}: it exists."""
        try:
            self._config(model, again=True)  # it may have been removed since
            return {}
        except NotFound:
            self._parts[model] = {}
        me, asked = self.rank, asked or _abi.Split()
        split = _abi.Split(asked.tp or me.tp_size, asked.pp or me.pp_size,
                           asked.virtual_stages or me.virtual_stages)
        self._splits[model] = split
        if config is None:
            self._configs[model] = {"asSaved": True}
            return {"create": split}
        self._rules[model] = (json.dumps(config), split)
        self._configs[model] = {"naming": naming_of(state if isinstance(state, Mapping) else ())}
        return {"create": split}

    def _saves(self, part: str) -> bool:
        """The first of the ranks with the same parameters saves the part."""
        return self._share(_state.has_experts(part))[0] == 0

    def _share(self, experts: bool, dp: int | None = None) -> tuple[int, int]:
        """(index, count) of this rank, or data rank `dp`, among ranks with the same parameters."""
        me = self.rank
        dp = me.cp + me.cp_size * me.dp if dp is None else dp
        dp_size = me.cp_size * me.dp_size  # context ranks have the same parameters
        if not experts:
            return dp, dp_size
        group = (me.etp_size or me.tp_size) * me.ep_size
        return ((dp * me.tp_size + me.tp) // group,
                max(1, dp_size * me.tp_size // group))

    def _tp_of(self, part: str) -> int:
        """The tensor rank that the part is stored for."""
        me = self.rank
        return me.tp % (me.etp_size or me.tp_size) if _state.has_experts(part) else me.tp

    def _give_up(self, model: str, version: int, error: BaseException) -> bool:
        """Abandon a failed save. True: too late, because the commits of all ranks have arrived."""
        try:
            self.client.version_abandon(model, version, self.rank.global_rank,
                                        f"{type(error).__name__}: {error}")
        except Conflict:
            return True
        except HeliosError:
            pass  # unreachable: it is closed when the attempt ends
        return False

    @_steps.around("saving", "training")
    def save_state_dict(self, state: Mapping[str, "torch.Tensor"] | Any, step: int,
                        meta: Mapping[str, Any] | None = None,
                        optim: Mapping[str, "torch.Tensor | _pieces.Piece"] | None = None,
                        model: str | None = None, *, strict: bool = True,
                        any_dtype: bool = False, tp_size: int | None = None,
                        pp_size: int | None = None, virtual_stages: int | None = None,
                        ep_size: int | None = None, etp_size: int | None = None,
                        config: Mapping[str, Any] | None = None) -> Saved:
        """Write this rank's tensors as part of a new version of the model.

        Names may follow either naming of load_state_dict; they are stored under the model's. Every
        rank of the gang calls this with the same `step`; the version becomes visible, as a whole,
        when the last rank has committed. Every call makes a new version, even at the same step.
        `meta` must be JSON; rank 0's is kept. Bytes are copied before this returns.

        `tp_size`, `pp_size`, `virtual_stages`, `ep_size` and `etp_size`: the split of the gang, the
        same on all ranks. None: the job's, for its own model in a job; else the model's. `state`
        must have the tensors of the model's oldest version for this rank. `any_dtype=True`: dtypes
        may differ. `strict=False`: everything may differ. All ranks pass the same.

        `optim` holds optimizer state under names that end with the parameter's
        (``exp_avg.decoder.layers.0.mlp.linear_fc1.weight``). `state` is taken from dp 0, because
        all data ranks have the same, and experts from the first rank that has them; `optim` from
        every rank that passes some. Pass state that is the same on all data ranks on dp 0 only: all
        of them then get it. Otherwise each rank gets its own share back, see load_state_dict. The
        Pieces of all data ranks together must cover the state once; every reader gets the whole.

        ``None`` is skipped; ``_extra_state`` and BytesIO are kept as blobs (kind "extra" of
        load_state_dict); leading ``module.`` are dropped from names.
        If `model` is passed and does not exist it is created with the gang's sizes, and removed if
        the save fails. With a Hugging Face `config` it is like an imported one; without, it can
        only be read with those sizes and under the names of its first save. `state` may be the
        result of `hybridps.manage` (anything with `helios_state()`): parameters and optimizer state
        go straight from its chunks into the shards, with memory for one part at a time. Values may
        be objects with `shape`, `dtype` and `read_into(address, size)`.
        A failed save leaves nothing. Raises NoSpace, Conflict (ranks disagree), Canceled (another
        rank's save of it failed), Corrupt (data ranks of helios.elastic differ), InvalidArgument
        (tensors that do not fit the model; names or values that can't be stored).
        """
        _check_save(state, step, optim, model, strict=strict, any_dtype=any_dtype)
        text, config_text = _as_json("meta", meta) or "{}", _as_json("config", config)
        (name, _), me, started, written = self._model(model), self.rank, time.monotonic(), 0
        sizes = (tp_size, pp_size, virtual_stages, ep_size, etp_size)
        split = self._splits[name] = self._split(name, *sizes)
        self._rules.pop(name, None)
        create = {} if config_text is None else {"config": config_text}
        if model is not None or config is not None:
            create |= self._creation(name, split, config, state)
        groups = self._groups(name, state, optim)
        _replicas.check(state, me)
        version = self.client.version_open(name, self._gang(), me.attempt, step, me.global_rank,
                                           me.world_size, _layout_check(strict, any_dtype),
                                           split, **create)
        commit = (name, version, me.global_rank, text if me.global_rank == 0 else None)
        try:
            for part, tensors in groups.items():
                refs, alive = _tensors.refs(tensors)
                ep = (me.ep,) if me.ep and _state.has_experts(part) else ()
                written += self.client.version_put(
                    name, version, me.pp, self._tp_of(part), part, refs, *ep).size
                del alive
            visible = self.client.version_commit(*commit)
        except BaseException as error:
            late = self._give_up(name, version, error)
            if not late or not isinstance(error, (TimedOut, Unavailable)):
                raise
            visible = self.client.version_commit(*commit)  # only the answer was lost: ask again
        self._saved = None if visible else (name, version)
        _gang.leave_if_resized(self.client, me)
        return Saved(version, visible, written, time.monotonic() - started)

    def abandon_unfinished(self) -> bool:
        """Abandon the last save if a rank of it is missing. True: it was, and the version is gone.

        For a gang that has lost a rank in the middle of a save; called by helios.elastic.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            return False
        try:
            self.client.version_abandon(*saved, self.rank.global_rank,
                                        "a rank of the gang was lost")
        except (Conflict, NotFound):  # it became visible; it is gone
            return False
        return True

    def stats(self) -> dict[str, Any]:
        """Counters since init: path, reads, read_bytes, read_ns, writes, write_bytes, write_ns,
        crc_failures, retries (bytes and nanoseconds)."""
        return self.client.stats()

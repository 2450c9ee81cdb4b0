"""Helios inside a rank: pull this rank's tensors, train, write them back.

    import helios

    helios.init()                               # who and where: from the rank's environment
    me = helios.rank()                          # me.pp, me.tp, me.dp, sizes, job ...
    for name, tensor in helios.load_state_dict().items():
        parameters[name].data.copy_(tensor)     # or module.load_state_dict(..., assign=True)
    ...
    helios.report(step, loss, tokens)           # after each step: who hangs or lags is found
    helios.save_state_dict(state, step=100, meta={"loss": 1.2}, optim=optimizer_tensors)

For a gang that keeps training when one of its ranks is lost, see helios.elastic. The package needs
only the standard library and libhelios.so.0; it imports torch when tensors are requested. The
functions work on one process-wide Session; create your own if you need more than one.
"""
from __future__ import annotations

import atexit
import inspect
from typing import Any

from . import _steps
from ._pieces import Piece
from ._steps import activity, report, waiting
from .errors import (
    AlreadyExists, Busy, Canceled, Conflict, Corrupt, HeliosError, InternalError, InvalidArgument,
    IoFailed, LibraryNotFound, NoSpace, NotFound, NotPermitted, OutOfMemory, ProtocolViolation,
    Stale, TimedOut, Unavailable, Unsupported,
)
from .layout import hugging_face_config, parts_of
from .session import Rank, Saved, Session

__version__ = "0.1.0"
__all__ = [
    "init", "close", "session", "rank", "load_state_dict", "save_state_dict", "model_config",
    "meta", "naming", "version", "stats", "report", "activity", "waiting", "Session", "Rank",
    "Saved", "Piece", "hugging_face_config",
    "parts_of",
    "HeliosError", "AlreadyExists", "Busy", "Canceled", "Conflict", "Corrupt", "InternalError",
    "InvalidArgument", "IoFailed", "LibraryNotFound", "NoSpace", "NotFound", "NotPermitted",
    "OutOfMemory", "ProtocolViolation", "Stale", "TimedOut", "Unavailable", "Unsupported",
]

_session: Session | None = None


def init(controller: str | None = None, l3: str | None = None, **options: Any) -> Session:
    """Connect this process; arguments as in Session. Replaces an earlier session of the process.

    Without arguments it connects to the cluster of the job that this process is a rank of. Outside
    a job, for example in a notebook, it connects to the cluster that the `helios` command would
    call (HELIOS_STATE, else what `helios up` started for this user, else the configuration files).

    Usable as a context manager: ``with helios.init(): ...``.
    """
    global _session
    close()
    _session = Session(controller, l3, **options)
    return _session


def session() -> Session:
    """The process-wide session, created from the environment if there is none yet."""
    return _session or init()


def close() -> None:
    """Report accesses and disconnect. Tensors that alias the pool stay valid until dropped."""
    global _session
    if _session is not None:
        _session.close()
        _session = None


@atexit.register
def _at_exit() -> None:
    if _session is not None:
        _session.close(force=True)


def rank() -> Rank:
    """Place of this process in its gang; needs no connection."""
    return _session.rank if _session else Rank.from_environment()


def load_state_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return session().load_state_dict(*args, **kwargs)


def save_state_dict(*args: Any, **kwargs: Any) -> Saved:
    return session().save_state_dict(*args, **kwargs)


def model_config() -> dict[str, Any]:
    return session().model_config()


def meta() -> dict[str, Any]:
    return session().meta()


def naming() -> str:
    return session().naming()


def version() -> int:
    return session().version()


def stats() -> dict[str, Any]:
    return session().stats()


for _function in (load_state_dict, save_state_dict, model_config, meta, naming, version, stats):
    _method = getattr(Session, _function.__name__)
    _signature = inspect.signature(_method)
    _function.__doc__ = _method.__doc__
    # without self
    _function.__signature__ = _signature.replace(
        parameters=list(_signature.parameters.values())[1:])
del _function, _method, _signature

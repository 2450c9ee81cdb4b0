"""Train a model that is larger than the device, with the training loop unchanged:

    import hybridps
    with hybridps.manage(model, optimizer, device="emu:256MiB", policy="opt", mode="copy"):
        for x, y in batches:
            optimizer.zero_grad()
            loss = model(x, y)
            loss.backward()
            optimizer.step()

``helios.save_state_dict(client, step)`` writes a checkpoint straight from the chunks; to resume,
fill the model and (``restore_optimizer``) the optimizer from ``helios.load_state_dict`` and manage
them.

``manage`` and ``initialize`` wrap a ``Client``: register_module, register_optim, access, release,
allreduce, broadcast. Run with torch 1.13 on Python 3.11 and torch 2.6 on Python 3.13.
"""
import sys as _sys

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(
        f"torch cannot be imported by {_sys.executable} ({_error}): install it there "
        f"({_sys.executable} -m pip install torch), or run the Python that has it (Debian's "
        "python3-torch is for /usr/bin/python3)", name="torch") from None

from ._abi import HybridPSError
from ._group import Group
from ._managed import Managed
from ._save import restore_optimizer
from ._scaler import GradScaler
from .client import Client
from .manager import Manager
from .session import Engine, initialize, manage

__all__ = ["Client", "Engine", "GradScaler", "Group", "HybridPSError", "Managed", "Manager",
           "initialize", "manage", "restore_optimizer"]


def __dir__() -> list[str]:
    return sorted(__all__)

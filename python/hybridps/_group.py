"""Groups: the processes that train one model, and their collectives.

``Group.shm(name, rank, world)`` joins processes of one node, over libhelios and shared memory.
``Group.helios(address, rank, world)`` joins processes on any nodes, over libhelios's network layer.
``Group.torch()`` uses torch.distributed, with any backend, on any number of nodes. All of them
reduce in rank order, so their results are bit-identical.
"""
from __future__ import annotations

import atexit
import ctypes
import datetime
import io
import os
import time
import traceback
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor  # within Group, torch is one of its methods

from . import _abi
from ._abi import HybridPSError
from ._tensors import is_dense, view

TYPES = {torch.float32: _abi.F32, torch.float16: _abi.F16, torch.bfloat16: _abi.BF16}
_ADDED = {**TYPES, torch.float64: 3, torch.int32: 4, torch.int64: 5, torch.uint8: 6}
_OPS = {"sum": 0, "mean": 1, "min": 2, "max": 3, "prod": 4}
_UNAVAILABLE = -9
_END_WAIT = 2.0  # seconds
_QUESTION = 48611  # bytes, which no other call has: a call of another kind or size is an error


class Group:
    """All ranks call the same methods in the same order. After a failure the group is lost: create
    another one. Raises HybridPSError that says what each rank did."""

    def __init__(self, lib: ctypes.CDLL, handle: ctypes.c_void_p, carrier: Any = None) -> None:
        self._lib, self._carrier = lib, carrier
        self._h: ctypes.c_void_p | None = handle
        self._behind = False
        self.rank = lib.hybridps_group_rank(handle)
        self.world = lib.hybridps_group_world(handle)

    @classmethod
    def shm(cls, name: str, rank: int | None = None, world: int | None = None,
            timeout: float = 300.0) -> "Group":
        """Join the group of that name on this node; returns when all ranks have. rank and world
        default to $RANK and $WORLD_SIZE. timeout: seconds for every wait for other ranks."""
        lib = _abi.load_library()
        _abi.check_text("name", name, "training")
        options = _abi.ShmOptions(name.encode(), _number("RANK", rank),
                                  _number("WORLD_SIZE", world), _milliseconds(timeout))
        return cls._joined(lib, lib.hybridps_group_shm, options)

    @classmethod
    def helios(cls, address: str | None = None, rank: int | None = None, world: int | None = None,
               listen: str | None = None, timeout: float = 300.0) -> "Group":
        """Join the group whose rank 0 is at "host:port"; returns when all ranks have. address
        defaults to $MASTER_ADDR:$MASTER_PORT (where torch.distributed must not listen as well),
        rank and world to $RANK and $WORLD_SIZE. listen: this rank's own "host:port", by default any
        port of the interface that leads to rank 0. timeout: seconds for every wait for other
        ranks."""
        if address is None:
            address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
            if not all(address.split(":")):
                raise HybridPSError("neither an argument nor $MASTER_ADDR and $MASTER_PORT say "
                                    f"where rank 0 is: {address!r}")
        _abi.check_text("address", address, "node1:29500")
        if listen is not None:
            _abi.check_text("listen", listen, "node2:0")
        lib = _abi.load_library()
        options = _abi.NetOptions(address.encode(), listen.encode() if listen else None,
                                  _number("RANK", rank), _number("WORLD_SIZE", world),
                                  _milliseconds(timeout))
        return cls._joined(lib, lib.hybridps_group_net, options)

    @classmethod
    def torch(cls, process_group: Any = None, timeout: float = 300.0) -> "Group":
        """The processes of torch.distributed (or of one of its groups)."""
        if not (dist.is_available() and dist.is_initialized()):
            raise HybridPSError("torch.distributed is not initialized: init_process_group first")
        _milliseconds(timeout)
        lib = _abi.load_library()
        carrier = _Torch(process_group, timeout)
        return cls._joined(lib, lib.hybridps_group_over, carrier.transport, carrier)

    @classmethod
    def _joined(cls, lib: ctypes.CDLL, join: Any, options: Any, carrier: Any = None) -> "Group":
        handle = ctypes.c_void_p()
        code = join(ctypes.byref(options), ctypes.byref(handle))
        if code:
            raise _abi.failure(lib, code)
        return cls(lib, handle, carrier)

    def fall_behind(self) -> None:
        """Note that this rank has left out calls that other ranks may wait in. Its next call then
        begins with a question to all of them. If all have left the same out, the call goes on;
        otherwise it fails, and so does what the others wait in. torch.distributed would not notice
        that ranks call different things, so over it nothing is asked."""
        self._behind = self.world > 1 and self._carrier is None

    def catch_up(self) -> None:
        """Ask that question, if there is one."""
        if self._behind:
            self._behind = False
            self.allgather(torch.zeros(_QUESTION, dtype=torch.uint8),
                           "the first call after a failed run")

    def __reduce_ex__(self, _: Any) -> Any:
        raise HybridPSError("a group can be neither copied nor pickled: another process joins one "
                            "of its own")

    def allreduce(self, tensor: Tensor, op: str = "sum", name: str = "") -> Tensor:
        """A new tensor: the "sum", "mean", "min", "max" or "prod" of all ranks' tensors, in rank
        order."""
        out = self._host(tensor)
        self.allreduce_(out, op, name)
        return self._like(out, tensor)

    def allreduce_(self, tensor: Tensor, op: str = "sum", name: str = "") -> None:
        """In place, for host tensors without holes."""
        self.catch_up()
        kind, op_number = self._reduction("allreduce", tensor, op, name)
        self._in_place("allreduce_", tensor, name)
        self._check(self._lib.hybridps_group_allreduce(self._h, name.encode(), tensor.data_ptr(),
                                                       tensor.numel(), kind, op_number))

    def mean_of(self, gradient: Tensor, name: str) -> Tensor:
        """The mean of all ranks' gradients for training: 16-bit ones are summed and divided in
        float32, and rounded once."""
        if gradient.dtype in (torch.float16, torch.bfloat16):
            return self.allreduce(gradient.float(), "mean", name).to(gradient.dtype)
        return self.allreduce(gradient, "mean", name)

    def reduce_scatter(self, tensor: Tensor, op: str = "sum", name: str = "") -> Tensor:
        """For a tensor with the same number of rows (first dimension) for each rank: this rank's
        rows, reduced over all ranks."""
        self.catch_up()
        kind, op_number = self._reduction("reduce_scatter", tensor, op, name)
        mine, rows = self._host(tensor), self._rows("reduce_scatter", tensor, name)
        out = torch.empty((rows, *mine.shape[1:]), dtype=mine.dtype)
        self._check(self._lib.hybridps_group_reduce_scatter(
            self._h, name.encode(), mine.data_ptr(), out.data_ptr(), out.numel(), kind, op_number))
        return self._like(out, tensor)

    def alltoall(self, tensor: Tensor, name: str = "") -> Tensor:
        """Send an equal number of rows to each rank; returns a new tensor with each rank's rows for
        this one."""
        self.catch_up()
        mine, _ = self._host(tensor), self._rows("alltoall", tensor, name)
        out = torch.empty_like(mine)
        size = mine.numel() * mine.element_size() // self.world
        self._check(self._lib.hybridps_group_alltoall(self._h, name.encode(), mine.data_ptr(),
                                                      out.data_ptr(), size))
        return self._like(out, tensor)

    def send(self, tensor: Tensor, dst: int, tag: int = 0, name: str = "") -> None:
        """Send to one rank, which has to receive it: of two ranks that exchange data one receives
        first."""
        self.catch_up()
        mine = self._host(tensor)
        self._check(self._lib.hybridps_group_send(self._h, name.encode(), mine.data_ptr(),
                                                  mine.numel() * mine.element_size(),
                                                  _abi.check_whole("dst", dst),
                                                  _abi.check_whole("tag", tag)))

    def recv(self, tensor: Tensor, src: int, tag: int = 0, name: str = "") -> Tensor:
        """A new tensor, of this one's shape and type, that rank src sends."""
        self.catch_up()
        out = self._host(tensor)
        self._check(self._lib.hybridps_group_recv(self._h, name.encode(), out.data_ptr(),
                                                  out.numel() * out.element_size(),
                                                  _abi.check_whole("src", src),
                                                  _abi.check_whole("tag", tag)))
        return self._like(out, tensor)

    def broadcast(self, tensor: Tensor, src: int = 0, name: str = "") -> Tensor:
        """A new tensor with the values of rank src."""
        out = self._host(tensor)
        self.broadcast_(out, src, name)
        return self._like(out, tensor)

    def broadcast_(self, tensor: Tensor, src: int = 0, name: str = "") -> None:
        """In place, for host tensors without holes."""
        self.catch_up()
        self._in_place("broadcast_", tensor, name)
        size = tensor.numel() * tensor.element_size()
        self._check(self._lib.hybridps_group_broadcast(self._h, name.encode(), tensor.data_ptr(),
                                                       size, _abi.check_whole("src", src)))

    def allgather(self, tensor: Tensor, name: str = "") -> list[Tensor]:
        """All ranks' tensors of this shape, in rank order."""
        self.catch_up()
        mine = self._host(tensor)
        out = torch.empty((self.world, *mine.shape), dtype=mine.dtype)
        size = mine.numel() * mine.element_size()
        self._check(self._lib.hybridps_group_allgather(self._h, name.encode(), mine.data_ptr(),
                                                       out.data_ptr(), size))
        return [part.to(tensor.device) for part in out]

    def share(self, value: Any, src: int, name: str = "") -> Any:
        """Rank src's value, which may be anything that torch.save can write; the others get a
        copy."""
        data = io.BytesIO()
        if self.rank == src:
            torch.save(value, data)
        size = self.broadcast(torch.tensor(len(data.getvalue())), src, name)
        flat = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == src:
            flat = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
        self.broadcast_(flat, src, name)
        return value if self.rank == src else torch.load(
            io.BytesIO(flat.numpy().tobytes()), weights_only=False)  # anything that pickle can load

    def close(self) -> None:
        """Leave the group, as dropping the last reference does. Ranks that still wait for this one
        fail, as does a call in another thread."""
        handle, self._h = self._h, None
        if handle is not None:
            self._lib.hybridps_group_close(handle)

    def __del__(self) -> None:
        """A rank that has dropped its group, say with an exception, calls nothing more, and the
        others need not wait for it. Over torch.distributed they would not be told."""
        if getattr(self, "_carrier", None) is None and getattr(self, "_h", None) is not None:
            self.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @staticmethod
    def _reduction(call: str, tensor: Tensor, op: str, name: str) -> tuple[int, int]:
        if op not in _OPS:
            raise HybridPSError(f"{call} of {name!r}: op is {op!r}, it must be one of "
                                f"{', '.join(_OPS)}")
        if not isinstance(tensor, Tensor):
            check_tensor(call, tensor)
        if tensor.dtype not in _ADDED:
            raise HybridPSError(f"{call} of {name!r}: {tensor.dtype} is not supported; there are "
                                + ", ".join(str(t) for t in _ADDED))
        return _ADDED[tensor.dtype], _OPS[op]

    def _rows(self, call: str, tensor: Tensor, name: str) -> int:
        rows = tensor.shape[0] if tensor.dim() > 0 else 0
        if tensor.dim() == 0 or rows % self.world:
            raise HybridPSError(f"{call} of {name!r}: {rows} rows for {self.world} ranks: there "
                                "must be as many for each")
        return rows // self.world

    @staticmethod
    def _in_place(call: str, tensor: Tensor, name: str) -> None:
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            check_tensor(call, tensor)
        if tensor.is_neg() or tensor.is_conj():
            raise HybridPSError(f"{call} of {name!r}: the tensor is a lazy conjugate or negative: "
                                "resolve it first")
        if tensor.device.type != "cpu" or not (tensor.is_contiguous() or is_dense(tensor)):
            raise HybridPSError(f"{call} of {name!r}: a tensor of shape {tuple(tensor.shape)} with "
                                f"strides {tensor.stride()} on {tensor.device}: in place it is for "
                                "tensors of the host without holes")

    @staticmethod
    def _host(tensor: Tensor) -> Tensor:
        """A contiguous copy on the host."""
        check_tensor("collective", tensor)
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        return host.copy_(tensor.detach())

    @staticmethod
    def _like(out: Tensor, tensor: Tensor) -> Tensor:
        return out.to(tensor.device) if tensor.is_cuda else out

    def _check(self, code: int) -> None:
        if self._h is None:
            raise HybridPSError("this group is closed")
        if code:
            cause = self._carrier.cause if self._carrier is not None else None
            raise _abi.failure(self._lib, code) from cause


def check_tensor(call: str, tensor: Any) -> None:
    """Check that it is one whose bytes ranks can exchange."""
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
        what = f"{tensor.layout}, {tensor.device}" if isinstance(tensor, Tensor) else repr(tensor)
        raise HybridPSError(f"{call}: tensor is {what:.60}: it must be a dense tensor with memory")


def _milliseconds(timeout: Any) -> int:
    """Seconds as the library takes them, for which 0 would be its default."""
    number = timeout if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) else 0
    if not 0.001 <= number < (1 << 31) / 1000:
        raise HybridPSError(f"timeout is {timeout!r}: it must be a number of seconds from 0.001 "
                            "on, below 2147483")
    return int(number * 1000)


def _number(variable: str, value: int | None) -> int:
    if value is not None:
        return _abi.check_whole("rank" if variable == "RANK" else "world", value)
    text = os.environ.get(variable, "")
    if not text.isdigit():
        raise HybridPSError(
            f"neither an argument nor ${variable} says it: {text!r} is not a number")
    return int(text)


_lent: dict[int, Any] = {}  # of all groups: tensors lent to a backend and still referenced, by id


@atexit.register
def _await_release() -> None:
    deadline = time.monotonic() + _END_WAIT
    while _lent and time.monotonic() < deadline:
        time.sleep(0.001)


os.register_at_fork(after_in_child=_lent.clear)  # the backend's threads are the parent's


class _Torch:
    """The callbacks of a transport over torch.distributed."""

    def __init__(self, process_group: Any, timeout: float) -> None:
        self.pg = process_group
        self.timeout = datetime.timedelta(seconds=timeout)
        self.on = "cuda" if dist.get_backend(process_group) == "nccl" else "cpu"
        self.cause: BaseException | None = None
        self.words = ctypes.create_string_buffer(600)
        self.callbacks = (_abi.ALLGATHER(self.allgather), _abi.BROADCAST(self.broadcast),
                          _abi.WHY(lambda _: ctypes.addressof(self.words)),
                          _abi.ALLGATHER(self.alltoall), _abi.PAIR(self.send), _abi.PAIR(self.recv))
        self.transport = _abi.Transport(
            rank=dist.get_rank(process_group), world=dist.get_world_size(process_group),
            allgather=self.callbacks[0], broadcast=self.callbacks[1], why=self.callbacks[2],
            alltoall=self.callbacks[3], send=self.callbacks[4], recv=self.callbacks[5])

    def allgather(self, _: Any, what: bytes, mine: int, to: int, size: int) -> int:
        def run() -> None:
            parts = [self.lent(size) for _ in range(self.transport.world)]
            own = self.copied(mine, size)
            self.wait(dist.all_gather(parts, own, group=self.pg, async_op=True))
            for rank, part in enumerate(parts):
                view(to + rank * size, (size,), (1,), torch.uint8).copy_(part)
        return self.attempt("allgather", what, run)

    def broadcast(self, _: Any, what: bytes, data: int, size: int, src: int) -> int:
        def run() -> None:
            moved = self.copied(data, size)
            self.wait(dist.broadcast(moved, self.everywhere(src), group=self.pg, async_op=True))
            view(data, (size,), (1,), torch.uint8).copy_(moved)
        return self.attempt("broadcast", what, run)

    def alltoall(self, _: Any, what: bytes, mine: int, to: int, size: int) -> int:
        def run() -> None:
            size_of_all = size * self.transport.world
            own = self.copied(mine, size_of_all)
            out = self.lent(size_of_all)
            self.wait(dist.all_to_all_single(out, own, group=self.pg, async_op=True))
            view(to, (size_of_all,), (1,), torch.uint8).copy_(out)
        return self.attempt("alltoall", what, run)

    def send(self, _: Any, what: bytes, data: int, size: int, dst: int, tag: int) -> int:
        def run() -> None:
            moved = self.copied(data, size)
            self.wait(dist.isend(moved, self.everywhere(dst), group=self.pg, tag=tag))
        return self.attempt("send", what, run)

    def recv(self, _: Any, what: bytes, data: int, size: int, src: int, tag: int) -> int:
        def run() -> None:
            moved = self.lent(size)
            self.wait(dist.irecv(moved, self.everywhere(src), group=self.pg, tag=tag))
            view(data, (size,), (1,), torch.uint8).copy_(moved)
        return self.attempt("recv", what, run)

    def lent(self, size: int) -> Tensor:
        """A tensor for the backend, whose threads may hold it for a moment after their work has
        ended. A thread that drops the last reference takes the GIL; while Python finalizes, that
        ends the thread, and with it the process, by std::terminate. So the interpreter's exit waits
        for them."""
        tensor = torch.empty(size, dtype=torch.uint8, device=self.on)
        key = id(tensor)
        _lent[key] = weakref.ref(tensor, lambda _: _lent.pop(key, None))
        return tensor

    def copied(self, data: int, size: int) -> Tensor:
        """A copy in torch's own memory, because Python would have to release a view."""
        return self.lent(size).copy_(view(data, (size,), (1,), torch.uint8))

    def everywhere(self, rank: int) -> int:
        """torch.distributed's global number of a rank of this group."""
        return rank if self.pg is None else dist.get_global_rank(self.pg, rank)

    def wait(self, work: Any) -> None:
        work.wait(self.timeout)

    def attempt(self, kind: str, what: bytes, run: Any) -> int:
        """Run it without letting an exception pass through C."""
        try:
            run()
            return 0
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # frames refer to the tensors
            self.cause = error
            text = f"{kind} of \"{what.decode()}\" by torch.distributed: {error}"
            self.words.value = text.encode()[:599]
            return _UNAVAILABLE

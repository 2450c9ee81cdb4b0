"""Debian's torch made to look as if it saw a GPU.

First on PYTHONPATH, it stands for torch 2 with CUDA. The device's memory is that of this process,
as with tests/support/cuda_stub.c and CUDA_STUB_NEAR=1. Streams, events and graphs run at once.
For testing scripts for GPUs where there is none.
"""
import ctypes
import os
import sys
import time
import types

sys.path[:] = [p for p in sys.path if not p.endswith("gpu_torch")]
del sys.modules["torch"]
import torch as real  # noqa: E402


def on_cpu(function):
    def call(*args, **named):
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        named.pop("pin_memory", None)
        return function(*args, **named)

    return call


for name in ("randn", "rand", "empty", "zeros", "ones", "full", "randint", "tensor", "arange"):
    setattr(real, name, on_cpu(getattr(real, name)))
for name in ("addmm", "mm"):  # this CPU has no half precision

    def wide(*args, function=getattr(real, name)):
        return function(*(a.float() for a in args)).to(args[0].dtype)

    setattr(real, name, wide)


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = time.monotonic()

    def elapsed_time(self, other):
        return max((other.at - self.at) * 1000, 1e-6)


class Graph:
    def __init__(self):
        self.replay = lambda: None


class Capture:
    def __init__(self, graph):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *why):
        return False


class Stream:
    """The stub's own stream: one rank's run must not wait for another's."""

    def __init__(self):
        driver = ctypes.CDLL(os.environ["GPU_TORCH_DRIVER"])
        context, self.at = ctypes.c_void_p(), ctypes.c_void_p()
        assert (
            driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        )
        assert driver.cuCtxPushCurrent_v2(context) == 0
        assert driver.cuStreamCreate(ctypes.byref(self.at), 1) == 0
        assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        self.cuda_stream = self.at.value


def attend(q, k, v, is_causal=False):
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        rows, cols = scores.shape[-2:]
        scores = scores.masked_fill(~real.ones(rows, cols, dtype=real.bool).tril(), float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


real.__version__ = "2.0.0+stub"
real.nn.functional.scaled_dot_product_attention = attend
real.Tensor.cuda = lambda self, *args, **named: self
cuda = types.ModuleType("torch.cuda")
cuda.is_available = lambda: True
cuda.device_count = lambda: 1
cuda.synchronize = lambda *a: None
cuda.manual_seed_all = lambda seed: None
cuda._is_in_bad_fork = lambda: False
cuda.default_generators = ()
cuda.get_device_name = lambda d=0: "no GPU: a stub"
cuda.get_device_capability = lambda d=0: (9, 0)
cuda.get_device_properties = lambda d=0: types.SimpleNamespace(multi_processor_count=4)
cuda.current_stream = lambda d=None: types.SimpleNamespace(cuda_stream=0)
cuda.Event, cuda.CUDAGraph, cuda.graph, cuda.Stream = Event, Graph, Capture, Stream
sys.modules["torch.cuda"] = real.cuda = cuda

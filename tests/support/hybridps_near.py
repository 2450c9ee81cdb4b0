#!/usr/bin/python3
"""HybridPS's code for CUDA devices, on a stand-in for the driver whose memory the CPU reaches: run
by tests/e2e/test_hybridps_cuda.py, which replaces libcuda.so.1 by tests/libcuda_stub.so.

    tests/support/hybridps_near.py programs FIRST COUNT  random programs, as hybridps_fuzz.py
    tests/support/hybridps_near.py reuse                 a 16-bit model whose gradients take its
                                                         parameters' places
    tests/support/hybridps_near.py counted               where a node's table counts its chunks

Tensors on "cuda:0" are CPU tensors here, so no kernel runs in parallel and no tensor is in other
memory: only a GPU shows that (tests/gpu)."""
from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import needs  # noqa: E402

torch = needs.torch()
import hybridps  # noqa: E402
import hybridps_fuzz as fuzz  # noqa: E402
import hybridps_programs  # noqa: E402
from hybridps import _tensors  # noqa: E402

DEVICE = "cuda:0"
_tensors._CUDA = 1  # kDLCPU


def stay(plain: Any) -> Any:
    """Makes `to(DEVICE)` return the tensor itself: it is already there."""
    return lambda self, *args, **kwargs: (
        self if args and args[0] == DEVICE else plain(self, *args, **kwargs)
    )


def programs(first: int, count: int) -> dict[str, Any]:
    hybridps_programs.CUDA = DEVICE
    fuzz.on_this_gpu()
    torch.nn.Module.to, torch.Tensor.to = stay(torch.nn.Module.to), stay(torch.Tensor.to)
    fuzz.look_after = lambda run: run.see(list(run.model.parameters())) or "end"
    counts: collections.Counter = collections.Counter()
    wrong = {}
    for seed in range(first, first + count):
        try:
            counts[fuzz.check(seed, fuzz.make_program(seed)).split(":")[0]] += 1
        except fuzz.Wrong as error:
            wrong[seed] = str(error)
    return {"counts": counts, "wrong": wrong}


def reuse() -> dict[str, Any]:
    """The same steps on an emulated device and on this one."""
    values = []
    for device in ("emu:64MiB", DEVICE + ":64MiB"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with hybridps.manage(
            model,
            optimizer,
            device=device,
            gradients="reuse",
            optimizer_device="device",
            manager="none",
            spill="none",
        ):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                model(torch.ones(4, 64).bfloat16()).float().square().mean().backward()
                optimizer.step()
        values.append([p.detach().clone() for p in model.parameters()])
    return {"equal": all(torch.equal(a, b) for a, b in zip(*values))}


def counted() -> dict[str, int]:
    """The device of a node's table on which a chunk is, by what an Agent lists."""
    name, found = f"helios-test-near-{os.getpid()}", {}
    with hybridps.Manager(name, 1 << 40, [1 << 40] * 3) as table:
        os.environ["HYBRIDPS_MANAGER"] = name
        for listed in ("", "2,0", "40"):
            os.environ["HYBRIDPS_DEVICES"] = listed
            pool = hybridps._abi.Pool(DEVICE + ":64MiB", None, None, 0, 0, None, -1, spill="none")
            bundle = hybridps._abi.Bundle([pool.add("t", 0, 4096)], hybridps._abi.DEVICE, True)
            pool.layout()
            pool.access(bundle)
            used = [table.use(device).used for device in range(table.devices)]
            found[listed] = used.index(max(used))
            pool.release(bundle)
            pool.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    what = {
        "programs": lambda: programs(int(sys.argv[2]), int(sys.argv[3])),
        "reuse": reuse,
        "counted": counted,
    }
    print(json.dumps(what[sys.argv[1]]()))

"""MACO on a GPU: every body against torch, random graphs against an oracle, the demo, the cost of a
launch, how workers scale, products beside torch's, how much a copy engine hides, collectives inside
the kernel.

    python3 bench/maco_gpu.py --out DIR [--lib PATH]
        [--only bodies,graphs,demo,launch,sweep,speed,overlap,peers,processes] [--quick]

Needs a GPU, torch >= 2, nvcc, cmake and a C compiler: without --lib it builds a libhelios with MACO
alone, for this GPU, into build-gpu-ARCH. Each section runs in a process of its own with a deadline,
so a failing kernel does not affect the others. It writes report.txt, numbers.json and build.txt
into DIR, and exits with 0, with 1 if something was wrong, or with 77 and the reason if there is no
GPU. Times are medians of repeated runs between events of one stream."""
import argparse
import ctypes as C
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from maco_gpu_lib import (  # noqa: E402
    ALLREDUCE,
    ATTENTION,
    AXPB,
    DIRECT,
    ELEMENTWISE,
    LINEAR,
    MEMCPY,
    NOP,
    POLICIES,
    SCHEDULER,
    U8,
    Cuda,
    Failed,
    Graph,
    Lib,
    Report,
    ShmOptions,
    build,
    microseconds,
)
from maco_gpu_right import bodies, close, demo, graphs  # noqa: E402

SECTION_S = 240


class Context:
    """What a section works with."""

    def __init__(self, torch, lib, report, quick):
        self.torch, self.lib, self.report, self.quick, self.errors = torch, lib, report, quick, []
        self.dtypes = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

    def graph(self):
        return Graph(self.lib, self.dtypes)

    def cuda(self, graph, **options):
        return Cuda(
            self.lib, graph, lambda: self.torch.cuda.current_stream().cuda_stream, **options
        )

    def time(self, start, wait=lambda: None, repeats=21):
        return microseconds(self.torch, start, wait, 3 if self.quick else repeats)

    def rand(self, *shape, dtype):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.float32).to(dtype)

    def empty(self, *shape, dtype=None):
        return self.torch.empty(*shape, device="cuda", dtype=dtype or self.torch.float32)

    def wrong(self, what):
        self.errors.append(what)
        self.report.line(f"  WRONG: {what}")


# ---- what a launch costs ----


def chain(x, data, tasks, kind=ELEMENTWISE):
    graph, n, last = x.graph(), data.numel(), None
    for _ in range(tasks):
        if kind == NOP:
            task = graph.add(NOP, [], [], [])
            if last is not None:
                graph.depend(task, last)
            last = task
        else:
            graph.add(ELEMENTWISE, [data], [data], [1, n, n, 0, n, AXPB, 0], [1.5, 0.0])
    return graph


def launch(x):
    """A chain of dependent x * 1.5 over 1,024 floats; microseconds a run, and a task.
    NOP: the hop alone."""
    torch = x.torch
    data = torch.zeros(1024, device="cuda")
    for tasks in (8, 40) if x.quick else (40, 4000):

        def eager():
            for _ in range(tasks):
                data.mul_(1.5)

        rows = [("torch eager", x.time(eager))]
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            eager()
        rows.append(("CUDA graph", x.time(captured.replay)))
        for policy, kind in (
            (DIRECT, ELEMENTWISE),
            (SCHEDULER, ELEMENTWISE),
            (DIRECT, NOP),
            (SCHEDULER, NOP),
        ):
            cuda = x.cuda(chain(x, data, tasks, kind).compile(policy))
            rows.append(
                (
                    f"persistent {POLICIES[policy]}{', NOP' if kind == NOP else ''}",
                    x.time(cuda.start, cuda.wait),
                )
            )
            cuda.close()
        for name, us in rows:
            x.report.line(
                f"  {tasks:5} tasks  {name:26} {us:10.1f} us {us / tasks:8.3f} us a task  "
                f"{rows[1][1] / us:6.2f} x CUDA graph"
            )
            x.report.number(f"{name}, {tasks} tasks", us, "us")
    hop, gain = rows[4][1] / tasks, rows[1][1] / rows[2][1]
    x.report.bar("direct hop under 1 us", hop, "us", hop < 1)
    x.report.bar(
        f"CUDA graph over direct at {tasks} dependent tasks, 1.5 or more", gain, "x", gain >= 1.5
    )


# ---- workers against the copy bandwidth ----


def sweep(x):
    """MEMCPY in pieces of 1 MiB, read and written, beside torch's copy."""
    torch = x.torch
    piece, size = (1 << 16, 1 << 20) if x.quick else (1 << 20, 1 << 30)
    a, y = x.empty(size, dtype=torch.uint8), x.empty(size, dtype=torch.uint8)
    a.random_(0, 255)
    peak = 2 * size / x.time(lambda: y.copy_(a)) / 1e3
    x.report.line(f"  torch's copy: {peak:.0f} GB/s")
    graph = x.graph()
    for at in range(0, size, piece):
        graph.add(MEMCPY, [a[at:]], [y[at:]], [1, piece, piece, piece], dtype=U8)
    graph.compile()
    limit = torch.cuda.get_device_properties(0).multi_processor_count
    share = 0.0
    for workers in sorted(
        {w for w in (1, 2, 4, 8, 16, 32, 64, 96, 128, limit - 1, limit) if 0 < w <= limit}
    ):
        y.zero_()
        cuda = x.cuda(graph, workers=workers)
        rate = 2 * size / x.time(cuda.start, cuda.wait, 7) / 1e3
        cuda.close(graph=False)
        share = 100 * rate / peak
        x.report.line(f"  {workers:4} workers {rate:8.0f} GB/s {share:6.1f} % of the copy")
        x.report.number(f"{workers} workers", rate, "GB/s")
        if not torch.equal(a, y):
            x.wrong(f"the copy by {workers} workers")
    graph.close()
    x.report.bar("copy bandwidth at all workers, 90 % or more", share, "%", share >= 90)


# ---- products beside torch's ----


def tiles(x, a, w, y, rows, cols, size=128):
    """LINEAR in tiles, one task each."""
    graph = x.graph()
    add_tiles(graph, a, w, y, rows, cols, size)
    return graph


def add_tiles(graph, a, w, y, rows, cols, size=128):
    k, n = a.shape[1], y.shape[1]
    for i in rows:
        for j in cols:
            graph.add(
                LINEAR,
                [a[i:], w[j:]],
                [y[i:, j:]],
                [min(size, y.shape[0] - i), min(size, n - j), k, k, k, n],
            )


def speed(x):
    """Products in tiles of 128 by 128, a task each, beside torch's;
    attention a head each, beside torch's."""
    torch = x.torch
    n, k = (256, 64) if x.quick else (4096, 4096)
    for dtype in x.dtypes:
        a, w, y = x.rand(n, k, dtype=dtype), x.rand(n, k, dtype=dtype), x.empty(n, n, dtype=dtype)
        cuda = x.cuda(tiles(x, a, w, y, range(0, n, 128), range(0, n, 128)).compile())
        us, torch_us = x.time(cuda.start, cuda.wait, 7), x.time(lambda: torch.mm(a, w.T), repeats=7)
        cuda.close()
        close(x, f"product {n}x{n}x{k} in tiles", dtype, y, torch.mm(a.float(), w.float().T))
        flops = 2 * n * n * k
        x.report.line(
            f"  product {n}x{n}x{k} {str(dtype)[6:]:9} {flops / us / 1e6:8.1f} TFLOP/s, torch"
            f" {flops / torch_us / 1e6:8.1f}"
        )
        x.report.number(f"product {str(dtype)[6:]}", flops / us / 1e6, "TFLOP/s")
    heads, s, d = (2, 32, 64) if x.quick else (128, 2048, 128)
    q, k_, v = (x.rand(heads, 1, s, d, dtype=torch.bfloat16) for _ in range(3))
    o = torch.empty_like(q)
    graph = x.graph()
    for h in range(heads):
        graph.add(ATTENTION, [q[h], k_[h], v[h]], [o[h]], [1, 1, 1, s, s, d, 1], [d**-0.5])
    cuda = x.cuda(graph.compile())
    us = x.time(cuda.start, cuda.wait, 5)
    cuda.close()
    attend = torch.nn.functional.scaled_dot_product_attention
    torch_us = x.time(lambda: attend(q, k_, v, is_causal=True), repeats=7)
    close(
        x, f"attention {heads} heads {s}x{d}", torch.bfloat16, o, attend(q, k_, v, is_causal=True)
    )
    x.report.line(
        f"  attention {heads} heads {s}x{d} bfloat16, causal: {us:.0f} us, torch {torch_us:.0f} us"
    )
    x.report.number("attention", us, "us")


# ---- what a copy engine hides ----


def overlap_graph(x, a, w, y, host, chunks, parts):
    graph, (m, n) = x.graph(), y.shape
    rows = m // chunks
    for i in range(chunks):
        if "compute" in parts:
            add_tiles(graph, a, w, y, range(i * rows, (i + 1) * rows, 128), range(0, n, 128))
        if "comm" in parts:
            count = rows * n
            graph.add(
                ALLREDUCE, [y[i * rows :]], [host[i * rows :]], [count & 0xFFFFFFFF, count >> 32, 0]
            )
    return graph


def overlap_times(x, a, w, y, host, chunks):
    comms, times = (C.c_void_p * 1)(None), {}
    for name, parts in (
        ("compute", ["compute"]),
        ("copies", ["comm"]),
        ("both", ["compute", "comm"]),
    ):
        cuda = x.cuda(
            overlap_graph(x, a, w, y, host, chunks, parts).compile(), comms=comms, n_comms=1
        )
        times[name] = x.time(cuda.start, cuda.wait)
        cuda.close()
    return times


def overlap(x):
    """Host copies, not NCCL: chunks of a product (bfloat16),
    each copied to the host when it is done."""
    torch = x.torch
    m, n, k, chunks = (256, 128, 64, 2) if x.quick else (16384, 1024, 4096, 8)
    for attempt in range(2):  # the second time with as much to compute as to copy
        a, w = x.rand(m, k, dtype=torch.bfloat16), x.rand(n, k, dtype=torch.bfloat16)
        y, host = x.empty(m, n, dtype=torch.bfloat16), torch.empty(
            m, n, dtype=torch.bfloat16, pin_memory=True
        )
        times = overlap_times(x, a, w, y, host, chunks)
        c, x_, o = times["compute"], times["copies"], times["both"]
        if x.quick or 0.5 <= x_ / c <= 1.5 or attempt:
            break
        k = max(256, min(16384, int(k * x_ / c) // 64 * 64))
    if not torch.equal(host, y.cpu()):
        x.wrong("what was copied is not what was computed")
    x.report.line(
        f"  {chunks} chunks of {m}x{n}x{k}: compute {c:.0f} us, copies {x_:.0f} us, both {o:.0f} us"
    )
    for name, us in times.items():
        x.report.number(name, us, "us")
    if min(c, x_) < 0.05 * max(c, x_):
        x.report.line("  unmeasurable here: one is under 5 % of the other")
        return
    bound = max(c, x_) + min(c, x_) / chunks
    x.report.line(
        f"  hidden {100 * (c + x_ - o) / x_:.0f} % of the copies, E"
        f" {100 * (c + x_ - o) / min(c, x_):.0f} %, gain {(c + x_) / o:.2f} x"
    )
    part = (c + x_ - o) / (c + x_ - bound)
    x.report.bar(
        f"E over the bound of {chunks} dependent chunks, 0.9 or more", part, "", part >= 0.9
    )


# ---- collectives inside the kernel ----


class Rank:
    """A runtime of its own in a thread of this process:
    its part of the multiprocessors, its own stream."""

    def __init__(self, x, rank, world, count, runs):
        self.x, self.rank, self.world, self.runs, self.us, self.why = (
            x,
            rank,
            world,
            runs,
            0.0,
            None,
        )
        self.name = None
        self.data = x.rand(count, dtype=x.torch.bfloat16)
        self.out = x.torch.zeros_like(self.data)
        self.thread = threading.Thread(target=self.main)

    def main(self):
        group, lib = C.c_void_p(), self.x.lib
        try:
            name = self.name or f"helios-test-peers-{os.getpid()}".encode()
            lib(
                "hybridps_group_shm",
                C.byref(ShmOptions(name, self.rank, self.world, 30000)),
                C.byref(group),
            )
            self.communicate(group)
        except Failed as why:
            self.why = why
        finally:
            lib.so.hybridps_group_close(group)

    def communicate(self, group):
        torch, graph, count = self.x.torch, self.x.graph(), self.data.numel()
        graph.add(
            ALLREDUCE,
            [self.data],
            [self.out],
            [count & 0xFFFFFFFF, count >> 32, 0, 0, 0, self.world],
        )
        stream = torch.cuda.Stream()
        cuda = Cuda(
            self.x.lib,
            graph.compile(),
            lambda: stream.cuda_stream,
            workers=1,
            groups=(C.c_void_p * 1)(group),
            n_comms=1,
            peer_ctas=2 if self.x.quick else 16,
            timeout_ns=20_000_000_000,
        )
        self.route = self.x.lib.so.maco_cuda_route(cuda.c, 0).decode()
        try:
            cuda.run()  # ranks compare their plans before
            began = time.perf_counter()
            for _ in range(self.runs):
                cuda.run()
            self.us = (time.perf_counter() - began) / self.runs * 1e6
        finally:
            cuda.close()


def peers(x):
    """ALLREDUCE inside the kernel: ranks that are threads here, each with some CTAs of this GPU;
    bits against the order of ranks."""
    torch = x.torch
    for world in (2, 3):
        for count in (1000,) if x.quick else (1000, 1 << 20, 1 << 24):
            ranks = [Rank(x, k, world, count, 2 if x.quick else 20) for k in range(world)]
            torch.cuda.synchronize()
            for r in ranks:
                r.thread.start()
            for r in ranks:
                r.thread.join()
            torch.cuda.synchronize()
            want = ranks[0].data
            for r in ranks[1:]:
                want = (want.float() + r.data.float()).to(torch.bfloat16)
            right = all(r.why is None and torch.equal(r.out, want) for r in ranks)
            x.report.line(f"  {ranks[0].route}")
            x.report.line(
                f"  {world} ranks, {count:9} bfloat16: {ranks[0].us:10.1f} us a run,"
                f" bits right: {right}"
            )
            x.report.number(f"allreduce of {count}, {world} ranks", ranks[0].us, "us")
            if not right:
                x.wrong(
                    "; ".join(str(r.why) for r in ranks if r.why)
                    or f"bits of {world} ranks, {count} elements"
                )


class Child(Rank):
    """The same in a process of its own. Data are the rank's number's,
    so that each knows those of all."""

    def __init__(self, x, rank, world, count, runs, name):
        super().__init__(x, rank, world, count, runs)
        self.name, self.all = name.encode(), [self.of(k, count) for k in range(world)]
        self.data = self.all[rank]

    def of(self, rank, count):
        self.x.torch.manual_seed(rank + 1)
        return self.x.rand(count, dtype=self.x.torch.bfloat16)

    def wanted(self):
        want = self.all[0]
        for other in self.all[1:]:
            want = (want.float() + other.float()).to(self.x.torch.bfloat16)
        return want


def child(x, words):
    """One rank of processes(): rank/world/count/runs/name.
    The last line is what it found, as JSON."""
    rank, world, count, runs, name = words.split("/")
    r = Child(x, int(rank), int(world), int(count), int(runs), name)
    x.torch.cuda.synchronize()
    r.main()
    x.torch.cuda.synchronize()
    right = r.why is None and x.torch.equal(r.out, r.wanted())
    print(
        json.dumps(
            {"right": right, "us": r.us, "why": str(r.why or ""), "route": getattr(r, "route", "")}
        )
    )


def processes(x):
    """ALLREDUCE inside the kernel: ranks that are processes, as of a training;
    they take turns on this GPU."""
    for world, count in ((2, 1000),) if x.quick else ((2, 1000), (2, 1 << 20), (3, 1 << 20)):
        name = f"maco-gpu-processes-{os.getpid()}-{world}-{count}"
        command = [sys.executable, __file__, "--section", "processes", "--lib", x.lib.path]
        command += ["--quick"] * x.quick + (
            ["--driver", x.lib.driver.decode()] if x.lib.driver else []
        )
        ranks = [
            subprocess.Popen(
                [*command, "--rank", f"{k}/{world}/{count}/5/{name}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for k in range(world)
        ]
        said = [r.communicate(timeout=100)[0].strip().splitlines() for r in ranks]
        found = [
            (
                json.loads(lines[-1])
                if lines
                else {"right": False, "us": 0.0, "why": "it said nothing", "route": ""}
            )
            for lines in said
        ]
        right = all(f["right"] for f in found)
        x.report.line(f"  {found[0]['route']}")
        x.report.line(
            f"  {world} processes, {count:9} bfloat16: {found[0]['us']:10.1f} us a run,"
            f" bits right: {right}"
        )
        x.report.number(f"allreduce of {count}, {world} processes", found[0]["us"], "us")
        if not right:
            x.wrong(
                "; ".join(f["why"] for f in found if f["why"])
                or f"bits of {world} processes, {count} elements"
            )


SECTIONS = {
    f.__name__: f for f in (bodies, graphs, demo, launch, sweep, speed, overlap, peers, processes)
}


# ---- running them ----


def refuse(why):
    print(f"skipped: {why}")
    sys.exit(77)


def usable_torch():
    try:
        import torch
    except ImportError:
        refuse("no torch for this python3")
    if int(torch.__version__.split(".")[0]) < 2:
        refuse(f"torch {torch.__version__}: 2 or later is wanted")
    if not torch.cuda.is_available():
        refuse("torch sees no GPU")
    return torch


def run_section(name, args, torch):
    """In this process; 0, or 1 if something was wrong."""
    report = Report(name)
    x = Context(torch, Lib(args.lib, args.driver), report, args.quick)
    torch.manual_seed(1)
    if args.rank:
        child(x, args.rank)
        return 0
    report.line(f"\n{name}: {' '.join(SECTIONS[name].__doc__.split())}")
    try:
        SECTIONS[name](x)
    except Failed as why:
        x.wrong(str(why))
    report.number("wrong", len(x.errors), "")
    if args.numbers:
        report.save(args.numbers)
    if x.errors:
        report.line(f"  {name}: {len(x.errors)} wrong: {'; '.join(x.errors)[:400]}")
    return 1 if x.errors else 0


def run_apart(name, args, out, text):
    """In a process of its own; what it says is shown and kept."""
    numbers = out / f".{name}.json"
    command = [
        sys.executable,
        "-u",
        __file__,
        "--section",
        name,
        "--lib",
        str(args.lib),
        "--numbers",
        str(numbers),
    ]
    command += ["--quick"] * args.quick + (["--driver", args.driver] if args.driver else [])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate(timeout=SECTION_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        said, code = said + f"\n  {name}: not done in {SECTION_S} s", 1
    if code not in (0, 1):
        said += f"\n  {name}: its process ended with {code}"
    print(said, flush=True)
    text.write(said)
    text.flush()
    found = (
        json.loads(numbers.read_text())
        if numbers.exists()
        else [{"section": name, "name": "no result", "value": code, "unit": ""}]
    )
    numbers.unlink(missing_ok=True)
    return code != 0, found


def run_all(args, torch):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    major, minor = torch.cuda.get_device_capability(0)
    if args.lib is None:
        with (out / "build.txt").open("w") as log:
            args.lib = build(f"{major}{minor}", log.write)
    try:
        lib = Lib(args.lib, args.driver)
        lib("maco_cuda_available", lib.driver)
    except (OSError, Failed) as why:
        refuse(why)
    failed, numbers = [], []
    with (out / "report.txt").open("w") as text:
        head = (
            f"{torch.cuda.get_device_name(0)} ({major}.{minor}),"
            f" torch {torch.__version__}, {args.lib}"
        )
        print(head, flush=True)
        text.write(head + "\n")
        for name in args.only.split(","):
            wrong, found = run_apart(name, args, out, text)
            failed += [name] * wrong
            numbers += found
            (out / "numbers.json").write_text(
                json.dumps({"device": head, "numbers": numbers}, indent=1) + "\n"
            )
        last = f"\nwrong: {', '.join(failed)}" if failed else "\nall right"
        print(last)
        text.write(last + "\n")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="maco-gpu", help="directory for the results")
    parser.add_argument(
        "--lib", help="a libhelios with kernels for this GPU; without it one is built"
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes and few repeats: whether it works, not how fast",
    )
    parser.add_argument("--driver", help="the driver's library, libcuda.so.1")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--numbers", help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [name for name in args.only.split(",") if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    torch = usable_torch()
    sys.exit(run_section(args.section, args, torch) if args.section else run_all(args, torch))


if __name__ == "__main__":
    main()

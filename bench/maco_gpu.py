"""MACO on a GPU: every body against torch, the demo, what a launch costs, how workers scale, what a copy engine hides.

    ./run build && python3 bench/maco_gpu.py [--lib build/lib/libhelios.so] [--only bodies,demo,launch,sweep,overlap]

Needs a GPU, torch >= 2 and a libhelios that was built where nvcc is; ends with 77 and the reason elsewhere. Each table
says what it compares; times are medians of repeated runs between events of one stream."""
import argparse
import ctypes as C
import math
import pathlib
import statistics
import sys

NONE = 0xFFFFFFFF
NOP, MATMUL, ATTENTION, LINEAR, LAYERNORM, GELU, SILU, SOFTMAX, RMSNORM, ELEMENTWISE = 1, 100, 101, 102, 103, 104, 105, 106, 107, 120
ALLREDUCE, MEMCPY, MEMSET = 200, 300, 301
ADD, MUL, AXPB, RELU, CAST, SUB, SCALE_ADD = range(7)
DIRECT, SCHEDULER, STATIC = range(3)


class Op(C.Structure):
    _fields_ = [("type", C.c_int), ("dtype", C.c_int), ("deterministic", C.c_int), ("inputs", C.c_void_p * 4),
                ("outputs", C.c_void_p * 2), ("dims", C.c_int32 * 8), ("aux", C.c_float * 4), ("group", C.c_uint32),
                ("name", C.c_char_p), ("worker", C.c_int), ("priority", C.c_int), ("cost_ns", C.c_uint32),
                ("function", C.c_void_p), ("arg", C.c_void_p), ("reads", C.c_void_p), ("writes", C.c_void_p),
                ("n_reads", C.c_uint32), ("n_writes", C.c_uint32)]


class CompileOptions(C.Structure):
    _fields_ = [("policy", C.c_int), ("balance", C.c_int), ("workers", C.c_int), ("infer", C.c_int), ("lists", C.c_void_p)]


class CudaOptions(C.Structure):
    _fields_ = [("workers", C.c_int), ("reserved", C.c_int), ("timeout_ns", C.c_uint64), ("trace", C.c_int),
                ("ring", C.c_uint32), ("comms", C.POINTER(C.c_void_p)), ("n_comms", C.c_uint32), ("driver", C.c_char_p),
                ("nccl", C.c_char_p)]


class CudaInfo(C.Structure):
    _fields_ = [("name", C.c_char * 96), ("multiprocessors", C.c_int), ("major", C.c_int), ("minor", C.c_int),
                ("limit", C.c_int), ("workers", C.c_int), ("image_bytes", C.c_uint64)]


class Failed(Exception):
    pass


class Lib:
    def __init__(self, path):
        self.so = C.CDLL(str(path))
        self.so.helios_last_error.restype = C.c_char_p

    def __call__(self, name, *args):
        status = getattr(self.so, name)(*args)
        if status != 0:
            raise Failed(f"{name}: {status}: {self.so.helios_last_error().decode()}")


class Graph:
    """Tasks over tensors; order follows from what they read and write, and from depend()."""

    def __init__(self, lib):
        self.lib, self.g, self.plan, self.kept, self.n = lib, C.c_void_p(), C.c_void_p(), [], 0
        lib("maco_graph_new", C.byref(self.g))

    def add(self, kind, inputs, outputs, dims, aux=(), dtype=None, group=0):
        op, task = Op(type=kind, worker=-1, group=group), C.c_uint32()
        first = (inputs or outputs)[0]
        op.dtype = DTYPES[first.dtype] if dtype is None else dtype
        for i, t in enumerate(inputs):
            op.inputs[i] = None if t is None else t.data_ptr()
        for i, t in enumerate(outputs):
            op.outputs[i] = t.data_ptr()
        for i, d in enumerate(dims):
            op.dims[i] = d
        for i, a in enumerate(aux):
            op.aux[i] = a
        self.kept += [*inputs, *outputs]
        self.lib("maco_graph_add", self.g, C.byref(op), C.byref(task))
        self.n += 1
        return task.value

    def depend(self, task, on):
        self.lib("maco_graph_depend", self.g, C.c_uint32(task), C.c_uint32(on))

    def compile(self, policy=DIRECT, workers=0, infer=1):
        options = CompileOptions(policy=policy, workers=workers, infer=infer)
        self.lib("maco_compile", self.g, C.byref(options), C.byref(self.plan))
        return self

    def close(self):
        self.lib.so.maco_plan_free(self.plan)
        self.lib.so.maco_graph_free(self.g)


class Cuda:
    def __init__(self, lib, graph, **options):
        self.lib, self.graph, self.c, self.info = lib, graph, C.c_void_p(), CudaInfo()
        lib("maco_cuda_open", 0, C.byref(CudaOptions(**options)), C.byref(self.c))
        try:
            lib("maco_cuda_load", self.c, graph.plan)
        except Failed:
            lib.so.maco_cuda_close(self.c)
            raise
        lib("maco_cuda_describe", self.c, C.byref(self.info))

    def start(self):
        self.lib("maco_cuda_start", self.c, C.c_void_p(torch.cuda.current_stream().cuda_stream))

    def wait(self):
        self.lib("maco_cuda_wait", self.c)

    def run(self):
        self.start()
        self.wait()

    def order(self):
        ids, n = (C.c_uint32 * (self.graph.n + 1))(), C.c_uint32()
        self.lib("maco_cuda_order", self.c, ids, C.c_uint32(self.graph.n + 1), C.byref(n))
        return list(ids[: n.value])

    def close(self):
        self.lib.so.maco_cuda_close(self.c)
        self.graph.close()


def microseconds(start, wait=lambda: None, repeats=21):
    """Median on the GPU between two events around start(); wait() is outside."""
    times = []
    for i in range(repeats + 2):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        a.record()
        start()
        b.record()
        wait()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(a.elapsed_time(b) * 1000)
    return statistics.median(times)


# ---- every body against torch ----

def rand(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def close(name, dtype, got, want, errors):
    error = ((got.double() - want.double()).norm() / want.double().norm()).item()
    limit = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}[dtype]
    ok = math.isfinite(error) and error <= limit
    print(f"  {name:34} {str(dtype)[6:]:9} {error:9.2e}  {'ok' if ok else 'WRONG'}")
    if not ok:
        errors.append(f"{name} {dtype}")


def one(lib, kind, inputs, output, dims, aux=(), outputs=None):
    output.fill_(float("nan"))  # what is not written is found
    graph = Graph(lib)
    graph.add(kind, inputs, outputs or [output], dims, aux)
    cuda = Cuda(lib, graph.compile(), workers=1)
    cuda.run()
    cuda.close()
    return output


def check_products(lib, dtype, errors):
    for m, n, k, ta, tb in ((256, 384, 512, 0, 0), (200, 100, 72, 1, 0), (130, 257, 99, 0, 1), (128, 128, 64, 1, 1)):
        a = rand(k, m, dtype=dtype) if ta else rand(m, k, dtype=dtype)
        b = rand(n, k, dtype=dtype) if tb else rand(k, n, dtype=dtype)
        y = torch.empty(m, n, device="cuda", dtype=dtype)
        one(lib, MATMUL, [a, b], y, [m, n, k, a.shape[1], b.shape[1], n, ta, tb], [1.0, 0.0])
        want = (a.double().T if ta else a.double()) @ (b.double().T if tb else b.double())
        close(f"matmul {m}x{n}x{k} {'T' if ta else 'N'}{'T' if tb else 'N'}", dtype, y, want, errors)
    x, w, bias = rand(300, 256, dtype=dtype), rand(192, 256, dtype=dtype), rand(192, dtype=dtype)
    y = torch.empty(300, 192, device="cuda", dtype=dtype)
    one(lib, LINEAR, [x, w, bias], y, [300, 192, 256, 256, 256, 192])
    close("linear with bias", dtype, y, torch.nn.functional.linear(x.double(), w.double(), bias.double()), errors)


def check_attention(lib, dtype, errors):
    for b, hq, hkv, sq, sk, d, causal in ((2, 4, 4, 100, 100, 64, 1), (1, 8, 2, 33, 130, 128, 0), (1, 2, 1, 20, 50, 200, 1)):
        q, k, v = rand(b, hq, sq, d, dtype=dtype), rand(b, hkv, sk, d, dtype=dtype), rand(b, hkv, sk, d, dtype=dtype)
        o, lse = torch.empty_like(q), torch.empty(b, hq, sq, device="cuda")
        one(lib, ATTENTION, [q, k, v], o, [b, hq, hkv, sq, sk, d, causal], [d ** -0.5], [o, lse])
        s = q.double() @ k.double().repeat_interleave(hq // hkv, 1).transpose(-1, -2) * d ** -0.5
        if causal:
            s = s.masked_fill(~torch.ones(sq, sk, dtype=torch.bool, device="cuda").tril(sk - sq), -math.inf)
        close(f"attention {hq}/{hkv} heads of {d}", dtype, o, s.softmax(-1) @ v.double().repeat_interleave(hq // hkv, 1), errors)
        close("  its log-sum-exp", torch.float32, lse, s.logsumexp(-1), errors)


def check_rows(lib, dtype, errors):
    f = torch.nn.functional
    for rows, cols in ((300, 256), (7, 5000), (64, 33)):
        x, g, b = rand(rows, cols, dtype=dtype), rand(cols, dtype=dtype), rand(cols, dtype=dtype)
        y, dims, xd = torch.empty_like(x), [rows, cols, cols, cols], x.double()
        rms = xd * (xd.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * g.double()
        for name, kind, inputs, extra, aux, want in (
                ("layernorm", LAYERNORM, [x, g, b], [], [1e-5], f.layer_norm(xd, (cols,), g.double(), b.double(), 1e-5)),
                ("rmsnorm", RMSNORM, [x, g], [], [1e-5], rms), ("softmax", SOFTMAX, [x], [], [], xd.softmax(-1)),
                ("gelu", GELU, [x], [0], [], f.gelu(xd)), ("gelu tanh", GELU, [x], [1], [], f.gelu(xd, approximate="tanh")),
                ("silu", SILU, [x], [], [], f.silu(xd))):
            one(lib, kind, inputs, y, dims + extra, aux)
            close(f"{name} {rows}x{cols}", dtype, y, want, errors)


def check_elements(lib, dtype, errors):
    a, b = rand(33, 1001, dtype=dtype), rand(33, 1001, dtype=dtype)
    ad, bd = a.double(), b.double()
    for name, op, want in (("add", ADD, ad + bd), ("mul", MUL, ad * bd), ("axpb", AXPB, ad * 1.5 + 0.1), ("relu", RELU, ad.relu()),
                           ("sub", SUB, ad - bd), ("scale_add", SCALE_ADD, 1.5 * ad + bd)):
        y = torch.empty_like(a)
        inputs = [a] if op in (AXPB, RELU) else [a, b]
        one(lib, ELEMENTWISE, inputs, y, [33, 1001, 1001, 1001, 1001, op, DTYPES[dtype]], [1.5, 0.1])
        close(name, dtype, y, want, errors)
    for to in DTYPES:
        y = torch.empty(33, 1001, device="cuda", dtype=to)
        one(lib, ELEMENTWISE, [a], y, [33, 1001, 1001, 0, 1001, CAST, DTYPES[to]])
        close(f"cast to {str(to)[6:]}", to, y, a.to(to), errors)


def bodies(lib):
    errors = []
    print("Bodies: one task, norm of the error over the norm of a float64 result by torch")
    for dtype in DTYPES:
        for check in (check_products, check_attention, check_rows, check_elements):
            check(lib, dtype, errors)
    x, y = torch.randint(0, 255, (100003,), device="cuda", dtype=torch.uint8), torch.zeros(100003, device="cuda", dtype=torch.uint8)
    for name, kind, inputs, dims in (("memcpy", MEMCPY, [x], [1, 100003, 100003, 100003]), ("memset", MEMSET, [], [1, 100003, 0, 100003, 7])):
        graph = Graph(lib)
        graph.add(kind, inputs, [y], dims, dtype=6)
        cuda = Cuda(lib, graph.compile(), workers=1)
        cuda.run()
        cuda.close()
        if not torch.equal(y, x if kind == MEMCPY else torch.full_like(y, 7)):
            errors.append(name)
    if errors:
        raise Failed(f"wrong: {', '.join(errors)}")


# ---- the demo: rounds of x * 1.5 + 0.1, a barrier after each ----

def steps(lib, data, workers, rounds):
    graph, part = Graph(lib), data.numel() // workers
    before = []
    for _ in range(rounds):
        now = []
        for w in range(workers):
            mine = data[w * part:(w + 1) * part if w + 1 < workers else data.numel()]
            n = mine.numel()
            task = graph.add(ELEMENTWISE, [mine], [mine], [1, n, n, 0, n, AXPB, 0], [1.5, 0.1])
            for on in before:
                graph.depend(task, on)
            now.append(task)
        before = now
    return graph


def demo(lib):
    print("\nDemo: 4 workers, 10 rounds, 1 Mi floats")
    for policy in (DIRECT, SCHEDULER, STATIC):
        data = torch.randn(1 << 20, device="cuda")
        want = data.clone()
        for _ in range(10):
            want = torch.addcmul(torch.full_like(want, 0.1), want, torch.full_like(want, 1.5))
        cuda = Cuda(lib, steps(lib, data, 4, 10).compile(policy, 4), workers=4, trace=1)
        cuda.run()
        rounds = [task // 4 for task in cuda.order()]
        cuda.close()
        ok = rounds == sorted(rounds) and len(rounds) == 40 and torch.allclose(data, want, rtol=1e-6, atol=1e-6)
        print(f"  {POLICIES[policy]:10} rounds in order, values right: {ok}")
        if not ok:
            raise Failed(f"the demo by {POLICIES[policy]}")


# ---- what a launch costs ----

def chain(lib, data, tasks):
    graph, n = Graph(lib), data.numel()
    for _ in range(tasks):
        graph.add(ELEMENTWISE, [data], [data], [1, n, n, 0, n, AXPB, 0], [1.5, 0.0])
    return graph


def launch(lib):
    print("\nLaunch: a chain of dependent x * 1.5 over 1,024 floats; microseconds a run, and a task")
    data = torch.zeros(1024, device="cuda")
    for tasks in (40, 4000):
        def eager():
            for _ in range(tasks):
                data.mul_(1.5)
        rows = [("torch eager", microseconds(eager))]
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            eager()
        rows.append(("CUDA graph", microseconds(captured.replay)))
        for policy in (DIRECT, SCHEDULER):
            cuda = Cuda(lib, chain(lib, data, tasks).compile(policy))
            rows.append((f"persistent {POLICIES[policy]}", microseconds(cuda.start, cuda.wait)))
            cuda.close()
        for name, us in rows:
            print(f"  {tasks:5} tasks  {name:22} {us:10.1f} us {us / tasks:8.3f} us a task  {rows[1][1] / us:6.2f} x CUDA graph")


# ---- workers against the copy bandwidth ----

def sweep(lib):
    size = 1 << 30
    x, y = torch.empty(size, device="cuda", dtype=torch.uint8), torch.empty(size, device="cuda", dtype=torch.uint8)
    peak = 2 * size / microseconds(lambda: y.copy_(x)) / 1e3
    print(f"\nWorkers: MEMCPY of 1 GiB in pieces of 1 MiB, read and written; torch's copy: {peak:.0f} GB/s")
    graph = Graph(lib)
    for at in range(0, size, 1 << 20):
        graph.add(MEMCPY, [x[at:]], [y[at:]], [1, 1 << 20, 1 << 20, 1 << 20], dtype=6)
    graph.compile(infer=1)
    limit = torch.cuda.get_device_properties(0).multi_processor_count
    for workers in sorted({w for w in (1, 2, 4, 8, 16, 32, 64, 96, 128, limit - 1, limit) if w <= limit}):
        cuda = Cuda(lib, graph, workers=workers)
        rate = 2 * size / microseconds(cuda.start, cuda.wait, 7) / 1e3
        print(f"  {workers:4} workers {rate:8.0f} GB/s {100 * rate / peak:6.1f} % of the copy")
        lib.so.maco_cuda_close(cuda.c)
    graph.close()


# ---- what a copy engine hides ----

def overlap_graph(lib, x, w, y, host, chunks, parts):
    graph, rows = Graph(lib), x.shape[0] // chunks
    k, n = x.shape[1], w.shape[0]
    tile = 128
    for i in range(chunks):
        products = []
        for at in range(i * rows, (i + 1) * rows, tile):
            if "compute" in parts:
                products.append(graph.add(LINEAR, [x[at:], w], [y[at:]], [tile, n, k, k, k, n]))
        if "comm" in parts:
            count = rows * n
            graph.add(ALLREDUCE, [y[i * rows:]], [host[i * rows:]], [count & 0xFFFFFFFF, count >> 32, 0])
    return graph


def overlap(lib):
    m, n, k, chunks = 16384, 1024, 4096, 8
    x, w = rand(m, k, dtype=torch.bfloat16), rand(n, k, dtype=torch.bfloat16)
    y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(m, n, dtype=torch.bfloat16, pin_memory=True)
    comms = (C.c_void_p * 1)(None)
    times = {}
    for name, parts in (("compute", ["compute"]), ("copies", ["comm"]), ("both", ["compute", "comm"])):
        cuda = Cuda(lib, overlap_graph(lib, x, w, y, host, chunks, parts).compile(), comms=comms, n_comms=1)
        times[name] = microseconds(cuda.start, cuda.wait)
        cuda.close()
    if not torch.equal(host.cuda(), y):
        raise Failed("what was copied is not what was computed")
    c, x_, o = times["compute"], times["copies"], times["both"]
    print(f"\nOverlap: host copies, not NCCL: {chunks} chunks of a product {m}x{n}x{k} (bfloat16), each copied to the host when done")
    print(f"  compute {c:.0f} us, copies {x_:.0f} us, both {o:.0f} us")
    if min(c, x_) < 0.05 * max(c, x_):
        print("  unmeasurable here: one is under 5 % of the other")
        return
    bound = max(c, x_) + min(c, x_) / chunks
    print(f"  hidden {100 * (c + x_ - o) / x_:.0f} % of the copies, E {100 * (c + x_ - o) / min(c, x_):.0f} %, "
          f"of the bound of {chunks} dependent chunks {100 * (c + x_ - o) / (c + x_ - bound):.0f} %, gain {(c + x_) / o:.2f} x")


def refuse(why):
    print(f"skipped: {why}")
    sys.exit(77)


def main():
    global torch, DTYPES, POLICIES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--lib", default=root / "build/lib/libhelios.so")
    parser.add_argument("--only", default="bodies,demo,launch,sweep,overlap")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        refuse("no torch for this python3")
    if int(torch.__version__.split(".")[0]) < 2:
        refuse(f"torch {torch.__version__}: 2 or later is wanted")
    if not torch.cuda.is_available():
        refuse("torch sees no GPU")
    if not pathlib.Path(args.lib).exists():
        refuse(f"no {args.lib}: ./run build")
    lib = Lib(args.lib)
    try:
        lib("maco_cuda_available", None)
    except Failed as why:
        refuse(why)
    DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
    POLICIES = {DIRECT: "direct", SCHEDULER: "scheduler", STATIC: "static"}
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}\n")
    for name in args.only.split(","):
        {"bodies": bodies, "demo": demo, "launch": launch, "sweep": sweep, "overlap": overlap}[name](lib)


main()

"""Parts of bench/maco_gpu.py: libhelios by ctypes, graphs of tensors, times on the GPU, and the
build of a libhelios for this machine's GPU (`-DHELIOS_ONLY=maco`, which needs only a compiler,
cmake and nvcc)."""
import ctypes as C
import json
import pathlib
import shutil
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
NONE = 0xFFFFFFFF
NOP, MATMUL, ATTENTION, LINEAR, LAYERNORM, GELU, SILU, SOFTMAX, RMSNORM, ELEMENTWISE = (
    1,
    100,
    101,
    102,
    103,
    104,
    105,
    106,
    107,
    120,
)
ALLREDUCE, ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL, MEMCPY, MEMSET = 200, 201, 202, 203, 300, 301
ADD, MUL, AXPB, RELU, CAST, SUB, SCALE_ADD = range(7)
DIRECT, SCHEDULER, STATIC = range(3)
POLICIES = {DIRECT: "direct", SCHEDULER: "scheduler", STATIC: "static"}
U8 = 6


class Sized(C.Structure):
    """A struct of the ABI that may grow: its first field is `size`, which is set here."""

    def __init__(self, *values, **fields):
        super().__init__(C.sizeof(self), *values, **fields)


class Op(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("type", C.c_int),
        ("dtype", C.c_int),
        ("deterministic", C.c_int),
        ("inputs", C.c_void_p * 4),
        ("outputs", C.c_void_p * 2),
        ("dims", C.c_int32 * 8),
        ("aux", C.c_float * 4),
        ("group", C.c_uint32),
        ("name", C.c_char_p),
        ("on_worker", C.c_int),
        ("priority", C.c_int),
        ("cost_ns", C.c_uint32),
        ("local_name", C.c_int),
        ("function", C.c_void_p),
        ("arg", C.c_void_p),
        ("reads", C.c_void_p),
        ("writes", C.c_void_p),
        ("n_reads", C.c_uint32),
        ("n_writes", C.c_uint32),
    ]


class CompileOptions(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("policy", C.c_int),
        ("balance", C.c_int),
        ("workers", C.c_int),
        ("infer", C.c_int),
        ("lists", C.c_void_p),
    ]


class CudaOptions(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("workers", C.c_int),
        ("reserved", C.c_int),
        ("timeout_ns", C.c_uint64),
        ("trace", C.c_int),
        ("ring", C.c_uint32),
        ("comms", C.POINTER(C.c_void_p)),
        ("n_comms", C.c_uint32),
        ("driver", C.c_char_p),
        ("nccl", C.c_char_p),
        ("groups", C.POINTER(C.c_void_p)),
        ("peer_ctas", C.c_uint32),
    ]


class ShmOptions(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("name", C.c_char_p),
        ("rank", C.c_int),
        ("world", C.c_int),
        ("timeout_ms", C.c_int),
    ]


class CudaInfo(Sized):
    _fields_ = [
        ("size", C.c_size_t),
        ("name", C.c_char * 96),
        ("multiprocessors", C.c_int),
        ("major", C.c_int),
        ("minor", C.c_int),
        ("limit", C.c_int),
        ("workers", C.c_int),
        ("image_bytes", C.c_uint64),
    ]


class Failed(Exception):
    pass


class Lib:
    def __init__(self, path, driver=None):
        self.path, self.so = str(path), C.CDLL(str(path))
        self.so.helios_last_error.restype = self.so.maco_cuda_route.restype = C.c_char_p
        self.so.hybridps_group_close.argtypes = [C.c_void_p]
        self.driver = driver.encode() if driver else None

    def __call__(self, name, *args):
        status = getattr(self.so, name)(*args)
        if status != 0:
            raise Failed(f"{name}: {status}: {self.so.helios_last_error().decode()}")


class Graph:
    """Tasks over tensors; order follows from what they read and write, and from depend()."""

    def __init__(self, lib, dtypes):
        self.lib, self.dtypes, self.g, self.plan, self.kept, self.n = (
            lib,
            dtypes,
            C.c_void_p(),
            C.c_void_p(),
            [],
            0,
        )
        lib("maco_graph_new", C.byref(self.g))

    def add(self, kind, inputs, outputs, dims, aux=(), dtype=None, group=0, worker=-1):
        op, task = Op(type=kind, on_worker=worker + 1, group=group), C.c_uint32()
        tensors = [t for t in (*inputs, *outputs) if t is not None]
        op.dtype = dtype if dtype is not None else self.dtypes[tensors[0].dtype] if tensors else 0
        for i, t in enumerate(inputs):
            op.inputs[i] = None if t is None else t.data_ptr()
        for i, t in enumerate(outputs):
            op.outputs[i] = t.data_ptr()
        for i, d in enumerate(dims):
            op.dims[i] = d
        for i, a in enumerate(aux):
            op.aux[i] = a
        self.kept += tensors
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
    """A graph on the GPU; `stream` is asked for at each start."""

    def __init__(self, lib, graph, stream, **options):
        self.lib, self.graph, self.stream, self.c, self.info = (
            lib,
            graph,
            stream,
            C.c_void_p(),
            CudaInfo(),
        )
        lib(
            "maco_cuda_open", 0, C.byref(CudaOptions(driver=lib.driver, **options)), C.byref(self.c)
        )
        try:
            lib("maco_cuda_load", self.c, graph.plan)
        except Failed:
            lib.so.maco_cuda_close(self.c)
            raise
        lib("maco_cuda_describe", self.c, C.byref(self.info))

    def start(self):
        self.lib("maco_cuda_start", self.c, C.c_void_p(self.stream()))

    def wait(self):
        self.lib("maco_cuda_wait", self.c)

    def run(self):
        self.start()
        self.wait()

    def order(self):
        ids, n = (C.c_uint32 * (self.graph.n + 1))(), C.c_uint32()
        self.lib("maco_cuda_order", self.c, ids, C.c_uint32(self.graph.n + 1), C.byref(n))
        return list(ids[: n.value])

    def close(self, graph=True):
        self.lib.so.maco_cuda_close(self.c)
        if graph:
            self.graph.close()


class Report:
    """What a section found: lines as they come, numbers for a program."""

    def __init__(self, section):
        self.section, self.numbers = section, []

    def line(self, text=""):
        print(text, flush=True)

    def number(self, name, value, unit=""):
        self.numbers.append({"section": self.section, "name": name, "value": value, "unit": unit})

    def bar(self, name, value, unit, met):
        self.number(name, value, unit)
        self.line(f"  bar: {name}: {value:.3g} {unit}: {'met' if met else 'NOT met'}")

    def save(self, path):
        pathlib.Path(path).write_text(json.dumps(self.numbers, indent=1) + "\n")


def microseconds(torch, start, wait=lambda: None, repeats=21):
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


def build(arch, log):
    """A libhelios with MACO alone, its kernels for this GPU;
    the path, or Failed with the end of what the tools said."""
    out = ROOT / f"build-gpu-{arch}"
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        raise Failed("no nvcc: build where it is (cmake -DHELIOS_ONLY=maco) and give --lib")
    if not shutil.which("cmake"):
        raise Failed("no cmake: build where it is (cmake -DHELIOS_ONLY=maco) and give --lib")
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    for command in (
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(out),
            *ninja,
            "-DHELIOS_ONLY=maco",
            "-DHELIOS_CUDA=AUTO",
            f"-DHELIOS_CUDA_ARCHS={arch}",
            f"-DHL_NVCC={nvcc}",
        ],
        ["cmake", "--build", str(out), "-j", "8", "--target", "helios"],
    ):
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        log(done.stdout)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}\n{done.stdout[-2000:]}")
    return out / "lib/libhelios.so"

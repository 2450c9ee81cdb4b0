"""Checks the GPU kernels on every architecture that nvcc knows: no spills; registers, stack and
shared memory within limits; one barrier. Their PTX must have the instructions that the protocol and
the bodies need.

    check_kernels.py NVCC SOURCE BUILD ARCHS [FLAG...]

FLAGs are additional flags of nvcc. The build compiles ARCHS (such as 80,90) and the PTX of the
first, and keeps the output of ptxas in BUILD; files of an earlier configuration there are ignored.
The other architectures are compiled here, once for each state of the sources. Exit status 77: there
is no nvcc."""
import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys

# of each kernel: registers, bytes of the stack, of shared memory, barriers
LIMITS = {"hl_maco_persistent": (240, 512, 48 << 10, 1), "hl_maco_window_": (32, 0, 0, 0)}
BUILT, FLAGS = sys.argv[4].split(","), sys.argv[5:]
# (instruction, at least) in PTX of the oldest and of 8.0
PTX = {
    "oldest": [
        ("ld.acquire.gpu.global.u64", 4),
        ("ld.acquire.sys.u64", 2),
        ("st.release.gpu.global.u64", 4),
        ("st.release.sys.u64", 1),
        ("atom.add.acq_rel.gpu.global.u64", 1),
        ("atom.add.acq_rel.sys.global.u64", 1),
        ("atom.cas.acq_rel.gpu.global.b64", 1),
        ("red.relaxed.gpu.global.max.u64", 1),
        ("%globaltimer", 2),
        ("nanosleep.u32", 1),
    ],
    "80": [
        ("cp.async.cg.shared.global", 4),
        ("cp.async.wait_group", 2),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16),
        ("cvt.rn.bf16.f32", 1),
    ],
}
# Loads that acquires don't cover.
FORBIDDEN = ("ld.global.nc", "ld.nc", "ldu.")


def nvcc_lines(nvcc, source, arguments):
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        f"-I{source}/src",
        f"-I{source}/include",
        *FLAGS,
        *arguments,
        str(source / "src/maco/cuda/device/kernel.cu"),
    ]
    done = subprocess.run(["nice", *command], capture_output=True, text=True, timeout=280)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def once(path, key, make):
    """The kept text, or a new one."""
    if path.exists() and path.read_text().startswith(key + "\n"):
        return path.read_text()
    text = make()
    path.write_text(f"{key}\n{text}")
    return text


def resources(nvcc, source, out, key, arch):
    built = out / f"kernel.sm_{arch}.txt"
    if str(arch) in BUILT and built.exists():
        return built.read_text()
    cubin = out / f"check.sm_{arch}.cubin"
    return once(
        out / f"check.sm_{arch}.txt",
        key,
        lambda: nvcc_lines(
            nvcc, source, ["-cubin", f"-arch=sm_{arch}", "-Xptxas", "-v", "-o", str(cubin)]
        ),
    )


def ptx(nvcc, source, out, key, arch):
    built, path = out / f"kernel.compute_{arch}.ptx", out / f"check.{arch}.ptx"
    if str(arch) == BUILT[0] and built.exists():
        return built.read_text()

    def make():
        nvcc_lines(nvcc, source, ["-ptx", f"-arch=compute_{arch}", "-o", str(path)])
        return path.read_text()

    return once(out / f"check.{arch}.ptx.txt", key, make)


def kernel_errors(arch, name, limits, text):
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text
    )
    used = re.search(r"Used (\d+) registers, used (\d+) barriers", text)
    if not frames or not used:
        return [f"sm_{arch}: ptxas said nothing of {name}"]
    stack, stores, loads = (max(map(int, column)) for column in zip(*frames, strict=True))
    registers, barriers = map(int, used.groups())
    shared = sum(map(int, re.findall(r"(\d+) bytes smem", text)))
    print(f"sm_{arch}: {name}: {registers} registers, {shared} bytes of shared memory")
    errors = [f"{stores} bytes of spill stores, {loads} of loads"] if stores or loads else []
    for what, is_, most in zip(
        ("registers", "bytes of stack", "bytes of shared memory"),
        (registers, stack, shared),
        limits[:3],
        strict=True,
    ):
        if is_ > most:
            errors.append(f"{is_} {what}, at most {most}")
    if barriers != limits[3]:
        errors.append(f"{barriers} barriers")
    return [f"sm_{arch}: {name}: {e}" for e in errors]


def resource_errors(arch, text):
    """What ptxas said, kernel by kernel; functions that are no kernels count to the one
    before them."""
    found = dict(
        re.findall(
            r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", text, re.DOTALL
        )
    )
    errors = []
    for prefix, limits in LIMITS.items():
        name = next((n for n in found if n.startswith(prefix)), None)
        if name:
            errors += kernel_errors(arch, name, limits, found[name])
        elif prefix == "hl_maco_persistent" or "-DHL_NCCL_DEVICE" in FLAGS:
            errors.append(f"sm_{arch}: no kernel {prefix}")
    return errors


def ptx_errors(name, text):
    # NCCL's header may read a window this way, because a window never changes.
    text = re.sub(r"\.entry hl_maco_window_.*?\n}\n", "", text, flags=re.DOTALL)
    errors = [
        f"PTX {name}: {text.count(word)} of {word}, at least {least}"
        for word, least in PTX[name]
        if text.count(word) < least
    ]
    return errors + [f"PTX {name}: {word}" for word in FORBIDDEN if word in text]


def main():
    nvcc, source, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    if not os.access(nvcc, os.X_OK):
        print("skipped: no nvcc")
        sys.exit(77)
    files = [
        *sorted((source / "src/maco/cuda/device").iterdir()),
        source / "include/helios/maco.h",
        pathlib.Path(__file__),
    ]
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(
        version.encode() + " ".join(FLAGS).encode() + b"".join(f.read_bytes() for f in files)
    ).hexdigest()
    listed = subprocess.run(
        [nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True
    ).stdout
    archs = sorted(int(a) for a in re.findall(r"compute_(\d+)", listed))
    errors = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(lambda a: (a, resources(nvcc, source, out, key, a)), archs)
        oldest = pool.submit(ptx, nvcc, source, out, key, archs[0])
        newer = pool.submit(ptx, nvcc, source, out, key, 80)
        for arch, text in texts:
            errors += resource_errors(arch, text)
        errors += ptx_errors("oldest", oldest.result()) + ptx_errors("80", newer.result())
    print("\n".join(errors) if errors else f"kernels: {len(archs)} architectures ok")
    sys.exit(1 if errors else 0)


main()

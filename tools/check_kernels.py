"""The GPU kernels, compiled for every architecture that nvcc knows: no spills, registers, stack and shared memory
within limits, one barrier; and in their PTX the instructions that the protocol and the bodies are made of.

    check_kernels.py NVCC SOURCE BUILD

The build compiles the oldest of each generation and keeps what ptxas said in BUILD; the others are compiled here, once
for each content of the sources. 77: there is no nvcc."""
import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys

REGISTERS, STACK, SHARED = 240, 512, 48 << 10
# (instruction, at least) in PTX of the oldest and of 8.0
PTX = {
    "oldest": [("ld.acquire.gpu.global.u64", 4), ("ld.acquire.sys.u64", 2), ("st.release.gpu.global.u64", 4),
               ("st.release.sys.u64", 1), ("atom.add.acq_rel.gpu.global.u64", 1), ("atom.add.acq_rel.sys.global.u64", 1),
               ("atom.cas.acq_rel.gpu.global.b64", 1), ("red.relaxed.gpu.global.max.u64", 1), ("%globaltimer", 2),
               ("nanosleep.u32", 1)],
    "80": [("cp.async.cg.shared.global", 4), ("cp.async.wait_group", 2), ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4),
           ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4), ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16),
           ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16), ("cvt.rn.bf16.f32", 1)],
}
# Loads that acquires don't cover.
FORBIDDEN = ("ld.global.nc", "ld.nc", "ldu.")


def nvcc_lines(nvcc, source, arguments):
    command = [nvcc, "-std=c++17", "-O3", f"-I{source}/src", f"-I{source}/include", *arguments,
               str(source / "src/maco/cuda/kernel.cu")]
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
    if built.exists():
        return built.read_text()
    cubin = out / f"check.sm_{arch}.cubin"
    return once(out / f"check.sm_{arch}.txt", key,
                lambda: nvcc_lines(nvcc, source, ["-cubin", f"-arch=sm_{arch}", "-Xptxas", "-v", "-o", str(cubin)]))


def ptx(nvcc, source, out, key, arch):
    built, path = out / f"kernel.compute_{arch}.ptx", out / f"check.{arch}.ptx"
    if built.exists():
        return built.read_text()

    def make():
        nvcc_lines(nvcc, source, ["-ptx", f"-arch=compute_{arch}", "-o", str(path)])
        return path.read_text()
    return once(out / f"check.{arch}.ptx.txt", key, make)


def resource_errors(arch, text):
    errors = []
    for stack, stores, loads in re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text):
        if int(stores) or int(loads):
            errors.append(f"sm_{arch}: {stores} bytes of spill stores, {loads} of loads")
        if int(stack) > STACK:
            errors.append(f"sm_{arch}: a stack of {stack} bytes, at most {STACK}")
    used = re.search(r"Used (\d+) registers, used (\d+) barriers.*?(\d+) bytes smem", text)
    if not used or "hl_maco_persistent" not in text:
        return [f"sm_{arch}: ptxas said nothing of the kernel"]
    registers, barriers, shared = map(int, used.groups())
    print(f"sm_{arch}: {registers} registers, {shared} bytes of shared memory")
    if registers > REGISTERS:
        errors.append(f"sm_{arch}: {registers} registers, at most {REGISTERS}")
    if shared > SHARED:
        errors.append(f"sm_{arch}: {shared} bytes of shared memory, at most {SHARED}")
    if barriers != 1:
        errors.append(f"sm_{arch}: {barriers} barriers")
    return errors


def ptx_errors(name, text):
    errors = [f"PTX {name}: {text.count(word)} of {word}, at least {least}" for word, least in PTX[name] if text.count(word) < least]
    return errors + [f"PTX {name}: {word}" for word in FORBIDDEN if word in text]


def main():
    nvcc, source, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    if not os.access(nvcc, os.X_OK):
        print("skipped: no nvcc")
        sys.exit(77)
    files = [*sorted((source / "src/maco/cuda").iterdir()), source / "include/helios/maco.h", pathlib.Path(__file__)]
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(version.encode() + b"".join(f.read_bytes() for f in files)).hexdigest()
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
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

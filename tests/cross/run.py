"""./run cross ARCH: this checkout compiled for another architecture,
and its unit tests under QEMU's user emulation.

Headers and libraries are Debian's packages of that architecture, which are unpacked, not installed:
this machine's apt and dpkg stay as they are, and no right is needed. They are kept in
~/.cache/helios, by their versions."""
import argparse
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE.parent)]
sys.dont_write_bytecode = True

from support import debian  # noqa: E402

# Debian's name, GNU's, QEMU's and the model it plays.
MACHINES = {
    "ppc64le": ("ppc64el", "powerpc64le-linux-gnu", "ppc64le", "power9"),
    "aarch64": ("arm64", "aarch64-linux-gnu", "aarch64", "cortex-a72"),
}
RECIPE = 1  # of what is unpacked; another number makes it anew
# Tests that can't pass there, and why.
NOT_EMULATED = {
    "hw_test_executor.*": (
        "programs start programs, and the kernel can't run them without binfmt_misc"
    ),
    "net_test_ucx.*|net_test_put_queue|group_test_(conformance_)?net": (
        "UCX's connections over TCP end in an input/output error"
    ),
    "hybridps_test_manager": (
        "QEMU knows no robust mutexes, so who waits for a dead process's does so for ever"
    ),
    "os_test_shm": "QEMU passes no MADV_COLLAPSE on",
}


def say(text):
    print(f"cross: {text}", flush=True)


def relative_links(root):
    """Links to /lib/... would lead out of the tree."""
    for path in root.rglob("*"):
        if path.is_symlink() and os.readlink(path).startswith("/"):
            target = root / os.readlink(path)[1:]
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))


def make_sysroot(machine, packages, work, log):
    say(f"fetching Debian's libraries for {machine} (80 MB, once)")
    root = work / "root"
    root.mkdir()
    debian.Fetcher(work, log, MACHINES[machine][0]).unpack_all(packages, root)
    for junk in ("doc", "locale", "man"):
        shutil.rmtree(root / "usr/share" / junk, ignore_errors=True)
    relative_links(root)
    return root


def sysroot(machine, packages):
    digest = hashlib.sha256(f"{RECIPE} {debian.versions(packages)}".encode()).hexdigest()[:8]
    return debian.kept(
        debian.cache_folder() / f"sysroot-{machine}-{digest}",
        functools.partial(make_sysroot, machine, packages),
        replaces=f"sysroot-{machine}-*",
    )


def emulator(machine, root, build, page):
    _, triple, name, cpu = MACHINES[machine]
    preload = build / "proc_stat.so"
    subprocess.run(
        [
            f"{triple}-gcc",
            f"--sysroot={root}",
            "-O2",
            "-Wall",
            "-shared",
            "-fPIC",
            HERE / "proc_stat.c",
            "-o",
            preload,
        ],
        check=True,
    )
    command = [f"qemu-{name}-static", "-L", str(root), "-cpu", cpu, "-E", f"LD_PRELOAD={preload}"]
    return command + (["-p", str(page)] if page else [])


def configure(machine, root, build, command):
    done = subprocess.run(
        [
            "cmake",
            "-S",
            ROOT,
            "-B",
            build,
            "-G",
            "Ninja",
            f"-DCMAKE_TOOLCHAIN_FILE={HERE}/toolchain.cmake",
            f"-DHELIOS_TRIPLE={MACHINES[machine][1]}",
            f"-DCMAKE_SYSROOT={root}",
            "-DHELIOS_WERROR=ON",
            "-DHELIOS_AUDIT=ON",
            "-DHELIOS_CUDA=OFF",
            f"-DCMAKE_CROSSCOMPILING_EMULATOR={';'.join(command)}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:] + done.stderr)


def main():
    parser = argparse.ArgumentParser(prog="./run cross", description=__doc__)
    parser.add_argument("machine", choices=sorted(MACHINES))
    parser.add_argument("--packages", required=True, help=argparse.SUPPRESS)
    parser.add_argument(
        "--page",
        type=int,
        metavar="BYTES",
        help="size of a page that the tests see (65536: as on POWER); without it this machine's",
    )
    parser.add_argument(
        "--build-only", action="store_true", help="compile and link all, run nothing"
    )
    args, tests = parser.parse_known_args()
    try:
        # ISA-L is for x86 alone.
        root = sysroot(
            args.machine,
            [p for p in args.packages.split() if p.endswith("-dev") and p != "libisal-dev"],
        )
    except debian.Missing as why:
        sys.exit(f"cross: {why}")
    build = ROOT / f"build-{args.machine}"
    build.mkdir(exist_ok=True)
    configure(args.machine, root, build, emulator(args.machine, root, build, args.page))
    subprocess.run(["cmake", "--build", build], check=True)
    if args.build_only:
        return
    for name, why in NOT_EMULATED.items():
        say(f"left out: {name}: {why}")
    sys.exit(
        subprocess.run(
            [
                "ctest",
                "--test-dir",
                build,
                "-L",
                "unit",
                "--output-on-failure",
                "-E",
                f"^({'|'.join(NOT_EMULATED)})$",
                *tests,
            ],
            check=False,
        ).returncode
    )


if __name__ == "__main__":
    main()

"""./run test-vm: our programs in virtual machines with RDMA verbs (soft-RoCE) and two NUMA nodes.

Results and logs are in build-vm/: out/ is what the guest wrote, serial.log is its console."""
import argparse
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import typing

import build

HERE = pathlib.Path(__file__).resolve().parent
TREE_PARTS = ("tests/support", "tests/vm", "tests/data", "python", "deploy/systemd")
PROGRAMS = ("build/bin", "build/lib", "build/tests/vm")
# Tests that behave differently where there are verbs and NUMA nodes.
UNIT_TESTS = ("hw_test_topology", "mem_test_pool", "mem_test_pool_regions")
# Programs that the tests run.
HELPERS = ("net_peer", "hw_test_executor_suite")
BOOT_SECONDS = 300


class Machine(typing.NamedTuple):
    """Process 1, the processors of each of its two NUMA nodes, and the modules of its tests."""

    systemd: bool
    cores: int
    modules: tuple


# Podman's calls are short programs with one busy thread:
# emulated processors beyond the host's two would only compete.
MACHINES = {
    "plain": Machine(
        False, 2, ("test_cluster", "test_numa", "test_programs", "test_puts", "test_verbs")
    ),
    "systemd": Machine(True, 2, ("test_systemd",)),
    "podman": Machine(True, 1, ("test_podman", "test_podman_jobs", "test_podman_user")),
}
SERVICE = """[Unit]
Wants=multi-user.target
After=multi-user.target

[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh -c 'timeout -k 10 %d sh /job/run.sh </dev/null >/job/out/output 2>&1; \
echo $? >/job/out/rc'
ExecStopPost=/bin/sh -c 'sync; echo o >/proc/sysrq-trigger'
"""
ENVIRONMENT = """\
export PATH=/job/tree/build/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export LD_LIBRARY_PATH=/job/tree/build/lib:/job/lib \
HELIOS_BUILD=/job/tree/build HELIOS_SOURCE=/job/tree
export PYTHONPATH=/job/tree/python:/job/tree/tests PYTHONDONTWRITEBYTECODE=1
cd /job/out
"""


def arguments():
    parser = argparse.ArgumentParser(prog="./run test-vm", description=__doc__)
    parser.add_argument(
        "-k",
        metavar="WORD",
        action="append",
        default=[],
        help="only tests whose name has one of these words",
    )
    parser.add_argument(
        "--machine",
        choices=sorted(MACHINES),
        action="append",
        help="only in this one [all, one after the other; plain for --shell and --script]",
    )
    parser.add_argument(
        "--shell", action="store_true", help="a shell in the machine instead of the tests"
    )
    parser.add_argument(
        "--script", metavar="FILE", help="a shell script to run in the machine instead of the tests"
    )
    parser.add_argument(
        "--kvm", action="store_true", help="use KVM; the default, emulation, works everywhere"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=5400,
        help="seconds for all tests in the machine, each of which has a limit of its own",
    )
    return parser.parse_args()


def shared_libraries(programs, known):
    """Host paths of the libraries that the programs need and the image does not have."""
    needed = {}
    for program in programs:
        listed = subprocess.run(
            ["ldd", program], capture_output=True, text=True, check=False
        ).stdout
        for line in listed.splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            if not arrow or name in known or name.startswith("libhelios."):
                continue
            if rest.startswith("not found"):
                raise build.Missing(
                    f"{program} needs {name}, which this machine does not have; ./run build"
                )
            needed[name] = rest.split(" (")[0]
    return needed


def machines(args):
    """The machines that have a test which -k names."""
    if args.machine or args.shell or args.script:
        return args.machine or ["plain"]
    named = [
        name
        for name, machine in MACHINES.items()
        if not args.k
        or any(
            word in said
            for module in machine.modules
            for word in args.k
            for said in re.findall(
                r'^@test\("(.*)"\)|^def (\w+)', (HERE / f"{module}.py").read_text(), re.M
            )
            for said in said
        )
    ]
    if not named:
        raise build.Missing(f"no test has one of these words: {' '.join(args.k)}")
    return named


def stage(job, image, args, machine):
    """The directory that host and guest share."""
    shutil.rmtree(job, ignore_errors=True)
    (job / "out").mkdir(parents=True)
    (job / "lib").mkdir()
    tree = job / "tree"
    for part in TREE_PARTS + PROGRAMS:
        if not (build.ROOT / part).is_dir():
            raise build.Missing(f"{part} is missing; ./run build")
        shutil.copytree(
            build.ROOT / part,
            tree / part,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in UNIT_TESTS + HELPERS:
        if not (build.ROOT / "build/tests" / name).exists():
            raise build.Missing(
                f"build/tests/{name} is missing; ./run build makes it,"
                " unless its name here is wrong"
            )
        shutil.copy(build.ROOT / "build/tests" / name, tree / "build/tests" / name)
    programs = [
        p
        for d in ("bin", "lib", "tests", "tests/vm")
        for p in (tree / "build" / d).iterdir()
        if p.is_file()
    ]
    known = set((image / "libs").read_text().split())
    for name, path in shared_libraries(programs, known).items():
        shutil.copy(path, job / "lib" / name)
    (job / "tests").write_text("\n".join(UNIT_TESTS) + "\n")
    (job / "limit").write_text(f"{args.limit}\n")
    (job / "modules").write_text("\n".join(machine.modules) + "\n")
    if machine.systemd:
        (job / "systemd").write_text(SERVICE % args.limit)
    guest = "python3 /job/tree/tests/vm/guest.py"
    words = " ".join(f"'{w}'" for w in args.k)
    work = f"exec {guest} {words}\n"
    if args.script:
        work = f"{guest} --prepare\n{pathlib.Path(args.script).read_text()}"
    (job / "run.sh").write_text(ENVIRONMENT + work)
    if args.shell:
        (job / "shell").write_text(
            f"{ENVIRONMENT}{guest} --prepare\n"
            "echo 'Tests: guest.py in /job/tree/tests/vm. Leave with exit.'\nPS1='vm# '\n"
        )


def qemu(image, job, kvm, cores):
    # Not chosen automatically: a /dev/kvm inside another virtual machine can open
    # and then hang the guest.
    accel = "kvm" if kvm else "tcg,thread=multi"
    last = 2 * cores - 1
    return [
        "qemu-system-x86_64",
        "-accel",
        accel,
        "-cpu",
        "max",
        "-smp",
        f"{2 * cores},sockets=2,cores={cores},threads=1",
        "-m",
        "4096M",
        "-object",
        "memory-backend-ram,id=m0,size=2G",
        "-object",
        "memory-backend-ram,id=m1,size=2G",
        "-numa",
        f"node,nodeid=0,memdev=m0,cpus=0-{cores - 1}",
        "-numa",
        f"node,nodeid=1,memdev=m1,cpus={cores}-{last}",
        "-numa",
        "dist,src=0,dst=1,val=20",
        "-kernel",
        image / "vmlinuz",
        "-initrd",
        image / "initrd.gz",
        # On a busy host no tick may arrive while the kernel tests its timer, and it would panic.
        # The kernel's tests of its ciphers have hung in the emulator.
        "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check cryptomgr.notests",
        "-drive",
        f"file={image / 'root.img'},if=virtio,format=raw,snapshot=on",
        "-fsdev",
        f"local,id=job,path={job},security_model=none",
        "-device",
        "virtio-9p-pci,fsdev=job,mount_tag=job",
        "-nographic",
        "-no-reboot",
        "-nic",
        "none",
    ]


class Follower:
    """Prints what the guest adds to a file."""

    def __init__(self, path):
        self.path = path
        self.seen = 0

    def more(self):
        if self.path.exists():
            with open(self.path, encoding="utf-8", errors="replace") as f:
                f.seek(self.seen)
                text = f.read()
                self.seen = f.tell()
            sys.stdout.write(text)
            sys.stdout.flush()


def boot(command, job, serial, limit):
    """Returns the seconds it took; kills the machine after the limit,
    or if it does not reach its job."""
    begin = time.monotonic()
    tap = Follower(job / "out" / "tap")
    with open(serial, "wb") as log:
        machine = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while (
                machine.poll() is None
                and time.monotonic() - begin
                < BOOT_SECONDS + limit * (job / "out" / "output").exists()
            ):
                time.sleep(0.2)
                tap.more()
        finally:
            if machine.poll() is None:
                machine.kill()
            machine.wait()
    tap.more()
    return time.monotonic() - begin


def report(job, serial, seconds):
    rc_file = job / "out" / "rc"
    rc = rc_file.read_text().strip() if rc_file.exists() else ""
    output = job / "out" / "output"
    if rc == "0" and (job / "out" / "tap").exists():
        build.say(f"passed in {seconds:.0f} s")
        return 0
    why = {
        "0": "the script ended",
        "": "the machine ended without a result",
        "124": "the job took longer than its limit",
        "137": "the job was killed after its limit",
    }.get(rc, f"failed ({rc})")
    for name, path in (("what the job printed", output), ("the console", serial)):
        lines = path.read_text(errors="replace").splitlines()[-40:] if path.exists() else []
        print(f"--- the end of {name} ({path})\n" + "\n".join(lines))
    build.say(
        f"{why} after {seconds:.0f} s; logs are in {job / 'out'}, a shell: ./run test-vm --shell"
    )
    return 1


def main():
    args = arguments()
    try:
        image = build.image()
        with open(build.CACHE / "job.lock", "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise build.Missing("another ./run test-vm of this checkout is running") from None
            job = build.CACHE / "job"
            serial = build.CACHE / "serial.log"
            failed = 0
            for name in machines(args):
                machine = MACHINES[name]
                stage(job, image, args, machine)
                command = qemu(image, job, args.kvm, machine.cores)
                if args.shell:
                    sys.exit(subprocess.run(command, check=False).returncode)
                failed |= report(job, serial, boot(command, job, serial, args.limit))
                if failed:
                    break
            sys.exit(failed)
    except build.Missing as why:
        sys.exit(f"test-vm: {why}")


if __name__ == "__main__":
    main()

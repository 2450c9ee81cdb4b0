"""Two "hosts" on one machine: network namespaces with three pairs of veth, one per plane.

    A 10.77.1.1 --backbone---  10.77.1.2 B
      10.77.2.1 --migration--  10.77.2.2
      10.77.3.1 --management-  10.77.3.2

A host is a process that holds the namespaces. It and everything that runs in them dies with the
test, also when the test is killed; the namespaces and their links end with the last process in
them. With `ipc="own"` each host has an IPC namespace and a /dev/shm of its own; with "shared" only
the network is separate, so that the Unix socket of a pool is reachable.

Needs root, unshare and nsenter (util-linux), ip and tc (iproute2).
"""
import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build"))
PLANES = ("backbone", "migration", "management")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
SECOND = 1.0  # a dead owner is noticed within this time
SLACK = 2.0  # how much a busy machine may add before a test fails


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(what, condition, seconds=20.0):
    """Poll until condition() is true; returns its value. Fails with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for: {what}")
        time.sleep(0.002)


def missing():
    """Why these tests can't run here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
    ):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian package {package})"
    done = subprocess.run(
        [
            "unshare",
            "-n",
            "-m",
            "-i",
            "sh",
            "-c",
            "mount -t tmpfs tmpfs /mnt && ip link add a0 type veth peer name a1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"no namespaces with veth here: {done.stderr.strip()}"
    return None


def lacks(qdisc):
    """Why tc can't do `qdisc` ("tbf rate 1mbit burst 4k latency 9ms") in this kernel;
    None if it can."""
    done = subprocess.run(
        [
            "unshare",
            "-n",
            "sh",
            "-c",
            f"ip link add a0 type veth peer name a1 && tc qdisc add dev a0 root {qdisc}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    return f"this kernel has no sch_{qdisc.split()[0]} ({done.stderr.strip().splitlines()[-1]})"


def fault(path, kind, result):
    """Claims a cell of the fault matrix: tests/net/matrix.py reads these lines
    from the test log."""
    print(f"\nFAULT path={path} fault={kind} result={result}", flush=True)


class Process:
    """A program on a host that reads and writes lines."""

    def __init__(self, host, args, stdin=False, **kwargs):
        self.host, self.args = host, [str(a) for a in args]
        self.log = tempfile.TemporaryFile("w+")
        self.popen = subprocess.Popen(
            host.enter() + self.args,
            preexec_fn=die_with_parent,
            text=True,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            **kwargs,
        )
        self.pid = self.popen.pid  # nsenter becomes the program: no PID namespace, no fork
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        host.processes.append(self)

    def _read(self):
        for line in self.popen.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, seconds=20.0):
        """Its next line of output, parsed as JSON."""
        try:
            text = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(
                f"{self.name()} said nothing for {seconds} s\n{self.said()}"
            ) from None
        assert text is not None, f"{self.name()} ended with {self.popen.wait(5)}\n{self.said()}"
        return json.loads(text)

    def ask(self, text, seconds=20.0):
        self.tell(text)
        return self.line(seconds)

    def tell(self, text):
        self.popen.stdin.write((text if isinstance(text, str) else json.dumps(text)) + "\n")
        self.popen.stdin.flush()

    def name(self):
        return pathlib.Path(self.args[0]).name + " on " + self.host.name

    def said(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """kill -9; returns the monotonic time of it."""
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.popen.wait(10)
        return at

    def end(self, seconds=15.0):
        """Asks it to end, as a service manager does; returns its exit status."""
        if self.popen.poll() is None:
            self.popen.terminate()
        return self.popen.wait(seconds)

    def close(self):
        self.reader.join(5)
        for file in (self.popen.stdin, self.popen.stdout, self.log):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def fds(self):
        """Number of open descriptors, except those that come and go with allocators."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Host:
    def __init__(self, name, index, ipc):
        self.name, self.index = name, index
        self.processes = []
        own = ipc == "own"
        setup = (  # UCX looks for its devices in /sys/class/net
            "ip link set lo up && mount -t sysfs sysfs /sys"
        )
        if own:
            setup += " && mount -t tmpfs tmpfs /dev/shm"
        command = [
            "unshare",
            "-n",
            "-m",
            *(["-i"] if own else []),
            "--propagation",
            "private",
            "sh",
            "-c",
            setup + " && echo ready && exec sleep 100000",
        ]
        self.own = own
        self.holder = subprocess.Popen(
            command, preexec_fn=die_with_parent, stdout=subprocess.PIPE, text=True
        )
        assert (
            self.holder.stdout.readline() == "ready\n"
        ), f"host {name}: its namespaces could not be made"
        self.dir = pathlib.Path(f"/dev/shm/helios-net-{os.getpid()}-{name}")
        self.sh(f"mkdir -p {self.dir}")

    def enter(self):
        return [
            "nsenter",
            "-t",
            str(self.holder.pid),
            "-n",
            "-m",
            *(["-i"] if self.own else []),
            "--",
        ]

    def sh(self, command, check=True):
        """Runs a shell command on this host; returns its output."""
        done = subprocess.run(
            self.enter() + ["sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"on {self.name}: {command}: {done.stderr}")
        return done.stdout

    def run(self, *args, timeout=60, check=True):
        """Runs a program of the build on this host to its end."""
        done = subprocess.run(
            self.enter() + [str(BUILD / "bin" / args[0]), *map(str, args[1:])],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"on {self.name}: {args}: {done.stderr}"
        return done

    def start(self, *args, **kwargs):
        return Process(self, args, **kwargs)

    def ip(self, plane):
        return f"10.77.{PLANES.index(plane) + 1}.{self.index}"

    def planes(self):
        return [word for p in PLANES for word in (f"--plane-{p}", self.ip(p))]

    def link(self, plane, state):
        """ "up" or "down"; it takes the kernel some time until an interface is up again."""
        self.sh(f"ip link set {plane} {state}")
        if state == "up":
            self.running(plane)

    def running(self, plane):
        wait_for(
            f"{plane} to run on {self.name}",
            lambda: '"LOWER_UP"' in (text := self.sh(f"ip -j link show {plane}"))
            and '"operstate":"UP"' in text,
        )

    def slow(self, plane, qdisc):
        """Limits what leaves this host on the plane: "tbf rate …", "netem …";
        "" for full speed again."""
        self.sh(f"tc qdisc del dev {plane} root 2>/dev/null; true")
        if qdisc:
            self.sh(f"tc qdisc add dev {plane} root {qdisc}")

    def received(self, plane):
        """Bytes received over the plane so far."""
        return json.loads(self.sh(f"ip -j -s link show {plane}"))[0]["stats64"]["rx"]["bytes"]

    def down(self):
        for process in self.processes:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.signal(signal.SIGCONT)
                process.kill()
            process.close()
        subprocess.run(self.enter() + ["rm", "-rf", str(self.dir)], check=False)
        self.holder.kill()
        self.holder.wait(10)
        self.holder.stdout.close()


class Lab:
    """Hosts A and B with their links."""

    def __init__(self, ipc="own"):
        self.hosts = []
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-net-"))
        atexit.register(self.down)
        try:
            self.a, self.b = self._host("A", 1, ipc), self._host("B", 2, ipc)
            for number, plane in enumerate(PLANES, 1):
                self.a.sh(
                    f"ip link add {plane} type veth peer name {plane} netns {self.b.holder.pid}"
                )
                for host in self.hosts:
                    host.sh(
                        f"ip addr add 10.77.{number}.{host.index}/24 dev {plane} && ip link"
                        f" set {plane} up"
                    )
            for plane in PLANES:
                for host in self.hosts:
                    host.running(plane)
        except BaseException:
            self.down()
            raise

    def _host(self, name, index, ipc):
        host = Host(name, index, ipc)
        self.hosts.append(host)
        return host

    def down(self):
        for host in self.hosts:
            host.down()
        self.hosts = []
        shutil.rmtree(self.dir, ignore_errors=True)
        atexit.unregister(self.down)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            for host in self.hosts:
                for process in host.processes:
                    print(f"--- {process.name()}\n{process.said()}", file=sys.stderr)
        self.down()


def main(module="__main__"):
    """unittest's main for a file of these tests: exits with 77 and the reason if they can't run."""
    import unittest

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that atexit cleans up
    why = missing()
    if why is not None:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(module=module, verbosity=2)

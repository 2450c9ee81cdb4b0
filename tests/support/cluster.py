"""A local cluster of the real daemons for end-to-end tests; always shut down, by pid."""
import atexit
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build"))
HELIOS = BUILD / "bin" / "helios"
PATIENCE_S = 60.0  # limit for what must happen; a wait ends when it has happened


@contextlib.contextmanager
def small_disk(test, size):
    """A directory that is a file system of `size` ("4m"); skips the test where none can be mounted,
    as in a container."""
    with tempfile.TemporaryDirectory(prefix="helios-full-") as directory:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "helios-test", directory],
            capture_output=True,
            check=False,
        )
        if mounted.returncode != 0:
            test.skipTest("mounting a small disk is not allowed here")
        try:
            yield pathlib.Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


def wait_for(what, condition, seconds=PATIENCE_S):
    """Poll until condition() is true; returns its value. Fails with `what` after the deadline.
    Pauses grow, because most conditions start a process and tests running beside this one need the
    processors, too."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"waited {seconds} s in vain for: {what}")
        time.sleep(min(0.03 + waited / 8, 0.25))


def own_secret():
    """One secret file for all clusters of this process, because libhelios knows one. Child
    processes and loaded libraries find it, too."""
    path = os.environ.get("HELIOS_AUTH_SECRET_FILE")
    if path is None:
        directory = tempfile.mkdtemp(prefix="helios-secret-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        path = os.environ["HELIOS_AUTH_SECRET_FILE"] = os.path.join(directory, "secret")
        with open(
            os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="ascii"
        ) as out:
            out.write("a secret of tests, and of nothing else\n")
    return path


class Cluster:
    """`helios up` in a directory of its own. `patience`: how many times longer than usual a command
    may take. `supervise`: the cluster itself restarts daemons that end; otherwise a test that kills
    one starts it. `tcp`: daemons serve on 127.0.0.1, with data ports, and ask for a secret that
    this process has in its environment; otherwise on Unix sockets, as without --address. `secret`:
    its file, "none", or None for the one that `up` makes.
    """

    def __init__(
        self,
        nodes=2,
        slots=2,
        size="128MiB",
        env=None,
        up=(),
        patience=1,
        supervise=False,
        tcp=False,
        secret="own",
    ):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-e2e-"))
        self.state = self.dir / "state"
        # HELIOS_CONFIG="": no configuration file of this machine is read
        self.env = {**os.environ, "HELIOS_CONFIG": "", **(env or {})}
        alone = [] if supervise else ["--no-supervise"]
        ports = ["--address", "127.0.0.1"] if tcp else []
        if tcp and secret is not None:
            self.env["HELIOS_AUTH_SECRET_FILE"] = own_secret() if secret == "own" else secret
        self.up_args = [
            "up",
            *alone,
            *ports,
            "--nodes",
            str(nodes),
            "--slots",
            str(slots),
            "--l3-size",
            size,
            *up,
        ]
        self.limit = 120 * patience
        self.info = None
        self.taken = 0

    @classmethod
    def of_class(cls, test, **kwargs):
        """One cluster for all tests of a class, taken down after the last."""
        made = cls(**kwargs)
        test.addClassCleanup(shutil.rmtree, made.dir, ignore_errors=True)
        test.addClassCleanup(made.run, "down")
        made.up()
        return made

    def run(self, *args, **kwargs):
        """Runs the CLI as a user does."""
        command = [str(HELIOS), "--state", str(self.state), *map(str, args)]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.env,
            timeout=self.limit,
            check=False,
            **kwargs,
        )

    def start(self, *args):
        """The same without waiting for the command's end."""
        command = [str(HELIOS), "--state", str(self.state), *map(str, args)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env
        )

    def json(self, *args):
        done = self.run(*args, "-o", "json")
        assert (
            done.returncode == 0
        ), f"helios {' '.join(map(str, args))}: {done.stderr}{self.last_words()}"
        return json.loads(done.stdout)

    def last_words(self, lines=10):
        """The ends of the logs of the daemons that are not alive: a test that did not end them
        shows why they ended."""
        said = []
        for log in sorted(self.state.glob("log/*.log")):
            with contextlib.suppress(KeyError, FileNotFoundError):
                if not alive(self.pid(log.stem)):
                    said += [
                        f"---- {log.name}",
                        *log.read_text(errors="replace").splitlines()[-lines:],
                    ]
        return "\n".join(said)

    def refuse(self, *args, code=1):
        """The command must fail with `code` and print one sentence; returns that sentence."""
        done = self.run(*args)
        assert (
            done.returncode == code
        ), f"helios {args}: exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1, f"helios {args}: one line of error expected, got {lines}"
        return lines[0]

    def up(self):
        """While a daemon was down, one of a test beside this one may have got its port: that is
        waited for."""
        deadline = time.monotonic() + PATIENCE_S
        done = self.run(*self.up_args, "-o", "json")
        while done.returncode != 0 and " in use" in done.stderr and time.monotonic() < deadline:
            time.sleep(1)
            done = self.run(*self.up_args, "-o", "json")
        assert done.returncode == 0, f"helios {' '.join(map(str, self.up_args))}: {done.stderr}"
        self.info = json.loads(done.stdout)
        return self.info

    def down(self, *args):
        return self.json("down", *args)

    def pid(self, daemon):
        return json.loads((self.state / "cluster.json").read_text())[daemon]["pid"]

    def kill(self, daemon, number=signal.SIGKILL):
        """Signal a daemon and wait until it is gone."""
        pid = self.pid(daemon)
        os.kill(pid, number)
        if number == signal.SIGKILL:
            wait_for(f"{daemon} to end", lambda: not alive(pid) and not threads_left(pid))

    def job(self, job):
        return self.json("describe", job)

    def wait_job(self, job, *states, seconds=60):
        return wait_for(
            f"job {job} to be {states}, it is {self.job(job)['state']}",
            lambda: (d := self.job(job))["state"] in states and d,
            seconds,
        )

    def submit(self, text, *args):
        path = self.dir / "job.yaml"
        path.write_text(text)
        return self.json("submit", path, *args)["id"]

    def log(self, job, rank=0):
        return self.json("logs", job, "--rank", rank)["text"]

    def take(self, source, *flags):
        """Import a checkpoint as a model of its own; returns the model's name."""
        self.taken += 1
        name = f"m{self.taken}"
        self.json("model", "import", source, "--name", name, *flags)
        return name

    def export(self, name):
        """Write a model as a Hugging Face checkpoint of one file; returns its directory."""
        self.taken += 1
        out = self.dir / f"out-{self.taken}"
        said = self.json("model", "export", name, "--format", "hf", "--out", out)
        assert said["files"] == 1, said
        return out


class Daemon:
    """One daemon of a cluster that is killed, and what is needed to start it alone: `helios up`
    starts every daemon that is missing, with its former options."""

    def __init__(self, c, name):
        proc = pathlib.Path("/proc", str(c.pid(name)))
        self.argv = proc.joinpath("cmdline").read_bytes().split(b"\0")[:-1]
        self.env = dict(
            pair.split(b"=", 1)
            for pair in proc.joinpath("environ").read_bytes().split(b"\0")
            if pair
        )
        self.program = os.readlink(proc / "exe")
        c.kill(name)

    @contextlib.contextmanager
    def again(self, *more):
        """Its process until this context ends, with these additional options."""
        with subprocess.Popen(
            [*self.argv, *more],
            executable=self.program,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()


def _stat_of(pid):
    """The fields of /proc/PID/stat from the third on; [] for no process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # ProcessLookupError: the process ended between open and read
        return []


def state_of(pid):
    """A letter of proc(5); "" for no process."""
    return (_stat_of(pid) or [""])[0]


def start_of(pid):
    """When the process started, in ticks since boot: with it a pid names one process for ever. None
    for no process."""
    found = _stat_of(pid)
    return int(found[19]) if found else None


def alive(pid):
    return state_of(pid) not in ("", "Z")


def threads_left(pid):
    """True while other threads than the first are ending: they keep the process's sockets open,
    though it is not alive."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def leave_by_signals():
    """A signal that ends this process lets it shut down what it has started; the next signal does
    not interrupt that."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

    def leave(number, _):
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for each in numbers:
        if (
            signal.getsignal(each) != signal.SIG_IGN
        ):  # ignored because of nohup, or in a shell's background
            signal.signal(each, leave)


@contextlib.contextmanager
def cluster(**kwargs):
    made = Cluster(**kwargs)
    try:
        made.up()
        yield made
    except Exception:
        for log in sorted(made.state.glob("log/*.log")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}")
        raise
    finally:
        made.run("down", "--purge")
        shutil.rmtree(made.dir, ignore_errors=True)

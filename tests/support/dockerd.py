"""A Docker engine for tests, on a private socket, and an image made without a registry.

If the machine's own engine answers, it is used instead: a second engine would take its bridge
away."""
import atexit
import io
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile
import tempfile

from support.cluster import alive, wait_for
from support.ports import free_port

APPLETS = (
    "sh cat dd echo env false grep head kill ls mkdir nc printf sleep sort setsid test touch tr"
    " true wc"
).split()


def missing():
    """Why no engine can run here; "" = one can."""
    for program in ("docker", "dockerd", "busybox"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return "" if os.geteuid() == 0 else "dockerd needs root"


def image(directories, links, files, word=""):
    """A root file system as a tar, for `import`; /etc/which contains `word`."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        for directory in directories:
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            out.addfile(entry)
        for path, source in files.items():
            out.add(source, path)
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            out.addfile(entry)
        for path, text in (
            ("etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
            ("etc/which", word.encode()),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            out.addfile(entry, io.BytesIO(text))
    return tar.getvalue()


def busybox_image(word=""):
    return image(
        ("bin", "etc", "tmp", "proc", "sys", "dev", "run", "usr"),
        {f"bin/{applet}": "busybox" for applet in APPLETS},
        {"bin/busybox": shutil.which("busybox")},
        word,
    )


class Docker:
    """`host`: for DOCKER_HOST; its environment is this process's as well."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-docker-"))
        self.process = None
        self.why = ""
        self.host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        atexit.register(self.close)
        if not self.answers():
            self.host = f"unix://{self.dir}/d.sock"
            self.start()
        os.environ["DOCKER_HOST"] = self.host

    def run(self, *args, check=True, **kwargs):
        done = subprocess.run(
            ["docker", *map(str, args)],
            env={**os.environ, "DOCKER_HOST": self.host},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **kwargs,
        )
        assert not check or done.returncode == 0, f"docker {args}: {done.stderr}"
        return done.stdout.strip()

    def answers(self):
        return self.run("info", "--format", "{{.ServerVersion}}", check=False) not in ("", "<nil>")

    def start(self):
        with open(self.dir / "log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [
                    "dockerd",
                    "--live-restore",
                    "--iptables=false",
                    "--ip6tables=false",
                    "--bridge=none",
                    "-H",
                    self.host,
                    "--data-root",
                    self.dir / "data",
                    "--exec-root",
                    self.dir / "exec",
                    "--pidfile",
                    self.dir / "pid",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_for("dockerd to answer", lambda: self.process.poll() is not None or self.answers())
            self.why = "" if self.answers() else "it ended"
        except AssertionError as late:
            self.why = str(late)
        if self.why:
            self.why = (
                "no dockerd can start here:"
                f" {(self.dir / 'log').read_text().strip().splitlines()[-1:]}"
            )
            self.stop()

    def stop(self, number=signal.SIGTERM):
        """Stops the engine and its containerd; with live-restore the containers go on."""
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(60)
        pid = self.dir / "exec/containerd/containerd.pid"
        if pid.exists():
            gone = int(pid.read_text())
            wait_for("containerd to end", lambda: not alive(gone))
            pid.unlink()  # an unreaped process would be taken for a running one
        (self.dir / "pid").unlink(missing_ok=True)
        self.process = None

    def close(self):
        if self.process is not None:
            left = self.run("ps", "--all", "--quiet", check=False).split()
            if left:
                self.run("rm", "--force", *left, check=False)
            self.stop()
        for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
            where = line.split()[4]
            if where.startswith(str(self.dir)):
                subprocess.run(["umount", "-l", where], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def add(self, name, word=""):
        """An image of busybox alone; /etc/which contains `word`."""
        return self.put(name, busybox_image(word))

    def add_empty(self, name):
        """An image without files, for the host's own: with /usr and /etc/ld.so.cache mounted, the
        host's programs run."""
        return self.put(
            name,
            image(
                # the engine's init goes to sbin
                "etc tmp proc sys dev run usr sbin".split(),
                {link: f"usr/{link}" for link in ("bin", "lib", "lib64")},
                {},
            ),
        )

    def put(self, name, tar):
        done = subprocess.run(
            ["docker", "import", "-", name],
            env={**os.environ, "DOCKER_HOST": self.host},
            input=tar,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return name


class Registry:
    """Debian's docker-registry on 127.0.0.1, which engines trust without TLS; `why`: the reason why
    it can't run here."""

    def __init__(self, docker):
        self.docker = docker
        self.why = "" if shutil.which("docker-registry") else "docker-registry is not installed"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-registry-"))
        self.name = f"localhost:{free_port()}"
        self.process = None
        if self.why:
            return
        (self.dir / "config.yml").write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {self.dir}/data}}}}\n"
            f"http: {{addr: '127.0.0.1:{self.name.split(':')[1]}'}}\n"
        )
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", self.dir / "config.yml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def push(self, tag, word):
        """Pushes a new image under the tag and removes it from this engine; returns its digest."""
        name = f"{self.name}/{tag}"
        self.docker.add(name, word)
        wait_for(
            "the registry to take it",
            lambda: "digest:" in self.docker.run("push", name, check=False),
        )
        digest = self.docker.run("image", "inspect", "--format={{index .RepoDigests 0}}", name)
        self.docker.run("rmi", "--force", name)
        return digest

    def signal(self, number):
        self.process.send_signal(number)

    def close(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(60)
        shutil.rmtree(self.dir, ignore_errors=True)

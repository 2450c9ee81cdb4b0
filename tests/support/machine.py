"""A machine for testing installations: this machine's files beneath a temporary layer, with its own
processes, network and shared memory. Needs root and overlayfs.

    with Machine() as machine:
        machine.copy(deb, "/root/helios.deb")
        machine.said("dpkg", "-i", "/root/helios.deb")
"""
import pathlib
import shutil
import subprocess
import tempfile

from support.cluster import wait_for

ENTER = """mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount -t proc proc root/proc
mount -t sysfs sysfs root/sys
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/dev/shm
mount -t tmpfs tmpfs root/run
mount -t tmpfs tmpfs root/tmp
chmod 1777 root/tmp root/dev/shm
ip link set lo up
touch root/run/started
exec chroot root sleep infinity
"""
APART = ("--mount", "--pid", "--net")


def supported():
    """Whether one can be made here."""
    probe = (
        'd=$(mktemp -d); mount -t tmpfs t "$d" && mkdir "$d/u" "$d/w" "$d/r" && mount -t overlay o'
        ' -o "lowerdir=/,upperdir=$d/u,workdir=$d/w" "$d/r"; rc=$?; umount -R "$d"; rmdir "$d";'
        ' exit $rc'
    )
    return (
        shutil.which("unshare") is not None
        and shutil.which("ip") is not None
        and subprocess.run(
            ["unshare", *APART, "--fork", "sh", "-c", probe], capture_output=True, check=False
        ).returncode
        == 0
    )


class Machine:
    def __enter__(self):
        self.started = []
        self.folder = tempfile.TemporaryDirectory(prefix="helios-machine-")
        self.first = subprocess.Popen(
            [
                "unshare",
                *APART,
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                ENTER,
                "sh",
                self.folder.name,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self.pid = wait_for("the machine to start", self._started, 30)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.first.kill()
        self.first.wait()
        self.first.stdout.close()
        for process in self.started:
            process.wait()
        self.folder.cleanup()

    def _started(self):
        """Pid of the first process in it."""
        assert self.first.poll() is None, f"the machine did not start: {self.first.stdout.read()}"
        children = (
            pathlib.Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children")
            .read_text(encoding="ascii")
            .split()
        )
        if children and pathlib.Path(f"/proc/{children[0]}/root/run/started").exists():
            return int(children[0])
        return None

    def path(self, inside):
        """The path by which this process reaches one of its files."""
        return pathlib.Path(f"/proc/{self.pid}/root{inside}")

    def copy(self, source, inside):
        shutil.copy(source, self.path(inside))

    def command(self, *command):
        """The command that runs this one in it."""
        return [
            *("nsenter", f"--target={self.pid}", *APART, "--root"),
            *("env", "-i", "--chdir=/", "HOME=/root", "LANG=C.UTF-8"),
            *("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"),
            *map(str, command),
        ]

    def run(self, *command, **kwargs):
        return subprocess.run(
            self.command(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
            **kwargs,
        )

    def said(self, *command):
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout

    def start(self, log, *command):
        """Starts a process that goes on; it ends with the machine."""
        with open(self.path(log), "wb") as file:
            self.started.append(
                subprocess.Popen(
                    self.command(*command), stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
            )

"""Podman for tests: where it can run, its images, and jobs in its containers. The scenarios run on
this machine (tests/e2e/test_podman.py) and in a virtual one with cgroup v2
(tests/vm/test_podman_jobs.py)."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from support.cluster import alive, wait_for
from support.dockerd import busybox_image
from support.ports import free_port

IMAGE = "helios-test:1"
UNIFIED = "/sys/fs/cgroup/unified"
GANG = """\
jobName: gang
dockerImage: {image}
parallelism: {{tensor_parallel_size: 2}}
resources: {{memory: 64MiB, ranks_per_slot: 1}}
mounts: ['{dir}:/gate']
stopGrace: 60s
command: [/bin/sh, -c, '{script}']
"""
WAITS = "until [ -e /gate/%s ]; do sleep 0.5; done; "


def missing():
    """Why no podman can run here; "" = one can."""
    for program in ("podman", "crun", "conmon", "catatonit", "unshare"):
        if (
            shutil.which(program) is None
            and not pathlib.Path(f"/usr/libexec/podman/{program}").exists()
        ):
            return f"{program} is not installed"
    return "" if os.geteuid() == 0 else "podman runs as root in this test"


def run_again(directory):
    """Runs this program again where podman can run; returns its exit status. It gets a store of its
    own in `directory` and, on a machine with both cgroup v1 and v2, v1 alone, because crun refuses
    both."""
    place = pathlib.Path(directory)
    (place / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n'
    )
    # systemd is not needed; and the limits that podman raises by itself can exceed what root is
    # allowed.
    (place / "containers.conf").write_text(
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    (place / "registries.conf").touch()
    env = {
        **os.environ,
        "HELIOS_TEST_PODMAN": str(place),
        **{
            f"CONTAINERS_{word.upper()}CONF": f"{place}/{file}.conf"
            for word, file in (
                ("", "containers"),
                ("storage_", "storage"),
                ("registries_", "registries"),
            )
        },
    }
    hide = f"if mountpoint -q {UNIFIED}; then umount {UNIFIED}; fi; exec \"$@\""
    command = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, *sys.argv]
    return subprocess.run(command, env=env, check=False).returncode


def why_not():
    """Podman's message if it can't start a container; "" = it can."""
    tried = subprocess.run(
        f"podman run --rm --network=host --ipc=host --init --memory=67108864 {IMAGE} true".split(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return tried.stderr.strip() if tried.returncode != 0 else ""


def podman(*args, data=None):
    done = subprocess.run(
        ["podman", *map(str, args)], input=data, capture_output=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"podman {args}: {done.stderr.decode()}"
    return done.stdout.decode()


def put_image():
    """An image of busybox, which podman imports from a tar; no registry is needed."""
    podman("import", "-", IMAGE, data=busybox_image())


def containers():
    return podman("ps", "--all", "--quiet", "--filter=label=helios.container").split()


class Registry:
    """Debian's docker-registry on this machine, which podman is configured to trust without TLS;
    `trust`: the configuration file."""

    def __init__(self, trust):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-registry-"))
        port = free_port()
        self.name = f"localhost:{port}"
        (self.dir / "config.yml").write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {self.dir}/data}}}}\n"
            f"http: {{addr: '127.0.0.1:{port}'}}\n"
        )
        self.trust = pathlib.Path(trust)
        self.trust.write_text(f'[[registry]]\nlocation = "{self.name}"\ninsecure = true\n')
        with open(self.dir / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", self.dir / "config.yml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def push(self, tag, word, seconds):
        """Pushes a new image under the tag and removes it from podman; returns its digest."""
        name, digest = f"{self.name}/{tag}", self.dir / "digest"
        podman("import", "-", name, data=busybox_image(word))
        push = ["podman", "push", f"--digestfile={digest}", name]
        wait_for(
            "the registry to take it",
            lambda: subprocess.run(push, capture_output=True, timeout=600, check=False).returncode
            == 0,
            seconds,
        )
        podman("rmi", "--force", name)
        return f"{name.rpartition(':')[0]}@{digest.read_text().strip()}"

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        self.trust.write_text("")
        shutil.rmtree(self.dir)


class Jobs:
    """Jobs of a cluster whose executor is podman; `seconds`: limit for waits; `note`: called with
    results worth reading."""

    def __init__(self, cluster, seconds, note):
        self.c, self.seconds, self.note = cluster, seconds, note

    def submit(self, script, image=IMAGE, more=""):
        return self.c.submit(GANG.format(image=image, dir=self.c.dir, script=script) + more)

    def ended(self, job, state):
        """The job's record, once podman has nothing left of it."""
        end = self.c.wait_job(job, "succeeded", "failed", "cancelled", seconds=self.seconds)
        assert end["state"] == state, (end["state"], end["reason"])
        wait_for("podman to be empty", lambda: not containers(), self.seconds)
        return end

    def ranks(self, job):
        """{rank: pid}, once all ranks run."""
        told = self.c.wait_job(job, "running", seconds=self.seconds)
        return {r["rank"]: r["pid"] for held in told["containers"] for r in held["ranks"]}

    def gang(self, look):
        """Two ranks with mounts, memory, logs and exit codes; look({rank: pid}) while they run."""
        c = self.c
        (c.dir / "corpus").write_text("from the host\n")
        job = self.submit(
            "echo $GLOBAL_RANK of $WORLD_SIZE; cat /gate/corpus; test -S ${HELIOS_CONTROLLER#unix:}"
            " && echo reached; " + WAITS % "seen" + "exit $GLOBAL_RANK"
        )
        look(self.ranks(job))
        assert {held["binding"] for held in c.job(job)["containers"]} == {"cpuset-cgroup"}
        (c.dir / "seen").touch()
        end = self.ended(job, "failed")
        assert "rank 1 exited with code 1" in end["reason"], end["reason"]
        for rank in (0, 1):
            assert c.log(job, rank) == f"{rank} of 2\nfrom the host\nreached\n", c.log(job, rank)
        # It is in no registry: every attempt runs its id.
        assert (
            end["image"]
            == f"sha256:{podman('image', 'inspect', '--format={{.Id}}', IMAGE).strip()}"
        ), end["image"]

    def stop(self):
        """Ranks print a last line when stopped."""
        job = self.submit("trap \"echo bye; exit 0\" TERM; echo up; while :; do sleep 0.5; done")
        wait_for(
            "the ranks",
            lambda: all(self.c.log(job, rank) == "up\n" for rank in self.ranks(job)),
            self.seconds,
        )
        self.c.json("cancel", job)
        self.ended(job, "cancelled")
        for rank in (0, 1):
            assert self.c.log(job, rank) == "up\nbye\n", self.c.log(job, rank)

    def memory(self):
        """Running out of memory names limit and rank, and shows the kernel's message where it can
        be read."""
        job = self.submit(
            "[ $GLOBAL_RANK = 0 ] || exec sleep 1000; dd if=/dev/zero of=/dev/null bs=300M count=1;"
            " exit 3"
        )
        end = self.ended(job, "failed")
        assert (
            "rank 0 exited with code 3 (out of memory: the container's limit is 64 MiB)"
            in end["reason"]
        ), end["reason"]
        first = wait_for(
            "the first failure", lambda: next(iter(self.c.job(job)["failures"]), None), self.seconds
        )
        assert (first["kind"], first["rank"]) == ("memory", 0), first
        if os.access("/dev/kmsg", os.R_OK):
            assert "(dd)" in self.c.run("logs", "--first-failure", job).stdout

    def pinned(self, registry):
        """An image is pinned when the job is submitted and pulled; the job keeps it when the tag
        moves."""
        c, name = self.c, f"{registry.name}/train:1"
        one = registry.push("train:1", "one\n", self.seconds)
        job = self.submit(
            "cat /etc/which; " + WAITS % "moved" + "exit $HELIOS_ATTEMPT", name, "restarts: 1\n"
        )
        self.ranks(job)
        shown = c.job(job)
        self.note(f"pulled and pinned: {shown['image']}")
        assert shown["image"] == one, (shown["image"], one)
        assert shown["ledger"]["imageMs"] > 0, shown["ledger"]
        two = registry.push("train:1", "two\n", self.seconds)
        (c.dir / "moved").touch()
        self.ended(job, "failed")
        assert [c.json("logs", job, "--attempt", n)["text"] for n in (1, 2)] == ["one\n", "one\n"]
        # The next job gets what the tag means now: this node has nothing under it.
        later = self.submit("cat /etc/which", name)
        assert self.ended(later, "succeeded")["image"] == two != one
        assert c.log(later) == "two\n"
        absent = self.submit("true", f"{registry.name}/train@sha256:{'0' * 64}")
        why = self.ended(absent, "failed")["reason"]
        self.note(why)
        assert (
            f"{registry.name}/train@sha256:0000" in why and "is not available: podman pull: " in why
        ), why

    def broken(self, breaks, words):
        """The reason of a job that starts while `breaks`, a context, holds."""
        with breaks:
            why = self.c.wait_job(self.submit("true"), "failed", seconds=self.seconds)["reason"]
        self.note(why)
        assert all(word in why for word in words), why

    def outlive(self, away):
        """Containers outlive the Agent; while the context makes podman unreachable, that is a
        warning."""
        c = self.c
        job = self.submit("echo one; " + WAITS % "open" + "echo two; exit 6")
        pids = self.ranks(job)
        wait_for(
            "the first lines",
            lambda: all(c.log(job, rank) == "one\n" for rank in pids),
            self.seconds,
        )
        with away:
            c.kill("node-0")
            c.up()
            warned = wait_for(
                "the warning",
                lambda: [
                    w for held in c.job(job)["containers"] if "answer" in (w := held["warning"])
                ],
                self.seconds,
            )
            self.note(warned[0])
            assert (
                "podman does not answer: " in warned[0] and "its ranks may run on" in warned[0]
            ), warned
            assert all(alive(pid) for pid in pids.values())
        wait_for(
            "the warning to go",
            lambda: not any("answer" in held["warning"] for held in c.job(job)["containers"]),
            self.seconds,
        )
        (c.dir / "open").touch()
        end = self.ended(job, "failed")
        assert end["attempt"] == 1 and "exited with code 6" in end["reason"], end
        assert all(c.log(job, rank).startswith("one\n") for rank in pids)
        assert any(c.log(job, rank) == "one\ntwo\n" for rank in pids), [
            c.log(job, rank) for rank in pids
        ]

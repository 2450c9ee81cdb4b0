"""./run test-image [NAME]: builds the image of deploy/docker/Dockerfile with Debian's torch, and
tries it by a job. No registry is used: its base is this machine's release of Debian, from apt's
mirror.

Afterwards the image is in the Docker engine that answers.
If none does, one is started for it, and the image is in a file."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support import checkpoints, debian  # noqa: E402
from support.cluster import BUILD, cluster  # noqa: E402
from support.dockerd import Docker, missing  # noqa: E402

SAVED = BUILD / "helios-client.tar"
TORCH = "python3-torch libopenblas0-pthread"
# Of the rank's own files, as `helios-run` wrote them: what it is called, and that torch reads it.
READ = (
    "import glob, helios, torch; file, = glob.glob('release/*/model_optim_rng.pt'); "
    "print(sum(t.numel() for t in torch.load(file)['model'].values() if hasattr(t, 'numel')) > 0)"
)
TELL = (
    "cd $HELIOS_LOAD; ls release; helios --version; python3 -c \""
    + READ
    + "\"; ldd /usr/bin/helios | grep -c 'not found' || :"
)


def make_base(work, log):
    uri, codename = debian.mirror()
    print(f"making the base: Debian {codename}, minbase (about a minute)", flush=True)
    debian.logged(
        log,
        "debootstrap",
        "--variant=minbase",
        codename,
        work / "root",
        uri,
        env=debian.apt_environment(),
    )
    for path in (work / "root/var/cache/apt/archives").glob("*.deb"):
        path.unlink()
    (work / "base").mkdir()
    debian.logged(log, "tar", "-C", work / "root", "-cf", work / "base/base.tar", ".")
    return work / "base"


def build(docker, name):
    _, codename = debian.mirror()
    base = f"helios-base:{codename}"
    folder = debian.kept(debian.cache_folder() / "image" / f"base-{codename}", make_base)
    docker.run("import", folder / "base.tar", base)
    proxy = debian.apt_environment().get("http_proxy")
    arguments = [
        "--network=host",
        f"--build-arg=BASE={base}",
        f"--build-arg=PACKAGES={TORCH}",
        *([f"--build-arg=http_proxy={proxy}"] if proxy else []),
    ]
    env = dict(os.environ)
    if docker.process is not None:
        env["DOCKER_BUILDKIT"] = "0"  # it would want the bridge that this engine has not
    done = subprocess.run(
        [
            "docker",
            "build",
            *arguments,
            "--tag",
            name,
            "--file",
            ROOT / "deploy/docker/Dockerfile",
            ROOT,
        ],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"image: docker build failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def try_job(name):
    """A job whose ranks have the image's files and nothing of this machine's but the sockets."""
    with cluster(nodes=1, slots=2, up=("--executor", "docker")) as c:
        source, _ = checkpoints.llama(c.dir / "hf")
        c.json("model", "import", source, "--name", "tiny", "--tp", "2")
        text = (
            "jobName: image\n"
            f"dockerImage: {name}\n"
            "model: {name: tiny}\n"
            "parallelism: {tensor_parallel_size: 2}\n"
            "resources: {ranks_per_slot: 1}\ncommand: "
        )
        begin = ["helios-run", "--megatron", "-", "--naming", "te", "/bin/sh", "-c"]
        job = c.submit(text + json.dumps([*begin, TELL]))
        end = c.wait_job(job, "succeeded", "failed", seconds=180)
        assert end["state"] == "succeeded", end["reason"] + c.log(job)
        for tp in (0, 1):
            lines = c.log(job, tp).splitlines()
            at = lines.index(f"mp_rank_{tp:02}")
            assert lines[at + 1].startswith("helios "), lines
            assert lines[at + 2 :] == ["True", "0"], lines
        job = c.submit(text + json.dumps([*begin, "exit 7"]))
        assert "exited with code 7" in c.wait_job(job, "failed", seconds=180)["reason"], c.job(job)[
            "reason"
        ]


def main():
    parser = argparse.ArgumentParser(prog="./run test-image", description=__doc__)
    parser.add_argument(
        "name", nargs="?", default="helios-client", help="name of the image (helios-client)"
    )
    name = parser.parse_args().name
    if missing():
        sys.exit(f"image: {missing()}")
    docker = Docker()
    if docker.why:
        sys.exit(f"image: {docker.why}")
    try:
        build(docker, name)
        try_job(name)
        print(f"image: {name} is made, and a job of two ranks has run in it")
        if docker.process is not None:
            docker.run("save", "--output", SAVED, name)
            print(f"image: no Docker engine runs here; take it with: docker load --input {SAVED}")
    except debian.Missing as lacks:
        sys.exit(f"image: {lacks}")
    finally:
        docker.close()


if __name__ == "__main__":
    main()

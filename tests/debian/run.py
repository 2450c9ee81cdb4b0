"""./run debian RELEASE [COMMAND...]: ./run COMMAND on a fresh machine with another release of
Debian, a root made by debootstrap: what is missing there is found as its user would find it. It
brings another compiler, Python, torch and other libraries. Root and build are kept in
~/.cache/helios; --fresh makes them anew. Runs as root."""
import argparse
import functools
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

# Mounts and processes of its own, so that nothing is left of either; the root is made theirs, as
# who enters such a namespace from within gets its root.
ENTER = """mount --bind "$1" "$1"
cd "$1"; shift
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
if [ -d /usr/local/cuda ]; then
    mkdir -p usr/local/cuda
    mount --bind /usr/local/cuda usr/local/cuda # no package of Debian's
fi
mkdir -p .host
pivot_root . .host
exec chroot . /usr/bin/env -i CONFINE="$CONFINE" HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \\
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
    sh -c 'umount -l /.host && cd /helios && exec $CONFINE ./run "$@"' run "$@"
"""

# What Docker leaves to root in a container: no namespaces, mounts or network devices.
CAPABILITIES = (
    "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw"
    " sys_chroot mknod audit_write setfcap"
)


def make_root(release, work, log):
    """Only what Debian calls minimal: ./run installs the rest."""
    uri, _ = debian.mirror()
    print(f"debian: making a root of {release} (once, half a minute)", flush=True)
    debian.logged(
        log,
        "debootstrap",
        "--variant=minbase",
        release,
        work / "root",
        uri,
        env=debian.apt_environment(),
    )
    for part in pathlib.Path("/etc/apt/apt.conf.d").glob("*"):  # a proxy, for example
        shutil.copy(part, work / "root/etc/apt/apt.conf.d")
    return work / "root"


def bring(to):
    """This checkout with what is not committed; what was built there stays."""
    to.mkdir(exist_ok=True)
    for old in to.iterdir():
        if not old.name.startswith("build"):
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    files = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = b"\0".join(
        name
        for name in files.stdout.split(b"\0")
        if name and os.path.lexists(ROOT / os.fsdecode(name))
    )
    packed = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=names, capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", to], input=packed.stdout, check=True)


def confinement():
    kept = ",".join(f"+{name}" for name in CAPABILITIES.split())
    return f"setpriv --inh-caps=-all,{kept} --bounding-set=-all,{kept}"


def main():
    parser = argparse.ArgumentParser(prog="./run debian", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="create the root again")
    parser.add_argument(
        "--container",
        action="store_true",
        help="with the capabilities of root in an ordinary container",
    )
    parser.add_argument("release", help="trixie (Debian 13), for example")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="of ./run, with its arguments [test]"
    )
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("debian: this needs root (debootstrap, mounts)")
    root = debian.cache_folder() / f"debian-{args.release}"
    try:
        if args.fresh and root.exists():
            shutil.rmtree(root)
        debian.kept(root, functools.partial(make_root, args.release))
        with debian.alone(root.parent):
            bring(root / "helios")
    except debian.Missing as why:
        sys.exit(f"debian: {why}")
    env = {**os.environ, "CONFINE": confinement() if args.container else ""}
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-ec",
            ENTER,
            "enter",
            root,
            *(args.command or ["test"]),
        ],
        env=env,
        check=False,
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()

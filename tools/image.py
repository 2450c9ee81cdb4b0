"""Makes container images of Helios without a registry or a network:
`image.py [--buildah] DEBS OUT [NAME...]` prints their paths.

An image is one layer: the files of our packages in DEBS and those of the Debian packages that they
depend on, as they are installed on this machine, whose release it must be made for. Nothing of
/etc, /var or of other packages gets into it, nor a file that differs from its package's. With
--buildah it is built from deploy/k8s/images/Containerfile, else written here without any engine;
both ways give the same image. docker, podman, buildah and containerd load the file.
"""
import argparse
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

IMAGES = {
    "helios": {"ours": ["libhelios0", "helios"], "debian": [], "scripts": []},
    "helios-rank": {
        "ours": ["libhelios0", "helios", "python3-helios"],
        "debian": ["dash", "coreutils", "sed"],
        "scripts": ["deploy/docker/helios-run"],
    },
}
ROOT = pathlib.Path(__file__).resolve().parent.parent
# These configure packages on a machine; in an image, nothing reads what they write.
NOT_TAKEN = {
    "adduser",
    "debconf",
    "dpkg",
    "init-system-helpers",
    "install-info",
    "passwd",
    "perl-base",
    "sensible-utils",
    "ucf",
}
LEFT_OUT = re.compile(
    r"/(etc|var)/|/usr/"
    r"(include|share/(man|info|lintian|locale|bug|bash-completion|zsh|doc-base|gdb))/"
    r"|/usr/share/doc/(?!.*/copyright$)"
)
TOP = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
USER = 65534
FILES = {
    "etc/passwd": (
        f"root:x:0:0:root:/:/usr/sbin/nologin\nhelios:x:{USER}:{USER}:Helios:/:/usr/sbin/nologin\n"
    ),
    "etc/group": f"root:x:0:\nhelios:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
FOLDERS = {
    "tmp": 0o1777,
    "var/tmp": 0o1777,
    "proc": 0o755,
    "sys": 0o755,
    "dev": 0o755,
    "run": 0o755,
    "var/lib/helios": 0o755,
}
CERTIFICATES = pathlib.Path("/usr/share/ca-certificates/mozilla")
ARCHITECTURES = {"ppc64el": "ppc64le"}  # what Go calls others than Debian does


def output(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"image: {' '.join(map(str, command))} failed"
            f" ({done.returncode}):\n{done.stderr.strip()}"
        )
    return done.stdout


# ---- packages ----


def installed():
    """Installed packages by name, and by the names that they provide: (full name, depends)."""
    form = (
        "${db:Status-Status}\t${Package}\t${binary:Package}\t${Pre-Depends},"
        " ${Depends}\t${Provides}\n"
    )
    found = {}
    for line in output("dpkg-query", "-W", "-f", form).splitlines():
        status, name, full, depends, provides = line.split("\t")
        if status == "installed":
            for known in (name, *re.findall(r"(?:^|, )([\w.+-]+)", provides)):
                found.setdefault(known, (full, depends))
    return found


def wanted(depends):
    """Alternatives of each dependency, without versions."""
    for part in depends.split(","):
        names = [
            re.match(r"[\w.+-]+", alternative.strip())[0]
            for alternative in part.split("|")
            if alternative.strip()
        ]
        if names:
            yield names


def closure(depends, ours):
    """Full names of all Debian packages that these dependencies need."""
    known, taken, left = installed(), set(), [depends]
    while left:
        for names in wanted(left.pop()):
            if set(names) & (NOT_TAKEN | set(ours)):
                continue
            name = next((n for n in names if n in known), None)
            if name is None:
                sys.exit(
                    f"image: the package {names[0]} is not installed here, so its files can't be"
                    f" taken; apt-get install {names[0]}"
                )
            full, more = known[name]
            if full not in taken:
                taken.add(full)
                left.append(more)
    return sorted(taken)


def refuse_changed(packages):
    """Fails if a file of the packages differs from what its package has."""
    done = subprocess.run(
        ["dpkg", "--verify", *packages], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        path = line.split()[-1]
        if not LEFT_OUT.match(path) and (line.startswith("missing") or line[2:3] == "5"):
            sys.exit(f"image: {path} is not as its package has it; reinstall the package")


def paths_of(packages):
    """Paths of the packages' files, each once, with links such as /lib resolved."""
    found = set()
    for path in output("dpkg-query", "-L", *packages).splitlines():
        if path.startswith("/") and not LEFT_OUT.match(path) and path != "/.":
            folder, name = os.path.split(path)
            found.add(os.path.join(os.path.realpath(folder), name))
    return sorted(p for p in found if os.path.islink(p) or os.path.isfile(p))


# ---- the layer ----


class Layer:
    """A tar file whose bytes depend only on its contents."""

    def __init__(self, path):
        self.tar = tarfile.open(path, "w", format=tarfile.GNU_FORMAT)
        self.there = set()

    def _add(self, info, data=None):
        if info.name in self.there:
            return
        self.there.add(info.name)
        if "/" in info.name:
            self.folder(os.path.dirname(info.name))
        info.mtime, info.uname, info.gname = 0, "", ""
        self.tar.addfile(info, data)

    def folder(self, name, mode=0o755, owner=0):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, owner
        self._add(info)

    def link(self, name, to):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, to, 0o777
        self._add(info)

    def text(self, name, text, mode=0o644):
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text.encode()), mode
        self._add(info, io.BytesIO(text.encode()))

    def file(self, path):
        """Adds a file of this machine under the same path."""
        if os.path.islink(path):
            self.link(path[1:], os.readlink(path))
            return
        info = tarfile.TarInfo(path[1:])
        info.size, info.mode = os.path.getsize(path), 0o755 if os.access(path, os.X_OK) else 0o644
        with open(path, "rb") as data:
            self._add(info, data)

    def deb(self, path):
        """Adds the files of one of our packages."""
        with tarfile.open(
            fileobj=io.BytesIO(
                subprocess.run(
                    ["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True
                ).stdout
            )
        ) as files:
            for info in files:
                info.name = info.name.removeprefix("./").rstrip("/")
                if info.name and not LEFT_OUT.match(
                    f"/{info.name}/" if info.isdir() else f"/{info.name}"
                ):
                    self._add(info, files.extractfile(info) if info.isfile() else None)


def write_layer(path, debs, packages, scripts):
    layer = Layer(path)
    for name, to in TOP.items():
        if os.path.islink(f"/{name}"):
            layer.link(name, to)
    for name, mode in FOLDERS.items():
        layer.folder(name, mode, USER if name.endswith("helios") else 0)
    for name, text in FILES.items():
        layer.text(name, text)
    bundle = "".join(f.read_text() for f in sorted(CERTIFICATES.glob("*.crt")))
    if bundle:
        layer.text("etc/ssl/certs/ca-certificates.crt", bundle)
    for deb in debs:
        layer.deb(deb)
    for file in paths_of(packages):
        layer.file(file)
    for script in scripts:
        layer.text(f"usr/bin/{script.name}", script.read_text(), 0o755)
    layer.tar.close()


# ---- the image ----


def digest(path):
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def build_image(path, name, version, layer):
    """Builds an image with buildah, which needs neither a daemon nor a container."""
    if shutil.which("buildah") is None:
        sys.exit("image: buildah is not installed; apt-get install buildah, or leave --buildah")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".buildah-") as work:
        buildah = [
            "buildah",
            "--root",
            f"{work}/store",
            "--runroot",
            f"{work}/run",
            "--storage-driver",
            "vfs",
        ]
        context = pathlib.Path(work) / "context"
        context.mkdir()
        os.link(layer, context / "layer.tar")
        output(
            *buildah,
            "build",
            "--isolation",
            "chroot",
            "--timestamp",
            "0",
            "--build-arg",
            f"NAME={name}",
            "--build-arg",
            f"VERSION={version}",
            "--file",
            ROOT / "deploy/k8s/images/Containerfile",
            "--tag",
            f"{name}:{version}",
            context,
        )
        path.unlink(missing_ok=True)
        output(*buildah, "push", f"{name}:{version}", f"docker-archive:{path}:{name}:{version}")


def write_image(path, name, version, layer):
    """Writes an image in the format of `docker save`."""
    architecture, layer_id = output("dpkg", "--print-architecture").strip(), digest(layer)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(architecture, architecture),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "User": f"{USER}:{USER}",
                "WorkingDir": "/",
                "Cmd": ["/usr/bin/helios", "--help"],
                "Labels": {
                    "org.opencontainers.image.title": name,
                    "org.opencontainers.image.version": version,
                },
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_id}"]},
        },
        sort_keys=True,
    )
    config_name = f"{hashlib.sha256(config.encode()).hexdigest()}.json"
    manifest = [
        {
            "Config": config_name,
            "RepoTags": [f"{name}:{version}", f"{name}:latest"],
            "Layers": [f"{layer_id}.tar"],
        }
    ]
    image = Layer(path)
    image.text("manifest.json", json.dumps(manifest))
    image.text(config_name, config)
    info = tarfile.TarInfo(f"{layer_id}.tar")
    info.size, info.mode = layer.stat().st_size, 0o644
    with open(layer, "rb") as data:
        image.tar.addfile(info, data)
    image.tar.close()


def newest(folder, package):
    found = sorted(folder.glob(f"{package}_*.deb"), key=lambda p: p.stat().st_mtime)
    if not found:
        sys.exit(f"image: there is no {package}_*.deb in {folder}; ./run package makes it")
    return found[-1]


def make(name, debs_in, out, write):
    image = IMAGES[name]
    debs = [newest(debs_in, package) for package in image["ours"]]
    depends = ", ".join(
        [*image["debian"], *(output("dpkg-deb", "-f", deb, "Depends").strip() for deb in debs)]
    )
    packages = closure(depends, image["ours"])
    refuse_changed(packages)
    version = output("dpkg-deb", "-f", debs[-1], "Version").strip()
    path = out / f"{name}_{version}_{output('dpkg', '--print-architecture').strip()}.tar"
    layer = out / f".{name}.layer"
    try:
        write_layer(layer, debs, packages, [ROOT / script for script in image["scripts"]])
        write(path, name, version, layer)
    finally:
        layer.unlink(missing_ok=True)
    return path


def main():
    parser = argparse.ArgumentParser(prog="image.py", description=__doc__)
    parser.add_argument("--buildah", action="store_true", help="build from deploy/k8s/images")
    parser.add_argument("debs", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help=", ".join(IMAGES))
    args = parser.parse_args()
    if unknown := [n for n in args.names if n not in IMAGES]:
        sys.exit(f"image: '{unknown[0]}' is none of {', '.join(IMAGES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or IMAGES:
        print(
            make(name, args.debs, args.out, build_image if args.buildah else write_image),
            flush=True,
        )


main()

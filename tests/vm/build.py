"""Builds what ./run test-vm boots: kernel, initramfs and root image, from Debian's packages;
cached by their versions.

The packages come from the Debian mirror that this machine's apt uses.
Runs as root (debootstrap needs chroot)."""
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

from support.debian import (
    Missing,
    apt_environment,
    kept,
    logged,
    mirror,
    output,
    versions,
)  # noqa: E402

CACHE = ROOT / "build-vm"

# What the programs need at run time and what the tests use to look around. Our libraries that are
# missing here come with the job (run.py), so a new dependency does not need a new image.
PACKAGES = """libucx0 ibverbs-providers ibverbs-utils rdma-core libzmq5 libhwloc15 libisal2
 libsqlite3-0 libjansson4 libyaml-0-2 libnuma1 numactl iproute2 kmod procps python3 busybox-static
 systemd-sysv dbus podman crun netavark catatonit docker-registry uidmap dbus-user-session
 libpam-systemd""".split()
KERNEL = "linux-image-amd64"
# In the root image, with all their dependencies.
# rxe requests its checksum module by name, not by dependency.
MODULES = (
    "ib_uverbs rdma_rxe rdma_ucm rdma_cm veth 9pnet_virtio 9p overlay crc32_generic crc32-pclmul"
).split()
# In the initramfs; they can be built in.
EARLY = "virtio_pci virtio_blk crc32c_generic ext4".split()
TOOLS = {
    "debootstrap": "debootstrap",
    "cpio": "cpio",
    "depmod": "kmod",
    "mke2fs": "e2fsprogs",
    "gzip": "gzip",
    "qemu-system-x86_64": "qemu-system-x86",
    "dpkg": "dpkg",
    "apt-get": "apt",
}


def say(text):
    print(f"test-vm: {text}", flush=True)


def check_host():
    if os.uname().machine != "x86_64":
        raise Missing("the virtual machine is x86-64 and is made on an x86-64 Debian")
    lacking = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if not pathlib.Path("/bin/busybox").exists():
        lacking.append("busybox-static")
    if lacking:
        raise Missing(
            f"these packages are missing: {' '.join(lacking)}; ./run deps vm installs them"
        )


def kernel_package():
    for line in output("apt-cache", "depends", KERNEL).splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    raise Missing(f"apt does not know {KERNEL}; run apt-get update")


def make_root(root, made, log):
    uri, codename = mirror()
    say(f"making the root file system of Debian {codename} (a minute or two)")
    logged(
        log,
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        codename,
        root,
        uri,
        env=apt_environment(),
    )
    for junk in (
        "var/cache/apt",
        "var/lib/apt/lists",
        "usr/share/doc",
        "usr/share/locale",
        "usr/share/man",
    ):
        shutil.rmtree(root / junk, ignore_errors=True)
    (root / "job").mkdir()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 vm\n")
    shutil.copy(HERE / "image" / "vm-init", root / "vm-init")
    (root / "vm-init").chmod(0o755)
    names = sorted({p.name for d in ("lib", "usr/lib", "lib64") for p in (root / d).rglob("*.so*")})
    (made / "libs").write_text("\n".join(names) + "\n")


def module_files(kernel, release, names):
    """Files of the modules in the order of loading; built-in ones have none."""
    files = []
    for name in names:
        shown = output("modprobe", "-d", str(kernel), "-S", release, "--show-depends", name)
        for line in shown.splitlines():
            words = line.split()
            if words[:1] == ["insmod"] and words[1] not in files:
                files.append(words[1])
    return [pathlib.Path(f) for f in files]


def unpack_kernel(package, work, made, log):
    """(tree, release)"""
    say(f"taking the kernel out of {package}")
    tree = work / "kernel"
    debs = work / "debs"
    debs.mkdir()
    # apt's own user can't write here; that is only a warning.
    logged(log, "apt-get", "download", "-o", "APT::Sandbox::User=root", package, cwd=debs)
    logged(log, "dpkg", "-x", next(debs.glob("*.deb")), tree)
    if not (tree / "lib").exists():  # since Debian 13
        (tree / "lib").symlink_to("usr/lib")
    release = next((tree / "lib/modules").iterdir()).name
    logged(log, "depmod", "-b", tree, release)
    shutil.copy(tree / "boot" / f"vmlinuz-{release}", made / "vmlinuz")
    return tree, release


def install_modules(tree, release, root, log):
    for path in module_files(tree, release, MODULES):
        to = root / path.relative_to(tree)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(tree / "lib/modules" / release / name, root / "lib/modules" / release / name)
    logged(log, "depmod", "-b", root, release)


def make_initramfs(tree, release, work, made, log):
    top = work / "early"
    for name in ("bin", "dev", "proc", "sys", "new", "modules"):
        (top / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", top / "bin/busybox")
    for number, path in enumerate(module_files(tree, release, EARLY)):
        shutil.copy(path, top / "modules" / f"{number:02}-{path.name}")
    shutil.copy(HERE / "image" / "early-init", top / "init")
    (top / "init").chmod(0o755)
    logged(log, "sh", "-c", f"find . | cpio -o -H newc | gzip > '{made}/initrd.gz'", cwd=top)


def make_image(root, made, log):
    used = int(output("du", "-sm", str(root)).split()[0])
    logged(
        log,
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-O",
        "^has_journal",
        "-d",
        root,
        made / "root.img",
        f"{used + used // 2 + 200}M",
    )


def cache_key():
    kernel = kernel_package()
    text = "\n".join(mirror()[1:]) + versions([kernel, *PACKAGES])
    parts = hashlib.sha256(text.encode())
    for path in (pathlib.Path(__file__), HERE / "image" / "vm-init", HERE / "image" / "early-init"):
        parts.update(path.read_bytes())
    return parts.hexdigest()[:16], kernel, text


def build(kernel, text, work, log):
    if os.geteuid() != 0:
        raise Missing(
            "the root file system is made by debootstrap, which needs root;"
            " run ./run test-vm as root"
        )
    root, made = work / "root", work / "made"
    made.mkdir()
    make_root(root, made, log)
    tree, release = unpack_kernel(kernel, work, made, log)
    install_modules(tree, release, root, log)
    make_initramfs(tree, release, work, made, log)
    make_image(root, made, log)
    (made / "packages").write_text(text)
    return made


def image(cache=CACHE):
    """Directory with vmlinuz, initrd.gz, root.img and the list `libs`; built if it is missing."""
    check_host()
    key, kernel, text = cache_key()
    return kept(cache / f"image-{key}", functools.partial(build, kernel, text), replaces="image-*")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    try:
        print(image())
    except Missing as why:
        sys.exit(f"test-vm: {why}")


if __name__ == "__main__":
    main()

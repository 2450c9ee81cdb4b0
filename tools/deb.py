"""Makes the Debian packages of a build: `deb.py BUILD OUT` prints their paths. It needs dpkg-dev
and a finished `installed` target.

Each package consists of one or two install components of cmake/helios.cmake and the control files
of deploy/debian. It is compressed with xz, or as DPKG_DEB_COMPRESSOR_TYPE says.
"""
import argparse
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import late

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEBIAN = ROOT / "deploy" / "debian"
COMPONENTS = {
    "libhelios0": ["library"],
    "libhelios-dev": ["development"],
    "helios": ["programs", "manual"],
    "python3-helios": ["python"],
}
SCRIPTS = ("postinst", "prerm", "postrm")


def run(*command, cwd=None, env=None):
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(
            f"deb: {' '.join(map(str, command))} failed"
            f" ({done.returncode}):\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def cached(build, name):
    found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    return found.group(1) if found else ""


def versions(build):
    """The versions of the project and of the packages: (0.1.0, 0.1.0-1)."""
    project = cached(build, "CMAKE_PROJECT_VERSION")
    package = re.match(r"helios \(([^)]*)\)", (DEBIAN / "changelog").read_text()).group(1)
    if package.rpartition("-")[0] != project:
        sys.exit(
            f"deb: deploy/debian/changelog begins with {package},"
            f" and the project is version {project}"
        )
    return project, package


def zipped(source, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.compress(source.read_bytes(), 9, mtime=0))


def install(build, package, stage):
    """Installs the files of a package under `stage`."""
    for component in COMPONENTS[package]:
        run(
            "cmake",
            "--install",
            build,
            "--prefix",
            "/usr",
            "--strip",
            "--component",
            component,
            env=dict(os.environ, DESTDIR=str(stage)),
        )
    doc = stage / "usr/share/doc" / package
    doc.mkdir(parents=True, exist_ok=True)
    shutil.copy(DEBIAN / "copyright", doc)
    zipped(DEBIAN / "changelog", doc / "changelog.Debian.gz")
    if package == "helios":
        (stage / "etc/helios").mkdir(parents=True)
        shutil.copy(ROOT / "deploy/systemd/helios.yaml", stage / "etc/helios")
        for found in (stage / "usr/share/zsh").glob("site-functions"):
            found.rename(found.with_name("vendor-completions"))


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def regular(path):
    """Sets the modes that Debian policy requires, whatever the umask and the source tree had."""
    for file in (path, *path.rglob("*")):
        if not file.is_symlink():
            program = file.is_dir() or file.parent.name in ("bin", "sbin")
            file.chmod(0o755 if program else 0o644)


def control_files(work, package, stage, version):
    """Writes DEBIAN/ of a package. dpkg's tools read control and changelog from work/debian."""
    made = stage / "DEBIAN"
    made.mkdir()
    conffiles = sorted(f"/{f.relative_to(stage)}" for f in stage.glob("etc/**/*") if f.is_file())
    if conffiles:
        (made / "conffiles").write_text("".join(f"{name}\n" for name in conffiles))
    if package == "libhelios0":
        soname = next(iter((stage / "usr/lib").glob("libhelios.so.?"))).name.rpartition(".")[2]
        (made / "shlibs").write_text(f"libhelios {soname} {package} (>= {version})\n")
        (made / "triggers").write_text("activate-noawait ldconfig\n")
    for script in SCRIPTS:
        if (DEBIAN / f"{package}.{script}").exists():
            shutil.copy(DEBIAN / f"{package}.{script}", made / script)
            (made / script).chmod(0o755)
    elves = sorted(f for f in stage.rglob("*") if is_elf(f))
    substitutions = work / f"{package}.substvars"
    substitutions.touch()
    if elves:
        run(
            "dpkg-shlibdeps",
            f"-T{substitutions}",
            f"-S{stage.parent / 'libhelios0'}",
            *[f"-e{f}" for f in (*elves, *late.linked(elves, work))],
            cwd=work,
        )
    sums = [
        f"{hashlib.md5(f.read_bytes()).hexdigest()}  {f.relative_to(stage)}\n"
        for f in sorted(stage.rglob("*"))
        if f.is_file()
        and not f.is_symlink()
        and made not in f.parents
        and f"/{f.relative_to(stage)}" not in conffiles
    ]
    (made / "md5sums").write_text("".join(sums))
    run(
        "dpkg-gencontrol",
        f"-p{package}",
        f"-P{stage}",
        f"-T{substitutions}",
        "-fdebian/files",
        cwd=work,
    )


def main():
    parser = argparse.ArgumentParser(prog="deb.py", description=__doc__)
    parser.add_argument("build", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("out", type=lambda p: pathlib.Path(p).resolve())
    args = parser.parse_args()
    project, version = versions(args.build)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="helios-deb-") as folder:
        work = pathlib.Path(folder)
        (work / "debian").mkdir()
        for name in ("control", "changelog"):
            shutil.copy(DEBIAN / name, work / "debian")
        stages = {package: work / "stage" / package for package in COMPONENTS}
        for package, stage in stages.items():
            install(args.build, package, stage)
            regular(stage)
        for package, stage in stages.items():
            control_files(work, package, stage, project)
            for old in args.out.glob(f"{package}_*.deb"):
                old.unlink()
            kind = os.environ.get("DPKG_DEB_COMPRESSOR_TYPE", "xz")
            print(
                re.search(
                    r"in '(.*)'",
                    run("dpkg-deb", "--root-owner-group", f"-Z{kind}", "--build", stage, args.out),
                ).group(1)
            )


main()

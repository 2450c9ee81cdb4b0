"""Makes a wheel of the Python packages and libhelios: `wheel.py BUILD OUT` prints its path.

The library's own dependencies (UCX, Cap'n Proto ...) stay system packages; the wheel has their
names for the message of an import that does not find one. This script needs only the standard
library: a wheel is a zip file with a RECORD of its files.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile

import late

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
LIBRARY = "libhelios.so.0"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes from the same sources


def run(*command, **kwargs):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, **kwargs
    )
    if done.returncode != 0:
        sys.exit(
            f"wheel: {' '.join(map(str, command))} failed"
            f" ({done.returncode}):\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def version(build, project):
    """The version of CMake's project, which must be the same in the other places."""
    built = re.search(
        r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M
    ).group(1)
    imported = re.search(
        r'^__version__ = "(.*)"$', (PYTHON / "helios/__init__.py").read_text(), re.M
    ).group(1)
    if not built == imported == project["version"]:
        sys.exit(
            f"wheel: the project is version {built}, python/pyproject.toml {project['version']},"
            f" helios.__version__ {imported}"
        )
    return built


def library(build, work):
    """The path of the stripped library, and a sentence about what it needs."""
    run(
        "cmake",
        "--install",
        build,
        "--prefix",
        "/usr",
        "--strip",
        "--component",
        "library",
        env=dict(os.environ, DESTDIR=str(work)),
    )
    found = (work / "usr/lib" / LIBRARY).resolve()
    (work / "debian").mkdir()
    shutil.copy(ROOT / "deploy/debian/control", work / "debian")
    depends = run(
        "dpkg-shlibdeps", "-O", *[f"-e{f}" for f in (found, *late.linked([found], work))], cwd=work
    ).partition("=")[2]
    packages = sorted(re.findall(r"(?:^|, )([a-z0-9][-+.a-z0-9]*)", depends.strip()))
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "this system")
    return (
        found,
        (
            f"this wheel was made for {release}; there `apt-get install {' '.join(packages)}`"
            " brings what it needs"
        ),
    )


def metadata(project):
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [
            f"Requires-Dist: {requirement}; extra == '{extra}'" for requirement in requirements
        ]
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


def sources(packages):
    """The packages' files, {name in the wheel: bytes}, without bytecode and editors' leftovers."""
    files = [
        file
        for package in packages
        for file in sorted((PYTHON / package).rglob("*"))
        if file.suffix == ".py" or file.name == "py.typed"
    ]
    return {str(file.relative_to(PYTHON)): file.read_bytes() for file in files}


def write(path, info, files):
    """Writes the wheel; RECORD comes last."""
    record = "".join(
        f"{name},"
        f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},"
        f"{len(data)}\n"
        for name, data in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = (0o100755 if name.endswith(LIBRARY) else 0o100644) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)


def main():
    parser = argparse.ArgumentParser(prog="wheel.py", description=__doc__)
    parser.add_argument("build", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("out", type=lambda p: pathlib.Path(p).resolve())
    args = parser.parse_args()
    configuration = tomllib.loads((PYTHON / "pyproject.toml").read_text())
    project = configuration["project"]
    number = version(args.build, project)
    tag, info = f"py3-none-linux_{platform.machine()}", f"helios-{number}.dist-info"
    files = sources(configuration["tool"]["setuptools"]["packages"])
    with tempfile.TemporaryDirectory(prefix="helios-wheel-") as work:
        path, needs = library(args.build, pathlib.Path(work))
        files[f"helios/{LIBRARY}"] = path.read_bytes()
    files["helios/libhelios.requires"] = f"{needs}\n".encode()
    files[f"{info}/METADATA"] = metadata(project).encode()
    files[
        f"{info}/WHEEL"
    ] = f"Wheel-Version: 1.0\nGenerator: helios\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files[f"{info}/top_level.txt"] = b"helios\nhybridps\nmaco\n"
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob("helios-*.whl"):
        old.unlink()
    made = args.out / f"helios-{number}-{tag}.whl"
    write(made, info, files)
    print(made)


main()

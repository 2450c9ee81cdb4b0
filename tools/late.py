"""Links the libraries that programs load when they first need them (src/os/late.h), so that
dpkg-shlibdeps finds them."""
import re
import subprocess

NAMES = re.compile(rb"\0(lib(?:curl|ucp|zmq)\.so\.\d+)\0")


def linked(files, folder):
    """Makes a library in `folder` that is linked to all of them and returns [its path]; [] if the
    files load none."""
    names = sorted({name.decode() for file in files for name in NAMES.findall(file.read_bytes())})
    if not names:
        return []
    made = folder / "late.so"
    subprocess.run(
        ["cc", "-shared", "-o", made, "-Wl,--no-as-needed", *[f"-l:{name}" for name in names]],
        check=True,
    )
    return [made]

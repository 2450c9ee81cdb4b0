"""The wheel: installed by pip in a virtual environment,
its packages find the library that came with them."""
import base64
import csv
import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support.cluster import BUILD, ROOT  # noqa: E402

ENV = {k: v for k, v in os.environ.items() if not k.startswith(("HELIOS_", "PYTHONPATH", "LD_"))}


def said(*command, **kwargs):
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=ENV,
        **kwargs,
    )
    assert (
        done.returncode == 0
    ), f"{command}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout


@unittest.skipUnless(
    shutil.which("dpkg-shlibdeps")
    and subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
    ).returncode
    == 0,
    "dpkg-dev or python3-pip is not installed",
)
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.wheel = pathlib.Path(
            said(sys.executable, ROOT / "tools/wheel.py", BUILD, cls.dir).strip()
        )
        said(
            sys.executable,
            "-m",
            "venv",
            "--without-pip",
            "--system-site-packages",
            cls.dir / "venv",
        )
        cls.python = cls.dir / "venv/bin/python"
        said(
            sys.executable,
            "-m",
            "pip",
            "--python",
            cls.python,
            "install",
            "--no-index",
            "--no-deps",
            "-q",
            cls.wheel,
        )
        [cls.site] = (cls.dir / "venv").glob("lib/python3*/site-packages")

    def ask(self, code):
        return said(self.python, "-c", code, cwd=self.dir).split()

    def test_its_record_names_every_file_with_its_hash_and_size(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            [record] = [name for name in names if name.endswith(".dist-info/RECORD")]
            rows = {
                row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))
            }
            self.assertEqual(set(rows), set(names))
            self.assertEqual(rows.pop(record), ["", ""])
            for name, (digest, size) in rows.items():
                data = archive.read(name)
                expected = (
                    base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                )
                self.assertEqual((digest, size), (f"sha256={expected}", str(len(data))), name)

    def test_it_has_every_module_of_the_packages_types_and_no_bytecode(self):
        tree = {
            str(f.relative_to(ROOT / "python"))
            for p in ("helios", "hybridps", "maco")
            for f in (ROOT / "python" / p).glob("*.py")
        }
        with zipfile.ZipFile(self.wheel) as archive:
            names = set(archive.namelist())
        self.assertLessEqual(
            tree | {f"{p}/py.typed" for p in ("helios", "hybridps", "maco")}, names
        )
        self.assertEqual([n for n in names if n.endswith(".pyc")], [])

    def test_its_packages_use_the_library_in_it(self):
        library = str(self.site / "helios/libhelios.so.0")
        found = self.ask(
            "import helios, helios._abi, hybridps._abi, maco._abi; print(helios.__file__,"
            " helios._abi.library()._name, hybridps._abi.load_library()._name,"
            " maco._abi.load_library()._name)"
        )
        self.assertEqual(found, [str(self.site / "helios/__init__.py"), library, library, library])

    def test_it_can_be_removed(self):
        said(
            sys.executable, "-m", "pip", "--python", self.python, "uninstall", "-q", "-y", "helios"
        )
        self.addCleanup(
            said,
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "install",
            "--no-index",
            "-q",
            self.wheel,
        )
        self.assertEqual(
            [
                p.name
                for p in self.site.iterdir()
                if p.name.startswith(("helios", "hybridps", "maco"))
            ],
            [],
        )

    def refused(self, **env):
        done = subprocess.run(
            [self.python, "-c", "import helios._abi; helios._abi.library()"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.dir,
            env=dict(ENV, **env),
        )
        self.assertNotEqual(done.returncode, 0)
        return done.stderr.strip().splitlines()[-1]

    def test_what_the_library_needs_and_is_not_there_is_named_with_the_packages_that_bring_it(self):
        library, kept = self.site / "helios/libhelios.so.0", self.dir / "kept"
        library.rename(kept)
        self.addCleanup(kept.rename, library)
        said("cc", "-shared", "-x", "c", "/dev/null", "-o", self.dir / "libabsent.so")
        said(
            "cc",
            "-shared",
            "-Wl,--no-as-needed",
            "-x",
            "c",
            "/dev/null",
            "-o",
            library,
            f"-L{self.dir}",
            "-labsent",
        )
        why = self.refused()
        for part in (
            "LibraryNotFound",
            str(library),
            "libabsent.so",
            "apt-get install ",
            "libucx0",
        ):
            self.assertIn(part, why)

    def test_without_a_library_anywhere_the_ways_to_get_one_are_named(self):
        if "libhelios" in said("/sbin/ldconfig", "-p"):
            self.skipTest("libhelios is installed here")
        library, kept = self.site / "helios/libhelios.so.0", self.dir / "kept"
        library.rename(kept)
        self.addCleanup(kept.rename, library)
        why = self.refused()
        for part in ("LibraryNotFound", "libhelios0", "wheel", "HELIOS_LIBRARY"):
            self.assertIn(part, why)

    def test_the_library_that_the_environment_names_is_the_only_one_that_is_tried(self):
        self.assertIn("/none/libhelios.so.0", self.refused(HELIOS_LIBRARY="/none/libhelios.so.0"))


if __name__ == "__main__":
    unittest.main()

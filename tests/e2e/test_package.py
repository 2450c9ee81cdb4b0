"""The Debian packages: what is in them, and unpacked they run a cluster and a job and are found by Python."""
import configparser
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, ROOT, wait_for  # noqa: E402

JOB = """
jobName: who
model: {name: toy}
parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, data_parallel_size: 1}
command: [%s, -c, "import helios; helios.init(); print(helios.__file__, len(helios.load_state_dict()), 'tensors')"]
"""


def said(*command, **kwargs):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=180, check=False, **kwargs)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout


def fields(deb):
    """The control fields of a package."""
    return dict(line.split(": ", 1) for line in said("dpkg-deb", "-f", deb).splitlines() if not line.startswith(" "))


@unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "dpkg-dev is not installed")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        made = said(sys.executable, ROOT / "tools/deb.py", BUILD, cls.dir / "made").split()
        cls.debs = {pathlib.Path(deb).name.partition("_")[0]: deb for deb in made}
        cls.root = cls.dir / "root"
        for deb in made:
            said("dpkg-deb", "-x", deb, cls.root)
        # Nothing of the build is to be found by accident.
        cls.env = {k: v for k, v in os.environ.items() if not k.startswith(("HELIOS_", "PYTHONPATH", "LD_"))}

    def files(self, package):
        """Paths of a package's files, directories left out."""
        return [line.split()[5][1:] for line in said("dpkg-deb", "-c", self.debs[package]).splitlines() if line[0] != "d"]

    def test_library_headers_programs_and_python_are_packages_of_their_own(self):
        self.assertEqual(set(self.debs), {"libhelios0", "libhelios-dev", "helios", "python3-helios"})
        homes = {"/usr/lib/libhelios.so.0": "libhelios0", "/usr/lib/libhelios.so": "libhelios-dev",
                 "/usr/include/helios/helios.h": "libhelios-dev", "/usr/lib/pkgconfig/helios.pc": "libhelios-dev",
                 "/usr/bin/helios": "helios", "/usr/bin/helios-agent": "helios", "/etc/helios/helios.yaml": "helios",
                 "/usr/lib/sysusers.d/helios.conf": "helios", "/usr/share/doc/helios/job.md": "helios",
                 "/usr/share/doc/helios/examples/job.yaml": "helios",
                 "/usr/lib/helios/python/helios/__init__.py": "python3-helios"}
        found = {file: package for package in self.debs for file in self.files(package) if file in homes}
        self.assertEqual(found, homes)

    def test_no_file_is_in_two_packages_and_none_is_bytecode(self):
        files = [file for package in self.debs for file in self.files(package)]
        self.assertEqual([f for f in files if files.count(f) > 1], [])
        self.assertEqual([line for deb in self.debs.values() for line in said("dpkg-deb", "-c", deb).splitlines()
                          if "__pycache__" in line], [])

    def test_everything_belongs_to_root_and_is_readable(self):
        for deb in self.debs.values():
            for line in said("dpkg-deb", "-c", deb).splitlines():
                self.assertRegex(line, r"^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|lrwxrwxrwx) root/root ")

    def test_every_package_has_copyright_and_changelog(self):
        for package in self.debs:
            self.assertIn("License: Apache-2.0", (self.root / f"usr/share/doc/{package}/copyright").read_text())
            with gzip.open(self.root / f"usr/share/doc/{package}/changelog.Debian.gz", "rt") as changelog:
                self.assertTrue(changelog.readline().startswith(f"helios ({fields(self.debs[package])['Version']})"))

    def test_they_depend_on_what_they_are_linked_with(self):
        helios = fields(self.debs["helios"])["Depends"]
        for library in ("libhelios0 (= ", "libucx0", "libzmq5", "libcapnp-", "libsqlite3-0", "libhwloc15"):
            self.assertIn(library, helios)
        library = fields(self.debs["libhelios0"])["Depends"]
        self.assertIn("libucx0", library)
        self.assertNotIn("libsqlite3", library)
        self.assertEqual(fields(self.debs["python3-helios"])["Architecture"], "all")

    def test_files_of_the_undivided_package_are_taken_over(self):
        for package in ("libhelios0", "libhelios-dev", "python3-helios"):
            for field in ("Breaks", "Replaces"):
                self.assertEqual(fields(self.debs[package])[field], "helios (<< 0.1.0-1)")

    def test_the_configuration_is_a_conffile_that_says_nothing_by_itself(self):
        self.assertEqual(said("dpkg-deb", "-I", self.debs["helios"], "conffiles"), "/etc/helios/helios.yaml\n")
        shown = json.loads(said(self.root / "usr/bin/helios", "conf", "-o", "json",
                                env=dict(self.env, HELIOS_CONFIG=str(self.root / "etc/helios/helios.yaml"))))
        self.assertEqual([o["name"] for o in shown if o["origin"] != "default"], [])

    def test_a_program_is_built_against_the_headers(self):
        source, out = self.dir / "version.c", self.dir / "version"
        source.write_text('#include <helios/helios.h>\n#include <stdio.h>\nint main(void) { puts(helios_version()); return 0; }\n')
        flags = said("pkg-config", "--cflags", "--libs", "helios",
                     env=dict(self.env, PKG_CONFIG_PATH=str(self.root / "usr/lib/pkgconfig"))).split()
        said("cc", "-o", out, source, *flags, f"-Wl,-rpath,{self.root}/usr/lib")
        self.assertEqual(said(out, env=self.env).strip(), fields(self.debs["libhelios0"])["Version"].partition("-")[0])

    def test_every_unit_starts_an_installed_program_with_options_that_it_has(self):
        units = sorted((self.root / "usr/lib/systemd/system").glob("*.service"))
        self.assertEqual([u.stem for u in units], ["helios-agent", "helios-controller", "helios-l3d"])
        for unit in units:
            parsed = configparser.RawConfigParser(strict=False)
            parsed.optionxform = str
            parsed.read(unit)
            program, *options = parsed["Service"]["ExecStart"].split()
            shown = said(self.root / "usr/bin" / program, "--help", env=self.env)
            for option in options[::2]:
                self.assertIn(f"  {option} ", shown)

    def test_the_example_of_a_configuration_is_one(self):
        text = (self.root / "etc/helios/helios.yaml").read_text()
        conf = self.dir / "helios.yaml"
        conf.write_text(re.sub(r"^#(?! \S)", "", text, flags=re.M))  # what is no sentence
        shown = json.loads(said(self.root / "usr/bin/helios", "conf", "-o", "json", env=dict(self.env, HELIOS_CONFIG=str(conf))))["items"]
        found = {option["name"]: option["value"] for option in shown if option["origin"].startswith(f"file {conf}:")}
        self.assertEqual(found, {"plane.management": "10.0.0.0/16", "plane.backbone": "10.1.0.0/16", "plane.migration": "10.2.0.0/16",
                                 "plane.backbone_rate": str(100 * 10**9), "l3.size": str(512 << 30),
                                 "controller.l3": "10.0.0.1:7402", "archive.url": "dir:/srv/helios", "archive.mode": "write-behind",
                                 "agent.controller": "10.0.0.1:7400", "agent.l2_size": str(64 << 30),
                                 "agent.devices": "cuda:0,cuda:1", "agent.log_max": str(64 << 20), "log.level": "info"})

    def test_a_rank_imports_what_was_installed(self):
        env = dict(self.env, HELIOS_STATE=str(self.dir / "state"))
        helios = self.root / "usr/bin/helios"
        directory, _ = checkpoints.llama(self.dir / "hf", layers=2, hidden=64, ffn=128, seed=5)
        job = self.dir / "job.yaml"
        job.write_text(JOB % sys.executable)
        said(helios, "up", "--nodes", 1, "--slots", 1, "--l3-size", "64MiB", env=env)
        try:
            said(helios, "model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1, env=env)
            said(helios, "submit", job, env=env)
            wait_for("the job to end", lambda: "succeeded" in said(helios, "list", env=env), 60)
            log = said(helios, "logs", "who", "--rank", 0, env=env)
        finally:
            said(helios, "down", env=env)
        self.assertIn(f"{self.root}/usr/lib/helios/python/helios/__init__.py ", log)

    def test_the_packages_are_found_by_the_systems_python(self):
        site = self.root / "usr/lib/python3/dist-packages"
        ask = (f"import site; site.addsitedir({str(site)!r})\nimport helios, hybridps, maco\nimport helios._abi, hybridps._abi\n"
               "print(helios.__file__, helios._abi.library()._name, hybridps._abi._candidates()[0])")
        package, library, same = said(sys.executable, "-c", ask, env=self.env, cwd=self.dir).split()
        self.assertTrue(package.startswith(f"{self.root}/usr/lib/helios/python/"), package)
        self.assertEqual((library, same), (f"{self.root}/usr/lib/libhelios.so.0",) * 2)


if __name__ == "__main__":
    unittest.main()

"""The Debian package: unpacked, its programs run a cluster and a job from there, and its Python packages find its library."""
import configparser
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
from support.cluster import BUILD, wait_for  # noqa: E402

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


@unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("file"), "dpkg-dev or file is not installed")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        said("cpack", "-B", cls.dir / "made", cwd=BUILD)
        [cls.deb] = (cls.dir / "made").glob("*.deb")
        cls.root = cls.dir / "root"
        said("dpkg-deb", "-x", cls.deb, cls.root)
        # Nothing of the build is to be found by accident.
        cls.env = {k: v for k, v in os.environ.items() if not k.startswith(("HELIOS_", "PYTHONPATH", "LD_"))}

    def test_it_depends_on_what_it_is_linked_with(self):
        depends = said("dpkg-deb", "-f", self.deb, "Depends")
        for library in ("libucx0", "libzmq5", "libcapnp-", "libsqlite3-0", "libhwloc15"):
            self.assertIn(library, depends)

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
        text = (self.root / "usr/share/helios/helios.yaml").read_text()
        conf = self.dir / "helios.yaml"
        conf.write_text(re.sub(r"^#(?! \S)", "", text, flags=re.M))  # what is no sentence
        shown = json.loads(said(self.root / "usr/bin/helios", "conf", "--config", conf, "-o", "json", env=self.env))
        found = {option["name"]: option["value"] for option in shown if option["origin"].startswith(f"file {conf}:")}
        self.assertEqual(found, {"plane.management": "10.0.0.0/16", "plane.backbone": "10.1.0.0/16", "plane.migration": "10.2.0.0/16",
                                 "l3.size": str(512 << 30), "controller.l3": "10.0.0.1:7402", "agent.controller": "10.0.0.1:7400",
                                 "agent.l2_size": str(64 << 30)})

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

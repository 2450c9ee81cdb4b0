"""The Debian packages: their contents; unpacked anywhere, they run a cluster; installed on a
machine, their services run as the users that the units name; an older package is replaced;
what stays after removal."""
import configparser
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support import checkpoints, dockerd, machine  # noqa: E402
from support.cluster import BUILD, ROOT, wait_for  # noqa: E402

PACKAGES = ("libhelios0", "libhelios-dev", "helios", "python3-helios")
JOB = """
jobName: who
model: {name: toy}
parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, data_parallel_size: 1}
command: [%s, -c, "import helios; helios.init();
  print(helios.__file__, len(helios.load_state_dict()), 'tensors')"]
"""
CLUSTER = ("helios", "--controller", "127.0.0.1:7400")
PATH_JOB = """
jobName: who
model: {name: toy}
parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, data_parallel_size: 1}
command: [/usr/bin/python3, -c, "import helios, os; helios.init();
  print(os.getuid(), helios.__file__, helios.stats()['path'],
  len(helios.load_state_dict()), helios.stats()['path'])"]
"""
# The package before it was divided.
OLD = {
    "usr/lib/libhelios.so.0": "old",
    "usr/include/helios/helios.h": "old",
    "usr/lib/helios/python/helios/__init__.py": "old",
    "usr/bin/helios": "old",
    "DEBIAN/control": (
        "Package: helios\nVersion: 0.1.0\nArchitecture: all\nMaintainer: nobody\n"
        "Description: memory-centric platform\n"
    ),
}


def said(*command, **kwargs):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=180, check=False, **kwargs
    )
    if done.returncode != 0:
        raise AssertionError(
            f"{command}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def fields(deb):
    """The control fields of a package."""
    return dict(
        line.split(": ", 1)
        for line in said("dpkg-deb", "-f", deb).splitlines()
        if not line.startswith(" ")
    )


def setUpModule():
    global DEBS  # pylint: disable=global-variable-undefined
    if not shutil.which("dpkg-shlibdeps"):
        raise unittest.SkipTest("dpkg-dev is not installed")
    made = pathlib.Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    # otherwise a third of the test's CPU time goes into xz
    quick = dict(os.environ, DPKG_DEB_COMPRESSOR_TYPE="none")
    paths = said(sys.executable, ROOT / "tools/deb.py", BUILD, made, env=quick).split()
    DEBS = {pathlib.Path(deb).name.partition("_")[0]: deb for deb in paths}


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.root = cls.dir / "root"
        for deb in DEBS.values():
            said("dpkg-deb", "-x", deb, cls.root)
        # Hides the build, so that it is not found by accident.
        cls.env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("HELIOS_", "PYTHONPATH", "LD_"))
        }

    def files(self, package):
        """Paths of a package's files, directories left out."""
        return [
            line.split()[5][1:]
            for line in said("dpkg-deb", "-c", DEBS[package]).splitlines()
            if line[0] != "d"
        ]

    def test_library_headers_programs_and_python_are_packages_of_their_own(self):
        self.assertEqual(set(DEBS), set(PACKAGES))
        homes = {
            "/usr/lib/libhelios.so.0": "libhelios0",
            "/usr/lib/libhelios.so": "libhelios-dev",
            "/usr/include/helios/helios.h": "libhelios-dev",
            "/usr/lib/pkgconfig/helios.pc": "libhelios-dev",
            "/usr/bin/helios": "helios",
            "/usr/bin/helios-agent": "helios",
            "/etc/helios/helios.yaml": "helios",
            "/usr/lib/sysusers.d/helios.conf": "helios",
            "/usr/share/doc/helios/job.md": "helios",
            "/usr/share/doc/helios/examples/job.yaml": "helios",
            "/usr/lib/helios/python/helios/__init__.py": "python3-helios",
        }
        found = {file: package for package in DEBS for file in self.files(package) if file in homes}
        self.assertEqual(found, homes)

    def test_no_file_is_in_two_packages_and_none_is_bytecode(self):
        files = [file for package in DEBS for file in self.files(package)]
        self.assertEqual([f for f in files if files.count(f) > 1], [])
        self.assertEqual(
            [
                line
                for deb in DEBS.values()
                for line in said("dpkg-deb", "-c", deb).splitlines()
                if "__pycache__" in line
            ],
            [],
        )

    def test_everything_belongs_to_root_and_is_readable(self):
        for deb in DEBS.values():
            for line in said("dpkg-deb", "-c", deb).splitlines():
                self.assertRegex(line, r"^(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|lrwxrwxrwx) root/root ")

    def test_every_package_has_copyright_and_changelog(self):
        for package in DEBS:
            self.assertIn(
                "License: Apache-2.0",
                (self.root / f"usr/share/doc/{package}/copyright").read_text(),
            )
            with gzip.open(
                self.root / f"usr/share/doc/{package}/changelog.Debian.gz", "rt"
            ) as changelog:
                self.assertTrue(
                    changelog.readline().startswith(f"helios ({fields(DEBS[package])['Version']})")
                )

    def test_they_depend_on_what_they_load_late_and_are_not_linked_with_it(self):
        for package, file, late in (
            ("helios", "usr/bin/helios", ("libcurl4", "libucx0", "libzmq5")),
            ("libhelios0", "usr/lib/libhelios.so.0", ("libucx0",)),
        ):
            linked = said("objdump", "-p", self.root / file)
            for library in late:
                self.assertIn(library, fields(DEBS[package])["Depends"])
            for library in ("libcurl", "libucp", "libucs", "libzmq"):
                self.assertNotIn(library, linked, file)

    def test_they_depend_on_what_they_are_linked_with(self):
        helios = fields(DEBS["helios"])["Depends"]
        for library in ("libhelios0 (= ", "libcapnp-", "libsqlite3-0", "libhwloc15"):
            self.assertIn(library, helios)
        library = fields(DEBS["libhelios0"])["Depends"]
        self.assertIn("libcapnp-", library)
        self.assertNotIn("libsqlite3", library)
        self.assertEqual(fields(DEBS["python3-helios"])["Architecture"], "all")

    def test_files_of_the_undivided_package_are_taken_over(self):
        for package in ("libhelios0", "libhelios-dev", "python3-helios"):
            for field in ("Breaks", "Replaces"):
                self.assertEqual(fields(DEBS[package])[field], "helios (<< 0.1.0-1)")

    def test_the_configuration_is_a_conffile_that_says_nothing_by_itself(self):
        self.assertEqual(
            said("dpkg-deb", "-I", DEBS["helios"], "conffiles"), "/etc/helios/helios.yaml\n"
        )
        # no cluster that runs here
        shown = json.loads(
            said(
                self.root / "usr/bin/helios",
                "conf",
                "-o",
                "json",
                env=dict(
                    self.env,
                    HELIOS_CONFIG=str(self.root / "etc/helios/helios.yaml"),
                    HELIOS_STATE=str(self.dir / "none"),
                ),
            )
        )["items"]
        self.assertEqual([o["name"] for o in shown if o["origin"] != "default"], [])

    def test_a_program_is_built_against_the_headers(self):
        source, out = self.dir / "version.c", self.dir / "version"
        source.write_text(
            '#include <helios/helios.h>\n#include <stdio.h>\nint main(void) {'
            ' puts(helios_version()); return 0; }\n'
        )
        flags = said(
            "pkg-config",
            "--cflags",
            "--libs",
            "helios",
            env=dict(self.env, PKG_CONFIG_PATH=str(self.root / "usr/lib/pkgconfig")),
        ).split()
        said("cc", "-o", out, source, *flags, f"-Wl,-rpath,{self.root}/usr/lib")
        self.assertEqual(
            said(out, env=self.env).strip(), fields(DEBS["libhelios0"])["Version"].partition("-")[0]
        )

    def test_every_unit_starts_an_installed_program_with_options_that_it_has(self):
        units = sorted((self.root / "usr/lib/systemd/system").glob("*.service"))
        self.assertEqual(
            [u.stem for u in units], ["helios-agent", "helios-controller", "helios-l3d"]
        )
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
        conf.write_text(re.sub(r"^#(?! \S)", "", text, flags=re.M))  # everything but sentences
        shown = json.loads(
            said(self.root / "usr/bin/helios", "conf", "--config", conf, "-o", "json", env=self.env)
        )["items"]
        found = {
            option["name"]: option["value"]
            for option in shown
            if option["origin"].startswith(f"file {conf}:")
        }
        self.assertEqual(
            found,
            {
                "plane.management": "10.0.0.0/16",
                "plane.backbone": "10.1.0.0/16",
                "plane.migration": "10.2.0.0/16",
                "auth.secret_file": "/etc/helios/secret",
                "plane.backbone_rate": str(100 * 10**9),
                "l3.size": str(512 << 30),
                "controller.l3": "10.0.0.1:7402",
                "archive.url": "dir:/srv/helios",
                "archive.mode": "write-behind",
                "agent.controller": "10.0.0.1:7400",
                "agent.l2_size": str(64 << 30),
                "agent.devices": "cuda:0,cuda:1",
                "agent.log_max": str(64 << 20),
                "log.level": "info",
            },
        )

    def test_a_rank_imports_what_was_installed(self):
        env = dict(self.env, HELIOS_STATE=str(self.dir / "state"))
        helios = self.root / "usr/bin/helios"
        directory, _ = checkpoints.llama(self.dir / "hf", layers=2, hidden=64, ffn=128, seed=5)
        job = self.dir / "job.yaml"
        job.write_text(JOB % sys.executable)
        said(helios, "up", "--nodes", 1, "--slots", 1, "--l3-size", "64MiB", env=env)
        try:
            said(
                helios, "model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1, env=env
            )
            said(helios, "submit", job, env=env)
            wait_for("the job to end", lambda: "succeeded" in said(helios, "list", env=env), 60)
            log = said(helios, "logs", "who", "--rank", 0, env=env)
        finally:
            said(helios, "down", env=env)
        self.assertIn(f"{self.root}/usr/lib/helios/python/helios/__init__.py ", log)

    def test_the_packages_are_found_by_the_systems_python(self):
        site = self.root / "usr/lib/python3/dist-packages"
        ask = (
            f"import site; site.addsitedir({str(site)!r})\nimport helios, hybridps, maco\nimport"
            " helios._abi, hybridps._abi\nprint(helios.__file__, helios._abi.library()._name,"
            " hybridps._abi.load_library()._name)"
        )
        package, library, same = said(sys.executable, "-c", ask, env=self.env, cwd=self.dir).split()
        self.assertTrue(package.startswith(f"{self.root}/usr/lib/helios/python/"), package)
        self.assertEqual((library, same), (f"{self.root}/usr/lib/libhelios.so.0",) * 2)


class OnMachine(unittest.TestCase):
    """Installed on a machine of its own."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0 or not machine.supported():
            raise unittest.SkipTest("this needs root, overlayfs and namespaces")
        cls.machine = cls.enterClassContext(machine.Machine())
        cls.machine.path("/root/debs").mkdir()
        # Otherwise each installation has man-db check every manual page of the machine.
        cls.machine.path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
        for deb in DEBS.values():
            cls.machine.copy(deb, "/root/debs")
        if (
            " installed"
            in cls.machine.run(
                "dpkg-query", "-W", "-f=${Package} ${db:Status-Status} ", *PACKAGES
            ).stdout
        ):
            raise unittest.SkipTest("helios is installed here")
        cls.begin()

    @classmethod
    def begin(cls):
        cls.install()

    @classmethod
    def install(cls):
        return cls.machine.said("sh", "-c", "dpkg -i /root/debs/*.deb")


class Installed(OnMachine):
    def test_there_is_a_system_user_and_no_unit_is_enabled(self):
        name, _, uid, _, _, home, shell = (
            self.machine.said("getent", "passwd", "helios").strip().split(":")
        )
        self.assertEqual((name, home, shell), ("helios", "/var/lib/helios", "/usr/sbin/nologin"))
        self.assertLess(int(uid), 1000)
        self.assertEqual(
            self.machine.run("sh", "-c", "ls -d /etc/systemd/system/*/helios* 2>/dev/null").stdout,
            "",
        )

    def test_programs_library_and_packages_are_found_without_any_setting(self):
        self.assertRegex(self.machine.said("helios", "--version"), r"^helios \d")
        ask = (
            "import helios._abi, importlib.util as i; print(helios._abi.library()._name,"
            " i.find_spec('hybridps').origin, i.find_spec('maco').origin)"
        )
        self.assertEqual(
            self.machine.said("/usr/bin/python3", "-c", ask).split(),
            [
                "/usr/lib/libhelios.so.0",
                *(f"/usr/lib/helios/python/{name}/__init__.py" for name in ("hybridps", "maco")),
            ],
        )
        self.assertIn("libhelios.so.0 ", self.machine.said("ldconfig", "-p"))

    def start_unit(self, name):
        """What systemd does for it, as far as users and directories are concerned."""
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str
        unit.read(self.machine.path(f"/usr/lib/systemd/system/helios-{name}.service"))
        service = unit["Service"]
        user = service.get("User", "root")
        if "StateDirectory" in service:
            self.machine.said(
                "install",
                "-d",
                "-o",
                user,
                "-m",
                service["StateDirectoryMode"],
                f"/var/lib/{service['StateDirectory']}",
            )
        confine = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        if service.get("NoNewPrivileges") == "yes":
            confine.append("--no-new-privs")
        if service.get("CapabilityBoundingSet") == "":
            confine.append("--bounding-set=-all")
        self.machine.start(
            f"/run/{name}.log",
            *confine,
            "sh",
            "-c",
            f"umask {service.get('UMask', '0022')}; exec {service['ExecStart']}",
        )

    def test_the_services_run_a_job_with_the_secret_and_pool_and_catalogue_of_their_own_user(self):
        self.machine.path("/etc/helios/helios.yaml").write_text(
            "l3: {size: 64MiB}\nauth: {secret_file: /etc/helios/secret}\n"
        )
        directory, _ = checkpoints.llama(
            self.machine.path("/tmp/hf"), layers=2, hidden=64, ffn=128, seed=5
        )
        self.machine.path("/tmp/job.yaml").write_text(PATH_JOB)
        self.machine.said("chmod", "-R", "go+rX", "/tmp/hf")
        for name in ("l3d", "controller", "agent"):
            self.start_unit(name)
        try:
            wait_for(
                "L3 to serve",
                lambda: "serving" in self.machine.path("/run/l3d.log").read_text(),
                60,
            )
            wait_for(
                "the node to be ready",
                lambda: "ready" in self.machine.run(*CLUSTER, "nodes").stdout,
                60,
            )
            self.machine.said(
                *CLUSTER, "model", "import", "/tmp/hf", "--name", "toy", "--tp", 1, "--pp", 1
            )
            stranger = self.machine.run("env", "HELIOS_AUTH_SECRET_FILE=none", *CLUSTER, "nodes")
            job = json.loads(self.machine.said(*CLUSTER, "submit", "/tmp/job.yaml", "-o", "json"))[
                "id"
            ]
            wait_for(
                "the job to end",
                lambda: re.search("succeeded|failed", self.machine.said(*CLUSTER, "describe", job)),
                60,
            )
            log = self.machine.said(*CLUSTER, "logs", job)
        except BaseException:
            for file in sorted(self.machine.path("/run").glob("*.log")):
                print(f"--- {file.name}\n{file.read_text()[-3000:]}")
            raise
        self.assertNotEqual(stranger.returncode, 0, stranger.stdout)
        self.assertIn("the server wants the cluster's secret", stranger.stdout)
        self.assertRegex(log, r"(?m)^0 /usr/lib/helios/python/helios/__init__\.py .*\d+ shm$")
        uid = self.machine.said("id", "-u", "helios").strip()
        self.assertEqual(
            self.machine.said("stat", "-c", "%U %a", f"/dev/shm/helios-{uid}-default.pool"),
            "helios 600\n",
        )
        self.assertEqual(
            self.machine.said("stat", "-c", "%U %a", "/var/lib/helios/controller"), "helios 700\n"
        )
        readable = self.machine.said(
            "find",
            "/var/lib/helios/controller",
            "/dev/shm",
            "-type",
            "f",
            "-user",
            "helios",
            "-perm",
            "/077",
        )
        self.assertEqual(readable, "")

    def test_there_is_a_secret_for_the_daemons_and_nobody_else_which_stays(self):
        self.assertEqual(
            self.machine.said("stat", "-c", "%U %G %a", "/etc/helios/secret"), "root helios 640\n"
        )
        secret = self.machine.path("/etc/helios/secret").read_text()
        self.assertGreater(len(secret), 40)
        self.install()
        self.assertEqual(self.machine.path("/etc/helios/secret").read_text(), secret)

    def test_an_edited_configuration_survives_installing_again(self):
        conf = self.machine.path("/etc/helios/helios.yaml")
        conf.write_text("l3: {size: 64MiB}\n")
        self.install()
        self.assertEqual(conf.read_text(), "l3: {size: 64MiB}\n")


class Replaced(OnMachine):
    """Installed over the previous package, and removed."""

    @classmethod
    def begin(cls):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder, "tree")
            for name, text in OLD.items():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).write_text(text)
            said("dpkg-deb", "-b", tree, f"{folder}/old.deb")
            cls.machine.copy(f"{folder}/old.deb", "/root/old.deb")
        cls.machine.said("dpkg", "-i", "/root/old.deb")
        cls.install()

    def test_the_undivided_package_is_replaced_and_of_the_new_ones_only_a_clusters_data_stays(self):
        for file, package in (
            ("/usr/lib/libhelios.so.0", "libhelios0"),
            ("/usr/include/helios/helios.h", "libhelios-dev"),
            ("/usr/lib/helios/python/helios/__init__.py", "python3-helios"),
            ("/usr/bin/helios", "helios"),
        ):
            self.assertEqual(self.machine.said("dpkg", "-S", file), f"{package}: {file}\n")
        self.assertEqual(self.machine.run("dpkg", "-V", *PACKAGES).stdout, "")
        # And purged, after root's Python has written bytecode beside the packages.
        self.machine.said("/usr/bin/python3", "-c", "import helios")
        data = self.machine.path("/var/lib/helios/controller/catalogue")
        data.parent.mkdir(parents=True)
        data.write_text("models")
        told = self.machine.said("dpkg", "--purge", *PACKAGES)
        self.assertNotIn("not empty", told)
        self.assertIn("/var/lib/helios", told)
        self.assertEqual(data.read_text(), "models")
        for gone in (
            "/etc/helios",
            "/usr/lib/helios",
            "/usr/share/helios",
            "/usr/share/doc/helios",
        ):
            self.assertFalse(self.machine.path(gone).exists(), gone)


class Image(unittest.TestCase):
    """tools/image.py: one layer of package files, in the form of `docker save`."""

    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.paths = cls.make()

    @classmethod
    def make(cls, *args, out=".", names=()):
        """NAME -> path."""
        paths = said(
            sys.executable,
            ROOT / "tools/image.py",
            *args,
            pathlib.Path(DEBS["helios"]).parent,
            cls.dir / out,
            *names,
        ).split()
        return {pathlib.Path(p).name.partition("_")[0]: pathlib.Path(p) for p in paths}

    def layer(self, image, path=None):
        """Its configuration, and its layer as an open tar."""
        whole = self.enterContext(tarfile.open(path or self.paths[image]))
        (manifest,) = json.load(whole.extractfile("manifest.json"))
        config = json.load(whole.extractfile(manifest["Config"]))
        (layer,) = manifest["Layers"]
        data = whole.extractfile(layer)
        self.assertEqual(
            [f"sha256:{hashlib.file_digest(data, 'sha256').hexdigest()}"],
            config["rootfs"]["diff_ids"],
        )
        data.seek(0)
        return manifest, config, self.enterContext(tarfile.open(fileobj=data))

    def test_it_has_files_of_packages_and_nothing_of_this_machine(self):
        manifest, config, layer = self.layer("helios")
        version = fields(DEBS["helios"])["Version"]
        self.assertEqual(manifest["RepoTags"], [f"helios:{version}", "helios:latest"])
        self.assertEqual(config["config"]["User"], "65534:65534")
        members = {m.name: m for m in layer}
        self.assertEqual(
            {n for n in members if n.startswith("etc/") and members[n].isfile()},
            {"etc/passwd", "etc/group", "etc/nsswitch.conf"}
            | {n for n in ("etc/ssl/certs/ca-certificates.crt",) if n in members},
        )
        self.assertEqual([n for n, m in members.items() if m.mode & 0o6000 or m.mtime], [])
        self.assertNotIn("usr/bin/dash", members)
        for name in Package.files(self, "helios"):
            if "/bin/" in name:
                self.assertIn(name.lstrip("/"), members)

    @unittest.skipUnless(os.geteuid() == 0, "a root of its own needs root")
    def test_programs_start_in_it_and_python_finds_helios(self):
        root = self.dir / "root"
        self.layer("helios-rank")[2].extractall(root)
        for command in (
            ["helios-ranktable", "--version"],
            ["helios-controller", "--help"],
            ["helios-l3d", "--help"],
            ["helios-agent", "--help"],
            ["sh", "-c", "python3 -c 'import helios; print(helios.__file__)' && cat /etc/passwd"],
            # as ranks that share a container
            ["sh", "-c", "cd /tmp && mkdir d && mkfifo d/f && rm -r d && sleep 0"],
            ["helios-run", "--help"],
            ["helios-run", "helios", "--version"],
        ):
            said("chroot", "--userspec=65534:65534", root, "/usr/bin/env", *command)

    @unittest.skipUnless(
        shutil.which("buildah") and os.geteuid() == 0,
        "buildah is not installed, or we are not root",
    )
    def test_buildah_builds_the_same_from_the_containerfile(self):
        path = self.make("--buildah", out="built", names=["helios-rank"])["helios-rank"]
        (_, config, layer), (_, ours, written) = self.layer("helios-rank", path), self.layer(
            "helios-rank"
        )
        for key in ("User", "Env", "Cmd", "WorkingDir"):
            self.assertEqual(config["config"][key], ours["config"][key], key)
        self.assertLessEqual(ours["config"]["Labels"].items(), config["config"]["Labels"].items())
        self.assertEqual(
            *(
                {
                    m.name: (m.type, m.size, m.mode & 0o7777, m.uid, m.linkname)
                    for m in tar
                    if m.name != "."
                }
                for tar in (layer, written)
            )
        )

    def test_an_engine_takes_it(self):
        command = ["/usr/bin/helios-ranktable", "--version"]
        if shutil.which("buildah") and os.geteuid() == 0:
            store = [
                "--root",
                self.dir / "store",
                "--runroot",
                self.dir / "run",
                "--storage-driver",
                "vfs",
            ]
            name = said(
                "buildah", *store, "from", f"docker-archive:{self.paths['helios']}"
            ).split()[-1]
            text = said("buildah", *store, "run", "--isolation", "chroot", name, "--", *command)
        else:
            if dockerd.missing():
                self.skipTest(f"no buildah, and {dockerd.missing()}")
            docker = dockerd.Docker()
            self.addCleanup(docker.close)
            if docker.why:
                self.skipTest(f"no buildah, and {docker.why}")
            docker.run("load", "-q", "-i", self.paths["helios"])
            tags = self.layer("helios")[0]["RepoTags"]
            self.addCleanup(docker.run, "rmi", "-f", *tags, check=False)
            text = docker.run("run", "--rm", "--network", "none", tags[0], *command)
        self.assertEqual(text.split()[0], "helios-ranktable")


if __name__ == "__main__":
    unittest.main()

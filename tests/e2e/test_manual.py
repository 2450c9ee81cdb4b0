"""Manual pages and shell completion: they render, name everything that --help names,
and complete in a real bash and zsh."""
import gzip
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, HELIOS, cluster  # noqa: E402

MADE = BUILD / "manual"
DAEMONS = ("helios-l3d", "helios-controller", "helios-agent", "helios-ranktable")


def said(*command, **kwargs):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=60, check=False, **kwargs
    )
    assert (
        done.returncode == 0
    ), f"{command}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout


def flags(text):
    """The options that a --help explains."""
    return {
        flag
        for line in re.findall(r"^  (-[^\s].*)$", text, re.M)
        for flag in re.findall(r"(?:^|, )(--?[a-zA-Z][-\w]*)", line.split("  ")[0])
    }


def shown_commands():
    """Names of commands, as `helios --help` lists them."""
    before_options = said(HELIOS, "--help").split("\nOptions")[0]
    return re.findall(r"^  ([a-z]+(?: [a-z]+)?) {2,}\S", before_options, re.M)


def page(name, section):
    with gzip.open(MADE / f"man{section}/{name}.{section}.gz", "rt") as file:
        return file.read()


@unittest.skipUnless(
    (MADE / "stamp").exists() and shutil.which("groff"),
    "this build has no manual pages, or there is no groff",
)
class Manual(unittest.TestCase):
    @staticmethod
    def shown(name, section):
        """As a terminal shows it, without bold and underlines."""
        text = said("groff", "-man", "-Tutf8", "-P-cbou", "-rLL=100n", input=page(name, section))
        return text.replace("‐", "-").replace("−", "-")

    def test_every_command_has_a_page_that_explains_its_options(self):
        commands = shown_commands()
        self.assertIn("model import", commands)
        for command in commands:
            with self.subTest(command):
                text = self.shown(f"helios-{command.split()[0]}", 1)
                self.assertIn(f"helios {command}", text)
                for flag in flags(said(HELIOS, *command.split(), "--help")):
                    self.assertRegex(text, rf"(?m)^ +(-\S+, )*{re.escape(flag)}\b")

    def test_every_daemon_has_a_page_that_explains_its_options(self):
        for daemon in DAEMONS:
            text = self.shown(daemon, 8)
            options = flags(said(BUILD / "bin" / daemon, "--help"))
            self.assertGreater(len(options), 10)
            for flag in options:
                self.assertRegex(text, rf"(?m)^ +(-\S+, )*{re.escape(flag)}\b")

    def test_the_files_have_pages(self):
        self.assertRegex(self.shown("helios.yaml", 5), r"(?m)^ +l3\.size SIZE$")
        self.assertIn("tensor_parallel_size: 2", self.shown("helios-job", 5))

    def test_no_page_gives_a_warning(self):
        pages = sorted(MADE.glob("man?/*.gz"))
        self.assertGreater(len(pages), 20)
        for path in pages:
            with gzip.open(path) as file:
                done = subprocess.run(
                    ["groff", "-man", "-Tutf8", "-ww", "-z"],
                    input=file.read(),
                    capture_output=True,
                    check=False,
                )
            self.assertEqual((done.returncode, done.stderr), (0, b""), path.name)

    def test_every_page_has_its_name_and_what_it_is_about_for_apropos(self):
        for path in sorted(MADE.glob("man?/*.gz")):
            name, section = path.name.rsplit(".", 2)[:2]
            self.assertRegex(
                self.shown(name, section), rf"(?m)^NAME\n +{re.escape(name)} - \S.*\S$"
            )


def bash(env, *words):
    """What bash completes for the last of `words`."""
    script = (
        f"source {MADE}/helios; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _helios; "
        "[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    return said("bash", "--norc", "-c", script, "bash", HELIOS, *words, env=env).splitlines()


def zsh(env, line):
    """What zsh, in a terminal, shows after `line` and a Tab."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(
            "zsh",
            ["zsh", "-f", "-i"],
            dict(env, TERM="dumb", COLUMNS="150", PATH=f"{BUILD}/bin:{env['PATH']}"),
        )
    try:
        set_up = (
            f"PS1='READ''Y '; fpath=({MADE} $fpath); autoload -U compinit; compinit -u -D;"
            " LISTMAX=1000; PS2='';"
        )
        os.write(terminal, f"{set_up} print BE''GIN\n".encode())
        until(terminal, b"BEGIN", b"READY ")
        os.write(terminal, f"{line}\t".encode())
        os.write(terminal, b"; print E''ND\n")  # taken once the completion is done
        return until(terminal, b"END").decode(errors="replace")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def until(terminal, *marks, seconds=30):
    """The terminal's output until all marks have come, in order."""
    text, at, deadline = b"", 0, time.monotonic() + seconds
    for mark in marks:
        while mark not in text[at:]:
            left = deadline - time.monotonic()
            assert left > 0, f"no {mark} after {seconds} s: {text[-2000:]}"
            if select.select([terminal], [], [], left)[0]:
                text += os.read(terminal, 65536)
        at = text.index(mark, at) + len(mark)
    return text


@unittest.skipUnless((MADE / "stamp").exists(), "this build has no completion")
class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(cluster(nodes=2, slots=1))
        directory, _ = checkpoints.llama(
            cls.cluster.dir / "hf", layers=2, hidden=64, ffn=128, seed=5
        )
        cls.cluster.json("model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1)
        cls.job = cls.cluster.submit(
            "{jobName: who, command: 'true', parallelism: {pipeline_parallel_size: 1, "
            "tensor_parallel_size: 1, data_parallel_size: 1}}"
        )
        cls.env = dict(cls.cluster.env, HELIOS_STATE=str(cls.cluster.state))

    def test_bash_completes_commands_groups_and_help(self):
        self.assertEqual(bash(self.env, "mo"), ["model"])
        commands = shown_commands()
        self.assertEqual(set(bash(self.env, "")), {c.split()[0] for c in commands} | {"help"})
        self.assertEqual(
            bash(self.env, "model", ""), [c.split()[1] for c in commands if c.startswith("model ")]
        )
        self.assertEqual(bash(self.env, "help", "model", "sh"), ["show"])
        self.assertEqual(bash(self.env, "nothing", ""), [])

    def test_bash_completes_the_options_of_each_command(self):
        for command in shown_commands():
            offered = bash(self.env, *command.split(), "-")
            self.assertLessEqual(
                flags(said(HELIOS, *command.split(), "--help")), set(offered), command
            )
        self.assertNotIn("--tp", bash(self.env, "model", "ls", "-"))

    def test_bash_completes_values(self):
        self.assertEqual(
            bash(self.env, "model", "export", "toy", "--format", ""), ["safetensors", "torch", "hf"]
        )
        self.assertEqual(
            bash(self.env, "model", "export", "toy", "--format", "=", "s"), ["safetensors"]
        )
        self.assertEqual(bash(self.env, "up", "--nodes", ""), [])
        folder = self.cluster.dir / "files"
        (folder / "jobs").mkdir(parents=True)
        (folder / "job one.yaml").touch()
        self.assertEqual(
            set(bash(self.env, "plan", f"{folder}/")), {f"{folder}/jobs", f"{folder}/job one.yaml"}
        )
        self.assertEqual(bash(self.env, "up", "--state", f"{folder}/"), [f"{folder}/jobs"])
        for command in (
            ("mem", "trace", "x", "--csv"),
            ("trace", "record", "--out"),
            ("sim", "--out"),
        ):
            self.assertEqual(
                set(bash(self.env, *command, f"{folder}/")),
                {f"{folder}/jobs", f"{folder}/job one.yaml"},
                command,
            )
        self.assertEqual(
            sorted(bash(self.env, "model", "import", f"{folder}/")),
            [f"{folder}/job one.yaml", f"{folder}/jobs"],
        )

    def test_bash_completes_what_the_cluster_knows(self):
        self.assertEqual(bash(self.env, "logs", ""), [self.job])
        self.assertEqual(bash(self.env, "logs", "--rank", "0", "w"), [self.job])
        self.assertEqual(bash(self.env, "logs", self.job, ""), [])
        self.assertEqual(bash(self.env, "model", "show", "t"), ["toy"])
        self.assertEqual(bash(self.env, "pull", "--model", ""), ["toy"])
        self.assertEqual(bash(self.env, "store", ""), ["node-0", "node-1"])
        self.assertEqual(bash(self.env, "metrics", ""), ["controller", "l3", "node-0", "node-1"])
        shards = [s["id"] for s in self.cluster.json("shard", "ls")["items"]]
        self.assertGreater(len(shards), 2)
        self.assertEqual(bash(self.env, "shard", "show", ""), shards)

    def test_bash_asks_the_cluster_that_the_command_line_names(self):
        elsewhere = dict(self.env, HELIOS_STATE=str(self.cluster.dir / "none"))
        self.assertEqual(bash(elsewhere, "model", "show", ""), [])
        self.assertEqual(
            bash(elsewhere, "--state", str(self.cluster.state), "model", "show", ""), ["toy"]
        )
        host, port = self.cluster.info["controller"].split(":")
        self.assertEqual(
            bash(elsewhere, "--controller", host, ":", port, "model", "show", ""), ["toy"]
        )

    def test_a_cluster_that_does_not_answer_does_not_hold_the_shell_up(self):
        pid = self.cluster.pid("controllerd")
        os.kill(pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            self.assertEqual(bash(self.env, "model", "show", ""), [])
            # without a deadline the CLI waits for 10 s
            self.assertLess(time.monotonic() - start, 9)
        finally:
            os.kill(pid, signal.SIGCONT)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_completes_commands_options_and_names(self):
        self.assertIn("List the models.", zsh(self.env, "helios model "))
        self.assertIn("--first-stage-layers", zsh(self.env, "helios model import -"))
        self.assertIn("helios model show toy", zsh(self.env, "helios model show "))
        self.assertIn("node-1", zsh(self.env, "helios shard copy X --to "))
        self.assertRegex(zsh(self.env, "helios model export toy --format="), "safetensors *torch")


if __name__ == "__main__":
    unittest.main()

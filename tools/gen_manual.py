"""Generates the manual pages from the tree of commands, the option table and docs/job.md:
`gen_manual.py BIN OUT`.

BIN is the directory of the built programs. OUT/man1, man5 and man8 get gzipped pages.
"""
import argparse
import email.utils
import gzip
import json
import pathlib
import re
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
sys.dont_write_bytecode = True

from roff import Page, bold, escape, inline, italic  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASED = re.search(
    r"^ -- .*>  (.*)$", (ROOT / "deploy/debian/changelog").read_text(), re.M
).group(1)
DATE = email.utils.parsedate_to_datetime(RELEASED).date().isoformat()
# What a word with further commands is about.
GROUPS = {
    "node": "drain, reserve and test a node",
    "trace": "record which shards are read, for helios sim",
    "model": "models in the pool: import, show, export and remove them",
    "shard": "shards and their copies on every tier",
    "mem": "device memory of a training process, before and after it runs",
    "bench": "measure this machine against its limits",
}
ABOUT = """Helios keeps the weights of large models in memory, already sliced the way the ranks use
them. A Hugging Face checkpoint is sliced into checksummed shards, a gang of containers is placed on
NUMA nodes, and every rank maps exactly its own shards. The ranks save what they have trained as a
new version, and a restarted gang resumes from it."""
DAEMONS = {
    "helios-l3d": (
        "memory pool of a Helios cluster",
        """helios-l3d owns the pool, a file in /dev/shm that holds the shards of all models, and
slices checkpoints into it. With an archive, a directory or an S3 bucket, shards outlive a reboot
and the pool may be smaller than the models. A restarted daemon adopts the pool by its index.""",
        [
            (
                "/dev/shm/helios-UID-NAME.pool",
                "The pool. Its socket for local readers is beside it, with .sock.",
            )
        ],
    ),
    "helios-controller": (
        "metadata and jobs of a Helios cluster",
        """helios-controller knows models, versions, shards, nodes and jobs, places the gangs and
tells the Agents what to run. There is one per cluster. Its state is durable: after a crash it
continues every job.""",
        [("/var/lib/helios/controller", "Its metadata, an SQLite database.")],
    ),
    "helios-agent": (
        "runs the ranks of Helios jobs on a node",
        """helios-agent offers the NUMA nodes of its host as slots, starts containers and binds
their ranks, and keeps copies of shards in host and device memory. Ranks outlive it: a restarted
Agent finds its containers by its state directory. It binds ranks by control groups when it is root,
and by affinity otherwise.""",
        [
            ("/var/lib/helios/agent", "Records, logs and rank tables of its containers."),
            ("/dev/shm/helios-UID-NAME.l2", "The node's L2: copies of shards in host memory."),
        ],
    ),
}
RANKTABLE = """helios-ranktable watches Volcano jobs and pods of a Kubernetes cluster and writes the
rank tables of collective libraries into their ConfigMaps. Helios's own jobs do not need it: their
tables come from the Controller. `helios-ranktable lint` says what is wrong with a table, or with
the manifest of a job. /usr/share/doc/helios/ranktable.md says more."""
YAML = """The file has the options of all programs on a host; each program reads its own. An
option's name is its place in the file: "l3.size" is the key "size" in the mapping "l3". An unknown
key is an error.

Later ones win: built-in default, this file, environment variable, flag. `helios conf` shows the
values in force and where each comes from.

Sizes take "512MiB" or "2GB", times "500ms", "10s", "5m" or "2h", rates "100Gbit"."""
CONFIG = ("/etc/helios/helios.yaml", "Configuration of the programs on this host; helios.yaml(5).")


# So that the pages show nothing of a cluster that runs on this machine.
ENVIRONMENT = {"LANG": "C.UTF-8", "HELIOS_CONFIG": "/dev/null", "HELIOS_STATE": "/nonexistent"}


def output(*command):
    return subprocess.run(
        [*map(str, command)], check=True, capture_output=True, text=True, env=ENVIRONMENT
    ).stdout


def manual_link(page):
    name, section = re.fullmatch(r"(.*)\((\d)\)", page).groups()
    return f"{bold(name)}({section})"


class Manual:
    def __init__(self, binaries, out):
        self.binaries, self.out = binaries, out
        self.tree = json.loads(output(binaries / "helios", "help", "--dump-json"))
        self.rows = json.loads(output(binaries / "helios", "conf", "-o", "json"))["items"]
        self.words = {}  # first words of commands, in the order of the tree
        for command in self.tree["commands"]:
            self.words.setdefault(command["name"].split()[0], []).append(command)

    def page(self, name, section):
        manual = {1: "User Commands", 5: "File Formats", 8: "System Administration"}[section]
        return Page(name, section, DATE, self.tree["version"], manual)

    def write(self, page, name, section, *see_also):
        page.section("see also")
        page.lines.append(", ".join(manual_link(other) for other in see_also))
        page.lines += [".PP", "Further documentation is in", bold("/usr/share/doc/helios") + "."]
        folder = self.out / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.{section}.gz").write_bytes(
            gzip.compress(page.text().encode(), 9, mtime=0)
        )

    # ---- helios(1) and its commands ----

    def options(self, page, options):
        for option in options:
            flags = ", ".join(bold(flag) for flag in option["flags"])
            value = f" {italic(option['value'])}" if option["value"] else ""
            default = (
                f" Default: `{option['default']}`."
                if option["default"] not in ("", "false")
                else ""
            )
            page.term(flags + value, option["help"] + default)

    def usage(self, command):
        """A usage line such as `helios shard show ID [--verify]`: words and flags in bold,
        placeholders of values in italics."""
        words = [bold(f"helios {command['name']}")]
        for word in command["usage"].split():
            parts = re.split(r"(--?[a-z][-a-z0-9]*|[A-Z][A-Z0-9]*)", word)
            words.append(
                "".join(
                    (
                        bold(p)
                        if p.startswith("-") and len(p) > 1
                        else italic(p)
                        if p.isupper()
                        else escape(p, literal=True)
                    )
                    for p in parts
                )
            )
        return " ".join(words)

    def main_page(self):
        page = self.page("helios", 1)
        page.name("helios", "keep the weights of large models in memory and train from them")
        page.synopsis(
            f"{bold('helios')} [{italic('options')}] {italic('command')} ...",
            f"{bold('helios help')} {italic('command')}",
        )
        page.section("description")
        page.paragraph(ABOUT)
        page.paragraph(
            "This is the command line. On one machine `helios up` starts a cluster and `helios"
            " down` ends it. The daemons of a larger cluster are services: helios-l3d(8),"
            " helios-controller(8), helios-agent(8)."
        )
        page.section("commands")
        heading = None
        for command in self.tree["commands"]:
            if command["heading"] != heading:
                heading = command["heading"]
                page.subsection(heading)
            page.term(bold(f"helios {command['name']}"), command["summary"])
        page.section("options of every command")
        self.options(page, self.tree["options"])
        page.section("environment")
        page.term(bold("HELIOS_STATE"), "Directory of the local cluster, as `--state`.")
        page.term(bold("HELIOS_CONTROLLER"), "Address of the Controller, as `--controller`.")
        page.term(bold("HELIOS_CONFIG"), "Configuration file in place of the installed one.")
        page.paragraph("Every option of helios.yaml(5) has a variable as well.")
        page.section("files")
        page.term(bold(CONFIG[0]), CONFIG[1])
        page.term(
            bold("~/.local/state/helios"),
            "The local cluster of `helios up`: addresses, metadata and logs.",
        )
        page.section("exit status")
        page.term("0", "The command did what it was asked for.")
        page.term("1", "It failed; one sentence on standard error says why.")
        page.term("2", "It was called wrongly.")
        page.section("examples")
        page.code(
            [
                "helios up --nodes 2 --slots 2 --l3-size 1GiB",
                "helios model import CHECKPOINT --name demo",
                "helios plan job.yaml",
                "helios submit job.yaml",
                "helios logs -f demo",
                "helios down",
            ]
        )
        self.write(
            page,
            "helios",
            1,
            *(f"helios-{word}(1)" for word in self.words),
            "helios.yaml(5)",
            "helios-job(5)",
            *(f"{daemon}(8)" for daemon in (*DAEMONS, "helios-ranktable")),
        )

    def command_page(self, word, commands):
        name = f"helios-{word}"
        page = self.page(name, 1)
        single = len(commands) == 1 and commands[0]["name"] == word
        summary = commands[0]["summary"] if single else GROUPS[word]
        page.name(name, summary[0].lower() + summary[1:].rstrip("."))
        page.synopsis(*map(self.usage, commands))
        if single:
            page.section("description")
            page.paragraph(commands[0]["summary"])
            if commands[0]["options"]:
                page.section("options")
                self.options(page, commands[0]["options"])
        else:
            page.section("commands")
            for command in commands:
                page.subsection(f"helios {command['name']}")
                page.paragraph(command["summary"])
                self.options(page, command["options"])
        page.section("options of every command")
        self.options(page, self.tree["options"])
        also = {
            "plan": "helios-job(5)",
            "submit": "helios-job(5)",
            "conf": "helios.yaml(5)",
            "up": "helios-down(1)",
            "down": "helios-up(1)",
        }
        self.write(page, name, 1, "helios(1)", *filter(None, [also.get(word)]))

    # ---- daemons ----

    def daemon_page(self, program):
        what, about, files = DAEMONS[program]
        page = self.page(program, 8)
        page.name(program, what)
        page.synopsis(f"{bold(program)} [{italic('options')}]")
        page.section("description")
        page.paragraph(about)
        page.paragraph(
            "It runs in the foreground until SIGTERM or SIGINT and logs to standard error. The"
            f" unit {program}.service starts it with `--config {CONFIG[0]}`."
        )
        page.section("options")
        page.term(
            f"{bold('--config')} {italic('PATH')}", "Read options from this file; helios.yaml(5)."
        )
        for row in self.rows:
            if program in row["programs"]:
                value = f" {italic(row['argument'])}" if row["argument"] else ""
                page.term(
                    ", ".join(bold(flag) for flag in row["flag"].split(",")) + value,
                    self.row_text(row),
                )
        page.term(
            f"{bold('--help')}, {bold('--version')}", "Print the options, or the version, and exit."
        )
        page.section("files")
        for file, text in (CONFIG, *files):
            page.term(bold(file), text)
        self.write(
            page,
            program,
            8,
            "helios(1)",
            "helios.yaml(5)",
            *(f"{other}(8)" for other in DAEMONS if other != program),
        )

    @staticmethod
    def row_text(row, names=True):
        default = f" Default: `{row['default']}`." if row["default"] else ""
        return (
            row["help"]
            + default
            + (f" In the file `{row['name']}`, environment `{row['env']}`." if names else "")
        )

    def ranktable_page(self):
        """Its options are not in the option table: they are read from its --help."""
        page = self.page("helios-ranktable", 8)
        page.name("helios-ranktable", "rank tables of the jobs on a Kubernetes cluster")
        page.synopsis(
            f"{bold('helios-ranktable')} [{italic('options')}]",
            (
                f"{bold('helios-ranktable lint')} {italic('FILE')}"
                f" {bold('--chip')} {italic('a2|a3|a5')} [{bold('--job')}]"
            ),
        )
        page.section("description")
        page.paragraph(RANKTABLE)
        for section, *command in (("options",), ("options of lint", "lint")):
            page.section(section)
            text = output(self.binaries / "helios-ranktable", *command, "--help")
            for flags, value, rest in re.findall(
                r"^  (-\S+(?:, -\S+)*)(?: ([A-Z]+|\S+\|\S+))?\s+(.*(?:\n {4,}.*)*)", text, re.M
            ):
                page.term(
                    bold(flags) + (f" {italic(value)}" if value else ""),
                    re.sub(r" \[([^]]*)\]$", r" Default: `\1`.", rest),
                )
        self.write(page, "helios-ranktable", 8, "helios(1)", "helios-controller(8)")

    # ---- files ----

    def config_page(self):
        page = self.page("helios.yaml", 5)
        page.name("helios.yaml", "configuration of the Helios programs")
        page.synopsis(bold(CONFIG[0]))
        page.section("description")
        for paragraph in YAML.split("\n\n"):
            page.paragraph(paragraph)
        page.section("example")
        example = (ROOT / "deploy/systemd/helios.yaml").read_text()
        page.code(re.sub(r"^#(?! \S)", "", example, flags=re.M).rstrip().splitlines())
        page.section("options")
        groups = {}
        for row in self.rows:
            groups.setdefault(
                row["name"].partition(".")[0] if "." in row["name"] else "general", []
            ).append(row)
        for group, rows in groups.items():
            page.subsection(group)
            for row in rows:
                self.config_row(page, row)
        self.write(
            page, "helios.yaml", 5, "helios-conf(1)", *(f"{daemon}(8)" for daemon in DAEMONS)
        )

    def config_row(self, page, row):
        programs = row["programs"] if isinstance(row["programs"], list) else [row["programs"]]
        page.term(
            f"{bold(row['name'])} {italic(row['argument'] or 'true|false')}",
            (
                f"{self.row_text(row, names=False)} Environment `{row['env']}`; read by"
                f" {', '.join(programs)}."
            ),
        )

    def job_page(self):
        page = self.page("helios-job", 5)
        page.name("helios-job", "the file that describes a job")
        page.section("description")
        page.markdown((ROOT / "docs/job.md").read_text())
        self.write(page, "helios-job", 5, "helios-plan(1)", "helios-submit(1)")


def main():
    parser = argparse.ArgumentParser(prog="gen_manual.py", description=__doc__)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    for old in args.out.glob("man?/*.gz"):  # of a command that is gone
        old.unlink()
    manual = Manual(args.bin, args.out)
    manual.main_page()
    for word, commands in manual.words.items():
        manual.command_page(word, commands)
    for program in DAEMONS:
        manual.daemon_page(program)
    manual.ranktable_page()
    manual.config_page()
    manual.job_page()


main()

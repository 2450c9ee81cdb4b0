"""Generates completion for bash and zsh from the tree of commands:
`gen_completion.py HELIOS OUT` writes OUT/helios and OUT/_helios.

The code is in deploy/completion.bash and .zsh; this makes their tables. An entry says what is
allowed at a place: =WORD (this word), @job, @model, @shard, @node (names that the cluster knows),
file, dir; bool: a flag without value.
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Options whose value is a name, wherever they stand.
NAMED = {
    "--model": "@model",
    "--to": "@node =l3 =l4",
    "--from": "@node =l3 =l4",
    "--node": "@node",
    "--job": "@job",
}
DIRECTORIES = ("--state", "--dir")


def option_entry(option):
    if option["type"] == "bool":
        return "bool"
    if option["type"] == "enum":
        return " ".join(f"={choice}" for choice in option["choices"])
    for flag in option["flags"]:
        if flag in NAMED:
            return NAMED[flag]
        if flag in DIRECTORIES:
            return "dir"
    return "file" if option["type"] == "path" else ""


def argument_entry(command, name):
    """The entry of an argument, named as in the usage line: JOB, NAME[@VERSION], ID|KEY,
    controller|l3|NODE, FILE.xml."""
    entries = []
    for part in name.split("|"):
        plain = re.sub(r"\[.*", "", part)
        if plain.islower() or plain[:1].islower():
            entries.append(f"={plain}")
        elif plain == "NAME" and command.startswith("model "):
            entries.append("@model")
        elif plain in ("ID", "KEY", "SHARD"):
            entries.append("@shard")
        elif plain in ("JOB", "NODE", "MODEL"):
            entries.append(f"@{plain.lower()}")
        elif plain == "DIR":
            entries.append("dir")
        elif re.match(r"(FILE|CONFIG|TRACE|PATH)\b", plain):
            entries.append("file")
    if "file" in entries:  # files are completed with the directories on the way
        entries = [entry for entry in entries if entry != "dir"]
    return " ".join(dict.fromkeys(entries))


def function(name, cases, subject="$1"):
    """A shell function that prints the text of the case that matches."""
    rows = [f"        {pattern}) echo {shlex.quote(text)} ;;" for pattern, text in cases if text]
    return "\n".join([f"{name}() {{", f'    case "{subject}" in', *rows, "    esac", "}"])


def flags(options):
    return [flag for option in options for flag in option["flags"]]


def tables(tree):
    commands = tree["commands"]
    names = [c["name"] for c in commands]
    groups = list(dict.fromkeys(name.split()[0] for name in names if " " in name))
    values, arguments = [], []
    for command in commands:
        for option in command["options"]:
            for flag in option["flags"]:
                values.append((shlex.quote(f"{command['name']} {flag}"), option_entry(option)))
        for i, argument in enumerate(command["arguments"]):
            at = "*" if argument["repeated"] else str(i)
            arguments.append(
                (
                    shlex.quote(f"{command['name']}:") + at,
                    argument_entry(command["name"], argument["name"]),
                )
            )
    for option in tree["options"]:
        values += [
            (f"*{shlex.quote(' ' + flag)}", option_entry(option)) for flag in option["flags"]
        ]
    values.append(("*' --help'", "bool"))
    return (
        "\n".join(
            [
                (
                    "__helios_commands="
                    f"{shlex.quote(' '.join(name.replace(' ', '_') for name in names))}"
                ),
                f"__helios_groups={shlex.quote(' '.join(groups))}",
                "# Flags of a command; of every command for an empty name.",
                function(
                    "__helios_options",
                    [(shlex.quote(c["name"]), " ".join(flags(c["options"]))) for c in commands]
                    + [("''", " ".join(flags(tree["options"])))],
                ),
                "# What the flag $2 of the command $1 takes.",
                function("__helios_value", values, "$1 $2"),
                "# What stands at COMMAND:N, the arguments counted from 0.",
                function("__helios_argument", arguments),
            ]
        ),
        groups,
    )


def described(tree, groups):
    """zsh's: words with what they mean.
    The cases: a command (its flags), "-" (flags of all), "GROUP " or "commands "."""

    def rows(pairs):
        return "\n".join(f"{word.replace(':', chr(92) + ':')}:{text}" for word, text in pairs)

    def option_rows(options):
        return rows((flag, option["help"]) for option in options for flag in option["flags"])

    cases = [(shlex.quote(c["name"]), option_rows(c["options"])) for c in tree["commands"]]
    cases.append(("-", option_rows(tree["options"])))
    top = [(c["name"], c["summary"]) for c in tree["commands"] if " " not in c["name"]]
    for group in groups:
        inside = [
            (c["name"].split()[1], c["summary"])
            for c in tree["commands"]
            if c["name"].startswith(f"{group} ")
        ]
        cases.append((shlex.quote(f"{group} "), rows(inside)))
        top.append((group, ", ".join(word for word, _ in inside)))
    cases.append(("'commands '", rows(top + [("help", "Say more about a command.")])))
    return function("__helios_described", cases).replace("echo ", "print -r -- ")


def main():
    parser = argparse.ArgumentParser(prog="gen_completion.py", description=__doc__)
    parser.add_argument("helios", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    tree = json.loads(
        subprocess.run(
            [args.helios, "help", "--dump-json"], check=True, capture_output=True, text=True
        ).stdout
    )
    common, groups = tables(tree)
    args.out.mkdir(parents=True, exist_ok=True)
    for shell, name, text in (
        ("bash", "helios", common),
        ("zsh", "_helios", f"{common}\n{described(tree, groups)}"),
    ):
        code = (ROOT / f"deploy/completion.{shell}").read_text()
        (args.out / name).write_text(code.replace("@TABLES@", text))


main()

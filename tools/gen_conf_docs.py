"""Generates docs/config.md from the option table.
`gen_conf_docs.py HELIOS [--check]`: HELIOS is the built CLI."""
import json
import pathlib
import subprocess
import sys

DOC = pathlib.Path(__file__).resolve().parent.parent / "docs" / "config.md"
HEAD = """# Options

One table for all programs. A value comes from the first of these that has it: flag, environment,
configuration file (YAML), built-in default. An unknown key is an error. `helios conf` asks the
daemons of the running cluster for the values in force and where each comes from. `helios conf NAME`
narrows it to an option or a group such as `l3`; `helios conf --config FILE` shows what a file would
give. Passwords in URLs are masked. This page is made by `tools/gen_conf_docs.py`.

## Configuration files

1. `--config FILE`, else the file of `HELIOS_CONFIG`: only this one is read. An empty
   `HELIOS_CONFIG` means no file.
2. Without either, `/etc/helios/helios.yaml` and then `~/.config/helios/helios.yaml` (in
   `$XDG_CONFIG_HOME`, if that is set) are read, if they exist. An option in the second file
   replaces the same option of the first.

`helios up` does not read `/etc/helios/helios.yaml`: that file is for the daemons of the machine,
and a local cluster belongs to its user. Wherever the options come from, `up` itself sets the
directories of state, the addresses that its daemons give each other, and the shares of the machine.
It takes addresses to listen on, and names, from the options.

## Which cluster the command line uses

The first of these that is given:

1. `--controller ADDRESS`
2. `--state DIR`: the local cluster there
3. `HELIOS_CONTROLLER`
4. `HELIOS_STATE`: the local cluster there
5. the local cluster of `~/.local/state/helios`, if there is one, whether it is up or down
6. the option `controller.address`
7. the option `agent.controller`, which `/etc/helios/helios.yaml` has on the nodes of a cluster

## All options

| option | flag | environment | default | programs | what |
| --- | --- | --- | --- | --- | --- |
"""


def page(helios):
    no_cluster = {"HELIOS_STATE": "/nonexistent"}
    shown = subprocess.run(
        [helios, "conf", "--config", "/dev/null", "-o", "json"],
        env=no_cluster,
        check=True,
        capture_output=True,
    )
    rows = json.loads(shown.stdout)["items"]
    lines = []
    for row in rows:
        programs = (
            ", ".join(row["programs"]) if isinstance(row["programs"], list) else row["programs"]
        )
        default = f"`{row['default']}`" if row["default"] else ""
        text = row["help"].replace("|", "\\|")
        lines.append(
            f"| `{row['name']}` | `{row['flag']}` | `{row['env']}` | {default} | {programs}"
            f" | {text} |"
        )
    return HEAD + "\n".join(lines) + "\n"


def main():
    text = page(sys.argv[1])
    if "--check" in sys.argv:
        if DOC.read_text() != text:
            sys.exit(
                "docs/config.md is not what the option table says: run tools/gen_conf_docs.py"
                " build/bin/helios"
            )
    else:
        DOC.write_text(text)


main()

"""docs/config.md from the option table. `gen_conf_docs.py HELIOS [--check]`: HELIOS is the built CLI."""
import json
import pathlib
import subprocess
import sys

DOC = pathlib.Path(__file__).resolve().parent.parent / "docs" / "config.md"
HEAD = """# Options

One table for all programs: built-in default < `--config FILE` (YAML) < environment < flag. An unknown key is an error.
`helios conf` shows the values in force and where each comes from. This page is made by `tools/gen_conf_docs.py`.

| option | flag | environment | default | programs | what |
| --- | --- | --- | --- | --- | --- |
"""


def page(helios):
    rows = json.loads(subprocess.run([helios, "conf", "-o", "json"], env={}, check=True, capture_output=True).stdout)["items"]
    lines = []
    for row in rows:
        programs = ", ".join(row["programs"]) if isinstance(row["programs"], list) else row["programs"]
        default = f"`{row['default']}`" if row["default"] else ""
        lines.append(f"| `{row['name']}` | `{row['flag']}` | `{row['env']}` | {default} | {programs} | {row['help']} |")
    return HEAD + "\n".join(lines) + "\n"


def main():
    text = page(sys.argv[1])
    if "--check" in sys.argv:
        if DOC.read_text() != text:
            sys.exit("docs/config.md is not what the option table says: run tools/gen_conf_docs.py build/bin/helios")
    else:
        DOC.write_text(text)


main()

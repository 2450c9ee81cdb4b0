"""Every row of the option table is read by every program that takes it, and libhelios reads what ranks are told."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAINS = {"HL_CONTROLLER": "helios-controller", "HL_L3D": "helios-l3d", "HL_AGENT": "helios-agent", "HL_CLI": "cli/cli/cli"}
GROUPS = {"HL_DAEMONS": [p for p in MAINS if p != "HL_CLI"]}
ROW = re.compile(r'\{"([a-z0-9_.]+)", "--[a-z0-9-]+",.*?AT\((\w+)\),\s*([A-Z0-9_| \n]+?)\}', re.S)
TOLD = re.compile(r'"(HELIOS_(?:DATA|READ)_\w+)"')


def read(*paths):
    return "".join(p.read_text() for p in paths)


def main():
    table = read(ROOT / "src/conf/table.c")
    rows = ROW.findall(table)
    errors = []
    if len(rows) != table.count("AT(") - 1:
        errors.append(f"src/conf/table.c: {len(rows)} rows are understood of {table.count('AT(') - 1}")
    shared = read(ROOT / "src/conf/planes.c", ROOT / "src/conf/conf.c")  # what every daemon calls
    for name, field, programs in rows:
        for word in re.split(r"[\s|]+", programs.strip()):
            for program in GROUPS.get(word, [word]):
                main_file = f"cmd/{MAINS[program]}.c" if program in MAINS else None
                if main_file is None:
                    errors.append(f"{name}: {program} reads no row of the table")
                elif not re.search(rf"(->|\.){field}\b", read(ROOT / main_file) + shared):
                    errors.append(f"{name}: {main_file} takes it and reads it nowhere")
    known = {"HELIOS_" + name.upper().replace(".", "_") for name, _, _ in rows}
    told, heard = (set(TOLD.findall(read(ROOT / p))) for p in ("src/agent/env.c", "src/client/client.c"))
    for env in sorted(told ^ heard):
        errors.append(f"{env}: told to ranks (src/agent/env.c) or read by libhelios (src/client/client.c), not both")
    for env in sorted((told | heard) - known):
        errors.append(f"{env}: no row of the table")
    print("\n".join(errors) if errors else f"options: {len(rows)} rows ok")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()

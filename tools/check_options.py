"""Every option has an effect: each row's field is read, each program reads the slices whose flags
it takes, and what ranks are told of libhelios reads."""
import argparse
import pathlib
import re
import sys

PARSER = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
PARSER.add_argument(
    "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
)
ROOT = PARSER.parse_args().root
PROGRAM_CONF = ROOT / "src/program/conf.c"
MAINS = {
    "HL_CONTROLLER": "helios-controller.c",
    "HL_L3D": "helios-l3d.c",
    "HL_AGENT": "helios-agent.c",
    "HL_CLI": "cli",
}
FRAME = ROOT / "src/program/daemon.c"  # what every daemon runs in
GROUPS = {"HL_DAEMONS": [p for p in MAINS if p != "HL_CLI"], "L3D_AGENT": ["HL_L3D", "HL_AGENT"]}
TABLE = re.compile(
    r"#define AT\(field\) HL_OPTION_FIELD\((struct \w+), field\)(.*?)(?=#undef AT|clang-format on)",
    re.S,
)
ROW = re.compile(r'\{"([a-z0-9_.]+)", "--[a-z0-9-]+",.*?AT\(([\w.]+)\)\}', re.S)
POLICY = "HL_POLICY_MAP(X)"  # rows that a header has
POLICY_ROW = re.compile(r'\bX\([A-Z]+, (\w+), "([a-z0-9_.]+)", "--[a-z0-9-]+",')
SLICE = re.compile(r"SLICE\((\w+), ([\w.]+), ([A-Z0-9_| ]+)\)")
TOLD = re.compile(r"&(hl_\w+_rows)")


def sources(*folders):
    for folder in folders:
        yield from (
            p for p in (ROOT / folder).rglob("*.[ch]") if p.name not in ("conf.c", "conf.h")
        )


def read(paths):
    return "".join(p.read_text() for p in paths)


def is_read(field, text):
    return re.search(rf"(->|\.){re.escape(field)}\b", text) is not None


def check_rows(errors):
    """Names of all rows."""
    names = []
    text = read(sources("src", "cmd")) + (ROOT / "src/conf/conf.c").read_text()
    for path in sorted((ROOT / "src").rglob("*.c")):
        code = path.read_text()
        if "hl_option" not in code:
            continue
        found = [row for table in TABLE.finditer(code) for row in ROW.findall(table.group(2))]
        if len(found) != len(re.findall(r"\bAT\((?!field)", code)):
            errors.append(
                f"{path.relative_to(ROOT)}: {len(found)} rows are understood of"
                f" {code.count('AT(') - 1}"
            )
        if POLICY in code:
            header = (ROOT / "src/core/placement/params.h").read_text()
            found += [(name, field) for field, name in POLICY_ROW.findall(header)]
        for name, field in found:
            names.append(name)
            if not is_read(field.rpartition(".")[2], text):
                errors.append(
                    f"{name}: no source reads the field {field} ({path.relative_to(ROOT)})"
                )
    return names


def check_slices(errors):
    slices = SLICE.findall(PROGRAM_CONF.read_text())
    for rows, field, programs in slices:
        for word in (w for w in re.split(r"[\s|]+", programs) if w):
            for program in GROUPS.get(word, [word]):
                main = ROOT / "cmd" / MAINS[program]
                text = read(main.rglob("*.c") if main.is_dir() else (main, FRAME))
                if not is_read(field.partition(".")[0], text):
                    errors.append(
                        f"{rows}: cmd/{MAINS[program]} takes their flags and does not read {field}"
                    )
    return len(slices)


def check_ranks(errors):
    told = set(TOLD.findall((ROOT / "src/agent/env.c").read_text()))
    heard = set(TOLD.findall((ROOT / "src/client/client.c").read_text()))
    if '"HELIOS_AUTH_SECRET_FILE"' in (ROOT / "src/client/client.c").read_text():
        heard.add("hl_auth_rows")
    for rows in sorted(told ^ heard):
        errors.append(
            f"{rows}: told to ranks (src/agent/env.c) or read"
            " by libhelios (src/client/client.c), not both"
        )


def main():
    errors = []
    names = check_rows(errors)
    slices = check_slices(errors)
    check_ranks(errors)
    print("\n".join(errors) if errors else f"options: {len(names)} rows in {slices} slices ok")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()

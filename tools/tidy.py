"""Limits of the house: function 70 lines, file 700, line 100 columns, a contract atop every header."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUNCTION_LINES, FILE_LINES, LINE_COLUMNS = 70, 700, 100
CONTRACT = ("Owns:", "Threads:", "Errors:", "Units:", "Limits:")
BANNED = re.compile(r"\b(strcpy|strcat|sprintf|strtok|gets|ctime|asctime|alloca)\s*\(")

# Phrases of no one's technical English, in what users read: "out of memory allocating X", "X is not a Y", "invalid X".
PHRASES = re.compile(r"memory is short|(?<!here )(?<!has )\bis no (?!more|longer|less|other)[a-z]|\bcan't be$")
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


def functions(lines):
    """(first line, length) of every function body: an opening brace in column 0 up to its closing one."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start:  # "};" ends a class
            if line == "}":
                yield start, number - start + 1
            start = None


def check_contract(where, head, errors):
    """Each label is there and begins a line, with its text behind it."""
    for word in CONTRACT:
        if not re.search(rf"^ \* {word} +\S", head, re.MULTILINE):
            errors.append(f"{where}: the contract comment has no line that begins with '{word}'")


def check(path, errors):
    where = path.relative_to(ROOT)
    text = path.read_text()
    lines = text.splitlines()
    source = path.suffix in (".c", ".h", ".cpp", ".cu", ".cuh")
    if source and len(lines) > FILE_LINES:
        errors.append(f"{where}: {len(lines)} lines, at most {FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if source and len(line) > LINE_COLUMNS and "http" not in line:
            errors.append(f"{where}:{number}: {len(line)} columns, at most {LINE_COLUMNS}")
        if source and BANNED.search(line):
            errors.append(f"{where}:{number}: {BANNED.search(line)[1]} is banned")
        if where.parts[0] in ("src", "cmd", "include"):
            for literal in TEXT.findall(line):
                if found := PHRASES.search(literal):
                    errors.append(f"{where}:{number}: '{found[0]}' in a message; see PHRASES in tools/tidy.py")
        if line != line.rstrip():
            errors.append(f"{where}:{number}: trailing space")
    if source:
        for start, length in functions(lines):
            if length > FUNCTION_LINES:
                errors.append(f"{where}:{start}: function of {length} lines, at most {FUNCTION_LINES}")
    if path.suffix == ".h" and where.parts[0] in ("src", "include") and not path.stem.endswith("_private"):
        check_contract(where, text[: text.find("#ifndef")], errors)
    if text and not text.endswith("\n"):
        errors.append(f"{where}: no newline at the end")


def main():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    suffixes = (".c", ".h", ".cpp", ".cu", ".cuh", ".py", ".capnp", ".cmake", ".txt", ".md", ".json", ".yaml", ".sh")
    files = [ROOT / n for n in names.stdout.splitlines() if n.endswith(suffixes) or n in ("run", ".ci/run")]
    errors = []
    files = [f for f in files if f.is_file() and "corpus" not in f.parts]
    for path in files:
        check(path, errors)
    print("\n".join(errors) if errors else f"tidy: {len(files)} files ok")
    sys.exit(1 if errors else 0)


main()

"""Checks the style rules of CONTRIBUTING.md: lengths, contracts, phrases, names, READMEs, and the
subjects of commits.

`tidy.py [--shrink] [--root ROOT]`. names.txt counts, by module, the static functions whose name is
a single word; the counts can only shrink, and `--shrink` updates them.
"""
import argparse
import ast
import pathlib
import re
import subprocess
import sys

FUNCTION_LINES, FILE_LINES, LINE_COLUMNS = 70, 700, 100
README_LINES, PROSE_COLUMNS = 30, 100
GENERATED = ("docs/config.md",)
CODE_SPAN = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(([^)\s]*)\)")
BAR = re.compile(r"(?<!\\)\|")
MERGED_ITEM = re.compile(r"[.:;] - [A-Z*]")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# Functions in comments; not those that are generated, nor prefixes and placeholders.
NAMED_FUNCTION = re.compile(r"\bhl_(?!api_|call_|reply_|serve_)[a-z0-9_]*[a-z0-9]\b(?![_*/.])")
NAMED_SOURCE = re.compile(r"(?<![\w/.-])(([a-z]\w*)/[\w/]+\.(?:c|h|cpp))\b")
C_SOURCE = (".c", ".h", ".cpp", ".hpp", ".cu", ".cuh")
NAMED_FILE = re.compile(r"`(([\w-]+)/[\w/-]+\.(?:c|h|cpp))`")
SUBJECT_COLUMNS = 72
CONTRACT = ("Owns:", "Threads:", "Errors:", "Units:", "Limits:")
PRIVATE_CONTRACT = ("Threads:",)
BANNED = re.compile(r"\b(strcpy|strcat|sprintf|strtok|gets|ctime|asctime|alloca)\s*\(")

# Phrases that are not technical English, in texts for users. Write instead
# "out of memory allocating X", "X is not a Y", "invalid X".
PHRASES = re.compile(
    r"memory is short|\bno memory for\b|(?<!here )(?<!has )\bis no"
    r" (?!more|longer|less|other)[A-Za-z]|\bcan't be$"
    r"|\bthe books\b|\bwhoever\b|\b(?:daemon|Agent) ends$|\bcut short\b|\bmade"
    r" anew\b|\bnobody\b|\bsomebody\b"
)
PRODUCT_SOURCE = re.compile(r'#include "(?!unit/)[\w/]+\.c(?:pp)?"')
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Name the process, thread or caller that is meant (docs/glossary.md).
VAGUE = re.compile(r"\b(nobody|somebody|anybody|whoever)\b", re.IGNORECASE)


def functions(lines):
    """(first line, length) of every function body, from an opening brace in column 0 to its closing
    one."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start:  # "};" ends a class
            if line == "}":
                yield start, number - start + 1
            start = None


def check_contract(where, head, errors):
    """Checks that each label begins a line and is followed by text. A private header needs only
    PRIVATE_CONTRACT."""
    for word in PRIVATE_CONTRACT if where.stem.endswith("_private") else CONTRACT:
        if not re.search(rf"^ \* {word} +\S", head, re.MULTILINE):
            errors.append(f"{where}: the contract comment has no line that begins with '{word}'")


# A static function whose name is a single word, such as `static void take(`.
ONE_WORD = re.compile(r"^static (?!inline)(?:[\w*]+[ *]+)+\**([a-z]+)\(", re.MULTILINE)
# First words that show that a subject is not an imperative.
NO_IMPERATIVE = re.compile(
    r"^(?:[a-z]|\w+(?:ed|ing)\b|(?:Fixes|Adds|Makes|Uses|Moves|Removes|Changes)\b)"
)
IMPERATIVES = {"Embed", "Feed", "Need", "Seed", "Shed", "Speed", "Bring", "Ring", "Ping", "String"}
SUBJECTS_SINCE = "ac84bcf"  # commits before it are as they are


def check_python(where, text, errors):
    lines = text.splitlines()
    if len(lines) > FILE_LINES:
        errors.append(f"{where}: {len(lines)} lines, at most {FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS:
            errors.append(f"{where}:{number}: {len(line)} columns, at most {LINE_COLUMNS}")
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.end_lineno - node.lineno >= FUNCTION_LINES
        ):
            errors.append(
                f"{where}:{node.lineno}: function of {node.end_lineno - node.lineno + 1} lines, at"
                f" most {FUNCTION_LINES}"
            )


def check_document(where, lines, errors):
    """Checks that prose is wrapped; code, tables and lines without a blank are exempt."""
    # Chinese has no spaces to break at.
    if str(where) in GENERATED or where.name.endswith(".zh.md"):
        return
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        code = fenced or line.startswith("    ") or line.lstrip().startswith("|")
        breaks = " " in CODE_SPAN.sub("x", line.strip())
        if len(line) > PROSE_COLUMNS and not code and breaks:
            errors.append(
                f"{where}:{number}: {len(line)} columns of prose, at most {PROSE_COLUMNS}"
            )


def prose(lines):
    """(number, line) of all lines that are not code."""
    fenced = False
    for number, line in enumerate(lines, 1):
        fence = line.lstrip().startswith("```")
        if not fence and not fenced and not line.startswith("    "):
            yield number, line
        fenced ^= fence


def anchors(text):
    """The anchors of all headings: words joined by hyphens, without punctuation."""
    heads = [
        CODE_SPAN.sub(lambda m: m[0][1:-1], line.lstrip("#").strip())
        for _, line in prose(text.splitlines())
        if line.startswith("#")
    ]
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head))
        .lower()
        .replace(" ", "-")
        for head in heads
    }


def check_shape(where, lines, errors):
    """Checks that each row of a table has as many cells as its head, and that an item of a list
    begins a line."""
    bars = 0
    for number, line in prose(lines):
        now = len(BAR.findall(line)) if line.startswith("|") else 0
        bars = bars if now else 0
        if bars and now != bars:
            errors.append(
                f"{where}:{number}: {now - 1} cells in a table of {bars - 1};"
                " write \\| for a bar in a text"
            )
        bars = bars or now
        if not now and MERGED_ITEM.search(CODE_SPAN.sub("X", line)):
            errors.append(f"{where}:{number}: an item of a list begins in the middle of a line")


def check_links(root, path, text, errors):
    """Checks that links lead to existing files and headings, and that named source files
    exist."""
    where = path.relative_to(root)
    for number, line in prose(text.splitlines()):
        for target in LINK.findall(CODE_SPAN.sub("x", line)):
            name, _, anchor = target.partition("#")
            to = path.parent / name if name else path
            if re.match(r"\w+:", target):  # the Internet is not asked
                continue
            if not to.exists():
                errors.append(f"{where}:{number}: a link to {name}, which is not there")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to.read_text()):
                errors.append(
                    f"{where}:{number}: a link to {target}: no heading there is called so"
                )
    for number, line in enumerate(text.splitlines(), 1):
        for name, folder in NAMED_FILE.findall(line):
            ours = (root / folder).is_dir() or (root / "src" / folder).is_dir()
            if (
                path.name != "README.md"
                and ours
                and not (root / name).exists()
                and not (root / "src" / name).exists()
            ):
                errors.append(f"{where}:{number}: {name} is not there")


def check_comments(root, files, errors):
    """A comment names functions and source files that are there."""
    texts = {f: f.read_text() for f in files if f.suffix in C_SOURCE}
    code = set()
    for text in texts.values():
        code.update(re.findall(r"\bhl_\w+", COMMENT.sub(" ", text)))
    for path, text in texts.items():
        where = path.relative_to(root)
        if where.parts[0] not in ("src", "cmd", "include"):
            continue
        for comment in COMMENT.findall(text):
            for name in sorted(set(NAMED_FUNCTION.findall(comment)) - code):
                errors.append(f"{where}: a comment names {name}, which is not there")
            for name, folder in NAMED_SOURCE.findall(comment):
                generated = name == "api/types.h" or name.endswith("_calls.h")
                there = generated or (root / "src" / name).exists()
                if (root / "src" / folder).is_dir() and not there:
                    errors.append(f"{where}: a comment names {name}, which is not there")


def check_readmes(root, errors):
    """Checks that every module has a short README and that the files it names exist."""
    for folder in [f for f in sorted((root / "src").glob("*")) if f.is_dir()] + [root / "cmd"]:
        readme, where = folder / "README.md", f"{folder.relative_to(root)}/README.md"
        if not readme.is_file():
            errors.append(
                f"{where} is missing: say what the module is, its core objects, where to start,"
                " what it must not do"
            )
            continue
        lines = readme.read_text().splitlines()
        if len(lines) > README_LINES:
            errors.append(f"{where}: {len(lines)} lines, at most {README_LINES}")
        for number, line in enumerate(lines, 1):
            for name in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:c|h|cpp|hpp))`", line):
                places = (
                    folder / name,
                    root / name,
                    root / "src" / name,
                    *folder.glob(f"*/{name}"),
                )
                if not name.startswith(("build/", "api/types")) and not any(
                    place.exists() for place in places
                ):
                    errors.append(f"{where}:{number}: {name} is not there")


def one_word_names(root):
    """Counts the static functions of each module whose name is a single word."""
    counts = {}
    for top in ("src", "cmd"):
        for path in sorted((root / top).rglob("*.c")):
            module = path.relative_to(root / "src").parts[0] if top == "src" else "cmd"
            found = [name for name in ONE_WORD.findall(path.read_text()) if name != "main"]
            counts[module] = counts.get(module, 0) + len(found)
    return {module: count for module, count in counts.items() if count}


def check_names(root, shrink, errors):
    listed, now = root / "names.txt", one_word_names(root)
    text = listed.read_text() if listed.is_file() else ""
    allowed = {m[1]: int(m[2]) for m in re.finditer(r"^(\w+): (\d+)$", text, re.MULTILINE)}
    for module in sorted(now.keys() | allowed.keys()):
        if now.get(module, 0) > allowed.get(module, 0):
            errors.append(
                f"{module}: {now[module]} static functions are named by one word, names.txt allows"
                f" {allowed.get(module, 0)}: name them by their object"
            )
        elif now.get(module, 0) < allowed.get(module, 0) and not shrink:
            errors.append(
                f"names.txt: {module} has only {now.get(module, 0)} by now;"
                " run tools/tidy.py --shrink"
            )
    if shrink:
        head = "".join(line for line in text.splitlines(True) if line.startswith("#"))
        rows = (
            f"{m}: {min(n, allowed.get(m, 0))}\n" for m, n in sorted(now.items()) if m in allowed
        )
        listed.write_text(head + "".join(rows))


def check_subjects(root, errors):
    """Checks the commits since SUBJECTS_SINCE; does nothing if this clone lacks that commit."""
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD"]
    log = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    for line in log.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_COLUMNS:
            errors.append(
                f"commit {commit}: a subject of {len(subject)} columns, at most {SUBJECT_COLUMNS}"
            )
        if subject.endswith("."):
            errors.append(f"commit {commit}: the subject ends with a full stop")
        if NO_IMPERATIVE.match(subject) and subject.split()[0] not in IMPERATIVES:
            errors.append(f"commit {commit}: '{subject.split()[0]}' is not an imperative")


def check(root, path, errors):
    where = path.relative_to(root)
    text = path.read_text()
    lines = text.splitlines()
    source = path.suffix in (".c", ".h", ".cpp", ".cu", ".cuh")
    if source and len(lines) > FILE_LINES:
        errors.append(f"{where}: {len(lines)} lines, at most {FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if source and len(line) > LINE_COLUMNS and "http" not in line:
            errors.append(f"{where}:{number}: {len(line)} columns, at most {LINE_COLUMNS}")
        if where.parts[0] == "tests" and PRODUCT_SOURCE.match(line):
            errors.append(
                f"{where}:{number}: a test includes a source of the product; let CMake compile that"
                " for it (hl_test_with)"
            )
        if source and BANNED.search(line):
            errors.append(f"{where}:{number}: {BANNED.search(line)[1]} is banned")
        if where.parts[0] in ("src", "cmd", "include"):
            for literal in TEXT.findall(line):
                if found := PHRASES.search(literal):
                    errors.append(
                        f"{where}:{number}: '{found[0]}' in a message; see PHRASES in tools/tidy.py"
                    )
        if where.parts[0] in ("src", "cmd", "include", "python"):
            if found := VAGUE.search(line):
                errors.append(
                    f"{where}:{number}: '{found[0]}': say which process, thread or caller"
                )
        if line != line.rstrip():
            errors.append(f"{where}:{number}: trailing space")
    if source:
        for start, length in functions(lines):
            if length > FUNCTION_LINES:
                errors.append(
                    f"{where}:{start}: function of {length} lines, at most {FUNCTION_LINES}"
                )
    if path.suffix == ".py":
        check_python(where, text, errors)
    if path.suffix == ".md":
        check_document(where, lines, errors)
        check_shape(where, lines, errors)
        check_links(root, path, text, errors)
    if path.suffix == ".h" and (
        where.parts[0] in ("src", "include") or path.stem.endswith("_private")
    ):
        check_contract(where, text[: text.find("#ifndef")], errors)
    if text and not text.endswith("\n"):
        errors.append(f"{where}: no newline at the end")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shrink", action="store_true", help="lower the counts in names.txt to the present ones"
    )
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    args = parser.parse_args()
    root, errors = args.root.resolve(), []
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    suffixes = (
        ".c",
        ".h",
        ".cpp",
        ".cu",
        ".cuh",
        ".py",
        ".capnp",
        ".cmake",
        ".txt",
        ".md",
        ".json",
        ".yaml",
        ".sh",
    )
    files = [
        root / n
        for n in names.stdout.splitlines()
        if n.endswith(suffixes) or n in ("run", ".ci/run")
    ]
    files = [f for f in files if f.is_file() and "corpus" not in f.parts]
    for path in files:
        check(root, path, errors)
    check_comments(root, files, errors)
    check_readmes(root, errors)
    check_names(root, args.shrink, errors)
    check_subjects(root, errors)
    print("\n".join(errors) if errors else f"tidy: {len(files)} files ok")
    sys.exit(1 if errors else 0)


main()

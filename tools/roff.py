"""Manual pages: roff of titles, paragraphs and lists,
and of the Markdown in docs/ (headings, paragraphs, lists, tables, code)."""
import re

INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\(([^)]+)\)")


def escape(text, literal=False):
    """Characters that mean something to roff, and those beyond ASCII.
    In literals a minus sign is one."""
    text = text.replace("\\", "\\e")
    if literal:
        text = (
            text.replace("-", "\\-")
            .replace("'", "\\(aq")
            .replace("`", "\\(ga")
            .replace("^", "\\(ha")
            .replace("~", "\\(ti")
        )
    text = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def bold(text):
    return f"\\fB{escape(text, literal=True)}\\fR"


def italic(text):
    return f"\\fI{escape(text, literal=True)}\\fR"


def inline(text):
    """Markdown's code, emphasis and links. A link is its text;
    one to a page of docs/ is named as well."""
    out, at = [], 0
    for found in INLINE.finditer(text):
        out.append(escape(text[at : found.start()]))
        code, strong, emphasis, label, target = found.groups()
        if code or strong:
            out.append(bold(code or strong))
        elif emphasis:
            out.append(italic(emphasis))
        else:
            out.append(
                escape(label) + (f" ({escape(target)})" if not target.startswith("#") else "")
            )
        at = found.end()
    text = "".join(out) + escape(text[at:])
    return re.sub(r"^([.'])", r"\\&\1", text)


class Page:
    """One page; `text()` is it all."""

    def __init__(self, name, section, date, version, manual):
        self.lines = [
            f'.\\" Generated: edit the option tables and tools/gen_manual.py instead.',
            (
                f'.TH {escape(name.upper(), literal=True)} {section}'
                f' "{date}" "Helios {version}" "{manual}"'
            ),
            '.nh',
            '.ad l',
        ]

    def text(self):
        return "\n".join(self.lines) + "\n"

    def section(self, title):
        self.lines.append(f".SH {escape(title).upper()}")

    def subsection(self, title):
        self.lines.append(f'.SS "{escape(title)}"')

    def paragraph(self, text):
        """`text` in Markdown."""
        if not self.lines[-1].startswith((".SH", ".SS")):
            self.lines.append(".PP")
        self.lines.append(inline(" ".join(text.split())))

    def term(self, term, text):
        """`term` in roff, `text` in Markdown."""
        self.lines += [".TP", term, inline(" ".join(text.split())) or "\\&"]

    def name(self, name, what):
        self.section("name")
        self.lines.append(f"{escape(name, literal=True)} \\- {escape(what)}")

    def synopsis(self, *lines):
        """Each a line in roff."""
        self.section("synopsis")
        for i, line in enumerate(lines):
            self.lines += [".br", line] if i else [line]

    def code(self, lines):
        if not self.lines[-1].startswith((".SH", ".SS")):
            self.lines.append(".PP")
        self.lines += [
            ".RS 4",
            ".nf",
            *(escape(line, literal=True) or "\\&" for line in lines),
            ".fi",
            ".RE",
        ]

    def bullets(self, items):
        for item in items:
            self.lines += [".IP \\(bu 2", inline(" ".join(item.split()))]

    def table(self, rows):
        """The first cell is the term, the others describe it."""
        head, *rest = rows
        for cells in rest:
            text = "; ".join(
                f"{h}: {c}" if len(cells) > 2 else c for h, c in zip(head[1:], cells[1:]) if c
            )
            self.term(inline(cells[0]), text)

    def markdown(self, text):
        """Its first heading is dropped, the others are sections."""
        lines = text.splitlines()
        at = 0
        while at < len(lines):
            line = lines[at]
            if line.startswith("#"):
                level, _, title = line.partition(" ")
                if len(level) > 1:
                    (self.section if len(level) == 2 else self.subsection)(title)
                at += 1
            elif line.startswith("```"):
                end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
                self.code(lines[at + 1 : end])
                at = end + 1
            elif line.startswith("    "):
                end = next(
                    (
                        i
                        for i in range(at, len(lines))
                        if lines[i] and not lines[i].startswith("    ")
                    ),
                    len(lines),
                )
                self.code([each[4:] for each in "\n".join(lines[at:end]).rstrip().splitlines()])
                at = end
            elif line.startswith("|"):
                end = next(
                    (i for i in range(at, len(lines)) if not lines[i].startswith("|")), len(lines)
                )
                rows = [
                    [c.strip() for c in re.split(r"(?<!\\)\|", row.strip().strip("|"))]
                    for row in lines[at:end]
                ]
                self.table([row for row in rows if not set("".join(row)) <= set("-: ")])
                at = end
            elif line.startswith("- "):
                end = next(
                    (i for i in range(at, len(lines)) if not lines[i].startswith(("- ", "  "))),
                    len(lines),
                )
                self.bullets(re.split(r"^- ", "\n".join(lines[at:end]), flags=re.M)[1:])
                at = end
            elif line.strip():
                end = next(
                    (
                        i
                        for i in range(at + 1, len(lines))
                        if not lines[i].strip() or lines[i].startswith(("#", "|", "```", "- "))
                    ),
                    len(lines),
                )
                self.paragraph("\n".join(lines[at:end]))
                at = end
            else:
                at += 1

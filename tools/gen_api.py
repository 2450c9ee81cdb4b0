#!/usr/bin/python3
"""Generates C structs, tables and calls from the schema: `gen_api.py SCHEMA IMPORTS OUT` writes
OUT/api/types.h, OUT/api/types.c and, for every interface, OUT/rpc/INTERFACE_calls.h.

It parses the output of `capnp compile -ocapnp`, which has one field or method on each line and
resolves every name.
"""
from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

# Of the schema: kind of api.h, type in C.
SCALARS = {
    "Bool": ("BOOL", "bool"),
    "Int32": ("INT32", "int32_t"),
    "Int64": ("INT64", "int64_t"),
    "UInt16": ("UINT16", "uint16_t"),
    "UInt32": ("UINT32", "uint32_t"),
    "UInt64": ("UINT64", "uint64_t"),
    "Float64": ("FLOAT64", "double"),
    "Text": ("TEXT", "const char *"),
    "Data": ("DATA", "struct hl_api_data"),
}
FIELD = re.compile(
    r"(\w+)(?: @(\d+))? :(List\((\w+)\)|\w+)(?: = (-?\w+))?((?: \$\w+(?:\([^)]*\))?)*)$"
)
METHOD = re.compile(r"  (\w+) @(\d+) \((.*?)\) -> \((.*?)\)(?: \$.*)?;$")
ENUMERANT = re.compile(r"  (\w+) @(\d+)(?: \$word\(\"([^\"]*)\"\))?;$")
NOTES = ("optional", "map", "rest", "flatten", "nullable")
KEYWORDS = {"default"}  # of C, where a field of that name gets a '_'
HEAD = "/* Made by tools/gen_api.py from {schema}; not to be edited. */\n"


class Field(NamedTuple):
    name: str
    kind: str  # of SCALARS, or the name of an enum or struct
    is_list: bool
    preset: str
    required: bool
    notes: tuple[str, ...] = ()  # of JSON
    word: str = ""  # its name there, if it is another
    shown: str = ""


class Struct(NamedTuple):
    name: str  # for C, without the prefix
    fields: list[Field]


class Method(NamedTuple):
    name: str
    ordinal: int
    params: Struct
    results: Struct


class Enumerant(NamedTuple):
    name: str
    word: str  # what people and JSON see


class Schema(NamedTuple):
    enums: dict[str, list[Enumerant]]
    structs: dict[str, Struct]
    interfaces: dict[str, list[Method]]


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def member(f: Field) -> str:
    name = snake(f.name)
    return name + "_" * (name in KEYWORDS)


def field(text: str) -> tuple[int, Field]:
    match = FIELD.match(text.strip())
    if not match:
        sys.exit(f"gen_api.py: not understood: {text}")
    name, ordinal, whole, element, preset, notes = match.groups()
    texts = dict(re.findall(r"\$(word|shown)\(\"([^\"]*)\"\)", notes))
    return int(ordinal or 0), Field(
        name,
        element or whole,
        element is not None,
        {"true": "1", "false": "0", None: "0"}.get(preset, preset or "0"),
        "$required" in notes,
        tuple(n for n in NOTES if f"${n}" in notes),
        **texts,
    )


def members(text: str) -> list[Field]:
    """The parameters or results of a method, in order."""
    return [field(part)[1] for part in re.split(r", (?=\w+ :)", text)] if text else []


def parse(text: str) -> Schema:
    schema, block, lines = Schema({}, {}, {}), None, {}
    for line in text.splitlines():
        line = re.sub(r"\s+# .*$", "", line)
        if begun := re.match(r"(struct|enum|interface) (\w+) ", line):
            block, lines = begun.groups(), {}
        elif line == "}" and block:
            kind, name = block
            if kind == "struct":
                schema.structs[name] = Struct(snake(name), [lines[n] for n in sorted(lines)])
            elif kind == "enum":
                schema.enums[name] = [lines[n] for n in sorted(lines)]
            else:
                schema.interfaces[name] = [lines[n] for n in sorted(lines)]
            block = None
        elif block and block[0] == "struct":
            ordinal, lines_field = field(line.rstrip(";"))
            lines[ordinal] = lines_field
        elif block and block[0] == "enum":
            name, ordinal, word = ENUMERANT.match(line).groups()
            lines[int(ordinal)] = Enumerant(name, name if word is None else word)
        elif block and (method := METHOD.match(line)):
            name, ordinal, params, results = method.groups()
            whole = f"{snake(block[1])}_{snake(name)}"
            lines[int(ordinal)] = Method(
                name,
                int(ordinal),
                Struct(whole + "_params", members(params)),
                Struct(whole + "_results", members(results)),
            )
        elif block:
            sys.exit(f"gen_api.py: not understood: {line}")
    for name, methods in schema.interfaces.items():
        if [m.ordinal for m in methods] != list(range(len(methods))):
            sys.exit(f"gen_api.py: the ordinals of {name} have gaps")
    return schema


def every_struct(schema: Schema) -> list[Struct]:
    """All structs, each after those that it contains."""
    done, out = set(), []

    def visit(struct: Struct) -> None:
        if struct.name in done:
            return
        done.add(struct.name)
        for f in struct.fields:
            if f.kind in schema.structs and not f.is_list:
                visit(schema.structs[f.kind])
        out.append(struct)

    for struct in schema.structs.values():
        visit(struct)
    for methods in schema.interfaces.values():
        for method in methods:
            visit(method.params)
            visit(method.results)
    return out


def c_type(schema: Schema, f: Field) -> str:
    if f.is_list:
        return f"struct hl_api_{snake(f.kind)}_list "
    if f.kind in schema.structs:
        return f"struct hl_api_{snake(f.kind)} "
    if f.kind in schema.enums:
        return f"enum hl_api_{snake(f.kind)} "
    kind = SCALARS[f.kind][1]
    return kind if kind.endswith("*") else kind + " "


def enum_header(name: str, values: list[Enumerant]) -> list[str]:
    """COUNT is not an enumerator, so that a switch over all of them needs no case for it."""
    low, high = snake(name), snake(name).upper()
    return (
        [f"enum hl_api_{low} {{"]
        + [f"    HL_API_{high}_{snake(v.name).upper()}," for v in values]
        + [
            "};\n"
            f"#define HL_API_{high}_COUNT {len(values)}\n"
            f"extern const struct hl_api_enum hl_api_{low}_enum;\n"
            f"static inline const char *hl_api_{low}_name(enum hl_api_{low} value)\n"
            "{\n"
            f"    return hl_api_enum_word(&hl_api_{low}_enum, (int)value);\n"
            "}\n"
            f"static inline HL_CHECK hl_status hl_api_{low}_parse(const char *word, enum"
            f" hl_api_{low} *out)\n{{\n"
            "    int value;\n"
            f"    HL_TRY(hl_api_enum_parse(&hl_api_{low}_enum, word, &value));\n"
            f"    *out = (enum hl_api_{low})value;\n"
            "    return HL_OK;\n}\n"
        ]
    )


def types_header(schema: Schema) -> str:
    out = [
        "#ifndef HL_API_TYPES_H\n"
        "#define HL_API_TYPES_H\n\n"
        "#include \"api/api.h\"\n\n"
        "#ifdef __cplusplus\n"
        "extern \"C\" {\n#endif\n"
    ]
    for name, values in schema.enums.items():
        out += enum_header(name, values)
    elements = {f.kind for s in every_struct(schema) for f in s.fields if f.is_list}
    for name in sorted(elements):
        element = (
            f"struct hl_api_{snake(name)} "
            if name in schema.structs
            else c_type(schema, Field("", name, False, "", False))
        )
        out.append(
            f"struct hl_api_{snake(name)}_list {{\n    {element}*items;\n    size_t count;\n}};"
        )
    for struct in every_struct(schema):
        out.append(f"\nstruct hl_api_{struct.name} {{")
        out += [f"    {c_type(schema, f)}{member(f)};" for f in struct.fields] or [
            "    char nothing;"
        ]
        out.append("};")
    for struct in every_struct(schema):
        out.append(f"extern const struct hl_api_type hl_api_{struct.name}_type;")
    for name, methods in schema.interfaces.items():
        out.append(
            f"extern const struct hl_api_method hl_api_{snake(name)}_methods[{len(methods)}];"
        )
        out.append(f"extern const struct hl_api_interface hl_api_{snake(name)};")
    out.append("\n#ifdef __cplusplus\n}\n#endif\n\n#endif")
    return "\n".join(out) + "\n"


def field_row(schema: Schema, struct: Struct, f: Field) -> str:
    row = [
        f".name = \"{f.word or f.name}\"",
        f".offset = offsetof(struct hl_api_{struct.name}, {member(f)})",
    ]
    if f.kind in schema.structs:
        row += [".kind = HL_API_STRUCT", f".type = &hl_api_{snake(f.kind)}_type"]
    elif f.kind in schema.enums:
        row += [".kind = HL_API_ENUM", f".words = &hl_api_{snake(f.kind)}_enum"]
    else:
        row.append(f".kind = HL_API_{SCALARS[f.kind][0]}")
    preset = (
        f"HL_API_{snake(f.kind).upper()}_{snake(f.preset).upper()}"
        if f.kind in schema.enums and f.preset != "0"
        else f.preset
    )
    row += [f".{note} = true" for note in f.notes] + [
        f".shown = HL_API_SHOWN_{f.shown.upper()}"
    ] * (f.shown != "")
    row += (
        [".list = true"] * f.is_list
        + [".required = true"] * f.required
        + [f".preset = {preset}"] * (preset != "0")
    )
    return "    {" + ", ".join(row) + "},"


def types_source(schema: Schema) -> str:
    out = ["#include \"api/types.h\"\n"]
    for name, values in schema.enums.items():
        low = snake(name)
        words = ", ".join(f'"{v.word}"' for v in values)
        out.append(
            f"static const char *const {low}_words[] = {{{words}}};\n"
            f"const struct hl_api_enum hl_api_{low}_enum = {{\"{low.replace('_', ' ')}\","
            f" {low}_words, {len(values)}}};"
        )
    for struct in every_struct(schema):
        if struct.fields:
            out.append(f"static const struct hl_api_field {struct.name}_fields[] = {{")
            out += [field_row(schema, struct, f) for f in struct.fields]
            out.append("};")
        fields = (
            f".fields = {struct.name}_fields, .field_count = {len(struct.fields)}"
            if struct.fields
            else ".field_count = 0"
        )
        out.append(
            f"const struct hl_api_type hl_api_{struct.name}_type = {{.name = \"{struct.name}\", "
            f".size = sizeof(struct hl_api_{struct.name}), {fields}}};"
        )
    for name, methods in schema.interfaces.items():
        low = snake(name)
        out.append(f"const struct hl_api_method hl_api_{low}_methods[{len(methods)}] = {{")
        out += [
            f"    {{\"{m.name}\", {m.ordinal}, &hl_api_{m.params.name}_type,"
            f" &hl_api_{m.results.name}_type}},"
            for m in methods
        ]
        out.append(
            "};\n"
            f"const struct hl_api_interface hl_api_{low} = {{\"{name}\", hl_api_{low}_methods,"
            f" {len(methods)}}};"
        )
    return "\n".join(out) + "\n"


CALL = """
static inline HL_CHECK hl_status hl_call_{whole}(struct hl_rpc_peer *peer, \
const struct hl_api_{whole}_params *params,
    int timeout_ms, struct hl_arena *arena, struct hl_api_{whole}_results *results)
{{
    return hl_rpc_call(peer, &hl_api_{low}_methods[{ordinal}], params, timeout_ms, arena, results);
}}

typedef void (*hl_{whole}_done)(void *arg, hl_status st, const char *text, \
const struct hl_api_{whole}_results *results);

static inline void hl_{whole}_finish(hl_rpc_callback done, void *arg, hl_status st, \
const char *text, const void *results)
{{
    ((hl_{whole}_done)done)(arg, st, text, (const struct hl_api_{whole}_results *)results);
}}

static inline void hl_call_{whole}_async(struct hl_rpc_peer *peer, \
const struct hl_api_{whole}_params *params,
    int timeout_ms, struct hl_loop *loop, hl_{whole}_done done, void *arg)
{{
    hl_rpc_call_async(peer, &hl_api_{low}_methods[{ordinal}], params, timeout_ms, loop, \
hl_{whole}_finish, (hl_rpc_callback)done, arg);
}}

static inline void hl_reply_{whole}(struct hl_rpc_call *call, \
const struct hl_api_{whole}_results *results)
{{
    hl_rpc_reply(call, &hl_api_{low}_methods[{ordinal}], results);
}}"""


def calls_header(name: str, methods: list[Method]) -> str:
    low = snake(name)
    guard = f"HL_RPC_{low.upper()}_CALLS_H"
    out = [
        f"#ifndef {guard}\n#define {guard}\n\n#include \"api/types.h\"\n#include \"rpc/rpc.h\"\n"
    ]
    for m in methods:
        out.append(CALL.format(whole=f"{low}_{snake(m.name)}", low=low, ordinal=m.ordinal))
    out.append(
        "\n"
        "/* A handler that is NULL is answered by HL_EUNSUPPORTED. `params` live as long as the"
        " call. */\n"
        f"struct hl_{low}_handlers {{"
    )
    out += [
        f"    void (*{snake(m.name)})(void *arg, struct hl_rpc_call *call, const struct"
        f" hl_api_{m.params.name} *params);"
        for m in methods
    ]
    out.append(
        "};\n\n"
        f"static inline bool hl_{low}_dispatch(const void *handlers, void *arg, struct hl_rpc_call"
        " *call, unsigned ordinal,\n"
        "    const void *params)\n{\n"
        f"    const struct hl_{low}_handlers *h = (const struct hl_{low}_handlers *)handlers;\n"
        "    switch (ordinal) {"
    )
    for m in methods:
        out.append(
            f"    case {m.ordinal}:\n"
            f"        if (call != NULL && h->{snake(m.name)} != NULL)\n"
            f"            h->{snake(m.name)}(arg, call, (const struct hl_api_{m.params.name}"
            " *)params);\n"
            f"        return h->{snake(m.name)} != NULL;"
        )
    out.append("    default:\n        return false;\n    }\n}\n")
    out.append(
        "/* Serves `handlers`, which must outlive the server; the rest as hl_rpc_serve. */\n"
        f"static inline HL_CHECK hl_status hl_serve_{low}(struct hl_rpc *rpc, const struct"
        " hl_rpc_serve_opts *opts,\n"
        f"    const struct hl_{low}_handlers *handlers, struct hl_rpc_server **out)\n"
        "{\n"
        "    struct hl_rpc_serve_opts all = *opts;\n"
        f"    all.api = &hl_api_{low};\n"
        "    all.handlers = handlers;\n"
        f"    all.dispatch = hl_{low}_dispatch;\n"
        "    return hl_rpc_serve(rpc, &all, out);\n}\n"
    )
    out.append("#endif")
    return "\n".join(out) + "\n"


def main() -> None:
    source, imports, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    text = subprocess.run(
        ["capnp", "compile", "-ocapnp", f"-I{imports}", source],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    schema = parse(text)
    head = HEAD.format(schema=pathlib.Path(source).name)
    made = {"api/types.h": types_header(schema), "api/types.c": types_source(schema)}
    made |= {
        f"rpc/{snake(name)}_calls.h": calls_header(name, methods)
        for name, methods in schema.interfaces.items()
    }
    for name, content in made.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + content)


if __name__ == "__main__":
    main()

"""layers.txt is the law: a module includes headers only of itself and of the modules it names."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Third-party headers are fenced to the modules that wrap them.
FENCE = {
    "sqlite3.h": {"store"}, "uv.h": {"os", "l3d", "controller", "agent", "mem", "hw"}, "yaml.h": {"conf"},
    "ucp/": {"net"}, "uct/": {"net"}, "ucs/": {"net"}, "capnp/": {"rpc"}, "kj/": {"rpc"},
    "hwloc.h": {"hw"}, "zmq.h": {"net"}, "isa-l.h": {"base"}, "zlib.h": {"base"},
}


def read_law():
    allowed = {}
    for line in (ROOT / "layers.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, deps = line.partition(":")
        for dep in deps.split():
            if dep not in allowed:
                sys.exit(f"layers.txt: {name} names {dep}, which is not defined above it")
        allowed[name] = set(deps.split()) | {name}
    return allowed


def main():
    allowed = read_law()
    errors = []
    files = [f for d in ("src", "cmd") for f in sorted((ROOT / d).rglob("*")) if f.suffix in (".c", ".h", ".cpp", ".cu", ".cuh")]
    for path in files:
        parts = path.relative_to(ROOT).parts
        module = parts[1] if parts[0] == "src" else "cmd"
        where = path.relative_to(ROOT)
        if module not in allowed:
            errors.append(f"{where}: module {module} is not in layers.txt")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            own = re.match(r'\s*#\s*include\s+"([a-z0-9_]+)/', line)
            if own and own[1] in allowed and own[1] not in allowed[module]:
                errors.append(f"{where}:{number}: {module} may not use {own[1]} (layers.txt)")
            third = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
            for prefix, modules in FENCE.items():
                if third and third[1].startswith(prefix) and module not in modules:
                    errors.append(f"{where}:{number}: <{third[1]}> belongs to {', '.join(sorted(modules))}")
    print("\n".join(errors) if errors else f"layers: {len(files)} files ok")
    sys.exit(1 if errors else 0)


main()

"""The machine's two NUMA nodes, and what the kernel says a process may use of them."""
import pathlib
import re

CPUS = {0: "0-1", 1: "2-3"}


def allowed(pid, what):
    """A list as "0-1"; what: Cpus or Mems."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return re.search(rf"^{what}_allowed_list:\s*(\S+)", text, re.M)[1]

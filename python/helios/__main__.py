"""python -m helios info: what this process would see as a rank."""
from __future__ import annotations

import dataclasses
import sys

from . import HeliosError, Rank, Session, __version__, _abi


def info() -> int:
    """Print identity, versions, and the model if HELIOS_MODEL names one; return the exit status."""
    print(f"python package   {__version__}")
    try:
        library = _abi.library()
        print(f"libhelios        {library.helios_version().decode()} ({library._name})")
        me = Rank.from_environment()
        for field in dataclasses.fields(me):
            print(f"{field.name:16} {getattr(me, field.name)}")
        if me.model:
            with Session(rank=me) as session:
                listed = session._list()
                print(f"visible version  {listed.version}")
                for shard in listed.shards:
                    print(f"  {shard.part:16} {shard.size:12} bytes  {shard.tensors} "
                          f"tensor{'s' if shard.tensors != 1 else ''}")
    except HeliosError as error:
        print(f"helios: {error}", file=sys.stderr)
        return 1
    return 0


USAGE = "usage: python -m helios info    (what this process would see as a rank)"


def main() -> int:
    words = sys.argv[1:]
    if words in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if words != ["info"]:
        print(f"helios: {words[0]!r} is not a command\n{USAGE}" if words and words[0] != "info"
              else USAGE, file=sys.stderr)
        return 2
    return info()


if __name__ == "__main__":
    sys.exit(main())

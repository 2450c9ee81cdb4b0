"""python -m helios info: what this process would see as a rank."""
from __future__ import annotations

import dataclasses
import sys

from . import HeliosError, Rank, Session, __version__, _abi


def info() -> int:
    """Print identity and versions; the model too when HELIOS_MODEL names one. Exit status."""
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
                    print(f"  {shard.part:16} {shard.size:12} bytes  {shard.tensors} tensors")
    except HeliosError as error:
        print(f"helios: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    if sys.argv[1:] != ["info"]:
        print("usage: python -m helios info", file=sys.stderr)
        return 2
    return info()


if __name__ == "__main__":
    sys.exit(main())

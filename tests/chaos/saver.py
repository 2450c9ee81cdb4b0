"""One rank of the save phase: writes the model's tensors with content generated from a seed, and
commits.

    saver.py SOURCE LIBRARY SHAPES SEED STEP    (SHAPES: JSON file, "pp/tp" -> {tensor: shape})
"""
import ctypes
import json
import os
import pathlib
import sys
import types


class Stub(types.ModuleType):
    """The save needs only torch's dtype names, and importing torch takes seconds."""

    Tensor = type("Tensor", (), {})

    def __getattr__(self, name):
        return f"torch.{name}"


class Made:
    dtype = "torch.float32"

    def __init__(self, shape, data):
        self.shape, self.data = tuple(shape), data

    def read_into(self, address, size):
        assert size == len(self.data), (size, len(self.data))
        ctypes.memmove(address, self.data, size)


def main():
    source, library, shapes, seed, step = sys.argv[1:]
    os.environ["HELIOS_LIBRARY"] = library
    sys.modules["torch"] = Stub("torch")
    sys.path[:0] = [str(pathlib.Path(source, d)) for d in ("python", "tests", "tests/chaos")]
    import content
    import helios

    with helios.Session() as session:
        me = session.rank
        mine = json.loads(pathlib.Path(shapes).read_text())[f"{me.pp}/{me.tp}"]
        state = {}
        for name, shape in mine.items():
            count = 4
            for extent in shape:
                count *= extent
            state[name] = Made(shape, content.saved_bytes(seed, me.pp, me.tp, name, count))
        saved = session.save_state_dict(state, step=int(step), meta={"seed": seed})
        print(f"saved version {saved.version}", flush=True)


if __name__ == "__main__":
    main()

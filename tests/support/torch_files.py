#!/usr/bin/python3
"""Files of torch.save for tests of src/core/torch, each with its expected tensors: NAME.pt,
NAME.txt, NAME.raw.

    torch_files.py DIR files|megatron|dcp
    torch_files.py DIR bin      the safetensors files of the checkpoint in DIR become
                                pytorch_model.bin files

NAME.txt has a line for each tensor, `name dtype [shape] [stride] bytes`; NAME.raw has their
elements in C order, one after the other. Exit status 77: torch is missing.
"""
import argparse
import collections
import dataclasses
import enum
import json
import pathlib
import pickle
import sys
import types
import zipfile

import checkpoints

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit(77)

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def elements(tensor):
    """The bytes in C order, also for dtypes that numpy lacks."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).tolist())


def flatten(value, path=()):
    if isinstance(value, torch.Tensor):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from flatten(inner, (*path, str(index)))


def describe(directory, name, value):
    with open(directory / f"{name}.txt", "w") as text, open(directory / f"{name}.raw", "wb") as raw:
        for key, tensor in flatten(value):
            data = elements(tensor)
            shape = ",".join(map(str, tensor.shape))
            stride = ",".join(map(str, tensor.stride()))
            print(f"{key} {DTYPES[tensor.dtype]} [{shape}] [{stride}] {len(data)}", file=text)
            raw.write(data)


def save(directory, name, value, **options):
    torch.save(value, directory / f"{name}.pt", **options)
    describe(directory, name, value)


class Opaque:
    """A class unknown to a reader."""

    def __init__(self, inner):
        self.inner = inner


class Colour(enum.Enum):
    RED = 1


def state_dict():
    torch.manual_seed(1)
    base = torch.randn(6, 4)
    state = collections.OrderedDict()
    state["plain"] = base
    state["rows"] = base[2:5]  # a view into another tensor's storage
    state["tied"] = base
    state["parameter"] = torch.nn.Parameter(torch.randn(3, 5).bfloat16())
    state["scalar"] = torch.tensor(7, dtype=torch.int64)
    state["empty"] = torch.empty(0, 3, dtype=torch.float16)
    state["column"] = torch.arange(5).reshape(5, 1)[:, :]
    for dtype, name in DTYPES.items():
        state["dtypes." + name] = torch.randint(0, 2, (2, 3)).to(dtype)
    # what torch.nn.Module.state_dict has
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state


def nested():
    return {
        "model": {"layers": [torch.ones(2), torch.zeros(1, 2)], "names": ("a", None, 1.5)},
        "state": {0: {"exp_avg": torch.full((3,), 2.0)}, 1: {"step": 9}},
        "opaque": Opaque("text"),
        "colour": Colour.RED,
        "size": torch.Size([1, 2]),
        "dtype": torch.float32,
        "args": argparse.Namespace(a=1, b="two"),
        "set": {1, 2},
        "big": 2**80,
    }


def write_files(directory):
    state = state_dict()
    save(directory, "state", state)
    save(
        directory,
        "old",
        {key: value for key, value in state.items()},
        _use_new_zipfile_serialization=False,
    )
    save(directory, "protocol5", dict(state), pickle_protocol=5)
    save(directory, "nested", nested())
    save(
        directory,
        "strided",
        {"first": torch.ones(2, 2), "turned": torch.arange(6.0).reshape(2, 3).t()},
    )
    save(directory, "list", [torch.ones(1)])
    torch.save({"hidden": Opaque(torch.ones(3))}, directory / "hidden.pt")
    torch.save({"sparse": torch.eye(3).to_sparse()}, directory / "sparse.pt")
    torch.save({"number": 5}, directory / "number.pt")
    torch.save({"complex": torch.ones(2, dtype=torch.complex64)}, directory / "complex.pt")
    torch.save(torch.nn.Linear(2, 2), directory / "module.pt")
    torch.save(
        torch.nn.Linear(2, 2), directory / "module_old.pt", _use_new_zipfile_serialization=False
    )
    torch.save(
        {"a": torch.arange(3.0), "b": torch.nn.Parameter(torch.ones(2).half())},
        directory / "small.pt",
    )
    torch.save(
        {"a": torch.arange(3.0)}, directory / "small_old.pt", _use_new_zipfile_serialization=False
    )
    with zipfile.ZipFile(directory / "small.pt") as source, zipfile.ZipFile(
        directory / "deflated.pt", "w", compression=zipfile.ZIP_DEFLATED
    ) as packed:
        for entry in source.infolist():
            packed.writestr(entry.filename, source.read(entry))


def write_megatron(directory):
    args = argparse.Namespace(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        expert_model_parallel_size=1,
        num_layers=4,
        hidden_size=8,
        ffn_hidden_size=12,
        num_attention_heads=4,
        group_query_attention=True,
        num_query_groups=2,
        padded_vocab_size=64,
        max_position_embeddings=16,
        num_experts=None,
        untie_embeddings_and_output_weights=True,
        swiglu=True,
        params_dtype=torch.bfloat16,
        colour=Colour.RED,
    )
    torch.manual_seed(2)
    common = {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": 10,
        "rng_state": [{"cpu": torch.get_rng_state()}],
    }
    model = collections.OrderedDict(
        {
            "embedding.word_embeddings.weight": torch.randn(32, 8).bfloat16(),
            "decoder.layers.0.self_attention._extra_state": None,
            "decoder.layers.0.mlp.linear_fc1.weight": torch.randn(12, 8).bfloat16(),
        }
    )
    torch.save({**common, "model": model}, directory / "rank.pt")
    describe(directory, "rank", model)
    chunks = {"model0": {"a": torch.ones(2)}, "model1": {"a": torch.zeros(2), "b": torch.ones(1)}}
    torch.save({**common, **chunks}, directory / "chunks.pt")
    describe(directory, "chunks", chunks)


def fake(module, name, *fields):
    """A dataclass that pickles under another module's name, as the real one would."""
    made = dataclasses.make_dataclass(name, fields, eq=False)
    made.__module__ = module
    setattr(sys.modules[module], name, made)
    return made


def modules(*names):
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))


def write_dcp_now(directory, tensors):
    """As torch 2 writes them, whose classes this torch lacks: chunks of rows in two files."""
    metadata, filesystem = (
        "torch.distributed.checkpoint.metadata",
        "torch.distributed.checkpoint.filesystem",
    )
    modules("torch.distributed.checkpoint", metadata, filesystem)
    chunk = fake(metadata, "ChunkStorageMetadata", "offsets", "sizes")
    tensor_info = fake(metadata, "TensorStorageMetadata", "properties", "size", "chunks")
    properties = fake(metadata, "TensorProperties", "dtype", "requires_grad")
    properties.__getstate__ = lambda self: (
        self.dtype,
        torch.strided,
        self.requires_grad,
        Colour.RED,
        False,
    )
    bytes_info = fake(metadata, "BytesStorageMetadata")
    index = fake(metadata, "MetadataIndex", "fqn", "offset", "index")
    place = fake(filesystem, "_StorageInfo", "relative_path", "offset", "length")
    whole = fake(
        metadata, "Metadata", "state_dict_metadata", "planner_data", "storage_data", "storage_meta"
    )
    files = [open(directory / f"__{rank}_0.distcp", "wb") for rank in range(2)]
    members, places = {}, {}
    for name, tensor in tensors.items():
        cut = tensor.shape[0] // 2 if tensor.dim() else 0
        parts = [(0, tensor[:cut]), (cut, tensor[cut:])] if cut else [(0, tensor)]
        chunks = []
        for number, (row, part) in enumerate(parts):
            out = files[number]
            begin = torch.Size([row] + [0] * (part.dim() - 1)) if part.dim() else torch.Size([])
            at = out.tell()
            torch.save(part.clone(), out)
            places[index(name, begin, number)] = place(
                out.name.rsplit("/", 1)[1], at, out.tell() - at
            )
            chunks.append(chunk(begin, part.shape))
        members[name] = tensor_info(properties(tensor.dtype, False), tensor.shape, chunks)
    at = files[0].tell()
    torch.save({"step": 3}, files[0])
    members["extra"] = bytes_info()
    places[index("extra", None, None)] = place("__0_0.distcp", at, files[0].tell() - at)
    for out in files:
        out.close()
    (directory / ".metadata").write_bytes(pickle.dumps(whole(members, None, places, None)))
    members["extra2"] = bytes_info()
    (directory / "missing.metadata").write_bytes(pickle.dumps(whole(members, None, places, None)))
    del members["extra2"]
    members["layers.weight"].chunks.pop()
    (directory / "hole.metadata").write_bytes(pickle.dumps(whole(members, None, places, None)))


def own_checkpoint():
    """The module of torch 1.13's own writer (Python 3.11 refuses its dataclasses unchanged)."""
    plain = dataclasses.dataclass

    def hashed(cls=None, **options):
        if cls is None:
            return lambda inner: plain(inner, **options)
        return plain(
            cls, **({} if "__hash__" in cls.__dict__ else {"unsafe_hash": True}), **options
        )

    dataclasses.dataclass = hashed
    from torch.distributed._shard import checkpoint

    dataclasses.dataclass = plain
    return checkpoint


def write_dcp_then(directory, tensors):
    checkpoint = own_checkpoint()
    checkpoint.save_state_dict(
        tensors,
        checkpoint.FileSystemWriter(directory / "own", single_file_per_rank=True),
        no_dist=True,
    )


def write_dcp(directory):
    torch.manual_seed(3)
    tensors = {
        "layers.weight": torch.randn(6, 3),
        "norm": torch.randn(5).bfloat16(),
        "step": torch.tensor(4.0),
    }
    describe(directory, "dcp", tensors)
    write_dcp_now(directory, tensors)
    if torch.__version__.startswith("1.13"):
        write_dcp_then(directory, tensors)


def write_bin(directory):
    """As older versions of Transformers saved them: tied tensors share a storage, parameters stay
    parameters."""
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    weight_map = {}
    files = sorted(directory.glob("*.safetensors"))
    for number, path in enumerate(files, 1):
        name = (
            "pytorch_model.bin"
            if len(files) == 1
            else f"pytorch_model-{number:05}-of-{len(files):05}.bin"
        )
        header, data = checkpoints.read(path)
        state, storages = collections.OrderedDict(), {}
        for key, raw in data.items():
            flat = storages.setdefault(raw, torch.frombuffer(bytearray(raw), dtype=torch.uint8))
            tensor = flat.view(dtypes[header[key]["dtype"]]).reshape(header[key]["shape"])
            state[key] = (
                torch.nn.Parameter(tensor)
                if tensor.is_floating_point() and "norm" in key
                else tensor
            )
            weight_map[key] = name
        torch.save(state, directory / name)
        path.unlink()
    if len(files) > 1:
        (directory / "model.safetensors.index.json").unlink()
        (directory / "pytorch_model.bin.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map})
        )


if __name__ == "__main__":
    {"files": write_files, "megatron": write_megatron, "dcp": write_dcp, "bin": write_bin}[
        sys.argv[2]
    ](pathlib.Path(sys.argv[1]))

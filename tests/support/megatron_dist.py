"""Megatron-LM's format `torch_dist` for megatron_checkpoints.py."""
import pickle

import torch

import torch_files
from megatron_models import HIDDEN, LAYERS
from megatron_torch import (
    KINDS,
    STEP,
    cut,
    namespace,
    split_of,
    te_name,
    trained,
    with_padding,
    write_config,
)

# ShardedObjects
OBJECTS = (
    "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_4",
    "rng_state/shard_0.0_1.1",
)


class Dcp:
    """The folder of a PyTorch distributed checkpoint, written rank by rank with torch 2's class
    names. Megatron-core 0.15 has its own Metadata; earlier versions put mcore_data into torch's."""

    def __init__(self, directory, mcore=False):
        checkpoint = "torch.distributed.checkpoint"
        metadata, filesystem = f"{checkpoint}.metadata", f"{checkpoint}.filesystem"
        strategies = "megatron.core.dist_checkpointing.strategies.torch"
        torch_files.modules(checkpoint, metadata, filesystem, "megatron", strategies)
        self.chunk = torch_files.fake(metadata, "ChunkStorageMetadata", "offsets", "sizes")
        self.info = torch_files.fake(
            metadata, "TensorStorageMetadata", "properties", "size", "chunks"
        )
        self.bytes = torch_files.fake(metadata, "BytesStorageMetadata")
        self.properties = torch_files.fake(metadata, "TensorProperties", "dtype", "requires_grad")
        self.properties.__getstate__ = lambda it: (
            it.dtype,
            torch.strided,
            it.requires_grad,
            torch_files.Colour.RED,
            False,
        )
        self.properties.__setstate__ = lambda it, state: it.__dict__.update(
            dtype=state[0], requires_grad=state[2]
        )
        self.index = torch_files.fake(metadata, "MetadataIndex", "fqn", "offset", "index")
        self.place = torch_files.fake(
            filesystem, "_StorageInfo", "relative_path", "offset", "length"
        )
        self.storage_meta = torch_files.fake(metadata, "StorageMeta", "checkpoint_id", "save_id")
        self.metadata = torch_files.fake(
            *(strategies, "MCoreMetadata") if mcore else (metadata, "Metadata"),
            *("state_dict_metadata", "planner_data", "storage_data"),
            *("storage_meta", "version", "mcore_data"),
        )
        self.directory, self.files, self.members, self.places = directory, {}, {}, {}

    def put(self, rank, name, whole, begin, tensor):
        """Rank `rank` writes the piece of `name`, of shape `whole`, that begins there; the first
        rank to write it counts."""
        info = self.members.setdefault(
            name, self.info(self.properties(tensor.dtype, False), torch.Size(whole), [])
        )
        begin = torch.Size(begin)
        if any(chunk.offsets == begin for chunk in info.chunks):
            return
        self.places[self.index(name, begin, len(info.chunks))] = self.save(
            rank, tensor.contiguous().clone()
        )
        info.chunks.append(self.chunk(begin, torch.Size(tensor.shape)))

    def save(self, rank, value):
        if rank not in self.files:
            self.files[rank] = open(self.directory / f"__{rank}_0.distcp", "wb")
        file = self.files[rank]
        at = file.tell()
        torch.save(value, file)
        return self.place(f"__{rank}_0.distcp", at, file.tell() - at)

    def close(self):
        for name in OBJECTS:
            self.members[name] = self.bytes()
            self.places[self.index(name, None, None)] = self.save(0, [None])
        for file in self.files.values():
            file.close()
        mcore_data = {
            name: {"nd_reformulated_orig_global_shape": info.size}
            for name, info in self.members.items()
            if name not in OBJECTS
        }
        meta = self.storage_meta(None, "id")
        made = self.metadata(self.members, None, self.places, meta, "1.0.0", mcore_data)
        (self.directory / ".metadata").write_bytes(pickle.dumps(made))


class OwnDcp:
    """The same with torch's own writer, as Megatron calls it: a ShardedTensor for each name. One
    process holds all shards."""

    def __init__(self, directory):
        self.directory, self.shards = directory, {}

    def put(self, _rank, name, whole, begin, tensor):
        _, pieces = self.shards.setdefault(name, (whole, {}))
        pieces.setdefault(tuple(begin), tensor.contiguous().clone())

    def sharded(self, whole, pieces):
        from torch.distributed._shard.metadata import ShardMetadata
        from torch.distributed._shard.sharded_tensor import (
            Shard,
            ShardedTensor,
            ShardedTensorMetadata,
            TensorProperties,
        )

        cut = [
            ShardMetadata(list(begin), list(tensor.shape), "rank:0/cpu")
            for begin, tensor in pieces.items()
        ]
        properties = TensorProperties(dtype=next(iter(pieces.values())).dtype)
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            [Shard(tensor, it) for it, tensor in zip(cut, pieces.values())],
            ShardedTensorMetadata(
                shards_metadata=cut, size=torch.Size(whole), tensor_properties=properties
            ),
        )

    def close(self):
        checkpoint = torch_files.own_checkpoint()
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        state = {name: self.sharded(*value) for name, value in self.shards.items()}
        state.update({name: [None] for name in OBJECTS})
        checkpoint.save_state_dict(
            state,
            checkpoint.FileSystemWriter(self.directory, single_file_per_rank=True),
            no_dist=True,
        )
        torch.distributed.destroy_process_group()


class WithState:
    """Each parameter's state beside it: with its shape, as `fully_reshardable` and other optimizers
    save it, or `flat`, as fully_sharded_model_space did: a block of the parameter as a vector,
    divided roughly in halves between two data ranks."""

    def __init__(self, out, flat, main="param", chained=""):
        self.out, self.flat, self.main, self.chained = out, flat, main, chained

    def put(self, rank, name, whole, begin, tensor):
        self.out.put(rank, name, whole, begin, tensor)
        for kind, of in KINDS.items():
            key = f"{self.chained}optimizer.state.{self.main if kind == 'param' else kind}.{name}"
            if not trained(name) or (kind == "param" and tensor.dtype == torch.float32):
                continue
            if not self.flat:
                self.out.put(rank, key, whole, begin, of(tensor))
                continue
            blocks = [n // size for n, size in zip(whole, tensor.shape)]
            at = [b // size for b, size in zip(begin, tensor.shape)]
            vector, half = of(tensor).reshape(*[1] * tensor.dim(), -1), tensor.numel() * 3 // 7
            for low, high in ((0, half), (half, tensor.numel())):
                if low < high:
                    shape, piece = (*blocks, tensor.numel()), vector[..., low:high]
                    self.out.put(rank + 100 * (low > 0), key, shape, (*at, low), piece)

    def close(self):
        self.out.close()


def put_cut(out, rank, name, value, share, axes=(), where=(), singles=False):
    """A rank's share (ranks, number); the axes of layers and experts are in front of the matrix.
    Gate and up of linear_fc1 are two pieces, or two tensors if each tensor is of one layer and
    expert."""
    (tensor, rule), (ranks, number) = value, share
    halves = tensor if rule == "pairs" else [tensor]
    for i, half in enumerate(halves):
        part = cut((half, "rows" if rule == "pairs" else rule), ranks, number)
        at, whole = [0] * part.dim(), list(half.shape)
        if rule == "columns":
            at[1] = number * part.shape[1]
        elif rule != "whole":
            at[0] = number * part.shape[0]
        if rule == "pairs" and not singles:
            at[0] += i * len(half)
            whole[0] *= 2
        half_name = name + ("_w", "_v")[i] if rule == "pairs" and singles else name
        piece = part.reshape(*[1] * len(axes), *part.shape)
        out.put(rank, half_name, (*axes, *whole), (*where, *at), piece)


def put_layer(out, rank, prefix, layer, experts, split, t, axis=None):
    """`axis`: (layers, this layer) in front of each tensor; without it the number is in the
    prefix."""
    axes, where = ((axis[0],), (axis[1],)) if axis else ((), ())
    etp, singles = split["etp"] or split["tp"], split["singles"]
    latent = "self_attention.linear_kv_down_proj.weight" in layer
    for name, value in layer.items():
        # The local spec maps its names to those of Transformer Engine, even where that has a norm
        # of its own.
        name = te_name(name, latent, experts if split["te"] else [])
        put_cut(out, rank, prefix + name, value, (split["tp"], t), axes, where, singles)
    for e, expert in enumerate(experts):
        for name, value in expert.items():
            share = (etp, t % etp)
            if singles:
                name = f"{prefix}mlp.experts.experts.{e}.{name}"
                put_cut(out, rank, name, value, share, axes, where, True)
            else:
                name = f"{prefix}mlp.experts.experts.{name}"
                put_cut(out, rank, name, value, share, (*axes, len(experts)), (*where, e))


def put_rank(m, out, split, place, ends):
    """place is (pp, tp), ends the embedding and the head."""
    (pp, t), tp, singles = place, split["tp"], split["singles"]
    rank, each = t + tp * pp, LAYERS // split["pp"]
    alike = m.args.get("moe_layer_freq", 1) == 1 and not singles
    if pp == 0:
        for name, value in ends[0].items():
            put_cut(out, rank, name, value, (tp, t))
    for number in range(pp * each, (pp + 1) * each):
        prefix = "decoder.layers." if alike else f"decoder.layers.{number}."
        layer, experts = m.layers[number], m.experts[number]
        axis = (LAYERS, number) if alike else None
        put_layer(out, rank, prefix, layer, experts, split, t, axis)
    if pp < split["pp"] - 1:
        return
    for name, value in ends[1].items():
        put_cut(out, rank, name, value, (tp, t))
    for i, (beside, layer, experts) in enumerate(m.mtp):
        for name, value in beside.items():
            put_cut(out, rank, f"mtp.layers.{i}.{name}", value, (tp, t))
        put_layer(out, rank, f"mtp.layers.{i}.transformer_layer.", layer, experts, split, t)


def put_optimizer(out):
    """Megatron's distributed optimizer: tensors with the parameters' names, and a buffer with
    holes."""
    norm = "optimizer.state.exp_avg.decoder.final_layernorm.weight"
    out.put(0, norm, (HIDDEN,), (0,), torch.ones(HIDDEN))
    buffer = (
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0"
        ".dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg"
    )
    out.put(0, buffer, (256,), (0,), torch.ones(100))


def write_dist(m, directory, iteration=20, state=None, **given):
    """state: how the optimizer's state is saved; None: as the buffers of Megatron's ranks."""
    split = split_of(**given)
    embedding, head, rows = with_padding(m, split["unit"])
    folder = directory / f"iter_{iteration:07}"
    folder.mkdir(parents=True)
    out = OwnDcp(folder) if split["own"] else Dcp(folder, mcore=split["singles"])
    out = WithState(out, **state) if state else out
    for pp in range(split["pp"]):
        for t in range(split["tp"]):
            put_rank(m, out, split, (pp, t), (embedding, head))
    put_optimizer(out) if not split["own"] and not state else None
    out.close()
    torch.save(
        {
            "args": namespace(m, split, rows),
            "checkpoint_version": 3.0,
            "iteration": iteration,
            "opt_param_scheduler": {"max_lr": 1e-4},
            "optimizer": {
                "optimizer": {"param_groups": [{"lr": 1e-4, "step": STEP}]},
                "param_state_sharding_type": "any",
            },
            "num_floating_point_operations_so_far": 1e15,
            "content_metadata": {
                "distrib_optim_sharding_type": "dp_reshardable",
                "singleton_local_shards": split["singles"],
            },
        },
        folder / "common.pt",
    )
    (folder / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    )
    (directory / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    write_config(m, directory)

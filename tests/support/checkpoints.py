"""Small Hugging Face checkpoints made of pseudo-random bytes, and ways to damage them. Standard
library only."""
import json
import pathlib
import random
import struct


def write(path, tensors, dtype="F32"):
    """tensors: {name: (shape, bytes)}; a plain safetensors file."""
    write_mixed(path, {name: (dtype, shape, data) for name, (shape, data) in tensors.items()})


def write_mixed(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(data)


def read(path):
    """(header, {name: bytes}) of a safetensors file, read by the format's definition only."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    data = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data[name] = raw[8 + size + begin : 8 + size + end]
    return header, data


def llama(directory, layers=2, hidden=64, heads=4, groups=2, ffn=96, vocab=61, seed=0):
    """Writes an untied llama in F32; returns the directory and the bytes of each tensor."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    rng = random.Random(seed)
    head = hidden // heads
    shapes = {
        "model.embed_tokens.weight": [vocab, hidden],
        "model.norm.weight": [hidden],
        "lm_head.weight": [vocab, hidden],
    }
    for layer in range(layers):
        base = f"model.layers.{layer}."
        shapes |= {
            base + "input_layernorm.weight": [hidden],
            base + "post_attention_layernorm.weight": [hidden],
            base + "self_attn.q_proj.weight": [heads * head, hidden],
            base + "self_attn.k_proj.weight": [groups * head, hidden],
            base + "self_attn.v_proj.weight": [groups * head, hidden],
            base + "self_attn.o_proj.weight": [hidden, heads * head],
            base + "mlp.gate_proj.weight": [ffn, hidden],
            base + "mlp.up_proj.weight": [ffn, hidden],
            base + "mlp.down_proj.weight": [hidden, ffn],
        }
    tensors = {}
    for name, shape in shapes.items():
        count = 4
        for extent in shape:
            count *= extent
        tensors[name] = (shape, rng.randbytes(count))
    write(directory / "model.safetensors", tensors)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory, {name: data for name, (_, data) in tensors.items()}


def _header(directory, change):
    """Rewrite the header with change(dict); the data stays."""
    path = directory / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


def _truncate(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _long_header(directory):
    path = directory / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + path.read_bytes()[8:])


def _overflow(header):
    header["model.norm.weight"]["data_offsets"] = [(1 << 64) - 8, 1 << 63]


def _overlap(header):
    other = header["model.layers.0.input_layernorm.weight"]
    header["model.norm.weight"]["data_offsets"] = other["data_offsets"]


def _dtype(header):
    header["model.norm.weight"]["dtype"] = "BF16"


def _duplicate(directory):
    path = directory / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    text = raw[8 : 8 + size]
    again = (
        text[:-1]
        + b', "model.norm.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
    )
    path.write_bytes(struct.pack("<Q", len(again)) + again + raw[8 + size :])


def _config(directory, **values):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# (name, what it does to a good checkpoint, words of the error)
DAMAGES = [
    ("truncated", _truncate, "model.safetensors"),
    ("long-header", _long_header, "model.safetensors.*header"),
    ("overflow", lambda d: _header(d, _overflow), "model.norm.weight"),
    ("overlap", lambda d: _header(d, _overlap), "model.safetensors"),
    ("dtype", lambda d: _header(d, _dtype), "model.norm.weight"),
    ("duplicate", _duplicate, "model.safetensors"),
    (
        "missing",
        lambda d: _header(
            d, lambda h: h.update({"model.final.weight": h.pop("model.norm.weight")})
        ),
        "model.(norm|final).weight",
    ),
    ("no-config", lambda d: (d / "config.json").unlink(), "config.json"),
    ("bad-config", lambda d: (d / "config.json").write_text("{"), "config.json"),
    ("unknown", lambda d: _config(d, model_type="mamba"), "mamba"),
    ("heads", lambda d: _config(d, num_attention_heads=0), "num_attention_heads"),
    ("huge", lambda d: _config(d, num_hidden_layers=2**40), "num_hidden_layers"),
]

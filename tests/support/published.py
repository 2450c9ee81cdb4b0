"""Checkpoints as they are published: imported at two layouts, read at the other one, and exported
bit for bit."""
import json
import random
import unittest

import torch

import helios
from support import checkpoints
from support.cluster import Cluster
from support.dense_models import D, FFN, GROUPS, H, HEADS, VOCAB

E, LAYERS = 4, 2
SIZES = {
    "hidden_size": H,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": D,
    "vocab_size": VOCAB,
    "max_position_embeddings": 16,
}
WIDTH = {
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "BOOL": 1,
    "I32": 4,
    "I64": 8,
}


def layers(under, layer, count=LAYERS):
    return {f"{under}{i}.{n}": s for i in range(count) for n, s in layer.items()}


def ends(body="model.", head="", norm="norm.weight", tied=False):
    found = {f"{body}embed_tokens.weight": [VOCAB, H], f"{body}{norm}": [H]}
    return found if tied else found | {f"{head}lm_head.weight": [VOCAB, H]}


def flat(tensor):
    """Its bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


class PublishedCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, nodes=1, slots=1, size="256MiB")
        cls.count = 0

    def write(
        self,
        config,
        shapes,
        dtype="BF16",
        same=(),
        file="model.safetensors",
        config_file="config.json",
    ):
        """shapes: {name: shape, or (dtype, shape)}; same: [(copy, of)]. (directory, {name: (dtype,
        shape, bytes)})"""
        cls = type(self)
        cls.count += 1
        home, rng, tensors = self.c.dir / f"source-{cls.count}", random.Random(cls.count), {}
        for name, shape in shapes.items():
            kind, shape = shape if isinstance(shape, tuple) else (dtype, shape)
            tensors[name] = (kind, shape, rng.randbytes(torch.Size(shape).numel() * WIDTH[kind]))
        tensors |= {copy: tensors[of] for copy, of in same}
        home.mkdir()
        checkpoints.write_mixed(home / file, tensors)
        (home / config_file).write_text(json.dumps(config))
        return home, tensors

    def exported(self, name, file="model.safetensors", config_file="config.json"):
        out = self.c.export(name)
        header, data = checkpoints.read(out / file)
        return {
            n: (header[n]["dtype"], header[n]["shape"], d) for n, d in data.items()
        }, json.loads((out / config_file).read_text())

    def same_out(self, name, tensors, config, **files):
        """The model's export has these tensors, bit for bit, and the values of the config."""
        got, said = self.exported(name, **files)
        self.assertEqual(got.keys(), tensors.keys())
        self.assertEqual([n for n in got if got[n] != tensors[n]], [])
        self.assertEqual(
            {k: said[k] for k in config if k != "torch_dtype"},
            {k: config[k] for k in config if k != "torch_dtype"},
        )

    def same_ranks(self, one, two, experts=False):
        """A version stored at TP1 x PP1 and read at TP2 x PP2 equals one stored at TP2 x PP2."""
        sizes = {"ep_size": 2, "etp_size": 1} if experts else {}
        with helios.Session(self.c.info["controller"]) as me:
            for pp, tp, ep in (
                (p, t, e) for p in range(2) for t in range(2) for e in range(2 if experts else 1)
            ):
                cut = me.load_state_dict(one, pp=pp, tp=tp, ep=ep, tp_size=2, pp_size=2, **sizes)
                own = me.load_state_dict(two, pp=pp, tp=tp, ep=ep)
                self.assertEqual(cut.keys(), own.keys())
                self.assertEqual(
                    [n for n in cut if not torch.equal(flat(cut[n]), flat(own[n]))], []
                )

    def check(self, config, shapes, *, dtype="BF16", same=(), dropped=(), experts=False):
        """Imported at two layouts, read at the other one, and exported except for what is
        computed."""
        home, tensors = self.write(config, shapes, dtype, same)
        more = ("--ep", 2, "--etp", 1) if experts else ()
        one, two = self.c.take(home), self.c.take(home, "--tp", 2, "--pp", 2, *more)
        for name in (one, two):
            self.same_out(name, {n: t for n, t in tensors.items() if n not in dropped}, config)
        self.same_ranks(one, two, experts)
        return one

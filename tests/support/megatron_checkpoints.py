#!/usr/bin/python3
"""Checkpoints as Megatron-LM writes them, beside the Hugging Face checkpoint of the same model.

    megatron_checkpoints.py DIR [FAMILY ...]

DIR/FAMILY/hf is the original; DIR/FAMILY/torch-* and DIR/FAMILY/dist-* are the same model at
several splits, in Megatron's formats `torch` and `torch_dist`. The model is written down once with
Megatron's rules, fused and whole, and then cut by one rule per tensor; nothing here knows how
Helios does it. Exit status 77: torch is missing.

For some families they also hold optimizer state (torch-*, dist-state-*). Each element of state is a
function of its parameter's element, so that state can be fused and cut as parameters are.
DIR/FAMILY/state/KIND is the Hugging Face checkpoint of all state of one kind.
"""
import json
import pathlib
import sys

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit(77)

from megatron_dist import write_dist
from megatron_models import FAMILIES, write_safetensors
from megatron_torch import write_states, write_torch

WITH_STATE = ("llama", "qwen2", "gpt2", "mixtral", "deepseek_v3_mtp")


def write_family(directory, name):
    torch.manual_seed(sum(map(ord, name)))
    m = FAMILIES[name]()
    m.with_state = name in WITH_STATE
    (directory / "hf").mkdir(parents=True)
    (directory / "hf" / "config.json").write_text(json.dumps(m.config))
    write_safetensors(directory / "hf" / "model.safetensors", m.hf)
    write_torch(m, directory / "torch-1", te=False)
    write_torch(m, directory / "torch-2", tp=2, pp=2)
    write_torch(m, directory / "torch-3", tp=4, unit=64, te=False, folder="release", iteration=0)
    write_torch(m, directory / "torch-4", pp=2, vp=2)
    write_dist(m, directory / "dist-1")
    write_dist(m, directory / "dist-2", tp=2, pp=2)
    write_dist(m, directory / "dist-4", tp=2, pp=2, singles=True)
    if m.with_state:
        write_states(m, directory / "state")
        write_dist(m, directory / "dist-state-1", tp=2, pp=2, state={"flat": False})
        state = {"flat": True, "main": "fp32_param", "chained": "chained_0."}
        write_dist(m, directory / "dist-state-2", tp=2, pp=2, state=state)
        state = {"flat": False, "main": "fp32_param"}
        write_dist(m, directory / "dist-state-3", tp=4, singles=True, state=state)
    if torch.__version__.startswith("1.13"):
        latent = m.args.get("multi_latent_attention", False)
        write_dist(m, directory / "dist-5", tp=2, pp=2, te=latent, own=True)
    if "num_experts" in m.args:
        write_torch(m, directory / "torch-5", tp=2, pp=2, ep=2, te=False)
        write_torch(m, directory / "torch-6", tp=2, ep=4, etp=1)
        write_dist(m, directory / "dist-3", tp=4, etp=2)


if __name__ == "__main__":
    for family in sys.argv[2:] or FAMILIES:
        write_family(pathlib.Path(sys.argv[1]) / family, family)

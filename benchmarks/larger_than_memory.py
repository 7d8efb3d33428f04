"""Diagnose a LLaMA that is larger than memory: random blocks on disk, brought in one at a time by accelerate.

python benchmarks/larger_than_memory.py FOLDER --gigabytes 30     prints its size, the time and its peak memory

FOLDER gets the weights of one random block; the others are links to it, so that the disk holds one block and every
forward reads all of them. It is removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import time
from pathlib import Path

import torch
from accelerate import disk_offload, init_empty_weights
from accelerate.utils import offload_weight
from transformers import LlamaConfig, LlamaForCausalLM

import uncollapse as uc


def offloaded_llama(folder: Path, layers: int, width: int, heads: int, vocabulary: int) -> LlamaForCausalLM:
    """A LLaMA in bfloat16 whose weights are on disk: random ones, those of block 0 in every block."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )
    with init_empty_weights():
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    index: dict[str, dict[str, object]] = {}
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        first = name.replace(f"layers.{name.split('.')[2]}.", "layers.0.") if ".layers." in name else name
        if first == name:
            ones = name.endswith("norm.weight") or name.endswith("layernorm.weight")
            value = torch.ones(parameter.shape) if ones else 0.02 * torch.randn(parameter.shape, generator=generator)
            index = offload_weight(value.to(torch.bfloat16), name, folder, index)
        else:
            os.link(folder / f"{first}.dat", folder / f"{name}.dat")
            index[name] = index[first]
    (folder / "index.json").write_text(json.dumps(index))
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are computed, not stored
    disk_offload(model, str(folder), torch.device("cpu"))
    return model


def main() -> None:
    """Build, diagnose, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder for the weights")
    parser.add_argument("--gigabytes", type=float, default=30.0)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    options.folder.mkdir()
    try:
        block = 2 * 16 * options.width**2  # bytes in bfloat16: 4 of the attention, 12 of the MLP
        layers = max(1, round(options.gigabytes * 1e9 / block))
        model = offloaded_llama(options.folder, layers, options.width, max(1, options.width // 128), 1000)
        start = time.perf_counter()
        ids = torch.arange(2 * options.tokens).view(2, -1) % 1000
        report = uc.diagnose(model, {"input_ids": ids}, progress=True)
        size = sum(2 * p.numel() for p in model.parameters()) / 1e9
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{size:.1f} GB in {len(report.layers)} layers diagnosed in {time.perf_counter() - start:.0f} s; "
            f"peak resident {peak:.1f} GB; not measured: {report.missing or 'nothing'}"
        )
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()

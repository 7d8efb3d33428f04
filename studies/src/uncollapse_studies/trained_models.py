"""Small trained models below $UNCOLLAPSE_DATA/models, and inputs that they were made for."""

from __future__ import annotations

import csv
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor

from uncollapse.data.text import DATA_VARIABLE

Loaded = tuple[hf.PreTrainedModel, dict[str, Tensor]]


def model_folder(name: str) -> Path:
    """The folder of a model, or a sentence on where to put it."""
    root = os.environ.get(DATA_VARIABLE)
    folder = Path(root or ".") / "models" / name
    if root is None or not folder.is_dir():
        raise ValueError(
            f"the trained model {name} is looked for in the folder models/{name} of ${DATA_VARIABLE}, "
            f"which is {root or 'not set'}; set it to a folder that holds it."
        )
    return folder


def stories() -> Loaded:
    """The 260K-parameter LLaMA of llama2.c, on stories of its own."""
    data = (model_folder("stories260K") / "stories260K.bin").read_bytes()
    width, hidden, depth, heads, groups, vocabulary, length = struct.unpack("7i", data[:28])
    numbers, size = torch.from_numpy(np.frombuffer(data[28:], dtype=np.float32).copy()), width // heads
    place = 0

    def take(*shape: int) -> Tensor:
        nonlocal place
        start, place = place, place + int(np.prod(shape))
        return numbers[start:place].view(*shape)

    def half_split(weight: Tensor, count: int) -> Tensor:
        """Rotary pairs (2i, 2i + 1) of llama2.c to the pairs (i, i + D/2) of transformers."""
        return weight.view(count, size // 2, 2, width).transpose(1, 2).reshape(count * size, width)

    embedding, entering = take(vocabulary, width), take(depth, width)
    query, key = take(depth, width, width), take(depth, groups * size, width)
    value, output, between = take(depth, groups * size, width), take(depth, width, width), take(depth, width)
    gate, down, up = take(depth, hidden, width), take(depth, width, hidden), take(depth, hidden, width)
    last = take(width)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding, "model.norm.weight": last}
    for i in range(depth):
        layer = {
            "self_attn.q_proj": half_split(query[i], heads),
            "self_attn.k_proj": half_split(key[i], groups),
            "self_attn.v_proj": value[i],
            "self_attn.o_proj": output[i],
            "input_layernorm": entering[i],
            "post_attention_layernorm": between[i],
            "mlp.gate_proj": gate[i],
            "mlp.down_proj": down[i],
            "mlp.up_proj": up[i],
        }
        weights |= {f"model.layers.{i}.{name}.weight": weight for name, weight in layer.items()}
    config = hf.LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model: Any = hf.LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.train(False)
    model.load_state_dict(weights)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = torch.ones(6, 1, dtype=torch.long)
        whole = {"attention_mask": torch.ones_like(start), "pad_token_id": 0}  # said only to keep transformers quiet
        ids = model.generate(start, do_sample=True, max_new_tokens=100, min_new_tokens=100, **whole)
    return model, {"input_ids": ids}


def encoder(name: str, kind: type[hf.PreTrainedModel]) -> Loaded:
    """A BERT or ALBERT of chemical reactions, on reactions."""
    assert kind.config_class is not None
    model = kind(kind.config_class.from_pretrained(model_folder(name)))
    model.train(False)
    weights = torch.load(model_folder(name) / "pytorch_model.bin", weights_only=True, map_location="cpu")
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert not [key for key in missing if "layer" in key], missing
    return model, reactions(12)


def reactions(count: int) -> dict[str, Tensor]:
    """Reactions cut into the longest known pieces, padded on the right."""
    lines = (model_folder("rxnfp-bert-pretrained") / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece: index for index, piece in enumerate(lines)}
    with open(model_folder("reactions-sample") / "example_rxns.csv", newline="", encoding="utf-8") as file:
        texts = [row["rxn"] for row in csv.DictReader(file)][:count]
    rows = [[vocabulary["[CLS]"], *_pieces(text, vocabulary), vocabulary["[SEP]"]] for text in texts]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def _pieces(text: str, vocabulary: dict[str, int]) -> list[int]:
    ids = []
    while text:
        piece = next(text[:size] for size in range(min(12, len(text)), 0, -1) if text[:size] in vocabulary)
        ids.append(vocabulary[piece])
        text = text[len(piece) :]
    return ids


TRAINED: dict[str, Callable[[], Loaded]] = {
    "stories260K": stories,
    "rxnfp-bert-pretrained": lambda: encoder("rxnfp-bert-pretrained", hf.BertForMaskedLM),
    "rxnmapper-albert": lambda: encoder("rxnmapper-albert", hf.AlbertForMaskedLM),
}

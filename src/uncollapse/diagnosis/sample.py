"""What a model is diagnosed with when no data is given: text it can read, pictures, or what it says itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from uncollapse.data.readers import Reader, find_reader
from uncollapse.data.sample import embedded_bytes, embedded_images, embedded_text, spread
from uncollapse.models.huggingface import evaluation

SEQUENCES, LENGTH = 8, 256
GENERATED = 128  # tokens that a model without a tokenizer writes, one forward pass each
BYTE_VOCABULARIES = range(256, 260)  # bytes, and up to three special tokens behind them
UNKNOWN_SHARE = 0.2  # of unknown tokens, from which on a tokenizer does not know the language of the sample

Batches = Iterable[Mapping[str, Tensor]]


@dataclass
class Sample:
    """Batches, a phrase that names them, and whether the model must be able to read them: then its loss is checked."""

    batches: Any
    name: str = "data given by the caller"
    checked: bool = False
    mask_id: int | None = None
    sentinel_ids: tuple[int, ...] = ()  # tokens that stand for spans that T5 fills in


def sample_for(
    model: PreTrainedModel, tokenizer: str | None = None, sequences: int = SEQUENCES, length: int = LENGTH
) -> Sample:
    """Batches that fit the model; a ValueError that says what is needed if there are none."""
    inputs: dict[str, Tensor] = {}
    names: list[str] = []
    reader: Reader | None = None
    if _takes(model, "pixel_values"):
        inputs["pixel_values"] = embedded_images(sequences, _image_size(model))
        names.append(f"{sequences} crops of scikit-learn's two photographs")
    if _takes(model, "input_ids"):
        inputs["input_ids"], name, reader = _tokens(model, tokenizer, sequences, length)
        inputs = with_decoder(model, inputs)
        names.append(name)
    if not inputs:
        raise ValueError(
            f"{type(model).__name__} takes {model.main_input_name}, for which there is no embedded sample; "
            "give batches."
        )
    batches = [{key: value[i : i + 1] for key, value in inputs.items()} for i in range(sequences)]
    return _checked_sample(batches, " and ".join(names), reader)


def sample_of(model: PreTrainedModel, batches: list[dict[str, Tensor]], name: str, tokenizer: str | None) -> Sample:
    """Batches that were read for the model from a file: checked, and with what its decoder takes."""
    has_text = any("input_ids" in batch for batch in batches)
    where = tokenizer or model.name_or_path
    reader = find_reader(where) if has_text and where else None
    return _checked_sample([with_decoder(model, batch) for batch in batches], name, reader)


def _checked_sample(batches: list[dict[str, Tensor]], name: str, reader: Reader | None) -> Sample:
    special = () if reader is None else (reader.mask_id, reader.sentinel_ids)
    return Sample(batches, name, True, *special)


def with_decoder(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs, and where the model has a decoder the same text for it, after the token that it starts with."""
    ids = inputs.get("input_ids")
    if ids is None or not model.config.is_encoder_decoder:
        return inputs
    places = (model.generation_config, model.config)
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    found = [getattr(place, name, None) for name in names for place in places]
    start = next((id for id in found if isinstance(id, int)), 0)
    return inputs | {"decoder_input_ids": torch.cat([ids.new_full((len(ids), 1), start), ids[:, :-1]], dim=1)}


def joined(batches: list[dict[str, Tensor]], size: int) -> list[dict[str, Tensor]]:
    """Neighbouring batches of one sequence put together, up to `size`, where their shapes agree."""
    groups: list[list[dict[str, Tensor]]] = []
    for batch in batches:
        if groups and len(groups[-1]) < size and _shapes(groups[-1][0]) == _shapes(batch):
            groups[-1].append(batch)
        else:
            groups.append([batch])
    return [{key: torch.cat([batch[key] for batch in group]) for key in group[0]} for group in groups]


def _shapes(batch: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {key: value.shape[1:] for key, value in batch.items()}


def _takes(model: PreTrainedModel, name: str) -> bool:
    towers = {key.removesuffix("_config") for key in model.config.sub_configs}
    both = {"pixel_values": "vision", "input_ids": "text"}[name] in towers and len(towers) > 1
    return model.main_input_name == name or both


def _image_size(model: PreTrainedModel) -> tuple[int, int]:
    config = getattr(model.config, "vision_config", model.config)
    size = config.image_size
    return tuple(size) if isinstance(size, list | tuple) else (size, size)


def _tokens(
    model: PreTrainedModel, tokenizer: str | None, sequences: int, length: int
) -> tuple[Tensor, str, Reader | None]:
    """Token ids (sequences, length) that the model can read, a phrase for them, and the tokenizer that gave them."""
    config = model.config.get_text_config()
    length = min(length, getattr(config, "max_position_embeddings", None) or length)
    text = f"tokens of Python's help texts ({'the given' if tokenizer else 'its own'} tokenizer)"
    where = tokenizer or model.name_or_path
    reader = find_reader(where) if where else None
    ids = _read(reader, config.vocab_size, sequences * length) if reader is not None else None
    if ids is not None and reader is not None:
        return spread(ids, sequences, length), f"{sequences} x {length} {text}", reader
    if tokenizer is not None:
        raise ValueError(
            f"{tokenizer} holds no tokenizer of this model, whose vocabulary has {config.vocab_size} tokens."
        )
    if config.vocab_size in BYTE_VOCABULARIES:
        rows = embedded_bytes(sequences, length)
        return rows, f"{sequences} x {length} bytes of Python's help texts, which are its vocabulary", None
    if model.can_generate() and not model.config.is_encoder_decoder:
        rows = _generated(model, config, sequences, min(length, GENERATED))
        return rows, f"{sequences} x {rows.shape[1]} tokens that the model wrote itself: no tokenizer was found", None
    raise ValueError(
        f"no tokenizer that fits the vocabulary of this {type(model).__name__} was found, and it cannot write text "
        "of its own: give batches, or on the command line --tokenizer, or token ids with --data (JSON lines with "
        "input_ids)."
    )


def _read(reader: Reader, vocabulary: int, needed: int) -> Tensor | None:
    """The embedded text in a tokenizer's ids; None if it is not the model's, or does not know the words."""
    ids = torch.tensor(reader.ids(embedded_text()[: max(60_000, 8 * needed)], False))
    if len(ids) <= needed // SEQUENCES or int(ids.max()) >= vocabulary:
        return None
    unknown = 0.0 if reader.unknown_id is None else (ids == reader.unknown_id).double().mean().item()
    return ids if unknown < UNKNOWN_SHARE else None


def _generated(model: Any, config: Any, sequences: int, length: int) -> Tensor:
    """Text of the model's own: sampled from its first token on, the same each time."""
    begin = next((id for id in (config.bos_token_id, config.eos_token_id) if isinstance(id, int)), 0)
    start = torch.full((sequences, 1), min(begin, config.vocab_size - 1), device=model.device)
    settings = {"do_sample": True, "max_new_tokens": length - 1, "min_new_tokens": length - 1, "top_k": 0}
    with evaluation(model), torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        ids: Tensor = model.generate(start, attention_mask=torch.ones_like(start), pad_token_id=0, **settings)
    return ids.cpu()

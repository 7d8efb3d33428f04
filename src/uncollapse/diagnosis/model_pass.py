"""diagnose(): one streaming pass of a model over data, observed through hooks that are removed afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from uncollapse.models.convert import find_transformers_model
from uncollapse.models.offload import execution_device
from uncollapse.models.plain import Paths, RunBatch, conversion_of
from uncollapse.remedies import from_pretrained

from .exclusive import exclusive
from .observer import Observer
from .result import Diagnosis

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .sample import Sample

Batch = Mapping[str, Tensor]


def diagnose(
    model: nn.Module | str | os.PathLike[str],
    batches: Any = None,
    *,
    run: RunBatch | None = None,
    layers: Paths = None,
    blocks: Paths = None,
    progress: bool = True,
    decompositions: int = 1,
    query: int = -1,
) -> Diagnosis:
    """Measure where and how a model's attention collapses, in one pass that keeps no attention map.

    Meanwhile the model belongs to this thread: a forward pass or another diagnosis from elsewhere raises a RuntimeError
    there, and weights that change raise one here.

    Args:
        model: a transformers model or any other PyTorch module, stock or converted, which is left as found; or the
            folder of a saved model or run, or a name on the hub, such as "gpt2".
        batches: a batch or an iterable of batches. A batch is a dict (keywords), a tuple (positions) or a tensor (one
            argument); transformers models take dicts. None takes a sample that the model can read, named in the report,
            for a transformers model.
        run: run(model, batch) in place of calling the module with the batch, for loaders that give labels as well.
        layers: the attention modules of a plain module to measure, where others than the ones found are meant: paths,
            or a pattern such as "blocks.*.attn".
        blocks: the blocks around them, likewise.
        progress: show a progress bar, if standard error is a terminal.
        decompositions: number of sequences, from the first on, whose ranks are computed.
        query: the query position at which signal propagation is measured; the last real token by default.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> report = uc.diagnose(model, {"input_ids": torch.randint(16, (4, 8))})
    >>> report.layers["layer"].tolist(), len(report.heads)
    ([1, 2], 4)
    """
    if not isinstance(model, nn.Module):
        model = _loaded(model)
    inner = find_transformers_model(model)
    if inner is None or conversion_of(model) is not None or run is not None or layers is not None or blocks is not None:
        from .plain import diagnose_plain

        return diagnose_plain(
            model, batches, run, layers, blocks, Observer(type(model).__name__, decompositions, query), progress
        )
    from .sample import Sample, sample_for

    sample = sample_for(inner) if batches is None else Sample(batches)
    return measure(inner, sample, progress=progress, decompositions=decompositions, query=query)


def measure(
    model: PreTrainedModel, sample: Sample, *, progress: bool = True, decompositions: int = 1, query: int = -1
) -> Diagnosis:
    """Diagnose a transformers model with a sample."""
    from uncollapse.models.huggingface import evaluation

    from .huggingface import explain_gaps, measure_settings, measure_weights, observed, read_coefficients
    from .loss import Loss

    name = display_name(model)
    if not any(parameter.is_floating_point() for parameter in model.parameters()):
        dtype = next((parameter.dtype for parameter in model.parameters()), "nothing")
        raise ValueError(f"the weights of {name} are stored as {dtype}; dequantise the model first.")
    execution_device(model)  # weights without values are refused now, not at the end
    loss, quiet = Loss(model, sample), not (progress and sys.stderr.isatty())
    with Observer(name, decompositions, query) as observer:
        observer.sample = sample.name
        with exclusive(model), torch.no_grad():
            measure_weights(model, observer)
            measure_settings(model, observer)
            read_coefficients(model, observer)
            with observed(model, observer, loss.see) as run:
                for batch in tqdm(_checked(sample.batches, model), desc="diagnose", unit="batch", disable=quiet):
                    run(batch)
            if loss.needs_a_pass:
                with evaluation(model):
                    for batch in _checked(sample.batches, model):
                        loss.run(batch)
        explain_gaps(model, observer)
        observer.notes += [note] if (note := loss.note()) else []
    observer.diagnosis.info.update(loss.info())
    return observer.diagnosis


def _loaded(name: str | os.PathLike[str]) -> nn.Module:
    """The model in a folder, in a run folder's `model`, or on the hub."""
    inside = Path(name) / "model"
    return from_pretrained(inside if (inside / "config.json").is_file() else name)


def display_name(model: PreTrainedModel) -> str:
    """The model's name without the folders above it, which say where somebody's files lie."""
    path = Path(model.name_or_path or type(model).__name__)
    cached = [part for part in path.parts if part.startswith("models--")]  # as the hub's cache names its folders
    if cached:
        return cached[-1].removeprefix("models--").replace("--", "/")
    if not path.is_absolute() and not path.is_dir():
        return str(path)
    path = path.resolve()
    return path.parent.name if path.name == "model" else path.name


def _checked(batches: Batch | Iterable[Batch], model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """The batches on the model's device, or a sentence about what is wrong with one."""
    if not isinstance(batches, Iterable):
        raise ValueError(f"batches must be a batch or an iterable of batches, got {type(batches).__name__}.")
    empty, device = True, execution_device(model) or model.device
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        if not isinstance(batch, Mapping):
            raise ValueError(f"a batch must be a dict of tensors as the model takes them, got {type(batch).__name__}.")
        empty = False
        if batch.get("input_ids") is not None:
            _check_ids(batch["input_ids"], getattr(model.config, "vocab_size", None))
        yield {
            key: value.to(device, model.dtype) if value.is_floating_point() else value.to(device)
            for key, value in batch.items()
            if isinstance(value, Tensor) and key != "labels"
        }
    if empty:
        raise ValueError("no batch was given: the iterable is empty.")


def _check_ids(ids: Tensor, vocabulary: int | None) -> None:
    if not isinstance(ids, Tensor):
        raise ValueError(f"input_ids must be a tensor (batch, tokens), got {type(ids).__name__}.")
    if ids.dim() != 2 or ids.shape[0] < 1 or ids.shape[1] < 2:
        raise ValueError(f"a sequence needs at least two tokens, got input_ids of shape {tuple(ids.shape)}.")
    outside = [int(i) for i in (ids.min(), ids.max()) if vocabulary is not None and not 0 <= int(i) < vocabulary]
    if outside:
        raise ValueError(
            f"token id {outside[0]} is outside the model's vocabulary of {vocabulary}; "
            "the tokenizer does not belong to this model."
        )

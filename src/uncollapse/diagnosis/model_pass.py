"""diagnose(): one streaming pass of a model over data, observed through hooks that are removed afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

from uncollapse.data.sample import sample_for
from uncollapse.models.convert import transformers_model

from .exclusive import exclusive
from .observer import Observer
from .result import Diagnosis

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Batch = Mapping[str, Tensor]


def diagnose(
    model: nn.Module,
    batches: Batch | Iterable[Batch] | None = None,
    *,
    progress: bool = True,
    decompositions: int = 1,
    query: int = -1,
) -> Diagnosis:
    """Measure where and how a model's attention collapses, in one pass that keeps no attention map.

    Meanwhile the model belongs to this thread: a forward pass or another diagnosis from elsewhere raises a RuntimeError
    there, and weights that change raise one here.

    Args:
        model: a transformers model, stock or converted, or a module around one. It is left as found.
        batches: a batch (dict of tensors as the model takes them) or an iterable of batches; None takes a sample that
            comes with the package, named in the report.
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
    inner = transformers_model(model)
    from .huggingface import explain_gaps, measure_settings, measure_weights, observed

    name = inner.name_or_path or type(inner).__name__
    if not any(parameter.is_floating_point() for parameter in inner.parameters()):
        dtype = next((parameter.dtype for parameter in inner.parameters()), "nothing")
        raise ValueError(f"the weights of {name} are stored as {dtype}; dequantise the model first.")
    with Observer(name, decompositions, query) as observer:
        if batches is None:
            batches, observer.sample = sample_for(inner)
        with exclusive(inner), torch.no_grad():
            measure_weights(inner, observer)
            measure_settings(inner, observer)
            with observed(inner, observer) as run:
                quiet = not (progress and sys.stderr.isatty())
                for batch in tqdm(_checked(batches, inner), desc="diagnose", unit="batch", disable=quiet):
                    run(batch)
        explain_gaps(inner, observer)
    return observer.diagnosis


def _checked(batches: Batch | Iterable[Batch], model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """The batches on the model's device, or a sentence about what is wrong with one."""
    if not isinstance(batches, Iterable):
        raise ValueError(f"batches must be a batch or an iterable of batches, got {type(batches).__name__}.")
    empty = True
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        if not isinstance(batch, Mapping):
            raise ValueError(f"a batch must be a dict of tensors as the model takes them, got {type(batch).__name__}.")
        empty = False
        if batch.get("input_ids") is not None:
            _check_ids(batch["input_ids"], getattr(model.config, "vocab_size", None))
        yield {
            key: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
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

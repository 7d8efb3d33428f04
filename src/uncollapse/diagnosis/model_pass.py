"""diagnose(): one streaming pass of a Hugging Face model over data, seen through hooks that leave no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from uncollapse.attention import HiddenState
from uncollapse.data.sample import sample_for
from uncollapse.models._trial import evaluation
from uncollapse.models.convert import transformers_model
from uncollapse.models.families import blocks_of, family_of, query_key_weights
from uncollapse.models.huggingface import KEYWORD, NAME, PassScores, is_causal_call, refuse_unknown

from .attention_statistics import Masking
from .observer import Observer
from .result import Diagnosis
from .scores import InheritedScores, QueryKeyScores

OBSERVED_SDPA, OBSERVED_EAGER = "observed_sdpa", "observed_eager"  # attention implementations that also report
Batch = Mapping[str, Tensor]


def diagnose(
    model: nn.Module,
    batches: Batch | Iterable[Batch] | None = None,
    progress: bool = True,
    *,
    decompositions: int = 1,
    query: int = -1,
) -> Diagnosis:
    """Measure where and how a model's attention collapses, in one pass that keeps no attention map.

    Args:
        model: a transformers model, stock or converted, or a module around one. It is left as found.
        batches: a batch (dict of tensors as the model takes them) or an iterable of batches; None takes a sample that
            comes with the package, named in the report.
        progress: show a progress bar, if standard error is a terminal.
        decompositions: ranks are computed on the first so many sequences.
        query: the query position at which signal propagation is measured; the last real token by default.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> report = uc.diagnose(model, {"input_ids": torch.randint(16, (4, 8))})
    >>> report.layers["layer"].tolist(), len(report.heads)
    ([1, 2], 4)
    """
    inner = transformers_model(model)
    name = inner.name_or_path or type(inner).__name__
    with Observer(name, decompositions, query) as observer:
        if batches is None:
            batches, observer.sample = sample_for(inner)
        _measure_weights(inner, observer)
        with _observed(inner, observer) as view, evaluation(inner), torch.no_grad():
            bar = tqdm(
                _checked(batches, inner), desc="diagnose", unit="batch", disable=not (progress and sys.stderr.isatty())
            )
            for batch in bar:
                view.start(batch)
                inner(**batch)
        _explain_gaps(inner, observer)
    return observer.diagnosis


class _View:
    """What the hooks know during a pass: which layer is running, and which tokens are real."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.layer = 0
        self.in_block = self.attended = False
        self.real: Tensor | None = None

    def start(self, batch: Batch) -> None:
        mask = batch.get("attention_mask")
        self.real = mask.bool() if mask is not None and mask.dim() == 2 else None
        self.layer = 0

    def enter_block(self, *_: Any) -> None:
        self.layer += 1  # calls are counted, so that a block that runs twelve times is twelve layers
        self.in_block, self.attended = True, False

    def leave_block(self, _block: nn.Module, _args: Any, output: Any) -> None:
        self.in_block = False
        tokens = output[0] if isinstance(output, tuple) else output
        if isinstance(tokens, Tensor) and tokens.dim() == 3:
            self.observer.tokens(self.layer, tokens, self._real_for(tokens.shape[1]))

    def _real_for(self, length: int) -> Tensor | None:
        return self.real if self.real is not None and self.real.shape[1] == length else None

    def watch_scores(self, _base: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        """In a converted model: be shown every layer's hidden state."""
        scores: PassScores = kwargs[KEYWORD]
        scores.observe = self.inherited

    def inherited(self, _module: nn.Module, state: HiddenState, mask: Tensor | None, causal: bool) -> None:
        masking = Masking.of(mask, causal, self._real_for(state.shape[2]))
        self.observer.scores(self.layer, InheritedScores(state), masking)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
        """In a stock model: the attention function was called."""
        if not self.in_block or self.attended:  # outside the blocks, or a second (cross-)attention of a block
            return
        self.attended = True
        known = ("dropout", "scaling", "is_causal")
        try:
            refuse_unknown({key: value for key, value in kwargs.items() if key not in known}, type(module).__name__)
        except ValueError as reason:
            self.observer.missing["attention"] = str(reason)
            return
        causal = is_causal_call(module, mask, kwargs.get("is_causal"), q.shape[2])
        masking = Masking.of(mask, causal, self._real_for(q.shape[2]))
        self.observer.scores(self.layer, QueryKeyScores(q, k, kwargs.get("scaling")), masking)


_ACTIVE: ContextVar[_View] = ContextVar("active view of a diagnosis")


def _observed_sdpa(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    _ACTIVE.get().attend(module, q, k, mask, kwargs)
    return sdpa_attention_forward(module, q, k, v, mask, **kwargs)


def _observed_eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    _ACTIVE.get().attend(module, q, k, mask, kwargs)
    homes = (sys.modules[parent.__module__] for parent in type(module).__mro__)  # a subclass may live elsewhere
    eager = next(home.eager_attention_forward for home in homes if hasattr(home, "eager_attention_forward"))
    return eager(module, q, k, v, mask, **kwargs)


AttentionInterface.register(OBSERVED_SDPA, _observed_sdpa)
AttentionInterface.register(OBSERVED_EAGER, _observed_eager)
AttentionMaskInterface.register(OBSERVED_SDPA, sdpa_mask)
AttentionMaskInterface.register(OBSERVED_EAGER, eager_mask)


@contextmanager
def _observed(model: PreTrainedModel, observer: Observer) -> Iterator[_View]:
    """Hooks on the blocks and, in stock models, an attention function that reports; all gone afterwards."""
    view, attention = _View(observer), model.config._attn_implementation
    found = [(config, config._attn_implementation_internal) for config in _configs(model)]
    handles = []
    for block in dict.fromkeys(find_blocks(model)):  # a block that is shared between layers needs one pair of hooks
        handles += [block.register_forward_pre_hook(view.enter_block), block.register_forward_hook(view.leave_block)]
    token = _ACTIVE.set(view)
    try:
        if attention == NAME:
            handles.append(model.base_model.register_forward_pre_hook(view.watch_scores, with_kwargs=True))
        elif model._can_set_attn_implementation():
            model.set_attn_implementation(OBSERVED_EAGER if attention == "eager" else OBSERVED_SDPA)
            if attention not in ("eager", "sdpa"):
                observer.notes.append(f"The pass ran with attention implementation 'sdpa' in place of {attention!r}.")
        yield view
    finally:
        _ACTIVE.reset(token)
        for handle in handles:
            handle.remove()
        for config, implementation in found:
            config._attn_implementation_internal = implementation


def _configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config of the model and its parts: they may name different attention implementations."""
    waiting = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    configs: dict[int, PreTrainedConfig] = {}
    while waiting:
        config = waiting.pop()
        if id(config) not in configs:
            configs[id(config)] = config
            waiting += [part for key in config.sub_configs if (part := getattr(config, key, None)) is not None]
    return list(configs.values())


def find_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks whose outputs are the residual stream: from the table, else the longest list of like modules."""
    family = family_of(model)
    if family is not None:
        return blocks_of(model, family)
    lists = [list(module) for module in model.base_model.modules() if isinstance(module, nn.ModuleList)]
    alike = [blocks for blocks in lists if len({type(block) for block in blocks}) == 1]
    # transformers marks its blocks; without the mark a long list of experts inside a block would be taken for them
    alike = [blocks for blocks in alike if isinstance(blocks[0], GradientCheckpointingLayer)] or alike
    if not alike:
        raise ValueError(f"no attention was found in {type(model).__name__}: it has no list of blocks.")
    return max(alike, key=len)


def _measure_weights(model: PreTrainedModel, observer: Observer) -> None:
    """The QK eigenspectrum, once."""
    family = family_of(model)
    if family is None:
        observer.missing["spectrum"] = (
            f"the query and key weights of model type {model.config.model_type!r} are not known."
        )
        return
    try:
        weights = query_key_weights(model)
    except ValueError as reason:
        observer.missing["spectrum"] = str(reason)
        return
    for layer, (block, pair) in enumerate(zip(blocks_of(model, family), weights, strict=True), start=1):
        heads, groups, size = len(pair.query), len(pair.key), pair.query.shape[1]
        scale = getattr(block.get_submodule(family.attention), "scaling", size**-0.5)
        observer.weights(layer, pair.query, pair.key.repeat_interleave(heads // groups, dim=0), float(scale))
    if family.rotary:
        observer.notes.append("Rotary positions: the QK eigenspectrum is that of the matrix at offset zero.")
    if any(hasattr(block.get_submodule(family.attention), "q_norm") for block in blocks_of(model, family)):
        observer.notes.append("Queries and keys are normalised: the QK eigenspectrum is that of the weights before.")


def _explain_gaps(model: PreTrainedModel, observer: Observer) -> None:
    """Say why a part of the report is empty."""
    if not observer.token_statistics and not observer.attention_statistics:
        raise ValueError(f"no attention was found in {type(model).__name__}: none of its blocks ran on these batches.")
    if not any(s.sequences or s.broken for s in observer.token_statistics.values()):
        raise ValueError("no sequence has two real tokens: nothing can be measured on these batches.")
    if model.config.is_encoder_decoder:
        observer.notes.append("Of an encoder-decoder model one stack is measured; diagnose the other one by itself.")
    if not observer.attention_statistics and "attention" not in observer.missing:
        observer.missing["attention"] = (
            f"the attention of {type(model).__name__} does not go through transformers' AttentionInterface."
        )


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

"""The pass over a transformers model: hooks on its blocks, and attention functions that report queries and keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from uncollapse.attention import HiddenState
from uncollapse.models.families import blocks_of, each_query_key_weights, family_of
from uncollapse.models.huggingface import (
    KEYWORD,
    PassScores,
    conversion_of,
    evaluation,
    is_causal_call,
    refuse_unknown,
)

from .attention_statistics import Masking
from .model_pass import Batch
from .observer import Observer
from .scores import InheritedScores, QueryKeyScores, ScoreSource
from .tensor_parallel import GatheredScores, head_group

OBSERVED_SDPA, OBSERVED_EAGER = "observed_sdpa", "observed_eager"  # attention implementations that also report


class _View:
    """State that the hooks share during a pass: which layer is running, and which tokens are real."""

    def __init__(self, observer: Observer, group: ProcessGroup | None = None) -> None:
        self.observer = observer
        self.group = group  # processes that have other heads
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
        """In a converted model: receive the hidden state of every layer."""
        scores: PassScores = kwargs[KEYWORD]
        scores.observe = self.inherited

    def inherited(self, _module: nn.Module, state: HiddenState, mask: Tensor | None, causal: bool) -> None:
        masking = Masking.of(mask, causal, self._real_for(state.shape[2]))
        self._add(InheritedScores(state), masking)

    def _add(self, source: ScoreSource, masking: Masking) -> None:
        self.observer.scores(self.layer, source if self.group is None else GatheredScores(source, self.group), masking)

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
        self._add(QueryKeyScores(q, k, kwargs.get("scaling")), masking)


_ACTIVE: ContextVar[_View | None] = ContextVar("active view of a diagnosis", default=None)


def _report(module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    """Report a call, unless it belongs to a pass that another thread had under way when the diagnosis began."""
    view = _ACTIVE.get()
    if view is not None:
        view.attend(module, q, k, mask, kwargs)


def _observed_sdpa(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    _report(module, q, k, mask, kwargs)
    return sdpa_attention_forward(module, q, k, v, mask, **kwargs)


def _observed_eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    _report(module, q, k, mask, kwargs)
    homes = (sys.modules[parent.__module__] for parent in type(module).__mro__)  # a subclass may live elsewhere
    eager = next(home.eager_attention_forward for home in homes if hasattr(home, "eager_attention_forward"))
    return eager(module, q, k, v, mask, **kwargs)


AttentionInterface.register(OBSERVED_SDPA, _observed_sdpa)
AttentionInterface.register(OBSERVED_EAGER, _observed_eager)
AttentionMaskInterface.register(OBSERVED_SDPA, sdpa_mask)
AttentionMaskInterface.register(OBSERVED_EAGER, eager_mask)


@contextmanager
def observed(model: PreTrainedModel, observer: Observer) -> Iterator[Callable[[Batch], None]]:
    """Hooks on the blocks and, in stock models, an attention function that reports; gives a function that runs a batch.

    The model is in evaluation mode meanwhile; afterwards it is as before.
    """
    view, attention = _View(observer, head_group(model)), model.config._attn_implementation
    found = [(config, config._attn_implementation_internal) for config in _configs(model)]
    handles = []
    for block in dict.fromkeys(find_blocks(model)):  # a block that is shared between layers needs one pair of hooks
        handles += [block.register_forward_pre_hook(view.enter_block), block.register_forward_hook(view.leave_block)]
    token = _ACTIVE.set(view)
    try:
        if conversion_of(model) is not None:
            handles.append(model.base_model.register_forward_pre_hook(view.watch_scores, with_kwargs=True))
        elif model._can_set_attn_implementation():
            model.set_attn_implementation(OBSERVED_EAGER if attention == "eager" else OBSERVED_SDPA)
            if attention not in ("eager", "sdpa"):
                observer.notes.append(f"The pass ran with attention implementation 'sdpa' in place of {attention!r}.")

        def run(batch: Batch) -> None:
            view.start(batch)
            model(**batch)
            if any(module.training for module in model.modules()):
                raise RuntimeError(
                    "the model was put into training mode while it was being diagnosed, so its dropout is in the "
                    "numbers; wait until uncollapse.diagnose has returned."
                )

        with evaluation(model):
            yield run
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
    """The blocks whose outputs are the residual stream: from the table, else the longest list of equal type."""
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


def measure_weights(model: PreTrainedModel, observer: Observer) -> None:
    """The QK eigenspectrum, once."""
    family = family_of(model)
    if family is None:
        observer.missing["spectrum"] = (
            f"the query and key weights of model type {model.config.model_type!r} are not known."
        )
        return
    weights = each_query_key_weights(model)  # one layer at a time: a model may be larger than memory
    try:
        for layer, (block, pair) in enumerate(zip(blocks_of(model, family), weights, strict=True), start=1):
            heads, groups, size = len(pair.query), len(pair.key), pair.query.shape[1]
            scale = getattr(block.get_submodule(family.attention), "scaling", size**-0.5)
            observer.weights(layer, pair.query, pair.key.repeat_interleave(heads // groups, dim=0), float(scale))
    except ValueError as reason:
        observer.missing["spectrum"] = str(reason)
        observer.spectra.clear()
        return
    if family.rotary:
        observer.notes.append("Rotary positions: the QK eigenspectrum is that of the matrix at offset zero.")
    if any(hasattr(block.get_submodule(family.attention), "q_norm") for block in blocks_of(model, family)):
        observer.notes.append("Queries and keys are normalised: the QK eigenspectrum is that of the weights before.")


def explain_gaps(model: PreTrainedModel, observer: Observer) -> None:
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

"""The attention function that transformers calls in every layer of a converted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from uncollapse.attention import HiddenState, hopfield_attention
from uncollapse.attention.reference import masked, softmax_of_visible

from ._module_hooks import MARK
from .editing import AttentionCall, edited_layer

NAME = "hopfield"  # of the attention implementation
KEYWORD = "hopfield_scores"  # under which the scores of a pass travel through the model's forward functions

# Keywords that models hand down to the attention function and that change nothing here: positions are already in q and
# k, windows and packing are already in the mask, the rest steers what the model returns.
HARMLESS = frozenset(
    {
        "cache_position",
        "labels",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)


class PassScores:
    """The hidden state of one forward pass, by layer: made fresh for each pass, shared by nothing else.

    A plain class, because wrappers such as FSDP2 rebuild dicts, lists and tuples on the way through the model.
    """

    def __init__(self, depth: int, keep_all: bool, output_attentions: bool) -> None:
        self.depth = depth
        self.keep_all = keep_all  # a checkpointed layer runs again during backward and needs the state it started from
        self.output_attentions = output_attentions
        self.observe: Callable[[nn.Module, HiddenState, Tensor | None, bool], None] | None = None  # sees every layer
        self.states: dict[int, HiddenState] = {}
        self.recorded: dict[int, bool] = {}  # layer -> did it run with gradients on

    def inherited(self, n: int, name: str) -> HiddenState | None:
        """The state that layer n = 1, 2, ... starts from."""
        if n in self.recorded and torch.is_grad_enabled() and not self.recorded[n]:
            raise ValueError(REENTRANT)
        if n == 1:
            return None
        if n - 1 not in self.states:
            raise ValueError(
                f"{name} ran without the layer before it; inherited scores need every layer to run once, in order."
            )
        return self.states[n - 1]

    def record(self, n: int, state: HiddenState) -> None:
        """Keep layer n's state for the next layer; forget the one before it where nothing will ask for it again."""
        if n not in self.recorded:  # a layer that runs again for checkpointing must not replace it
            self.recorded[n] = torch.is_grad_enabled()
            self.states[n] = state
        if not self.keep_all:
            self.states.pop(n - 1, None)
            if n == self.depth:
                self.states.clear()


REENTRANT = (
    "inherited scores under reentrant gradient checkpointing would give wrong gradients; "
    "use model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False})."
)


def hopfield_attention_forward(
    module: nn.Module,
    query: Tensor,  # (B, H, Q, D)
    key: Tensor,  # (B, G, K, D)
    value: Tensor,  # (B, G, K, Dv)
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """One layer's attention with the scores inherited from the layer before: (B, Q, H, Dv) and, if asked, weights."""
    scores: PassScores | None = kwargs.pop(KEYWORD, None)
    layer = getattr(module, MARK, None)
    if scores is None or layer is None:
        raise ValueError(
            f"{type(module).__name__} was called outside the forward pass of a converted model; "
            "call the model itself, or uncollapse.restore(model) first."
        )
    refuse_unknown(kwargs, layer.name)
    queries, keys = query.shape[2], key.shape[2]
    causal = is_causal_call(module, attention_mask, is_causal, queries)
    if causal and keys > queries:  # prefill of an empty static cache: the keys behind the last query are not filled yet
        key, value = key[:, :, :queries], value[:, :, :queries]

    state: Any = None

    def attend(call: AttentionCall) -> Tensor:
        nonlocal state
        out, state = hopfield_attention(
            call.query,
            call.key,
            call.value,
            scores.inherited(layer.n, layer.name),
            attn_mask=call.attn_mask,
            is_causal=call.is_causal,
            scale=call.scale,
            dropout_p=call.dropout_p,
            enable_gqa=call.grouped,
            rule=layer.rule(module),
            backend=layer.settings.backend,
            depth=scores.depth,
            scores_dtype=layer.settings.scores_dtype,
        )
        return out

    call = AttentionCall(query, key, value, attention_mask, dropout, causal, scaling)
    edited = edited_layer(module)
    out = attend(call) if edited is None else edited.edited(call, attend)
    weights = None
    if scores.output_attentions:
        weights = softmax_of_visible(masked(state.scores(), attention_mask, causal)).to(value.dtype)
    if scores.observe is not None:
        scores.observe(module, state, attention_mask, causal)
    scores.record(layer.n, state)
    layer.note_alpha(module)
    return out.transpose(1, 2), weights


def refuse_unknown(kwargs: dict[str, Any], name: str) -> None:
    """Raise for a keyword whose meaning is not known here, instead of ignoring it."""
    for keyword, value in kwargs.items():
        if value is not None and keyword not in HARMLESS:
            raise ValueError(
                f"{name} passes {keyword!r} to its attention function, which inherited scores do not support."
            )


def is_causal_call(module: nn.Module, attention_mask: Tensor | None, is_causal: bool | None, queries: int) -> bool:
    """Whether a call without a mask is causal, as transformers' `sdpa_mask` means it: None stands for one of two."""
    if attention_mask is not None or queries <= 1:
        return False
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


@contextmanager
def evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode; the modes of all modules and the random state are put back afterwards."""
    training = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        model.train(False)
        try:
            yield
        finally:
            for module, mode in training.items():
                module.training = mode


# Both are needed: a mask name that is not registered silently drops causality.
AttentionInterface.register(NAME, hopfield_attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)

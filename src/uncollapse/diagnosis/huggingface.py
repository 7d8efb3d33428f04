"""The pass over a transformers model: hooks on its blocks, and attention functions that report queries and keys."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from uncollapse.attention import HiddenState
from uncollapse.models.families import blocks_of, each_query_key_weights, family_of
from uncollapse.models.huggingface import (
    HARMLESS,
    KEYWORD,
    PassScores,
    conversion_of,
    evaluation,
    is_causal_call,
)
from uncollapse.models.learned import learned_of

from .attention_statistics import HIDING, Masking
from .model_pass import Batch
from .observer import Observer
from .scores import CappedScores, InheritedScores, QueryKeyScores, ScoreSource, is_weights
from .stacks import attention_modules, find_stacks
from .tensor_parallel import GatheredScores, head_group
from .verdicts import layer_ranges

OBSERVED_SDPA, OBSERVED_EAGER = "observed_sdpa", "observed_eager"  # attention implementations that also report


class _View:
    """State that the hooks share during a pass: which layer is running, and which tokens are real."""

    def __init__(
        self, observer: Observer, stacks: dict[str, list[nn.Module]], group: ProcessGroup | None = None
    ) -> None:
        self.observer, self.stacks = observer, stacks
        self.group = group  # processes that have other heads
        self.stack_of = {block: name for name, blocks in stacks.items() for block in blocks}
        self.numbers: dict[tuple[str, int], int] = {}  # stack and call -> layer, in the order in which they first run
        self.calls: dict[str, int] = {}
        self.without_attention: dict[int, str] = {}  # layer -> why nothing of its attention was seen
        self.layer, self.rows = 0, 1
        self.in_block = self.attended = False
        self.weights: Tensor | None = None
        self.real: Tensor | None = None

    def start(self, batch: Batch) -> None:
        mask = batch.get("attention_mask")
        self.real = mask.bool() if mask is not None and mask.dim() == 2 else None
        self.rows = next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()), 1)
        self.calls = dict.fromkeys(self.stacks, 0)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the pass is one that another thread had under way when the diagnosis began."""
        return _ACTIVE.get() is not self

    def enter_block(self, block: nn.Module, *_: Any) -> None:
        if self.is_elsewhere:
            return
        stack = self.stack_of[block]
        self.calls[stack] += 1  # calls are counted, so that a block that runs twelve times is twelve layers
        self.layer = self.numbers.setdefault((stack, self.calls[stack]), len(self.numbers) + 1)
        self.in_block, self.attended, self.weights = True, False, None

    def leave_block(self, block: nn.Module, _args: Any, output: Any) -> None:
        if self.is_elsewhere:
            return
        self.in_block = False
        tokens = output[0] if isinstance(output, tuple) else output
        if isinstance(tokens, Tensor) and tokens.dim() == 3:
            self.observer.tokens(self.layer, tokens, self._real_for(tokens.shape[1]))
        if not self.attended and self.weights is not None:
            self._observe_weights(self.weights)
        elif not self.attended:
            self.without_attention[self.layer] = _why_without(block)
        self.weights = None

    def _real_for(self, length: int) -> Tensor | None:
        return self.real if self.real is not None and self.real.shape[1] == length else None

    def watch_scores(self, _base: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        """In a converted model: receive the hidden state of every layer."""
        scores: PassScores = kwargs[KEYWORD]
        scores.observe = self.inherited

    def inherited(self, _module: nn.Module, state: HiddenState, mask: Tensor | None, causal: bool) -> None:
        self.attended = True
        masking = Masking.of(mask, causal, self._real_for(state.shape[2]))
        self._add(InheritedScores(state), masking)

    def _add(self, source: ScoreSource, masking: Masking, parts: int = 1) -> None:
        whole = source if self.group is None else GatheredScores(source, self.group)
        self.observer.scores(self.layer, whole, masking, parts)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> bool:
        """In a stock model: the attention function was called. Whether its weights are needed to measure it."""
        if not self.in_block or self.attended:  # outside the blocks, or a second (cross-)attention of a block
            return False
        if unknown(kwargs):
            return True
        self.attended = True
        causal = is_causal_call(module, mask, kwargs.get("is_causal"), q.shape[2])
        masking = Masking.of(mask, causal, self._real_for(q.shape[2]))
        bias = kwargs.get("position_bias")
        if bias is not None:
            masking.bias = bias if masking.bias is None else masking.bias + bias
        source: ScoreSource = QueryKeyScores(q, k, kwargs.get("scaling"))
        if kwargs.get("softcap") is not None:
            source = CappedScores(source, kwargs["softcap"])
        self._add(source, masking, self._parts(len(q)))
        return False

    def attend_weights(self, weights: Tensor, mask: Tensor) -> None:
        """In a stock model: the weights that an attention function with unknown keywords gave."""
        self.attended = True
        self.observer.attention_weights(
            self.layer, weights, mask > HIDING, real=self._real_for(weights.shape[2]), parts=self._parts(len(weights))
        )

    def returned(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """A module of a block has returned: keep the first attention weights, and let the model not hold them."""
        if not isinstance(output, tuple) or not self.in_block or self.attended or self.weights is not None:
            return None
        self.weights = next((part for part in output if is_weights(part)), None)
        return None

    def _observe_weights(self, weights: Tensor) -> None:
        queries, keys = weights.shape[2:]
        causal = queries == keys and not weights.triu(1).any()
        real = self._real_for(keys)
        visible = None if real is None else real[:, None, None, :].to(weights.device)
        if causal:
            later = torch.ones(queries, keys, dtype=torch.bool, device=weights.device).tril()
            visible = later if visible is None else visible & later
        real = self._real_for(queries)
        self.observer.attention_weights(self.layer, weights, visible, real=real, parts=self._parts(len(weights)))

    def _parts(self, batch: int) -> int:
        """How many entries of an attention call's batch are windows of one and the same image."""
        return max(1, batch // self.rows) if batch % self.rows == 0 else 1

    def explain(self) -> None:
        """Name the stacks that did not run, and the layers whose attention was not seen."""
        observer = self.observer
        for name, blocks in self.stacks.items():
            if not any(stack == name for stack, _ in self.numbers):
                observer.missing[f"{name} ({len(blocks)} layers)"] = "it did not run on these batches."
        if len(self.stacks) > 1:
            for (stack, _), layer in self.numbers.items():
                observer.stacks.setdefault(stack, []).append(layer)
        unseen = {n: why for n, why in self.without_attention.items() if n not in observer.attention_statistics}
        if unseen and not observer.attention_statistics:
            observer.missing["attention"] = next(iter(unseen.values()))
        elif unseen:
            for why in dict.fromkeys(unseen.values()):
                numbers = [n for n, reason in unseen.items() if reason == why]
                observer.missing[f"attention of {layer_ranges(numbers).lower()}"] = why

    def find_dead(self, model: PreTrainedModel) -> None:
        """Weight matrices that are all zero: of the embedding, and of the attention in each layer."""
        try:
            embedding = getattr(model.get_input_embeddings(), "weight", None)
        except NotImplementedError:  # of models that take no tokens
            embedding = None
        if isinstance(embedding, Tensor) and _all_zero(embedding):
            self.observer.dead["the weight of the embedding"] = []
        for (stack, call), layer in self.numbers.items():
            index = (call - 1) % len(self.stacks[stack])
            for path, weight in self.stacks[stack][index].named_parameters():
                if "att" in path.lower() and path.endswith("weight") and "lora_" not in path and _all_zero(weight):
                    self.observer.dead.setdefault(f"{stack}.{index}.{path}", []).append(layer)


def _all_zero(weight: Tensor) -> bool:
    return weight.dim() >= 2 and min(weight.shape) > 1 and not weight.is_meta and not bool(weight.detach().any())


def _why_without(block: nn.Module) -> str:
    """Why a block ran without attention that can be seen."""
    found = attention_modules(block)
    if found:
        return (
            f"{type(found[0]).__name__} neither goes through transformers' AttentionInterface nor returns its weights."
        )
    mixers = [type(child).__name__ for name, child in block.named_children() if not name.endswith(("norm", "mlp"))]
    return f"{type(block).__name__} has no attention with a softmax ({', '.join(mixers[:2]) or 'no mixer was found'})."


KNOWN = frozenset({"dropout", "scaling", "is_causal", "position_bias", "softcap", "deterministic"})


def unknown(kwargs: dict[str, Any]) -> list[str]:
    """Keywords of an attention call whose meaning is not known here, such as learned sinks: then the weights tell."""
    return [name for name, value in kwargs.items() if value is not None and name not in KNOWN | HARMLESS]


_ACTIVE: ContextVar[_View | None] = ContextVar("active view of a diagnosis", default=None)


def _observed(
    own: Callable[..., Any], module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kwargs: Any
) -> Any:
    """Report a call and answer it, unless it belongs to a pass that another thread had under way before.

    Keywords that `own`, which is transformers' function for SDPA, would ignore or refuse go to the model's eager one.
    """
    view = _ACTIVE.get()
    by_weights = view is not None and view.attend(module, q, k, mask, kwargs)
    if not by_weights and (own is not sdpa_attention_forward or kwargs.get("softcap") is None):
        return own(module, q, k, v, mask, **kwargs)
    causal = is_causal_call(module, mask, kwargs.get("is_causal"), q.shape[2])
    mask = _added(mask, causal, q, k)
    out, weights = _eager(module)(module, q, k, v, mask, **kwargs)
    if by_weights and view is not None and is_weights(weights):
        view.attend_weights(weights, mask)
    return out, weights


def _added(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor:
    """A mask as eager functions add it to the scores, (B or 1, 1, Q, K)."""
    if mask is not None and mask.dtype != torch.bool:
        return mask
    if mask is None:
        mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        mask = mask.tril(k.shape[2] - q.shape[2]) if causal else mask
    return torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, torch.finfo(q.dtype).min)


def _eager(module: nn.Module) -> Callable[..., Any]:
    homes = (sys.modules[parent.__module__] for parent in type(module).__mro__)  # a subclass may live elsewhere
    eager: Callable[..., Any] = next(
        home.eager_attention_forward for home in homes if hasattr(home, "eager_attention_forward")
    )
    return eager


def _observed_sdpa(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    return _observed(sdpa_attention_forward, module, q, k, v, mask, kwargs)


def _observed_eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    return _observed(_eager(module), module, q, k, v, mask, kwargs)


AttentionInterface.register(OBSERVED_SDPA, _observed_sdpa)
AttentionInterface.register(OBSERVED_EAGER, _observed_eager)
AttentionMaskInterface.register(OBSERVED_SDPA, sdpa_mask)
AttentionMaskInterface.register(OBSERVED_EAGER, eager_mask)


@contextmanager
def observed(
    model: PreTrainedModel, observer: Observer, on_output: Callable[[Batch, Any], None] = lambda batch, output: None
) -> Iterator[Callable[[Batch], None]]:
    """Hooks on the blocks and, in stock models, an attention function that reports; gives a function that runs a batch.

    The model is in evaluation mode meanwhile; afterwards it is as before.
    """
    stacks = find_stacks(model)
    view, attention = _View(observer, stacks, head_group(model)), model.config._attn_implementation
    found = [(config, config._attn_implementation_internal) for config in _configs(model)]
    handles = []
    for block in view.stack_of:  # a block that is shared between layers needs one pair of hooks
        handles += [block.register_forward_pre_hook(view.enter_block), block.register_forward_hook(view.leave_block)]
    token, asked = _ACTIVE.set(view), {}
    try:
        if conversion_of(model) is not None:
            handles.append(model.base_model.register_forward_pre_hook(view.watch_scores, with_kwargs=True))
        elif not model._can_set_attn_implementation():
            inside = dict.fromkeys(module for block in view.stack_of for module in attention_modules(block))
            handles += [module.register_forward_hook(view.returned) for module in inside]
            asked = {"output_attentions": True} if "output_attentions" in _arguments(model) else {}
            for config in _configs(
                model
            ):  # with another one some models leave their mask to a function that is not run
                config._attn_implementation_internal = "eager"
            if attention != "eager":
                observer.notes.append(f"The pass ran with attention implementation 'eager' in place of {attention!r}.")
        else:
            model.set_attn_implementation(OBSERVED_EAGER if attention == "eager" else OBSERVED_SDPA)
            if attention not in ("eager", "sdpa"):
                observer.notes.append(f"The pass ran with attention implementation 'sdpa' in place of {attention!r}.")

        def run(batch: Batch) -> None:
            view.start(batch)
            output = model(**batch, **asked)
            on_output(batch, output)
            if any(module.training for module in model.modules()):
                raise RuntimeError(
                    "the model was put into training mode while it was being diagnosed, so its dropout is in the "
                    "numbers; wait until uncollapse.diagnose has returned."
                )

        with evaluation(model):
            yield run
        view.explain()
        view.find_dead(model)
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


def _arguments(model: PreTrainedModel) -> set[str]:
    """Names that the model's forward takes; those of old models ask for weights by `output_attentions`."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return names | ({"output_attentions"} if takes_any else set())


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


def read_coefficients(model: PreTrainedModel, observer: Observer) -> None:
    """The learned coefficients of a converted model: which layers and heads inherit scores, and how much."""
    conversion = conversion_of(model)
    for layer, modules in enumerate(() if conversion is None else conversion.layers, start=1):
        learned = learned_of(modules.attention)
        if learned is not None:
            observer.coefficients(layer, learned.inherited_share(), learned.visible_share())


def measure_settings(model: PreTrainedModel, observer: Observer) -> None:
    """What the model has that bears on a collapse, so that nobody is told to do what they do."""
    conversion = conversion_of(model)
    if conversion is not None:
        observer.settings["alpha"] = conversion.settings.alpha if isinstance(conversion.settings.alpha, float) else True
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if names & {"q_norm", "q_layernorm", "query_norm"}:
        observer.settings["qk_norm"] = True
    cap = getattr(model.config, "attn_logit_softcapping", None)
    if cap:
        observer.settings["softcap"] = float(cap)


def explain_gaps(model: PreTrainedModel, observer: Observer) -> None:
    """Refuse where nothing at all was seen."""
    if not observer.token_statistics and not observer.attention_statistics:
        raise ValueError(f"no attention was found in {type(model).__name__}: none of its blocks ran on these batches.")
    if not any(s.sequences or s.broken for s in observer.token_statistics.values()):
        raise ValueError("no sequence has two real tokens: nothing can be measured on these batches.")

"""The pass over a transformers model: hooks on its blocks, and attention functions that report queries and keys."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from uncollapse.attention.scores import is_weights
from uncollapse.models.families import blocks_of, each_query_key_weights, family_of
from uncollapse.models.huggingface import conversion_of, evaluation, is_causal_call
from uncollapse.models.learned import learned_of
from uncollapse.remedies import applied

from .model_pass import Batch
from .observer import Observer
from .stacks import attention_modules, find_stacks
from .tensor_parallel import head_group
from .view import ACTIVE, View

OBSERVED_SDPA, OBSERVED_EAGER = "observed_sdpa", "observed_eager"  # attention implementations that also report


def _observed(
    own: Callable[..., Any], module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kwargs: Any
) -> Any:
    """Report a call and answer it, unless it belongs to a pass that another thread had under way before.

    Keywords that `own`, which is transformers' function for SDPA, would ignore or refuse go to the model's eager one.
    """
    view = next(iter(ACTIVE.get()), None)
    by_weights = view is not None and view.attend(module, q, k, mask, kwargs)
    dropped = any(kwargs.get(name) is not None for name in ("softcap", "s_aux"))
    if not by_weights and (own is not sdpa_attention_forward or not dropped):
        return own(module, q, k, v, mask, **kwargs)
    causal = is_causal_call(module, mask, kwargs.get("is_causal"), q.shape[2])
    mask = _added(mask, causal, q, k)
    out, weights = eager_function(module)(module, q, k, v, mask, **kwargs)
    if by_weights and view is not None and is_weights(weights):
        view.attend_weights(module, weights, mask)
    return out, weights


def _added(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> Tensor:
    """A mask as eager functions add it to the scores, (B or 1, 1, Q, K)."""
    if mask is not None and mask.dtype != torch.bool:
        return mask
    if mask is None:
        mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        mask = mask.tril(k.shape[2] - q.shape[2]) if causal else mask
    return torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, torch.finfo(q.dtype).min)


def eager_function(module: nn.Module) -> Callable[..., Any]:
    """The eager attention function of the file that a module comes from."""
    homes = (sys.modules[parent.__module__] for parent in type(module).__mro__)  # a subclass may live elsewhere
    eager: Callable[..., Any] = next(
        home.eager_attention_forward for home in homes if hasattr(home, "eager_attention_forward")
    )
    return eager


def _observed_sdpa(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    return _observed(sdpa_attention_forward, module, q, k, v, mask, kwargs)


def _observed_eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    return _observed(eager_function(module), module, q, k, v, mask, kwargs)


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
    view, attention = (
        View(observer, stacks, model.config.is_encoder_decoder, head_group(model)),
        model.config._attn_implementation,
    )
    found = [(config, config._attn_implementation_internal) for config in configs_of(model)]
    handles = []
    for block in view.stack_of:  # a block that is shared between layers needs one pair of hooks
        handles += [block.register_forward_pre_hook(view.enter_block), block.register_forward_hook(view.leave_block)]
    token, asked = ACTIVE.set((view,)), {}
    try:
        if conversion_of(model) is not None:
            handles.append(model.base_model.register_forward_pre_hook(view.watch_scores, with_kwargs=True))
        elif not model._can_set_attn_implementation():
            inside = dict.fromkeys(module for block in view.stack_of for module in attention_modules(block))
            handles += [module.register_forward_hook(view.returned) for module in inside]
            asked = {"output_attentions": True} if "output_attentions" in _arguments(model) else {}
            # with another one some models leave their mask to a function that is not run
            for config in configs_of(model):
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
        ACTIVE.reset(token)
        for handle in handles:
            handle.remove()
        for config, implementation in found:
            config._attn_implementation_internal = implementation


def configs_of(model: PreTrainedModel) -> list[PreTrainedConfig]:
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


SCALED_AT_START = ("decision_transformer", "gpt2", "gpt_bigcode", "imagegpt", "nanochat")  # outputs, by 1/sqrt(2 N)


def measure_settings(model: PreTrainedModel, observer: Observer) -> None:
    """What the model has that bears on a collapse, so that nobody is told to do what they do."""
    conversion = conversion_of(model)
    if conversion is not None:
        observer.settings["alpha"] = conversion.settings.alpha if isinstance(conversion.settings.alpha, float) else True
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if names & {"q_norm", "q_layernorm", "query_norm"}:
        observer.settings["qk_norm"] = True
    multiplied = getattr(model.config.get_text_config(), "residual_multiplier", 1.0) != 1.0  # as Granite has it
    learned = any("layer_scale" in name for name in names)  # as DINOv2 has it
    if multiplied or learned or model.config.model_type in SCALED_AT_START:
        observer.settings["scaled_residuals"] = True
    if any("SpectralNorm" in type(module).__name__ for module in model.modules()):
        observer.settings["sigma_reparam"] = True  # weights divided by their spectral norm
    cap = getattr(model.config, "attn_logit_softcapping", None)
    if cap:
        observer.settings["soft_cap"] = float(cap)
    observer.settings.update({remedy.name: True for remedy in applied(model)})


def explain_gaps(model: PreTrainedModel, observer: Observer) -> None:
    """Refuse where nothing at all was seen."""
    if not observer.token_statistics and not observer.attention_statistics:
        raise ValueError(f"no attention was found in {type(model).__name__}: none of its blocks ran on these batches.")
    if not any(s.sequences or s.broken for s in observer.token_statistics.values()):
        raise ValueError("no sequence has two real tokens: nothing can be measured on these batches.")

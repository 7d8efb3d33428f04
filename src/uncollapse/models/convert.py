"""convert(), restore(), from_pretrained(), set_alpha(): inherited scores in a model people already use."""

from __future__ import annotations

import os
import warnings
from typing import Any, cast

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from uncollapse.attention.rule import ScoreRule, Start, check_share, chosen_rule

from ._hooks import CONFIG_KEY, CONVERSION, Conversion, ConversionSettings, attach, conversion_of, detach
from ._trial import check_convertible, find_layers
from .families import family_of, layers_of
from .skip_free import SKIP_FREE_KEY, remove_residuals

HUB_KEYWORDS = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


def convert(
    model: nn.Module,
    alpha: float | None = None,
    alpha_hidden: float = 0.5,
    start: Start = "zero",
    rule: ScoreRule | None = None,
    backend: str = "auto",
) -> nn.Module:
    """Give a stock Hugging Face model inherited scores, in place; no parameter is added.

    Each attention becomes alpha y + (1 - alpha) W_O softmax(H_n) V with H_n = alpha' H_{n-1} + (1 - alpha') Q K^T,
    y being what enters the attention. The block's own residual stays. alpha = alpha_hidden = 0 is the stock model.

    Args:
        model: a transformers model, also inside a wrapper such as a PEFT model.
        alpha: weight of the visible skip; None is the rule's own (0.5 for hopfield, 0 for the others).
        alpha_hidden: alpha', the weight of the inherited scores.
        start: "zero" takes H_0 = 0, "raw" takes H_1 = S_1.
        rule: a `ScoreRule` in place of `alpha_hidden` and `start`.
        backend: as in `hopfield_attention`.

    Returns:
        The same model. A model that cannot be converted raises a ValueError that says why, and is as before.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> model = uc.convert(model, alpha=0.5, alpha_hidden=0.5)
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 16])
    """
    rule = chosen_rule(rule, alpha_hidden, start)
    settings = ConversionSettings(rule, rule.alpha if alpha is None else alpha, backend)
    inner = transformers_model(model)
    if inner.name_or_path and (settings.alpha > 0 or rule.coefficients(2) != (0.0, 1.0)):
        warnings.warn(
            f"the weights of {inner.name_or_path} were not trained for inherited scores, so the model will be worse "
            "until it is trained on; start from alpha = alpha_hidden = 0 and raise both while training "
            "(uncollapse.set_alpha, or alpha_warmup in a training recipe).",
            stacklevel=2,
        )
    _install(inner, settings)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Make a converted model stock again, bit for bit; a stock model stays as it is.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> uc.restore(uc.convert(model)).config._attn_implementation
    'sdpa'
    """
    detach(transformers_model(model))
    return model


def set_alpha(model: nn.Module, alpha: float | None = None, alpha_hidden: float | None = None) -> None:
    """Change alpha, alpha' or both of a converted model; what is None stays.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> uc.set_alpha(uc.convert(model, alpha=0.0, alpha_hidden=0.0), alpha=0.1, alpha_hidden=0.1)
    >>> model.config.uncollapse["alpha"], model.config.uncollapse["rule"]["keep"]
    (0.1, 0.1)
    """
    inner = transformers_model(model)
    settings = conversion_of(inner).settings
    rule = settings.rule
    if alpha_hidden is not None:
        if rule.name != "hopfield":
            raise ValueError(f"alpha_hidden belongs to the rule 'hopfield'; this model runs {rule.name!r}.")
        rule = ScoreRule.hopfield(alpha_hidden, rule.start)
    if alpha is not None:
        check_share("alpha", alpha)
        settings.alpha = float(alpha)
    settings.rule = rule
    setattr(inner.config, CONFIG_KEY, settings.to_config())


def from_pretrained(path: str | os.PathLike[str], auto_class: Any = None, **kwargs: Any) -> PreTrainedModel:
    """Load a saved model with the inherited scores its config names, and without block residuals where it says so.

    A stock checkpoint loads as a stock model.

    Args:
        path: a folder that `save_pretrained` wrote, or a name on the hub.
        auto_class: the class to build, such as `AutoModelForCausalLM`; None builds `config.architectures[0]`.
        kwargs: go to that class's `from_pretrained`.
    """
    if auto_class is None:
        where = {key: value for key, value in kwargs.items() if key in HUB_KEYWORDS}
        names = AutoConfig.from_pretrained(path, **where).architectures or [None]
        auto_class = getattr(transformers, str(names[0]), None)
        if auto_class is None:
            raise ValueError(
                f"the config of {path} names the architecture {names[0]!r}, which transformers does not have; "
                "pass auto_class, for example transformers.AutoModelForCausalLM."
            )
    model = cast(PreTrainedModel, auto_class.from_pretrained(path, **kwargs))
    if getattr(model.config, SKIP_FREE_KEY, False):
        remove_residuals(model)
    data = getattr(model.config, CONFIG_KEY, None)
    if data is not None:
        _install(model, ConversionSettings.from_config(data))
    return model


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model that `model` is or wraps."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"expected a transformers model, or a module around one, got {type(model).__name__}.")


def _install(model: PreTrainedModel, settings: ConversionSettings) -> None:
    """Find the layers, then attach the hooks; if the model is refused, it is as before."""
    before: Conversion | None = getattr(model.base_model, CONVERSION, None)
    detach(model)
    try:
        check_convertible(model)
        family = family_of(model)
        layers = list(layers_of(model, family)) if family is not None else find_layers(model)
    except ValueError:
        if before is not None:
            attach(model, before.settings, before.layers)
        raise
    attach(model, settings, layers)

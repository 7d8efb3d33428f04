"""convert(), restore(), set_alpha(), from_pretrained(): inherited scores in a model that you already have.

What is done depends on the kind of model: huggingface.py serves models of transformers.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from uncollapse.attention.rule import ScoreRule, Skip, Start, chosen_rule
from uncollapse.extras import require

from ._settings import ConversionSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    *,
    alpha: float | None = None,
    alpha_hidden: float = 0.5,
    skip: Skip = "stream",
    start: Start = "zero",
    rule: ScoreRule | None = None,
    backend: str = "auto",
) -> Model:
    """Give a stock Hugging Face model inherited scores, in place; no parameter is added.

    Each attention becomes alpha x + (1 - alpha) W_O softmax(H_n) V with H_n = alpha' H_{n-1} + (1 - alpha') Q K^T,
    x being the tokens that enter the block. alpha = alpha_hidden = 0 is the stock model.

    Args:
        model: a transformers model, also inside a wrapper such as a PEFT model.
        alpha: weight of the visible skip; None is the rule's own (0.5 for hopfield, 0 for the others).
        alpha_hidden: alpha', the weight of the inherited scores.
        skip: what alpha multiplies. "stream": the block's tokens before the norm; "normed": what enters the attention,
            after the norm (what version 0.1 did; in a post-norm block the same as "stream"). With both, the block's own
            residual stays. "replace": the tokens before the norm, in place of that residual.
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
    settings = ConversionSettings(rule, rule.alpha if alpha is None else alpha, backend, skip)
    inner = transformers_model(model)
    if inner.name_or_path and not settings.is_stock:
        warnings.warn(
            f"the weights of {inner.name_or_path} were not trained for inherited scores, so the model will be worse "
            "until it is trained on; start from alpha = alpha_hidden = 0 and raise both while training "
            "(uncollapse.set_alpha, or alpha_warmup in a training recipe).",
            stacklevel=2,
        )
    from . import huggingface

    huggingface.install(inner, settings)
    return model


def restore(model: Model) -> Model:
    """Make a converted model stock again, bit for bit; a stock model stays as it is.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> uc.restore(uc.convert(model)).config._attn_implementation
    'sdpa'
    """
    inner = transformers_model(model)
    from . import huggingface

    huggingface.uninstall(inner)
    return model


def set_alpha(model: Model, alpha: float | None = None, alpha_hidden: float | None = None) -> Model:
    """Change alpha, alpha' or both of a converted model, in place; what is None stays.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> model = uc.set_alpha(uc.convert(model, alpha=0.0, alpha_hidden=0.0), alpha=0.1, alpha_hidden=0.1)
    >>> model.config.uncollapse["alpha"], model.config.uncollapse["rule"]["keep"]
    (0.1, 0.1)
    """
    inner = transformers_model(model)
    from . import huggingface

    huggingface.change_alpha(inner, alpha, alpha_hidden)
    return model


def from_pretrained(path: str | os.PathLike[str], auto_class: Any = None, **kwargs: Any) -> PreTrainedModel:
    """Load a saved model with the inherited scores its config names, and without block residuals where it says so.

    A stock checkpoint loads as a stock model. Weights that are missing or of a wrong shape, and weights of layers that
    the model does not have, raise a ValueError that names them, and so does a damaged folder. Code that comes with a
    model is not run unless you pass `trust_remote_code=True`.

    Args:
        path: a folder that `save_pretrained` wrote, or a name on the hub.
        auto_class: the class to build, such as `AutoModelForCausalLM`; its head may be new, with a warning. None builds
            `config.architectures[0]`, whose head must be there as well.
        kwargs: passed to the `from_pretrained` of that class.
    """
    require("transformers")
    from . import loading

    return loading.load(path, auto_class, **kwargs)


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model that `model` is or wraps."""
    if "transformers" in sys.modules:  # nobody has a model of a package that is not imported
        from transformers import PreTrainedModel

        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                return module
    require("transformers")
    raise ValueError(
        f"expected a transformers model, or a module around one, got {type(model).__name__}; "
        "uncollapse.Observer measures any other module from the tensors you pass to it."
    )

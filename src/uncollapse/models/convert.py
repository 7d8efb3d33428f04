"""convert(), restore(), set_alpha(), plan(): inherited scores in a model that you already have.

There are two routes. huggingface.py serves models of transformers whose attention goes through `AttentionInterface`;
plain.py serves every other PyTorch module, through its attention calls.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from uncollapse.attention import HopfieldAttention
from uncollapse.attention.rule import ScoreRule, Skip, Start, chosen_rule
from uncollapse.extras import require

from . import plain
from ._settings import ConversionSettings
from .plain import Paths, Plan, RunBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    *,
    alpha: float | str | None = None,
    alpha_hidden: float | str = 0.5,
    skip: Skip = "stream",
    start: Start = "zero",
    rule: ScoreRule | None = None,
    backend: str = "auto",
    scores_dtype: Any = None,
    example: Any = None,
    run: RunBatch | None = None,
    layers: Paths = None,
    blocks: Paths = None,
) -> Model:
    """Add inherited scores to a model, in place; no parameter is added unless one is to be learned.

    Each attention becomes alpha x + (1 - alpha) W_O softmax(H_n) V with H_n = alpha' H_{n-1} + (1 - alpha') Q K^T,
    x being the tokens that enter the block. alpha = alpha_hidden = 0 is the stock model.

    Args:
        model: a transformers model, also inside a wrapper such as a PEFT model, or any other PyTorch module that calls
            `scaled_dot_product_attention`, `nn.MultiheadAttention`, or writes its softmax out.
        alpha: weight of the visible skip; None is the rule's own (0.5 for hopfield, 0 for the others).
            "learned" adds one parameter to each layer, "learned:0.1" starts it at 0.1 in place of 0.5.
        alpha_hidden: alpha', the weight of the inherited scores. "learned" adds one parameter for each head and layer;
            a start at 0 is the stock model. `uncollapse.parameter_groups` has a group for them.
        skip: what alpha multiplies. "stream": the block's tokens before the norm; "normed": what enters the attention,
            after the norm (what version 0.1 did; in a post-norm block the same as "stream"). With both, the block's own
            residual stays. "replace": the tokens before the norm, in place of that residual.
        start: "zero" takes H_0 = 0, "raw" takes H_1 = S_1.
        rule: a `ScoreRule` in place of `alpha_hidden` and `start`.
        backend: as in `hopfield_attention`.
        scores_dtype: as in `hopfield_attention`.
        example: a batch with which the attention of a plain module is found: a dict gives keywords, a tuple positions,
            a tensor one argument. `plan(model, example=batch)` shows what is found.
        run: run(model, batch) in place of that call, for a batch that holds more than the model takes.
        layers: the attention modules to use, where others than the ones found are meant: paths, or a pattern such as
            "blocks.*.attn".
        blocks: the blocks around them, likewise.

    Returns:
        The same model. A model that cannot be converted raises a ValueError that says why, and is as before.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> model = uc.convert(model, alpha=0.5, alpha_hidden=0.5, example=torch.randn(1, 3, 8))
    >>> model(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """
    rule = chosen_rule(rule, alpha_hidden, start)
    kept = None if scores_dtype is None else str(scores_dtype).removeprefix("torch.")
    settings = ConversionSettings(rule, rule.alpha if alpha is None else alpha, backend, skip, kept)
    from . import editing  # which needs this file

    editing.refuse_inheriting(model)
    inner = find_transformers_model(model)
    if inner is None or run is not None or layers is not None or blocks is not None:
        with editing.hooks_last(model):
            plain.install(model, settings, example, run, layers, blocks)
        return model
    if inner.name_or_path and not settings.is_stock:
        warnings.warn(
            f"the weights of {inner.name_or_path} were not trained for inherited scores, so the model will be worse "
            "until it is trained on; start from alpha = alpha_hidden = 0 and raise both while training "
            "(uncollapse.set_alpha, or alpha_warmup in a training recipe).",
            stacklevel=2,
        )
    from . import huggingface

    with editing.hooks_last(model):
        huggingface.install(inner, settings, example)
    return model


def plan(
    model: nn.Module, *, example: Any = None, run: RunBatch | None = None, layers: Paths = None, blocks: Paths = None
) -> Plan:
    """What `convert` and `diagnose` find in a plain PyTorch module, by one forward on `example`; print it.

    Blocks, attention calls and their kinds, x and y of the visible skip, W_O, W_Q and W_K, and what is left out and
    why. The arguments are those of `convert`. A converted module gives the plan that it was converted with.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    >>> print(uc.plan(model, example=torch.randn(1, 3, 8)))
    TransformerEncoder: 1 attention layer
    <BLANKLINE>
    layers.#.self_attn: 1 layer of 2 heads, MultiheadAttention
      layer 1: layers.0.self_attn
        block    layers.0
        x        the model itself
        y        layers.0.self_attn
        W_O      layers.0.self_attn
        W_Q, W_K layers.0.self_attn.in_proj_weight
    """
    conversion = plain.conversion_of(model)
    if conversion is not None:
        return conversion.plan
    return plain.find(model, example, run, layers, blocks)[0]


def settings_of(model: nn.Module) -> ConversionSettings | None:
    """What `convert` has set in this model or in one inside it, None if it is stock."""
    by_calls = plain.conversion_of(model)
    if by_calls is not None:
        return by_calls.settings
    inner = find_transformers_model(model)
    if inner is None:
        return None
    from . import huggingface

    conversion = huggingface.conversion_of(inner)
    return None if conversion is None else conversion.settings


def restore(model: Model) -> Model:
    """Undo `convert`; what remedies have changed stays, which `uncollapse.restore` undoes as well."""
    inner = find_transformers_model(model)
    if inner is not None:
        from . import huggingface

        huggingface.uninstall(inner)
    plain.uninstall(model)
    return model


def set_alpha(model: Model, alpha: float | None = None, alpha_hidden: float | None = None) -> Model:
    """Change alpha, alpha' or both of a converted model, in place; what is None stays.

    Also of a model of your own with `HopfieldAttention` layers, in all of them.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> model = uc.set_alpha(uc.convert(model, alpha=0.0, alpha_hidden=0.0), alpha=0.1, alpha_hidden=0.1)
    >>> model.config.uncollapse["alpha"], model.config.uncollapse["rule"]["keep"]
    (0.1, 0.1)
    """
    layers = [module for module in model.modules() if isinstance(module, HopfieldAttention)]
    for layer in layers:
        layer.coefficients.change(alpha, alpha_hidden)
    if layers:
        return model
    inner = find_transformers_model(model)
    if inner is None:
        plain.change_alpha(model, alpha, alpha_hidden)
        return model
    from . import huggingface

    huggingface.change_alpha(inner, alpha, alpha_hidden)
    return model


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model that `model` is or wraps; a ValueError if there is none."""
    found = find_transformers_model(model)
    if found is None:
        require("transformers")
        raise ValueError(f"expected a transformers model, or a module around one, got {type(model).__name__}.")
    return found


def find_transformers_model(model: nn.Module) -> PreTrainedModel | None:
    """The transformers model that `model` is or wraps, if there is one."""
    if "transformers" in sys.modules:  # nobody has a model of a package that is not imported
        from transformers import PreTrainedModel

        return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    return None

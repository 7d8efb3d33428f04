"""apply() and restore(): give a model a remedy, and take everything back."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from uncollapse.models.convert import Model, settings_of
from uncollapse.models.convert import restore as undo_conversion

from .contents import together
from .remedy import Remedy, applied, named, remember


def apply(
    model: Model, remedy: str | Remedy, *, optimizer: Optimizer | None = None, example: Any = None, **settings: Any
) -> Model:
    """Give a model a remedy, in place.

    Args:
        model: a transformers model, also inside a wrapper, or any other PyTorch module.
        remedy: the name of one in `uncollapse.remedies.list()`, or one with its settings, such as
            `uncollapse.remedies.SoftCap(cap=30.0)`.
        optimizer: for remedies that act at its steps: `qk_clip`, `qk_rate`, `locater`.
        example: a batch with which the attention of a plain module is found, as in `convert`; or its
            `uncollapse.plan`, made before the module was sharded, which hides where W_Q and W_K are.
        settings: of the remedy, if it is given by name.

    Returns:
        The same model. `uncollapse.restore` takes everything back; `uncollapse.remedies.check(model, batch)` shows
        that it runs. What cannot work raises a ValueError that says why, and the model is as before.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> model = uc.apply(uc.apply(model, "qk_norm"), "sink", start=-1.0)
    >>> uc.remedies.applied(model)
    [QKNorm(gain=True, fit=False, eps=None), Sink(start=-1.0)]
    """
    if isinstance(remedy, str):
        remedy = named(remedy, **settings)
    elif settings:
        raise ValueError(f"{remedy.name} has its settings already; leave out {', '.join(settings)}, or give its name.")
    if not isinstance(remedy, Remedy):
        raise ValueError(f"expected the name of a remedy or a remedy, got {type(remedy).__name__}.")
    present = applied(model)
    if any(other.name == remedy.name for other in present):
        raise ValueError(f"this model has {remedy.name} already; uncollapse.restore(model) takes its remedies back.")
    together(remedy.name, [other.name for other in present] + _conversion_of(model))
    if remedy.needs_optimizer and optimizer is None:
        raise ValueError(f"{remedy.name} acts at the steps of an optimizer: give optimizer=.")
    remedy.install(model, optimizer, example)
    remember(model, [*present, remedy])
    return model


def _conversion_of(model: nn.Module) -> list[str]:
    """What `convert` has made of the model, as a remedy's name."""
    return [] if settings_of(model) is None else ["hopfield"]


def restore(model: Model) -> Model:
    """Make a model stock again, bit for bit: inherited scores and remedies go; a stock model stays as it is.

    What training has changed in the model's own weights stays, `qk_clip`'s scalings among it.

    >>> import uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> uc.restore(uc.apply(uc.convert(model), "qk_norm")).config._attn_implementation
    'sdpa'
    """
    undo_conversion(model)
    for remedy in reversed(applied(model)):
        remedy.remove(model)
    remember(model, [])
    return model

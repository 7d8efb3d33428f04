"""from_pretrained(), save() and load(): saved models, with their inherited scores and remedies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from uncollapse.extras import require
from uncollapse.models import saving
from uncollapse.models.anatomy import Anatomy, anatomy
from uncollapse.models.convert import Model
from uncollapse.models.editing import edited_model
from uncollapse.models.plain import Plan

from .remedy import EditRemedy, applied, from_data, remember

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def from_pretrained(path: str | os.PathLike[str], auto_class: Any = None, **kwargs: Any) -> PreTrainedModel:
    """Load a saved model as it was: with the inherited scores and the remedies that its config names.

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
    from uncollapse.models import loading

    return loading.load(path, auto_class, rebuild=_rebuild, **kwargs)


def _rebuild(model: nn.Module, data: Any, plan: Plan | None = None) -> None:
    """Apply the remedies that `data` describes; their parameters are filled afterwards."""
    if not isinstance(data, list):
        raise ValueError(f"the remedies of a saved model must be a list, got {data!r}.")
    remedies = [from_data(entry) for entry in data]
    for remedy in remedies:
        assert isinstance(remedy, EditRemedy)
        found = None
        if edited_model(model) is None:
            found = anatomy(model) if plan is None else Anatomy(model, plan)
        remedy.install_in(model, found)
    remember(model, remedies)


def save(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write a plain PyTorch module to a new folder: its weights, how it was converted, and its remedies.

    `uncollapse.load(build, folder)` reads it. A transformers model has `save_pretrained` for that.

    >>> import tempfile, torch, uncollapse as uc
    >>> def build():
    ...     layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ...     return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> x = torch.randn(1, 3, 8)
    >>> model = uc.apply(uc.convert(build(), example=x), "qk_norm").eval()
    >>> folder = uc.save(model, tempfile.mkdtemp() + "/model")
    >>> torch.equal(uc.load(build, folder).eval()(x), model(x))
    True
    """
    remedies, shared = [remedy.to_data() for remedy in applied(model) if remedy.travels], edited_model(model)
    if shared is None:
        return saving.save(model, folder)
    return saving.save(model, folder, {"plan": shared.plan.to_data(), "applied": remedies})


def load(build: Callable[[], Model], folder: str | os.PathLike[str]) -> Model:
    """A module that `save` wrote: `build()` makes it, the folder gives its weights, its conversion and its remedies.

    No forward runs: what was found when the module was changed is in the folder.
    """

    def rebuild(model: Model, data: Any) -> None:
        if not isinstance(data, Mapping) or not {"plan", "applied"} <= data.keys():
            raise ValueError(f"{folder} is damaged: its remedies lack a plan; save the module again.")
        _rebuild(model, data["applied"], Plan.from_data(data["plan"]))

    return saving.load(build, folder, rebuild)

"""uncollapse finds and explains attention collapse in Transformers and tells what is known to help."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import metrics as metrics
    from . import remedies as remedies
    from . import theory as theory
    from .attention import AttentionOnly as AttentionOnly
    from .attention import HiddenState as HiddenState
    from .attention import HopfieldAttention as HopfieldAttention
    from .attention import ScoreRule as ScoreRule
    from .attention import hopfield_attention as hopfield_attention
    from .attention import release_memory as release_memory
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import Observer as Observer
    from .diagnosis import diagnose as diagnose
    from .models.convert import convert as convert
    from .models.convert import plan as plan
    from .models.convert import set_alpha as set_alpha
    from .models.learned import parameter_groups as parameter_groups
    from .remedies import LocaterCallback as LocaterCallback
    from .remedies import apply as apply
    from .remedies import from_pretrained as from_pretrained
    from .remedies import load as load
    from .remedies import locater_penalty as locater_penalty
    from .remedies import restore as restore
    from .remedies import save as save
    from .training import Recipe as Recipe
    from .training import Run as Run
    from .training import train as train
    from .training.compare import Comparison as Comparison
    from .training.compare import compare as compare
    from .watching import DiagnoseCallback as DiagnoseCallback
    from .watching import Watch as Watch
    from .watching import watch as watch

__version__ = "0.2.0"

_ROOM_OF = {  # public name -> the room it lives in, imported on first use
    "AttentionOnly": "attention",
    "Comparison": "training.compare",
    "DiagnoseCallback": "watching",
    "Diagnosis": "diagnosis",
    "HiddenState": "attention",
    "HopfieldAttention": "attention",
    "LocaterCallback": "remedies",
    "Observer": "diagnosis",
    "Recipe": "training",
    "Run": "training",
    "ScoreRule": "attention",
    "Watch": "watching",
    "apply": "remedies",
    "compare": "training.compare",
    "convert": "models",
    "diagnose": "diagnosis",
    "from_pretrained": "remedies",
    "hopfield_attention": "attention",
    "load": "remedies",
    "locater_penalty": "remedies",
    "parameter_groups": "models",
    "plan": "models",
    "release_memory": "attention",
    "restore": "remedies",
    "save": "remedies",
    "set_alpha": "models",
    "train": "training",
    "watch": "watching",
}
_ROOMS = ("metrics", "remedies", "theory")
_DEPRECATED = {  # name of version 0.1 -> where it is, and what to use instead
    "compare_html": ("diagnosis.pages", "uncollapse.compare(reports).to_html(path)"),
    "compare_runs": ("training.compare", "uncollapse.compare(runs)"),
}

__all__ = sorted([*_ROOM_OF, *_ROOMS, "__version__"])


def __getattr__(name: str) -> Any:
    from .extras import naming_missing_extra

    with naming_missing_extra():
        if name in _ROOMS:
            return import_module(f".{name}", __name__)
        if name in _ROOM_OF:
            value = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
        elif name in _DEPRECATED:
            from .deprecation import warn

            module, instead = _DEPRECATED[name]
            value = getattr(import_module(f".{module}", __name__), name)
            warn(f"uncollapse.{name}", instead)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

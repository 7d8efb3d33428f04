"""uncollapse finds and explains attention collapse in Transformers and tells what is known to help."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import metrics as metrics
    from . import theory as theory
    from .attention import AttentionOnly as AttentionOnly
    from .attention import HiddenState as HiddenState
    from .attention import ScoreRule as ScoreRule
    from .attention import hopfield_attention as hopfield_attention
    from .diagnosis import DiagnoseCallback as DiagnoseCallback
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import Observer as Observer
    from .diagnosis import compare_html as compare_html
    from .diagnosis import diagnose as diagnose
    from .huggingface import LocaterCallback as LocaterCallback
    from .huggingface import convert as convert
    from .huggingface import from_pretrained as from_pretrained
    from .huggingface import locater_penalty as locater_penalty
    from .huggingface import restore as restore
    from .huggingface import set_alpha as set_alpha
    from .training import Recipe as Recipe
    from .training import Run as Run
    from .training import train as train
    from .training.compare import Comparison as Comparison
    from .training.compare import compare_runs as compare_runs

__version__ = "0.1.0"

_ROOM_OF = {  # public name -> the room it lives in, imported on first use
    "AttentionOnly": "attention",
    "Comparison": "training.compare",
    "DiagnoseCallback": "diagnosis",
    "Diagnosis": "diagnosis",
    "HiddenState": "attention",
    "LocaterCallback": "huggingface",
    "Observer": "diagnosis",
    "Recipe": "training",
    "Run": "training",
    "ScoreRule": "attention",
    "compare_html": "diagnosis",
    "compare_runs": "training.compare",
    "convert": "huggingface",
    "diagnose": "diagnosis",
    "from_pretrained": "huggingface",
    "hopfield_attention": "attention",
    "locater_penalty": "huggingface",
    "restore": "huggingface",
    "set_alpha": "huggingface",
    "train": "training",
}
_ROOMS = ("metrics", "theory")

__all__ = [
    "AttentionOnly",
    "Comparison",
    "DiagnoseCallback",
    "Diagnosis",
    "HiddenState",
    "LocaterCallback",
    "Observer",
    "Recipe",
    "Run",
    "ScoreRule",
    "__version__",
    "compare_html",
    "compare_runs",
    "convert",
    "diagnose",
    "from_pretrained",
    "hopfield_attention",
    "locater_penalty",
    "metrics",
    "restore",
    "set_alpha",
    "theory",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name in _ROOM_OF:
        value = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

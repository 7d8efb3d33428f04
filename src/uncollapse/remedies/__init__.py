"""What is known to help against collapse: one file per remedy, and a table of contents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from uncollapse.extras import naming_missing_extra

if TYPE_CHECKING:
    from .applying import apply as apply
    from .applying import restore as restore
    from .checking import Proof as Proof
    from .checking import check as check
    from .contents import table

    list = table
    from .hopfield import Hopfield as Hopfield
    from .locater import LocaterCallback as LocaterCallback
    from .locater import locater_penalty as locater_penalty
    from .locater_remedy import Locater as Locater
    from .output_gate import OutputGate as OutputGate
    from .qk_clip import QKClip as QKClip
    from .qk_norm import QKNorm as QKNorm
    from .qk_norm import to_qwen3 as to_qwen3
    from .qk_rate import QKRate as QKRate
    from .remedy import Remedy as Remedy
    from .remedy import applied as applied
    from .saved import from_pretrained as from_pretrained
    from .saved import load as load
    from .saved import save as save
    from .sigma_reparam import SigmaReparam as SigmaReparam
    from .sink import Sink as Sink
    from .soft_cap import SoftCap as SoftCap
    from .value_mixing import ValueMixing as ValueMixing

_FILE_OF = {
    "Hopfield": "hopfield",
    "Locater": "locater_remedy",
    "LocaterCallback": "locater",
    "OutputGate": "output_gate",
    "Proof": "checking",
    "QKClip": "qk_clip",
    "QKNorm": "qk_norm",
    "QKRate": "qk_rate",
    "Remedy": "remedy",
    "SigmaReparam": "sigma_reparam",
    "Sink": "sink",
    "SoftCap": "soft_cap",
    "ValueMixing": "value_mixing",
    "applied": "remedy",
    "apply": "applying",
    "check": "checking",
    "from_pretrained": "saved",
    "list": "contents",
    "load": "saved",
    "locater_penalty": "locater",
    "restore": "applying",
    "save": "saved",
    "to_qwen3": "qk_norm",
}
_OTHER_NAME = {"list": "table"}  # as it is called in its file

__all__ = sorted(_FILE_OF)


def __getattr__(name: str) -> Any:  # the table can be read without transformers
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_missing_extra():
        return getattr(import_module(f".{_FILE_OF[name]}", __name__), _OTHER_NAME.get(name, name))

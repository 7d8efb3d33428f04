"""What is known to help against collapse: one file per remedy, and this table of contents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from uncollapse.extras import naming_missing_extra

if TYPE_CHECKING:
    from .locater import LocaterCallback as LocaterCallback
    from .locater import locater_penalty as locater_penalty

REMEDIES = {  # name -> what it does
    "locater": "LocAteR: a penalty on the query-key matrices that keeps tr(W^T W) small and tr W near 1",
}
_FILE_OF = {"LocaterCallback": "locater", "locater_penalty": "locater"}

__all__ = ["REMEDIES", "LocaterCallback", "locater_penalty"]


def __getattr__(name: str) -> Any:  # the table can be read without transformers
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_missing_extra():
        return getattr(import_module(f".{_FILE_OF[name]}", __name__), name)

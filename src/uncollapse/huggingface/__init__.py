"""The package of version 0.1; now `uncollapse.models` (conversion) and `uncollapse.remedies` (LocAteR)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from uncollapse.deprecation import Moved, moved_names

_CONVERSION = ("convert", "set_alpha")
_REMEDIES = ("LocaterCallback", "from_pretrained", "locater_penalty", "restore")
_MOVED = {name: Moved("uncollapse.models", name, f"uncollapse.{name}") for name in _CONVERSION} | {
    name: Moved("uncollapse.remedies", name, f"uncollapse.{name}") for name in _REMEDIES
}

__getattr__ = moved_names(__name__, _MOVED)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _MOVED:  # importing the submodule `convert` must not hide the function of that name
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

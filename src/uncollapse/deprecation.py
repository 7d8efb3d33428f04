"""Names of version 0.1 that still work: the first use of each warns and says what to use instead."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

REMOVAL = "0.3"  # the version in which these names go


class Moved(NamedTuple):
    """Where a name of version 0.1 is now, and what to write instead."""

    module: str
    name: str
    instead: str


def moved_names(module: str, moved: Mapping[str, Moved]) -> Callable[[str], Any]:
    """The `__getattr__` of a module from which some names have moved."""

    def find(name: str) -> Any:
        if name not in moved:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(moved[name].module), moved[name].name)
        warn(f"{module}.{name}", moved[name].instead)
        vars(sys.modules[module])[name] = value  # `from package import name` looks the name up twice
        return value

    return find


def moved_module(old: str, new: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module all of whose names have moved to another one."""

    def find(name: str) -> Any:
        if name.startswith("__"):  # asked for by the import system and by tools, not by users
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        value = getattr(import_module(new), name)
        warn(f"{old}.{name}", f"{new}.{name}")
        vars(sys.modules[old])[name] = value
        return value

    return find


def warn(old: str, instead: str) -> None:
    """Say what to use instead, at the line that called the caller."""
    message = f"{old} will be removed in version {REMOVAL}; use {instead}."
    warnings.warn(message, DeprecationWarning, stacklevel=3)

"""The numbers of a diagnosis while a model trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uncollapse.extras import naming_missing_extra

from .alarm import Alarm
from .front import Watch, watch
from .recent import Recent

if TYPE_CHECKING:
    from .callback import DiagnoseCallback as DiagnoseCallback

__all__ = ["Alarm", "DiagnoseCallback", "Recent", "Watch", "watch"]


def __getattr__(name: str) -> Any:  # a Trainer's callback needs transformers
    if name != "DiagnoseCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_missing_extra():
        from .callback import DiagnoseCallback
    return DiagnoseCallback

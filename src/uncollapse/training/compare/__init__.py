"""Comparison of diagnoses or runs: what differs, what came out, and whether a difference is more than chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uncollapse.diagnosis.comparison import Comparison

from .front import compare

if TYPE_CHECKING:
    from .result import RunComparison as RunComparison
    from .result import compare_runs as compare_runs

__all__ = ["Comparison", "RunComparison", "compare", "compare_runs"]


def __getattr__(name: str) -> Any:  # comparing diagnoses needs nothing that only training needs
    if name in ("RunComparison", "compare_runs"):
        from . import result

        return getattr(result, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

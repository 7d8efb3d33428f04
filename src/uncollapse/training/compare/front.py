"""compare(): diagnoses or runs side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from uncollapse.diagnosis.comparison import Comparison, DiagnosisComparison
from uncollapse.diagnosis.result import Diagnosis
from uncollapse.extras import naming_missing_extra


def compare(
    items: Sequence[Diagnosis] | Sequence[str | os.PathLike[str]], *, names: Sequence[str] | None = None
) -> Comparison:
    """Compare diagnoses or runs and say what differs between them.

    Args:
        items: two to four diagnoses, or run folders that `uncollapse train` wrote. A folder that holds `seed-*` runs
            stands for all of them. Runs whose recipes are equal up to the seed form a group; the other groups are
            compared with the first.
        names: what to call the diagnoses; the names of their models by default. Runs are named by their folders.

    Returns:
        An object with `findings` (sentences) and `to_html(path)`; for runs also with tables.

    >>> import torch, uncollapse as uc
    >>> def look(scale):
    ...     with uc.Observer(f"scores times {scale}") as observer:
    ...         observer.attention(1, *(scale * torch.randn(2, 1, 2, 9, 4)), is_causal=True)
    ...     return observer.diagnosis
    >>> uc.compare([look(1.0), look(9.0)]).names
    ['scores times 1.0', 'scores times 9.0']
    """
    if isinstance(items, str | os.PathLike):
        items = [items]
    kinds = {isinstance(item, Diagnosis) for item in items}
    if len(kinds) > 1:
        raise ValueError("compare takes diagnoses or run folders, not both together.")
    if kinds == {True}:
        return DiagnosisComparison(cast("Sequence[Diagnosis]", items), names)
    if names is not None:
        raise ValueError("names goes with diagnoses; runs are named by their folders.")
    with naming_missing_extra():
        from .result import compare_runs

    return compare_runs(cast("Sequence[str | os.PathLike[str]]", items))

"""Pages of diagnoses: passes their tables and sentences to the charts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uncollapse.extras import require
from uncollapse.metrics.similarity import ALIGNED, COSINE_WIDTH
from uncollapse.report.content import DiagnosisContent, Finding

from .attention_statistics import ENTROPY_WIDTH
from .summary import layer_table
from .thresholds import SATURATED_GAP
from .usual import HIGH, main_numbers, quantiles

if TYPE_CHECKING:
    from .result import Diagnosis


def content_of(diagnosis: Diagnosis, name: str | None = None) -> DiagnosisContent:
    """A diagnosis in the form that `report/` takes; `name` replaces the name of the model."""
    info = diagnosis.info
    about = (
        f"{len(diagnosis.layers)} layers, {len(diagnosis.heads)} heads; {info.get('sequences', 0)} sequences with "
        f"{info.get('tokens', 0):,} tokens ({info.get('sample', 'unknown data')})"
    )
    return DiagnosisContent(
        name=name or str(info.get("model", "a model")),
        about=about,
        layers=diagnosis.layers,
        heads=diagnosis.heads,
        cosines=diagnosis.histograms["cosine"],
        cosine_width=COSINE_WIDTH,
        entropies=diagnosis.histograms["entropy"],
        entropy_width=ENTROPY_WIDTH,
        propagation=diagnosis.propagation,
        eigenvalues=diagnosis.eigenvalues,
        findings=[Finding(v.kind, v.sentence, v.remedy, v.layers, v.heads, v.is_collapse) for v in diagnosis.verdicts],
        missing=diagnosis.missing,
        limits={"gap_mean": SATURATED_GAP, "cosine": ALIGNED} | _usual(),
        usual=main_numbers(diagnosis),
        notes=diagnosis.notes,
    )


def _usual() -> dict[str, float]:
    gap = quantiles().get("gap_mean", {}).get(HIGH)
    return {} if gap is None else {"gap_usual": gap}


def write_page(diagnosis: Diagnosis, path: str | os.PathLike[str], force: bool) -> Path:
    """Write the page of one diagnosis."""
    require("altair", "vl_convert")
    from uncollapse.report.diagnosis_page import diagnosis_page
    from uncollapse.report.page import write

    return write(diagnosis_page(content_of(diagnosis), layer_table(diagnosis.layers), footer()), path, force)


def notebook_view(diagnosis: Diagnosis) -> str:
    """What a notebook shows."""
    from uncollapse.report.diagnosis_page import notebook_html

    return notebook_html(content_of(diagnosis))


def compare_html(
    reports: Sequence[Diagnosis],
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    force: bool = False,
) -> Path:
    """The call of version 0.1; use `uc.compare(reports, names=names).to_html(path)`."""
    from .comparison import DiagnosisComparison

    return DiagnosisComparison(reports, names).to_html(path, force=force)


def footer() -> str:
    """The last line of every page."""
    from uncollapse import __version__

    return f"Made by uncollapse {__version__}. This file needs no network and can be attached as it is."

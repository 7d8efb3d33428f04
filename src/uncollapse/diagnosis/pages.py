"""Diagnoses as pages: hands their tables and words to the charts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uncollapse.report.content import Content, Finding

from .summary import layer_table

if TYPE_CHECKING:
    from .result import Diagnosis


def content_of(diagnosis: Diagnosis, name: str | None = None) -> Content:
    """A diagnosis as `report/` takes it; `name` replaces that of the model."""
    info = diagnosis.info
    about = (
        f"{len(diagnosis.layers)} layers, {len(diagnosis.heads)} heads; {info.get('sequences', 0)} sequences with "
        f"{info.get('tokens', 0):,} tokens ({info.get('sample', 'unknown data')})"
    )
    return Content(
        name=name or str(info.get("model", "a model")),
        about=about,
        layers=diagnosis.layers,
        heads=diagnosis.heads,
        cosines=diagnosis.histograms["cosine"],
        entropies=diagnosis.histograms["entropy"],
        propagation=diagnosis.propagation,
        eigenvalues=diagnosis.eigenvalues,
        findings=[Finding(v.kind, v.sentence, v.remedy, v.layers, v.heads, v.is_collapse) for v in diagnosis.verdicts],
        missing=diagnosis.missing,
        notes=diagnosis.notes,
    )


def write_page(diagnosis: Diagnosis, path: str | os.PathLike[str], force: bool) -> Path:
    """Write the page of one diagnosis."""
    from uncollapse.report.diagnosis_page import diagnosis_page
    from uncollapse.report.page import write

    return write(diagnosis_page(content_of(diagnosis), layer_table(diagnosis.layers), _footer()), path, force)


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
    """Write one page that sets two to four diagnoses side by side and says in words where they differ.

    Args:
        reports: the diagnoses; they may differ in depth and in the number of heads.
        path: of the HTML file; an earlier page of uncollapse is replaced, any other file refused.
        names: what to call the reports; the names of their models by default.
        force: replace whatever file is there.
    """
    from uncollapse.report.comparison_page import comparison_page
    from uncollapse.report.page import write

    if not 2 <= len(reports) <= 4:
        raise ValueError(f"two to four reports can be compared on a page, got {len(reports)}.")
    if names is not None and len(names) != len(reports):
        raise ValueError(f"there must be one name a report: {len(reports)} reports, {len(names)} names.")
    given = names or [str(report.info.get("model", "a model")) for report in reports]
    if len(set(given)) < len(given):
        given = [f"{name} ({number})" for number, name in enumerate(given, start=1)]
    contents = [content_of(report, name) for report, name in zip(reports, given, strict=True)]
    return write(comparison_page(contents, _footer()), path, force)


def _footer() -> str:
    from uncollapse import __version__

    return f"Made by uncollapse {__version__}. This file needs no network and can be attached as it is."

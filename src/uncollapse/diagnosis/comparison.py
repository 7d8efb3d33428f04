"""Diagnoses side by side: what `uc.compare` returns for two to four of them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uncollapse.extras import MissingExtraError, require

if TYPE_CHECKING:
    from .result import Diagnosis

MOST = 4  # diagnoses that fit beside each other on a page


class Comparison(ABC):
    """What `uc.compare` returns: findings as sentences, and a page."""

    findings: Sequence[str]

    @abstractmethod
    def html(self) -> str:
        """The page."""

    def to_html(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write one self-contained page that opens from disk and needs no network.

        An earlier page of uncollapse at `path` is replaced; any other file is refused unless `force`.
        """
        require("altair", "vl_convert")
        from uncollapse.report.page import write  # charts are loaded when they are drawn

        return write(self.html(), path, force)


class DiagnosisComparison(Comparison):
    """Two to four diagnoses; they may differ in depth and in the number of heads."""

    def __init__(self, reports: Sequence[Diagnosis], names: Sequence[str] | None = None) -> None:
        if not 2 <= len(reports) <= MOST:
            raise ValueError(f"two to {MOST} diagnoses can be compared, got {len(reports)}.")
        if names is not None and len(names) != len(reports):
            raise ValueError(
                f"names must have one name for each diagnosis: {len(reports)} diagnoses, got {len(names)}."
            )
        given = list(names or [str(report.info.get("model", "a model")) for report in reports])
        if len(set(given)) < len(given):
            given = [f"{name} ({number})" for number, name in enumerate(given, start=1)]
        self.reports, self.names = list(reports), given

    @property
    def findings(self) -> list[str]:  # type: ignore[override]  # computed when it is asked for
        """Where they differ most, as sentences."""
        from uncollapse.report.differences import differences

        from .pages import content_of

        return differences([content_of(report, name) for report, name in zip(self.reports, self.names, strict=True)])

    def html(self) -> str:
        require("altair", "vl_convert")
        from uncollapse.report.comparison_page import comparison_page

        from .pages import content_of, footer

        contents = [content_of(report, name) for report, name in zip(self.reports, self.names, strict=True)]
        return comparison_page(contents, footer())

    def _repr_html_(self) -> str | None:
        try:
            require("altair", "vl_convert")
        except MissingExtraError:
            return None  # a notebook then shows the text
        from uncollapse.report.comparison_page import comparison_notebook_html

        from .pages import content_of

        return comparison_notebook_html(
            [content_of(report, name) for report, name in zip(self.reports, self.names, strict=True)]
        )

    def __str__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.findings)

    __repr__ = __str__

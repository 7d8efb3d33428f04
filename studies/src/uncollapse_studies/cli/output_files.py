"""What the commands that compute something write: ID.csv, ID.json, ID.html, and pictures on request."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uncollapse.cli.command import option

if TYPE_CHECKING:
    from ..charts.figure_page import Drawing
    from ..figure import Result


@dataclass(frozen=True, kw_only=True)
class DrawingOptions:
    """Options that every command with a chart has."""

    out: Path | None = option(None, "folder for the .csv, .json and .html files (default: the ID)")
    png: bool = option(False, "also write a .png picture")
    svg: bool = option(False, "also write an .svg picture")
    quick: bool = option(False, "the smallest size, for a trial: fewer points, draws, layers and updates")
    force: bool = option(False, "replace the files of an earlier run")


def write_result(
    folder: Path, id: str, title: str, result: Result, seconds: float, settings: DrawingOptions
) -> list[str]:
    """Write the files of a table or figure and return their names."""
    from ..charts.figure_page import figure_page

    record = {"figure": id, **circumstances(settings, result.settings, seconds)}
    source = f"uncollapse reproduce {id}; {versions_text(record)}."
    html = figure_page(title, result.sentences, result.chart, result.reading_aid, result.summary, source)
    words = {
        "verdict": result.verdict,
        "sentences": [*result.sentences],
        "reading_aid": result.reading_aid,
        "main": result.summary.to_dict("split"),
    }
    (folder / f"{id}.html").write_text(html, encoding="utf-8")
    (folder / f"{id}.json").write_text(json.dumps(record | words, indent=2) + "\n", encoding="utf-8")
    result.table.to_csv(folder / f"{id}.csv", index=False)
    save_pictures(result.chart, folder / id, settings)
    return sorted(file.name for file in folder.iterdir())


def save_pictures(chart: Drawing, path: Path, settings: DrawingOptions) -> None:
    """Write the chart as PATH.png and PATH.svg, as far as the options ask for them."""
    for wanted, suffix in ((settings.png, "png"), (settings.svg, "svg")):
        if wanted:
            chart.save(f"{path}.{suffix}", scale_factor=2 if suffix == "png" else 1)


def circumstances(settings: DrawingOptions, own_settings: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What is needed to compute it again."""
    import altair
    import numpy
    import scipy
    import torch

    from uncollapse import __version__

    return {
        "size": "smallest" if settings.quick else "full",
        "settings": dict(own_settings),
        "seconds": round(seconds, 2),
        "versions": {
            "uncollapse": __version__,
            "Python": platform.python_version(),
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
            "torch": torch.__version__,
            "altair": altair.__version__,
        },
        "machine": platform.machine(),
    }


def versions_text(record: Mapping[str, Any]) -> str:
    """The versions of a record in one line."""
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())

"""`uncollapse reproduce`: a figure of the papers, the cells of trained networks behind one, or the claims, checked."""

from __future__ import annotations

import difflib
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from uncollapse.cli.command import Command, UserError, option
from uncollapse.cli.output import output_folder

from ..locations import results

CLAIMS = "claims"
RESULTS = "results"


@dataclass(frozen=True)
class Settings:
    """What can be set."""

    id: str | None = option(
        None, "the figure, for example localization-fig4; claims; or results; --list shows all", positional=True
    )
    out: Path | None = option(None, "folder for ID.csv, ID.json and ID.html (default: the ID)")
    list: bool = option(False, "print what there is, with paper, time and status, and do nothing else")
    png: bool = option(False, "also write ID.png")
    svg: bool = option(False, "also write ID.svg")
    quick: bool = option(False, "the smallest size: fewer points, draws, layers and updates, for a trial")
    force: bool = option(False, "replace the files of an earlier run; train cells again")
    only: str | None = option(None, "claims: the one with this id, or all that begin so; trained networks: this method")
    cells: Path = option(results() / "cells", "folder with the results of trained networks")
    budget: Literal["laptop", "paper"] = option(
        "laptop", "trained networks: minutes a cell, or the paper's own setting"
    )
    seeds: int | None = option(None, "trained networks: seeds 0, 1, ... of each method (default: as listed)")
    at_most: int | None = option(None, "trained networks: train at most so many missing cells; 0: only draw")
    jobs: int = option(1, "trained networks: train so many cells side by side")
    work: Path | None = option(None, "where runs lie while they train (default: $UNCOLLAPSE_CACHE/cells)")


def run(settings: Settings) -> int:
    """Compute one figure and write it, or list all."""
    from ..artefacts import ARTEFACTS
    from ..figure import FIGURES

    if settings.list:
        from .reproduce_list import listing

        print(listing(settings.cells, settings.budget))
        return 0
    if settings.id == CLAIMS:
        from .claims import run_claims

        return run_claims(settings)
    if settings.id == RESULTS:
        from .reproduce_results import run_results

        return run_results(settings)
    if settings.id in ARTEFACTS:
        from .reproduce_cells import run_artefact

        return run_artefact(settings, ARTEFACTS[settings.id])
    if settings.id is None:
        raise UserError("say which figure, for example localization-fig4; uncollapse reproduce --list shows all.")
    if settings.id not in FIGURES:
        near = difflib.get_close_matches(settings.id, [*FIGURES, *ARTEFACTS, CLAIMS, RESULTS], n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}?" if near else "uncollapse reproduce --list shows all."
        raise UserError(f"there is no figure {settings.id!r}; {hint}")
    if settings.only is not None:
        raise UserError(
            f"--only goes with claims and with trained networks, and {settings.id} needs none; leave it out."
        )
    figure, out = FIGURES[settings.id], settings.out or Path(settings.id)
    with output_folder(out, settings.force) as folder:  # refuses before any work is done
        from tqdm import tqdm

        started = time.perf_counter()
        with tqdm(desc=figure.id, disable=not sys.stderr.isatty(), leave=False) as bar:
            result = figure.run("smallest" if settings.quick else "full", bar.update)
        record = {"figure": settings.id, **circumstances(settings, result.settings, time.perf_counter() - started)}
        write_result(folder, figure.id, figure.title, result, record, settings)
        written = sorted(file.name for file in folder.iterdir())
    print("\n".join(result.sentences))
    print(f"\n{out}: {', '.join(written)}")
    return 0


def write_result(folder: Path, id: str, title: str, result: Any, record: dict[str, Any], settings: Settings) -> None:
    """ID.csv, ID.json, ID.html and the pictures that are asked for."""
    from ..charts.figure_page import figure_page

    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    source = f"uncollapse reproduce {id}; {versions}."
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
    for wanted, suffix in ((settings.png, "png"), (settings.svg, "svg")):
        if wanted:
            result.chart.save(folder / f"{id}.{suffix}", scale_factor=2 if suffix == "png" else 1)


def circumstances(settings: Settings, own_settings: Any, seconds: float) -> dict[str, Any]:
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


COMMAND = Command(
    name="reproduce",
    summary="Compute and draw a table or figure of the papers; where it needs trained networks, train what is missing.",
    example="uncollapse reproduce localization-fig4 --out my-figure --png",
    settings=Settings,
    run=run,
)

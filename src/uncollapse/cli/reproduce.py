"""`uncollapse reproduce`: compute and draw a figure of the papers, corrected and as printed, or check their claims."""

from __future__ import annotations

import difflib
import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .command import Command, UserError, option
from .output import output_folder

CLAIMS = "claims"


@dataclass(frozen=True)
class Settings:
    """What can be set."""

    id: str | None = option(
        None, "the figure, for example localization-fig4, or claims; --list shows all", positional=True
    )
    out: Path | None = option(None, "folder for ID.csv, ID.json and ID.html (default: the ID)")
    list: bool = option(False, "print the figures there are, and do nothing else")
    png: bool = option(False, "also write ID.png")
    svg: bool = option(False, "also write ID.svg")
    quick: bool = option(False, "the smallest size: fewer points, draws and layers, for a trial")
    force: bool = option(False, "replace the files of an earlier run")
    only: str | None = option(None, "claims: only the one with this id, or all whose id begins like this")
    cells: Path = option(Path("results/cells"), "claims: folder with the results of trained networks")


def run(settings: Settings) -> int:
    """Compute one figure and write it, or list all."""
    from uncollapse.reproduction.figure import FIGURES

    if settings.list:
        width = max(map(len, FIGURES)) + 2
        print("\n".join(f"{figure.id:<{width}}{figure.title}" for figure in FIGURES.values()))
        print(f"{CLAIMS:<{width}}Every statement of the two papers with a computed verdict")
        return 0
    if settings.id == CLAIMS:
        from .claims import run_claims

        return run_claims(settings)
    if settings.only is not None:
        raise UserError(f"--only goes with claims, not with {settings.id}; leave it out.")
    if settings.id is None:
        raise UserError("say which figure, for example localization-fig4; uncollapse reproduce --list shows all.")
    if settings.id not in FIGURES:
        near = difflib.get_close_matches(settings.id, [*FIGURES, CLAIMS], n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}?" if near else "uncollapse reproduce --list shows all."
        raise UserError(f"there is no figure {settings.id!r}; {hint}")
    figure, out = FIGURES[settings.id], settings.out or Path(settings.id)
    with output_folder(out, settings.force) as folder:  # refuses before any work is done
        from tqdm import tqdm

        from uncollapse.report.figure_page import figure_page

        started = time.perf_counter()
        with tqdm(desc=figure.id, disable=not sys.stderr.isatty(), leave=False) as bar:
            result = figure.run("smallest" if settings.quick else "full", bar.update)
        record = {"figure": settings.id, **circumstances(settings, result.settings, time.perf_counter() - started)}
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        source = f"uncollapse reproduce {figure.id}; {versions}."
        html = figure_page(figure.title, result.sentences, result.chart, result.reading_aid, result.summary, source)
        (folder / f"{figure.id}.html").write_text(html, encoding="utf-8")
        (folder / f"{figure.id}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        result.table.to_csv(folder / f"{figure.id}.csv", index=False)
        for wanted, suffix in ((settings.png, "png"), (settings.svg, "svg")):
            if wanted:
                result.chart.save(folder / f"{figure.id}.{suffix}", scale_factor=2 if suffix == "png" else 1)
        written = sorted(file.name for file in folder.iterdir())
    print("\n".join(result.sentences))
    print(f"\n{out}: {', '.join(written)}")
    return 0


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
    summary="Compute and draw a figure of the papers, corrected and as printed side by side, or check their claims.",
    example="uncollapse reproduce localization-fig4 --out my-figure --png",
    settings=Settings,
    run=run,
)

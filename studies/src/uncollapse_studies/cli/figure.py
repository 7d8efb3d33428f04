"""`uncollapse reproduce figure ID`: a figure that needs no trained networks."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from uncollapse.cli.command import Command, option
from uncollapse.cli.output import output_folder

from .output_files import DrawingOptions, write_result
from .reproduce import check_command


@dataclass(frozen=True, kw_only=True)
class FigureOptions(DrawingOptions):
    """Options of `uncollapse reproduce figure`."""

    id: str = option(help="the figure, for example localization-fig4; reproduce list shows all", positional=True)


def run(settings: FigureOptions) -> int:
    """Compute, draw, write."""
    from ..figure import FIGURES

    check_command(settings.id, "figure")
    figure, out = FIGURES[settings.id], settings.out or Path(settings.id)
    with output_folder(out, settings.force) as folder:  # refuses before any work is done
        from tqdm import tqdm

        started = time.perf_counter()
        with tqdm(desc=figure.id, disable=not sys.stderr.isatty(), leave=False) as bar:
            result = figure.run("smallest" if settings.quick else "full", bar.update)
        written = write_result(folder, figure.id, figure.title, result, time.perf_counter() - started, settings)
    print("\n".join(result.sentences))
    print(f"\n{out}: {', '.join(written)}")
    return 0


COMMAND = Command(
    name="reproduce figure",
    summary="Compute and draw a table or figure of the papers that needs no trained networks.",
    example="uncollapse reproduce figure localization-fig4 --out my-figure --png",
    options=FigureOptions,
    run=run,
)

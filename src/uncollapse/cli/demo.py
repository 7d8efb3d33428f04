"""`uncollapse demo`: attention-only networks on embedded text; which knob keeps tokens apart?"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .command import Command, option
from .output import output_folder

QUICK_SEEDS = 1


@dataclass(frozen=True)
class Settings:
    """What can be set."""

    out: Path = option(Path("uncollapse-demo"), "folder for the chart (HTML, PNG) and the table (CSV)")
    depth: int = option(12, "deepest network")
    seeds: int = option(5, "random initialisations to average over")
    init: Literal["timm", "xavier", "torch"] = option("xavier", "initialisation of the weights")
    no_layer_norm: bool = option(False, "leave out the LayerNorm before each attention")
    quick: bool = option(False, f"average over {QUICK_SEEDS} initialisation only")
    force: bool = option(False, "replace the files of an earlier demo")


def run(settings: Settings) -> int:
    """Measure, print the table, write the chart."""
    if settings.depth < 1 or settings.seeds < 1:
        raise ValueError(f"depth and seeds must be at least 1, got {settings.depth} and {settings.seeds}.")
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        import torch
        from tqdm import tqdm

        from uncollapse import __version__
        from uncollapse.diagnosis.sample import embedded_bytes
        from uncollapse.report.depth_chart import depth_chart
        from uncollapse.report.page import page
        from uncollapse.reproduction.depth import CELLS, findings, residual_by_depth

        seeds = QUICK_SEEDS if settings.quick else settings.seeds
        ids = embedded_bytes(sequences=4, length=64)
        print(f"{len(CELLS)} attention-only networks, 1 to {settings.depth} layers, at initialisation, on text.")
        with tqdm(total=seeds * len(CELLS), desc="networks", disable=not sys.stderr.isatty(), leave=False) as bar:
            table = residual_by_depth(
                ids,
                depth=settings.depth,
                seeds=seeds,
                init=settings.init,
                layer_norm=not settings.no_layer_norm,
                tick=bar.update,
            )
        wide = table.pivot(index="depth", columns="attention", values="mean")[[cell.name for cell in CELLS]]
        wide = wide.map(lambda ratio: f"{ratio:.2g}").rename_axis(index="layers", columns=None).reset_index()
        sentences = findings(table)
        print(
            f"\nresidual ratio by depth (1: tokens differ, 0: all alike; mean of {seeds})\n\n"
            f"{wide.to_string(index=False)}\n"
        )
        print("\n".join(sentences))

        chart = depth_chart(table)
        source = (
            f"uncollapse {__version__}, Python {platform.python_version()}, torch {torch.__version__}; "
            f"Python's help texts, 4 sequences of 64 bytes; init {settings.init}, "
            f"LayerNorm {'off' if settings.no_layer_norm else 'on'}, {seeds} seeds, float64."
        )
        aid = "A line that falls means tokens become alike with depth. Hover over a point for its numbers."
        html = page("What keeps tokens apart?", "By depth", sentences, chart, aid, wide, source)
        (folder / "residual-by-depth.html").write_text(html, encoding="utf-8")
        chart.save(folder / "residual-by-depth.png", scale_factor=2)
        table.to_csv(folder / "residual-by-depth.csv", index=False)
    print(f"\nchart: {settings.out / 'residual-by-depth.html'} (also .png and .csv)")
    return 0


COMMAND = Command(
    name="demo",
    summary="Watch tokens become alike with depth in attention-only networks, and see which knob keeps them apart.",
    example="uncollapse demo --out my-demo --depth 24",
    settings=Settings,
    run=run,
)

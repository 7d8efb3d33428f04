"""`uncollapse demo`: what collapse is, and what four kinds of attention do about it, in a few minutes."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .command import Command, option
from .output import output_folder

if TYPE_CHECKING:
    import pandas as pd

    from uncollapse.training.run import Run

PAGE = "demo.html"
QUICK_SEEDS = 1


@dataclass(frozen=True)
class DemoOptions:
    """Options of `uncollapse demo`."""

    out: Path = option(Path("uncollapse-demo"), "folder for the page, pictures, tables and runs")
    steps: int | None = option(None, "updates of each training (default: the quickstart recipe's; fewer with --quick)")
    depth: int = option(12, "layers of the deepest attention-only network")
    seeds: int = option(5, "random initialisations of the attention-only networks; trainings have one seed each")
    init: Literal["timm", "xavier", "torch"] = option("xavier", "initialisation of the attention-only networks")
    no_layer_norm: bool = option(False, "no LayerNorm before the attention layers of these networks")
    quick: bool = option(False, f"smaller models, fewer steps, {QUICK_SEEDS} initialisation: under a minute")
    force: bool = option(False, "replace the files of an earlier demo")


def run(settings: DemoOptions) -> int:
    """Measure, train, compare; print five findings, write the page."""
    if settings.depth < 1 or settings.seeds < 1:
        raise ValueError(f"depth and seeds must be at least 1, got {settings.depth} and {settings.seeds}.")
    if settings.steps is not None and settings.steps < 1:
        raise ValueError(f"steps must be at least 1, got {settings.steps}.")
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        findings = _demonstrate(settings, folder)
    print("", *(f"{n}. {sentence}" for n, sentence in enumerate(findings, start=1)), sep="\n")
    print(f"\npage: {settings.out / PAGE}")
    return 0


def _demonstrate(settings: DemoOptions, folder: Path) -> list[str]:
    """Write everything into a folder and return the findings."""
    from uncollapse.report.demo_page import demo_page, demo_picture, depth_picture
    from uncollapse.training.demo.depth import VARIANTS
    from uncollapse.training.demo.experiment import measure, recipes, train_methods

    planned = recipes(settings.quick, settings.steps)
    seeds = QUICK_SEEDS if settings.quick else settings.seeds
    steps = sum(recipe.steps or 0 for recipe in planned.values())
    with _Display(seeds * len(VARIANTS) + steps, len(planned)) as display:
        depth = _depth(settings, seeds, display)
        runs = train_methods(folder / "runs", planned, display.step, display.trained)
        display.say("drawing")
        demo = measure(depth, runs)
        content = demo.content(_source(settings, seeds))
        (folder / PAGE).write_text(demo_page(content), encoding="utf-8")
        (folder / "demo.png").write_bytes(demo_picture(content))
        (folder / "residual-by-depth.png").write_bytes(depth_picture(content))
        depth.to_csv(folder / "residual-by-depth.csv", index=False)
        demo.comparison.final.to_csv(folder / "final.csv", index=False)
    return demo.findings


def _depth(settings: DemoOptions, seeds: int, display: _Display) -> pd.DataFrame:
    from uncollapse.data.sample import embedded_bytes
    from uncollapse.training.demo.depth import VARIANTS, residual_by_depth

    display.say("attention-only networks")
    table = residual_by_depth(
        embedded_bytes(sequences=4, length=64),
        depth=settings.depth,
        seeds=seeds,
        init=settings.init,
        layer_norm=not settings.no_layer_norm,
        tick=display.tick,
    )
    display.note(f"{len(VARIANTS)} attention-only networks at initialisation: 1 to {settings.depth} layers measured")
    return table


def _source(settings: DemoOptions, seeds: int) -> str:
    import torch

    from uncollapse import __version__

    return (
        f"Made by uncollapse {__version__} (Python {platform.python_version()}, torch {torch.__version__}) with "
        f"uncollapse demo{' --quick' if settings.quick else ''}. Text: the help pages of Python. Attention-only "
        f"networks: 4 sequences of 64 bytes, init {settings.init}, LayerNorm "
        f"{'off' if settings.no_layer_norm else 'on'}, {seeds} initialisation{'s' if seeds > 1 else ''}, float64. "
        "Trained models: recipe quickstart, one seed. All charts of the runs: uncollapse compare "
        f"{settings.out / 'runs'}/*. This file needs no network and can be attached as it is."
    )


class _Display:
    """One bar over the whole demo on a terminal, and a line for each part that is done."""

    def __init__(self, total: int, runs: int) -> None:
        from tqdm import tqdm

        self._bar: tqdm[Any] = tqdm(total=total, disable=not sys.stderr.isatty(), leave=False, unit="step")
        self._runs, self._done = runs, 0

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def say(self, what: str) -> None:
        """Show what is being done."""
        self._bar.set_description(what)

    def note(self, line: str) -> None:
        """Print what has been done, above the bar."""
        self._bar.write(line, file=sys.stdout)
        sys.stdout.flush()

    def tick(self) -> None:
        """Count one network that was measured."""
        self._bar.update()

    def step(self, name: str, loss: float | None) -> None:
        """Count one update of a model."""
        self._bar.set_description(f"{name} ({self._done + 1} of {self._runs})", refresh=False)
        if loss is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update()

    def trained(self, name: str, ended: Run) -> None:
        """Print how a run ended."""
        self._done += 1
        if ended.status == "finished":
            self.note(
                f"{name}: trained for {ended.metrics[-1]['step']} steps, "
                f"held-out bits per byte {ended.final('eval_bits_per_byte'):.3f}"
            )
        else:
            self.note(f"{name}: {ended.reason}")


COMMAND = Command(
    name="demo",
    summary=(
        "Show how tokens become alike with depth, train a small GPT with four kinds of attention, and compare the "
        "results on one page. Takes a few minutes on two cores."
    ),
    example="uncollapse demo --quick --out my-demo",
    options=DemoOptions,
    run=run,
)

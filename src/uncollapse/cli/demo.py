"""`uncollapse demo`: attention going wrong, seen coming, and put right, in a few minutes."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command import Command, option
from .output import output_folder

if TYPE_CHECKING:
    from uncollapse.training.demo.runs import TrainedRun

PAGE, PICTURE = "demo.html", "demo.png"
DEPTHS, TRAININGS = TABLES = ("residual-by-depth.csv", "trainings.csv")
SEEDS, QUICK_SEEDS = 5, 1
ACTS = ("Collapse you can see", "A run going wrong", "Inherited scores")


@dataclass(frozen=True)
class DemoOptions:
    """Options of `uncollapse demo`."""

    out: Path = option(Path("uncollapse-demo"), "folder for the page, its picture, tables and what the watches wrote")
    steps: int | None = option(None, "updates of each of the four trainings (default: what the demo needs)")
    depth: int = option(12, "layers of the attention-only networks")
    quick: bool = option(False, "smaller networks and fewer updates: about a minute")
    force: bool = option(False, "replace the files of an earlier demo")


def run(settings: DemoOptions) -> int:
    """Measure and train; print what was found, write the page."""
    if settings.depth < 1:
        raise ValueError(f"depth must be at least 1, got {settings.depth}.")
    if settings.steps is not None and settings.steps < 1:
        raise ValueError(f"steps must be at least 1, got {settings.steps}.")
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        findings = _demonstrate(settings, folder)
    for number, (act, sentences) in enumerate(zip(ACTS, findings, strict=True), start=1):
        print("", f"{number}. {act}", *(f"   {sentence}" for sentence in sentences), sep="\n")
    print(f"\npage: {settings.out / PAGE}")
    return 0


def _demonstrate(settings: DemoOptions, folder: Path) -> list[list[str]]:
    """Write everything into a folder and return the findings."""
    from uncollapse.report.demo_page import demo_page, demo_picture
    from uncollapse.training.demo.depth import VARIANTS
    from uncollapse.training.demo.experiment import RUNS, demonstrate
    from uncollapse.training.demo.runs import FULL, QUICK

    size, seeds = (QUICK, QUICK_SEEDS) if settings.quick else (FULL, SEEDS)
    if settings.steps is not None:
        size = replace(size, steps=settings.steps, every=min(size.every, settings.steps))  # one measurement at least
    with _Display(seeds * len(VARIANTS) + size.steps * len(RUNS)) as display:
        demo = demonstrate(size, settings.depth, seeds, folder, display.network, display.step, display.trained)
        display.say("drawing")
        content = demo.content(_source(settings, seeds))
        (folder / PAGE).write_text(demo_page(content), encoding="utf-8")
        (folder / PICTURE).write_bytes(demo_picture(content))
        demo.depth.to_csv(folder / DEPTHS, index=False)
        demo.numbers().to_csv(folder / TRAININGS, index=False)
    return demo.findings


def _source(settings: DemoOptions, seeds: int) -> str:
    import torch

    from uncollapse import __version__

    return (
        f"Made by uncollapse {__version__} (Python {platform.python_version()}, torch {torch.__version__}) with "
        f"uncollapse demo{' --quick' if settings.quick else ''}. Text: the help pages of Python. Attention-only "
        f"networks: 4 sequences of 64 bytes, {seeds} initialisation{'s' if seeds > 1 else ''}, float64. Trained "
        f"networks: one seed. More of each run: uncollapse page {settings.out}/*.jsonl. This file needs no network and "
        "can be attached as it is."
    )


class _Display:
    """One bar over the whole demo on a terminal, and a line for each run that is done."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar: tqdm[Any] = tqdm(total=total, disable=not sys.stderr.isatty(), leave=False, unit="step")
        self.say("attention alone")

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def say(self, what: str) -> None:
        """Show what is being done."""
        self._bar.set_description(what)

    def network(self) -> None:
        """Count one network that was measured."""
        self._bar.update()

    def step(self, name: str, loss: float) -> None:
        """Count one update."""
        self._bar.set_description(name, refresh=False)
        self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update()

    def trained(self, name: str, ended: TrainedRun) -> None:
        """Print how a run ended."""
        told = len(ended.warnings)
        self._bar.write(
            f"{name}: {len(ended.updates)} updates, held-out bits per byte {ended.held_out:.3f}, "
            f"{told or 'no'} warning{'' if told == 1 else 's'}",
            file=sys.stdout,
        )
        sys.stdout.flush()


COMMAND = Command(
    name="demo",
    summary=(
        "Show how tokens become alike with depth, watch a small GPT go wrong and put it right, and try inherited "
        "scores, on one page. Takes a few minutes on two cores."
    ),
    example="uncollapse demo --quick --out my-demo",
    options=DemoOptions,
    run=run,
)

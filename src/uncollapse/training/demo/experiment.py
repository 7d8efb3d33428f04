"""The demo's experiment: attention-only networks by depth, then one small GPT trained with four methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from uncollapse.diagnosis import Diagnosis
from uncollapse.report.demo_page import DemoContent
from uncollapse.report.training_curves import TrainingCurve

from ..compare import RunComparison, compare_runs
from ..compare.measures import head_means
from ..compare.pages import content_of_runs, curve
from ..recipe import Recipe, resolve
from ..run import Run, train
from .depth import BOTH, HIDDEN_ONLY, VARIANTS, findings
from .findings import five_findings, outcomes_of

KAPPA = 0.01  # both kappas of LocAteR; the reason is given on the page and in docs/attention.md


@dataclass(frozen=True)
class Method:
    """One method of the demo: its description and its keys in the recipe."""

    description: str
    keys: Mapping[str, Any] = field(default_factory=dict)


METHODS = {
    "self-attention": Method("The stock GPT-2 architecture."),
    "hopfield": Method(
        "Modern Hopfield Attention: scores inherited from layer to layer and a skip around attention, α = α′ = 0.5.",
        {"rule": "hopfield", "alpha": 0.5, "alpha_hidden": 0.5},
    ),
    "alpha-hidden-only": Method(
        "Inherited scores without the skip: α = 0, α′ = 0.5.",
        {"rule": "hopfield", "alpha": 0.0, "alpha_hidden": 0.5},
    ),
    "LocAteR": Method(
        f"Stock attention with the penalty κ₁ tr(WᵀW) + κ₂ (tr W - 1)², κ₁ = κ₂ = {KAPPA:g}: equal, so that its own "
        "minimum has a trace near 1; small, so that at the start it is a few hundredths of the loss.",
        {"kappa_scale": KAPPA, "kappa_mean": KAPPA},
    ),
}
QUICK = {
    **{"layers": 4, "width": 64, "length": 64, "steps": 60, "warmup_steps": 6, "eval_every": 20},
    **{"eval_examples": 64, "diagnose_every": 30, "diagnose_examples": 4},
}
# Colours of the networks in the depth chart: trained methods keep theirs, the others take the remaining ones.
NUMBERS = {"self-attention": 1, BOTH: 2, HIDDEN_ONLY: 3} | {
    variant.name: number
    for number, variant in enumerate(
        (v for v in VARIANTS if v.name not in ("self-attention", BOTH, HIDDEN_ONLY)), len(METHODS) + 1
    )
}


def recipes(quick: bool = False, steps: int | None = None) -> dict[str, Recipe]:
    """The quickstart recipe for each method; the recipes differ in the keys of the method only.

    >>> sorted({recipe.steps for recipe in recipes(steps=7).values()})
    [7]
    """
    keys: dict[str, Any] = dict(QUICK) if quick else {}
    if steps is not None:
        keys["steps"] = steps
    base = resolve("quickstart", **keys)
    # The demo is not resumed, so one checkpoint at the end is enough.
    return {name: base.changed(save_every=base.steps, **method.keys) for name, method in METHODS.items()}


def train_methods(
    folder: Path,
    planned: Mapping[str, Recipe],
    on_step: Callable[[str, float | None], object],
    on_end: Callable[[str, Run], object],
) -> list[Path]:
    """Train each recipe into `folder/NAME`; a Ctrl-C or SIGTERM ends the whole demo."""
    for name, recipe in planned.items():

        def report_step(_: int, loss: float | None, name: str = name) -> None:
            on_step(name, loss)

        run = train(recipe, folder / name, progress=False, on_step=report_step)
        if run.status == "stopped":
            raise KeyboardInterrupt
        on_end(name, run)
    return [folder / name for name in planned]


@dataclass(frozen=True)
class Demo:
    """Results of the demo: the residual ratio by depth, and the comparison of the runs."""

    depth: pd.DataFrame
    comparison: RunComparison

    @property
    def findings(self) -> list[str]:
        """Five sentences on the results."""
        return five_findings(self.depth, outcomes_of(self.comparison))

    def content(self, source: str) -> DemoContent:
        """The content of the demo's page."""
        groups = self.comparison.groups
        spectrum = {
            key: curve([[head_means(run, f"qk_{key}") for run in group.runs] for group in groups], groups)
            for key in ("trace", "scale")
        }
        return DemoContent(
            findings=self.findings,
            descriptions=[METHODS[group.name].description for group in groups],
            depth=self.depth.assign(report=self.depth["attention"].map(NUMBERS)).sort_values(["report", "depth"]),
            depth_findings=findings(self.depth),
            networks=[*(_name_of(number) for number in range(1, max(NUMBERS.values()) + 1))],
            layers=[_layers(self.comparison, moment) for moment in (0, -1)],
            spectrum={
                "curve-trace": TrainingCurve("tr W, mean of heads", spectrum["trace"]),
                "curve-scale": TrainingCurve("tr WᵀW, mean of heads", spectrum["scale"], logarithmic=True),
            },
            runs=content_of_runs(self.comparison),
            source=source,
        )


def measure(depth: pd.DataFrame, runs: Sequence[Path]) -> Demo:
    """Read the runs and compare them.

    Peak memory and speed are dropped: all runs share one process, and the speed is that of the last steps only.
    """
    found = compare_runs(runs)
    return Demo(
        depth,
        replace(
            found,
            final=found.final[~found.final["measure"].isin(["peak_memory", "tokens_per_second"])],
            runs=found.runs.drop(columns="peak_memory_mb"),
        ),
    )


def _name_of(number: int) -> str:
    return next((name for name, n in NUMBERS.items() if n == number), "")


def _layers(comparison: RunComparison, moment: int) -> pd.DataFrame:
    """The layers of every method at the first (0) or last (-1) diagnosis."""
    tables = []
    for number, group in enumerate(comparison.groups, start=1):
        folders = list(group.runs[0].diagnoses.values())
        if folders:
            tables.append(Diagnosis.load(folders[moment]).layers.assign(report=number))
    return pd.concat(tables, ignore_index=True)

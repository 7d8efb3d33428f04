"""The demo: attention alone by depth, a run going wrong and the same run with a remedy, inherited scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from uncollapse.data.sample import embedded_bytes
from uncollapse.remedies.contents import BY_NAME, main_finding
from uncollapse.report.demo_page import DemoContent, WatchedAct

from .depth import BOTH, HIDDEN_ONLY, PLAIN, SKIP_ONLY, VARIANTS, cosines_by_depth, residual_by_depth
from .findings import depth_findings, first_warning, inherited_findings, wrong_findings
from .runs import REMEDY, DemoSize, TrainedRun, train

NAMES = {  # of the networks of the first act, as its chart calls them
    PLAIN: "attention alone",
    HIDDEN_ONLY: "with inherited scores",
    SKIP_ONLY: "with a skip",
    BOTH: "with both",
}
SQUARES = (PLAIN, BOTH)  # whose tokens are shown one by one
TOKENS = 24
TOO_HIGH, USUAL, INHERITED = "too-high", "usual", "hopfield"
RUNS = (TOO_HIGH, REMEDY, USUAL, INHERITED)  # names of the trainings, and of the files of their watches


@dataclass(frozen=True)
class Demo:
    """Results of the demo."""

    depth: pd.DataFrame
    cosines: dict[str, pd.DataFrame]  # by the name of the network
    runs: dict[str, TrainedRun]  # by RUNS

    @property
    def findings(self) -> list[list[str]]:
        """The sentences of the three acts."""
        too_high, helped, usual, hopfield = (self.runs[name] for name in RUNS)
        return [
            depth_findings(self.depth),
            wrong_findings(too_high, helped, usual, REMEDY),
            inherited_findings(usual, hopfield),
        ]

    def numbers(self) -> pd.DataFrame:
        """One row for each training."""
        rows = []
        for name, run in self.runs.items():
            last = run.layers[run.layers["step"] == run.layers["step"].max()]
            rows.append(
                {
                    "run": name,
                    "learning rate at the end": run.rate,
                    "held-out bits per byte": round(run.held_out, 3),
                    "loss went bad at update": "" if run.went_bad is None else str(run.went_bad),
                    "largest score": float(f"{run.heads['logit_max'].max():.3g}"),
                    "cosine of tokens": round(float(last["cosine_mean"].mean()), 3),
                    "entropy, normalised": round(float(last["entropy_normalised"].mean()), 3),
                }
            )
        return pd.DataFrame(rows)

    def content(self, source: str) -> DemoContent:
        """The content of the demo's page."""
        too_high, helped, usual, hopfield = (self.runs[name] for name in RUNS)
        warned = first_warning(too_high.warnings)
        events = {} if warned is None else {"warning": warned.step}
        if too_high.went_bad is not None:
            events["goes bad"] = too_high.went_bad
        shown = self.depth[self.depth["attention"].isin(NAMES)]
        numbers = {name: number for number, name in enumerate(NAMES, start=1)}
        return DemoContent(
            findings=self.findings,
            cosines={NAMES[name]: table for name, table in self.cosines.items()},
            depth=shown.assign(report=shown["attention"].map(numbers), attention=shown["attention"].map(NAMES)),
            networks=list(NAMES.values()),
            all_depths=self.depth,
            wrong=WatchedAct.of([("as it is", too_high), (f"with {REMEDY}", helped)], events),
            warning="" if warned is None else warned.sentence,
            remedy=f"{BY_NAME[REMEDY].call}: {BY_NAME[REMEDY].form} ({BY_NAME[REMEDY].paper}).",
            evidence=_evidence(),
            inherited=WatchedAct.of([("plain attention", usual), ("inherited scores", hopfield)]),
            warnings=_told(self.runs),
            numbers=self.numbers(),
            source=source,
        )


def demonstrate(
    size: DemoSize,
    depth: int,
    seeds: int,
    folder: Path,
    on_network: Callable[[], object],
    on_step: Callable[[str, float], object],
    on_end: Callable[[str, TrainedRun], object],
) -> Demo:
    """Measure and train everything; the files of the watches go to `folder`."""
    with one_thread():
        return _demonstrate(size, depth, seeds, folder, on_network, on_step, on_end)


@contextmanager
def one_thread() -> Iterator[None]:
    """The networks are too small to share, and threads that wait for one another waste the cores of a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _demonstrate(
    size: DemoSize,
    depth: int,
    seeds: int,
    folder: Path,
    on_network: Callable[[], object],
    on_step: Callable[[str, float], object],
    on_end: Callable[[str, TrainedRun], object],
) -> Demo:
    ratios = residual_by_depth(embedded_bytes(4, 64), depth=depth, seeds=seeds, tick=on_network)
    layers = [layer for layer in (0, 1, 2, 3, 4, 6, 8) if layer <= depth]
    ids = embedded_bytes(1, TOKENS)
    cosines = {v.name: cosines_by_depth(ids, v, layers) for v in VARIANTS if v.name in SQUARES}
    runs = {}
    for name in RUNS:

        def report(loss: float, name: str = name) -> None:
            on_step(name, loss)

        runs[name] = train(
            size,
            folder / f"{name}.jsonl",
            growth=size.growth if name in (TOO_HIGH, REMEDY) else 1.0,
            remedy=REMEDY if name == REMEDY else None,
            inherited=name == INHERITED,
            on_step=report,
        )
        on_end(name, runs[name])
    return Demo(ratios, cosines, runs)


def _evidence() -> str:
    return f"Evidence beyond this one run: {main_finding(REMEDY)}. All of it: uncollapse remedies."


def _told(runs: dict[str, TrainedRun]) -> pd.DataFrame:
    tables = [run.warnings[["step", "kind", "sentence"]].assign(run=name) for name, run in runs.items()]
    told = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    return told[["run", "step", "kind", "sentence"]]

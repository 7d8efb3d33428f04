"""The calibration as files, and as the tables in docs/diagnose.md."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from uncollapse.diagnosis.thresholds import Thresholds

from .cases import PARTS, SEEDS, Case
from .counting import quantiles, rows, summary
from .faults import FAULTS, GRADED, HARMLESS
from .margins import graded, margins

COUNTS = (("missed", "planted"), ("false", "healthy"))


@dataclass(frozen=True)
class CalibrationTables:
    """All that the calibration writes."""

    cases: pd.DataFrame
    margins: pd.DataFrame
    thresholds: Thresholds
    quantiles: dict[str, dict[str, float]]

    @classmethod
    def of(cls, cases: Sequence[Case], chosen: Thresholds) -> CalibrationTables:
        """Judge all cases by the thresholds."""
        return cls(rows(cases, chosen), margins(cases, chosen), chosen, quantiles(cases))

    def write(self, folder: Path) -> None:
        """All cases, the tables, the thresholds, and what is usual."""
        tables = {"cases": self.cases, "summary": summary(self.cases), "margins": self.margins}
        for name, table in (tables | {"graded": graded(self.cases)}).items():
            table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
        halves = "chosen on one half of the models that uncollapse reproduce calibration measures"
        _write_json(folder / "thresholds.json", {"about": halves, "thresholds": asdict(self.thresholds)})
        about = "quantiles over the heads and layers of healthy trained models"
        _write_json(folder / "usual.json", {"about": about, "quantiles": self.quantiles})
        (folder / "table.md").write_text(self.markdown() + "\n", encoding="utf-8")

    def markdown(self) -> str:
        """The tables in docs/diagnose.md."""
        return "\n\n".join([_alarms(self.cases), _about(self.cases), _margins(self.margins), _graded(self.cases)])


def _write_json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _alarms(rows: pd.DataFrame) -> str:
    cells = []
    for kind, parts in summary(rows).groupby("verdict", sort=False):
        seen, held = (parts[parts["part"] == part].iloc[0] for part in PARTS)
        cells.append([kind, *(f"{p[a]} of {p[b]}" for a, b in COUNTS for p in (seen, held))])
    titles = ["verdict", "missed, seen", "missed, held out", "false alarms, seen", "false alarms, held out"]
    return _table(titles, cells)


def _about(rows: pd.DataFrame) -> str:
    random = rows["weights"].str.startswith("random")
    architectures = rows.loc[random].groupby("part")["model"].nunique()
    trained = rows.loc[rows["weights"] == "trained", "model"].nunique()
    seen, held = (_own_runs(rows[rows["part"] == part]) for part in PARTS)
    return (
        f"Seen are {architectures.get(PARTS[0], 0)} architectures of transformers with random weights, {trained} "
        f"trained models and {seen} runs of our own; held out are {architectures.get(PARTS[1], 0)} other architectures "
        f"and {held} other runs. {SEEDS} draws of random weights, {len(FAULTS) + len(GRADED)} kinds of planted faults, "
        f"{len(HARMLESS)} harmless changes. {_agreement(rows)}"
    )


def _own_runs(rows: pd.DataFrame) -> str:
    own = rows[rows["weights"] == "own run"]
    return f"{(own['fault'] == '').sum()} healthy and {(own['fault'] != '').sum()} failed"


def _agreement(rows: pd.DataFrame) -> str:
    twice = rows[rows["places"].notna()]
    places, changed = int(twice["places"].sum()), int(twice["changed"].sum())
    same = (twice["changed"] == 0).mean()
    return (
        f"On a second sample of sequences {1 - changed / places:.2%} of {places:,} layers and heads get the same "
        f"verdicts, sinks and offsets included, and {same:.1%} of the {len(twice):,} diagnoses agree in all of them."
    )


def _margins(margins: pd.DataFrame) -> str:
    titles = ["number that is compared", "part", "worst healthy", "threshold", "mildest faulty", "margins", "between"]
    cells = [
        [
            f"{row.quantity} ({row.verdict})",
            row.part,
            _number(row.healthy),
            _number(row.threshold),
            _number(row.faulty),
            f"{_factor(row.healthy_margin)}, {_factor(row.faulty_margin)}",
            "yes" if row.between else "no",
        ]
        for row in margins.itertuples()
    ]
    return "The thresholds, chosen on the seen half, in the worst head or layer of each model:\n\n" + _table(
        titles, cells
    )


def _graded(rows: pd.DataFrame) -> str:
    titles = ["fault", "times", "counts", "found, seen", "found, held out", "trained ones of the seen"]
    titles.append("median of what it does")
    words = {"any_gap": "largest mean gap", "any_residual": "left after centring"}
    cells = [
        [
            row["fault"],
            f"{row['strength']:,g}",
            "yes" if row["counted"] else "no",
            *(str(row[group]) for group in (*PARTS, "trained")),
            f"{words[GRADED[row['fault']].shows]} {_number(row['median'])}",
        ]
        for _, row in graded(rows).iterrows()
    ]
    return "From which strength on a fault is found:\n\n" + _table(titles, cells)


def _table(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [titles, ["---"] * len(titles), *cells])


def _number(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _factor(value: float) -> str:
    if math.isnan(value):
        return "none"
    return "∞" if math.isinf(value) else f"{value:.2g}x" if value < 10 else f"{value:,.0f}x"

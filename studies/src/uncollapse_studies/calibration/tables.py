"""The calibration as files, and as the tables in docs/diagnose.md."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from .counting import SEEDS, summary
from .faults import FAULTS, GRADED, HARMLESS
from .margins import PARTS, graded, margins


def write(folder: Path, rows: pd.DataFrame, quantiles: dict[str, dict[str, float]]) -> None:
    """All cases, the tables, and what is usual."""
    tables = {"cases": rows, "summary": summary(rows), "margins": margins(rows), "graded": graded(rows)}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
    about = {"about": "quantiles over the heads and layers of healthy trained models", "quantiles": quantiles}
    (folder / "usual.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(rows) + "\n", encoding="utf-8")


def markdown(rows: pd.DataFrame) -> str:
    """The tables in docs/diagnose.md."""
    return "\n\n".join([_alarms(rows), _about(rows), _margins(rows), _graded(rows)])


def _alarms(rows: pd.DataFrame) -> str:
    cells = []
    for kind, parts in summary(rows).groupby("verdict", sort=False):
        seen, held = (parts[parts["part"] == part].iloc[0] for part in PARTS)
        cells.append([kind, *(f"{p[a]} of {p[b]}" for a, b in COUNTS for p in (seen, held))])
    titles = ["verdict", "missed, seen", "missed, held out", "false alarms, seen", "false alarms, held out"]
    return _table(titles, cells)


COUNTS = (("missed", "planted"), ("false", "healthy"))


def _about(rows: pd.DataFrame) -> str:
    whole = rows[rows["case"] == "as it is"]
    agree = whole["agrees"].astype(bool)
    architectures = rows.loc[rows["weights"] != "trained"].groupby("part")["model"].nunique()
    trained = rows.loc[rows["weights"] == "trained", "model"].nunique()
    return (
        f"Seen are {architectures.get(PARTS[0], 0)} architectures of transformers with random weights and {trained} "
        f"trained models; held out are {architectures.get(PARTS[1], 0)} other architectures; {SEEDS} draws of random "
        f"weights. {len(FAULTS) + len(GRADED)} kinds of planted faults, here at their grossest; {len(HARMLESS)} "
        f"harmless changes. On a second sample of sequences the verdict on {agree.sum()} of the {len(agree)} models as "
        "they are is the same."
    )


def _margins(rows: pd.DataFrame) -> str:
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
        for row in margins(rows).itertuples()
    ]
    return "Where the thresholds lie, in the worst head or layer of each model:\n\n" + _table(titles, cells)


def _graded(rows: pd.DataFrame) -> str:
    titles = ["fault", "times", "found, seen", "found, held out", "trained ones of the seen", "median of what it does"]
    words = {"any_gap": "largest mean gap", "any_residual": "left after centring"}
    cells = [
        [
            row["fault"],
            f"{row['strength']:,g}",
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

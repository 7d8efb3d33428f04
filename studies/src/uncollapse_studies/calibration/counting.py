"""False and missed alarms of the verdicts, counted over all cases; how a second sample agrees; what is usual."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from uncollapse.diagnosis import Verdict
from uncollapse.diagnosis.thresholds import Thresholds
from uncollapse.diagnosis.verdicts import COLLAPSES, judge

from .cases import AS_IT_IS, PARTS, Case
from .quantities import numbers

COLUMNS = {
    "heads": ("gap_mean", "gap_max", "entropy_normalised", "sink", "sink_strongest"),
    "layers": ("cosine_aligned", "cosine_centred_aligned", "cosine_mean", "residual_ratio", "residual_frobenius"),
}
SHARES = (0.01, 0.05, 0.5, 0.95, 0.99)


def rows(cases: Sequence[Case], by: Thresholds) -> pd.DataFrame:
    """One row a case: what was found, whether the fault was named, the numbers, and what a second sample changed."""
    return pd.DataFrame([_row(case, by) for case in cases])


def _row(case: Case, by: Thresholds) -> dict[str, object]:
    verdicts = judge(case.report, by)
    kinds = {verdict.kind for verdict in verdicts}
    found = {kind: kind in kinds for kind in COLLAPSES}
    named = {"named": found[case.fault]} if case.fault else {}
    agreement = {} if case.again is None else _agreement(case, verdicts, judge(case.again, by))
    return case.about | found | named | numbers(case.report, by) | agreement


def _agreement(case: Case, first: Sequence[Verdict], second: Sequence[Verdict]) -> dict[str, int]:
    """Layers and heads, and how many of them have another verdict on other sequences, sinks and offsets included."""
    named = [{(v.kind, place) for v in verdicts for place in (v.heads or v.layers)} for verdicts in (first, second)]
    places = len(case.report.layers) + len(case.report.heads)
    return {"places": places, "changed": len({place for _, place in named[0] ^ named[1]})}


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """By verdict and part: faults and how many were missed, healthy models and how many were called so."""
    lines = []
    for kind in COLLAPSES:
        for part in PARTS:
            some = rows[rows["counted"] & (rows["part"] == part)]
            healthy, of_kind = some[some["fault"] == ""], some[some["fault"] == kind]
            missed, false = int((~of_kind["named"].astype(bool)).sum()), int(healthy[kind].sum())
            counts = {"planted": len(of_kind), "missed": missed, "healthy": len(healthy), "false": false}
            lines.append({"verdict": kind, "part": part, **counts})
    return pd.DataFrame(lines)


def quantiles(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Quantiles over the heads and layers of the trained models as they are."""
    reports = [case.report for case in cases if case.weights == "trained" and case.case == AS_IT_IS]
    found: dict[str, dict[str, float]] = {}
    for table, columns in COLUMNS.items():
        for column in columns if reports else ():
            values = pd.concat([getattr(report, table)[column] for report in reports]).dropna()
            found[column] = {str(share): round(float(values.quantile(share)), 4) for share in SHARES}
    return found

"""The study of rescues: its runs, and the table, picture and sentences made of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ..figure import Result
from ..short_runs.network import RunSize
from ..short_runs.store import RunStore
from ..study import ShortRun
from ..warning.plan import CHOOSE
from ..warning.study import ID as WARNING
from .findings import RescueFindings, evidence_of
from .judging import outcomes
from .plan import HALVES, failing_pairs, treated_runs, trial_pairs
from .record import short_run
from .treatment import LIMIT, SIZE

ID = "rescue"


def runs(results: Path, size: RunSize | None) -> list[ShortRun]:
    """Every treated run, pair by pair; when it is treated is known from the runs of the study of early warning."""
    pairs = failing_pairs(RunStore(results / WARNING)) if size is None else trial_pairs(size)
    if not pairs:
        raise ValueError(
            f"{ID} treats the failing runs of {WARNING}, and {results / WARNING} has none; make them first: "
            f"uncollapse reproduce runs {WARNING}."
        )
    return [short_run(one, size or SIZE) for one in treated_runs(pairs)]


def findings(results: Path) -> RescueFindings:
    """From the runs that are kept."""
    store, watched = RunStore(results / ID), RunStore(results / WARNING)
    pairs = failing_pairs(watched) if watched.records else []
    chosen = [record for record in store.records.values() if record["half"] == CHOOSE and "largest_logit" in record]
    return RescueFindings(
        outcomes(store),
        Counter(pair.failing.cause for pair in pairs if pair.alarm is None and pair.failing.half in HALVES),
        [record["largest_logit"] for record in chosen],
    )


def result(results: Path) -> Result:
    """From the runs that are kept."""
    from ..charts.rescue_chart import rescue_chart

    found = findings(results)
    sentences = found.sentences()
    return Result(
        table=found.by_cause(),
        chart=rescue_chart(found),
        sentences=sentences,
        reading_aid="Every run is trained from the start with the same seed and fault, and treated once, before the "
        "update that follows the first warning. Rescued: at the end its loss is at most 2 % above that of the healthy "
        "twin, to which nothing was done. Shares have exact 95 % intervals.",
        summary=found.table(),
        settings={"updates": SIZE.updates, "qk_clip": LIMIT},
        finding=sentences[0],
    )


def evidence(results: Path) -> dict[str, str]:
    """One sentence for each remedy that is tested."""
    return evidence_of(findings(results))

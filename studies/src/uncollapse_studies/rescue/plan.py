"""Which runs are treated, and when: the pairs of the study of early warning in which a run fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..short_runs.network import RunSize
from ..short_runs.store import RunStore
from ..warning.findings import SHARES, Findings
from ..warning.judging import TOGETHER, watched_runs
from ..warning.plan import REPORT, TRIAL, PlannedRun, plan
from .treatment import BRANCHES, CONTROL, NOTHING, Branch

HALVES = (REPORT,)  # whose runs are treated


@dataclass(frozen=True)
class FailingPair:
    """A run that fails and its healthy twin, with the updates of the failure and of the first warning."""

    healthy: PlannedRun
    failing: PlannedRun
    failed: int
    alarm: int | None  # None if there is none, or none that leaves an update to be treated

    @property
    def in_time(self) -> bool:
        """Whether the warning comes before the failure."""
        return self.alarm is not None and self.alarm < self.failed


def failing_pairs(store: RunStore) -> list[FailingPair]:
    """All pairs with a run that fails, from the records of the study of early warning."""
    watched = {run.name: run for run in watched_runs(store)}
    threshold = Findings(list(watched.values())).at(TOGETHER, SHARES[0], REPORT).threshold
    found = []
    for healthy, failing in _twins(plan()):
        run = watched.get(failing.name)
        if run is not None and run.failed is not None:
            alarm = run.first_alarm(TOGETHER, threshold)
            late = alarm is None or alarm >= RunSize().updates
            found.append(FailingPair(healthy, failing, run.failed, None if late else alarm))
    return found


def trial_pairs(size: RunSize) -> list[FailingPair]:
    """Pairs of a trial; no record says when its tiny runs fail, so it is said here."""
    return [
        FailingPair(healthy, failing, failed=2 * size.updates // 3, alarm=size.updates // 3)
        for healthy, failing in _twins(plan(TRIAL, size.updates))
    ]


def _twins(runs: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, PlannedRun]]:
    return zip(runs[::2], runs[1::2], strict=True)


@dataclass(frozen=True)
class TreatedRun:
    """One run of this study: a run of a pair, and what is done at the pair's warning."""

    pair: FailingPair
    planned: PlannedRun  # one of the pair
    branch: Branch
    alarm: int

    @property
    def name(self) -> str:
        """What it is kept under."""
        return f"{self.planned.name}, {self.branch.name}"

    @property
    def healthy(self) -> bool:
        """Whether it is treated by mistake."""
        return self.planned.run.fault is None


def treated_runs(pairs: Sequence[FailingPair]) -> list[TreatedRun]:
    """Every branch of every run that has a warning, and of its healthy twin, pair by pair.

    Of the half that is not treated healthy twins go on as they are: qk_clip's limit is chosen on their logits.
    """
    found = []
    for pair in pairs:
        if pair.alarm is None:
            continue
        treated = pair.failing.half in HALVES
        for branch in (*BRANCHES, CONTROL):
            if treated or branch.name == NOTHING:
                found.append(TreatedRun(pair, pair.healthy, branch, pair.alarm))
            if treated and branch != CONTROL:
                found.append(TreatedRun(pair, pair.failing, branch, pair.alarm))
    return found

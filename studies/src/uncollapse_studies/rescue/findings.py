"""What the treated runs say: how many of those that fail are rescued, by what and from what, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from uncollapse.remedies.contents import read
from uncollapse.statistics import CONFIDENCE, Estimate, holm, summarise

from ..short_runs.faults import CAUSES, ROUNDING
from ..warning.findings import SHARES
from ..warning.judging import PARTS
from .judging import HARMED, LAST, RESCUED, TreatedOutcome, changed_for_the_better, share_interval
from .plan import HALVES
from .treatment import BRANCHES, CONTROL, LIMIT, NOTHING, SIZE

AIM = 0.9  # of the runs that fail are rescued
ENOUGH = 20  # treated runs from which a remedy's evidence has a line
NAMES = tuple(branch.name for branch in BRANCHES)
TREATMENTS = tuple(name for name in NAMES if name != NOTHING)


@dataclass(frozen=True)
class BranchFinding:
    """What came of one branch: of runs that fail and had a warning, of those without one, and of healthy ones."""

    treated: Sequence[TreatedOutcome]
    unwarned: int
    mistaken: Sequence[TreatedOutcome]

    @property
    def failing(self) -> int:
        """All runs that fail."""
        return len(self.treated) + self.unwarned

    @property
    def rescued(self) -> int:
        """Runs that end as well as their twins; one without a warning is not treated, and does not."""
        return sum(one.rescued for one in self.treated)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share that is rescued."""
        return share_interval(self.rescued, self.failing)

    @property
    def median(self) -> float:
        """The median loss of treated runs over that of the twin."""
        return float(np.median([one.against for one in self.treated])) if self.treated else np.nan

    @property
    def harmed(self) -> int:
        """Healthy runs that are worse for it."""
        return sum(one.harmed for one in self.mistaken)

    @property
    def change(self) -> Estimate:
        """The mean change of the loss of healthy runs, as a share."""
        return summarise([one.against - 1.0 for one in self.mistaken] or [0.0]).estimate()


@dataclass(frozen=True)
class RescueFindings:
    """All outcomes, and everything that is said of them."""

    outcomes: Sequence[TreatedOutcome]
    unwarned: Mapping[str, int] = field(default_factory=Counter)  # cause -> runs that fail without a warning
    logits: Sequence[float] = ()  # the largest of each healthy run that qk_clip's limit is chosen on

    def of(self, branch: str, cause: str | None = None) -> BranchFinding:
        """What came of a branch, for all causes or one, in the half that is treated."""
        own = [
            one for one in self.outcomes if one.branch == branch and one.half in HALVES and cause in (None, one.cause)
        ]
        count = sum(self.unwarned.values()) if cause is None else self.unwarned.get(cause, 0)
        return BranchFinding([one for one in own if not one.healthy], count, [one for one in own if one.healthy])

    @cached_property
    def by_branch(self) -> dict[str, BranchFinding]:
        """Branch -> what came of it."""
        return {name: self.of(name) for name in NAMES}

    @cached_property
    def better(self) -> list[str]:
        """Treatments that rescue more runs than doing nothing, beyond doubt."""
        base = {one.run: one.rescued for one in self.by_branch[NOTHING].treated}
        p_values = []
        for name in TREATMENTS:
            pairs = [(base[one.run], one.rescued) for one in self.by_branch[name].treated if one.run in base]
            p_values.append(changed_for_the_better([old for old, _ in pairs], [new for _, new in pairs]))
        levels = holm(p_values, CONFIDENCE)
        doubtless = [name for name, p, level in zip(TREATMENTS, p_values, levels, strict=True) if p < 1.0 - level]
        return [name for name in doubtless if self.by_branch[name].rescued > self.by_branch[NOTHING].rescued]

    def best(self, cause: str | None = None) -> str:
        """The treatment that rescues most; of several the one with the lowest median loss."""
        found = {name: self.of(name, cause) for name in TREATMENTS}
        return max(TREATMENTS, key=lambda name: (found[name].rescued, -np.nan_to_num(found[name].median, nan=np.inf)))

    def table(self) -> pd.DataFrame:
        """One row for each branch."""
        rows = []
        for name, own in self.by_branch.items():
            low, high = own.interval
            rows.append(
                {
                    "at the first warning": name,
                    f"rescued (aim {_percent(AIM)})": f"{own.rescued} of {own.failing}",
                    "95 % interval": f"{100 * low:.0f} to {_percent(high)}",
                    "of those warned before they fail": _of([one for one in own.treated if one.in_time]),
                    "median loss against the twin": _change(own.median - 1.0),
                    f"healthy runs worse by more than {_percent(HARMED - 1)}": f"{own.harmed} of {len(own.mistaken)}",
                    "mean change on healthy runs": _with_interval(own.change),
                }
            )
        return pd.DataFrame(rows)

    def by_cause(self) -> pd.DataFrame:
        """All numbers, tidy: one row for each branch and cause."""
        rows = []
        for name in NAMES:
            for cause in CAUSES:
                own = self.of(name, cause)
                in_time = sum(one.in_time for one in own.treated)
                change = own.change.value if own.mistaken else np.nan
                failing = (own.failing, len(own.treated), in_time, own.rescued, own.median)
                rows.append((name, cause, *failing, len(own.mistaken), own.harmed, change))
        columns = ["branch", "cause", "failing", "warned", "warned in time", "rescued", "median against twin"]
        return pd.DataFrame(rows, columns=[*columns, "healthy", "healthy worse", "mean change on healthy"])

    def sentences(self) -> list[str]:
        """What it comes to, the finding first."""
        return [
            self._rescue_sentence(),
            self._doubt_sentence(),
            self._warning_sentence(),
            self._cause_sentence(),
            self._healthy_sentence(),
            *self._setting(),
        ]

    def _rescue_sentence(self) -> str:
        name = self.best()
        own, base = self.by_branch[name], self.by_branch[NOTHING]
        low, high = own.interval
        reached = "reached" if own.failing and own.rescued / own.failing >= AIM else "not reached"
        return (
            f"Of {own.failing} runs that fail, {name} at the first warning brings {own.rescued} "
            f"({100 * low:.0f} to {_percent(high)}) within {_percent(RESCUED - 1)} of their healthy twin's loss, more "
            f"than any other treatment or as many; {base.rescued} come there if nothing is done. The aim, "
            f"{_percent(AIM)}, is {reached}."
        )

    def _doubt_sentence(self) -> str:
        rest = [name for name in TREATMENTS if name not in self.better]
        counts = ", ".join(f"{name} {self.by_branch[name].rescued}" for name in NAMES)
        return (
            f"Rescued of {self.by_branch[NOTHING].failing}: {counts}. Beyond doubt more than with nothing (McNemar's "
            f"exact test, Holm's correction): {_listed(self.better)}; not: {_listed(rest)}."
        )

    def _warning_sentence(self) -> str:
        own = self.by_branch[NOTHING]
        early = {name: [one for one in self.by_branch[name].treated if one.in_time] for name in NAMES}
        counts = ", ".join(f"{name} {sum(one.rescued for one in found)}" for name, found in early.items())
        return (
            f"The watch warns of {len(own.treated)} of the {own.failing} at some update, of {len(early[NOTHING])} "
            f"before they fail. A run without a warning is not treated and counts as not rescued. Of those warned "
            f"before they fail are rescued: {counts}."
        )

    def _cause_sentence(self) -> str:
        parts = []
        for cause in CAUSES:
            own, base = self.of(self.best(cause), cause), self.of(NOTHING, cause)
            if own.rescued > base.rescued:
                most = [name for name in TREATMENTS if self.of(name, cause).rescued == own.rescued]
                helps = f"{own.rescued} of {own.failing} with {' or '.join(most)}, {base.rescued} with nothing"
            else:
                helps = f"no treatment rescues more than nothing does, {base.rescued} of {base.failing}"
            parts.append(f"{cause}: {helps}")
        return f"By cause: {'; '.join(parts)}."

    def _healthy_sentence(self) -> str:
        harms, control = {name: self.by_branch[name] for name in TREATMENTS}, self.of(CONTROL.name)
        counts = ", ".join(f"{name} {own.harmed} (mean {_with_interval(own.change)})" for name, own in harms.items())
        kept = [name for name, own in harms.items() if own.mistaken and not own.harmed]
        mean = [name for name, own in harms.items() if own.change.excludes(HARMED - 1.0)]
        return (
            f"Healthy runs that are treated at the update of their twin's warning and end worse by more than "
            f"{_percent(HARMED - 1)}, of {len(harms[TREATMENTS[0]].mistaken)}: {counts}. The aim, none, is kept by: "
            f"{_listed(kept)}. A mean harm of {_percent(HARMED - 1)} is ruled out for: {_listed(mean)}. So much is "
            f"chance: {CONTROL.name} from then on, which should do nothing, makes {control.harmed} of "
            f"{len(control.mistaken)} worse (mean {_with_interval(control.change)})."
        )

    def _setting(self) -> list[str]:
        seen = f"{np.median(self.logits):.3g} in the median, {max(self.logits):.3g} at most" if self.logits else "none"
        return [
            "Faults go on after the treatment, as they would outside: a rate that is far too high is half or a tenth "
            "as much too high, the scale of the logits goes on doubling, norms stay frozen, scores stay rounded. "
            "Corrupt batches come to an end, and a warm-up that was left out is over by itself.",
            f"The warning is the first alarm of {', '.join(PARTS)} together, at the threshold for "
            f"{_percent(SHARES[0])} false alarms, in the runs of the study warning; the treatment comes before the "
            "next update. All runs are of the half of the seeds that threshold was not chosen on.",
            f"qk_clip has the limit {LIMIT:g}, the power of two next above the largest logit of {len(self.logits)} "
            f"healthy runs of the other half ({seen}), so that it leaves such a run alone; its authors have 100. It "
            f"cannot be applied to {ROUNDING}, which an attention function of their own makes, and those runs go on as "
            "they are. Gains of qk_norm start at 1, fitted (fit=True) where attention changes least, and are trained.",
            f"A loss is the mean of the last {LAST} held-out measurements, {SIZE.every} updates apart, on "
            f"{SIZE.held_out} sequences, in runs of {SIZE.updates} updates.",
        ]


def evidence_of(found: RescueFindings) -> dict[str, str]:
    """One sentence for each remedy with enough treated runs, about all ways in which it was applied."""
    lines = {}
    for remedy in dict.fromkeys(read(branch.remedy)[0][0] for branch in BRANCHES if branch.remedy):
        ways = [one for one in BRANCHES if one.remedy and read(one.remedy)[0][0] == remedy]
        own = [found.by_branch[one.name] for one in ways]
        if min(len(one.treated) for one in own) < ENOUGH:
            continue
        rescued = " and ".join(f"{one.rescued} with {way.remedy}" for way, one in zip(ways, own, strict=True))
        harmed = " and ".join(str(one.harmed) for one in own)
        lines[remedy] = (
            f"of {own[0].failing} runs that fail, {rescued} from the first warning on end within "
            f"{_percent(RESCUED - 1)} of the healthy twin's loss, {found.by_branch[NOTHING].rescued} with nothing; of "
            f"{len(own[0].mistaken)} healthy runs {harmed} get worse by more than {_percent(HARMED - 1)}; LLaMA, "
            f"{SIZE.layers} layers of width {SIZE.width}, {SIZE.updates} updates"
        )
    return lines


def _of(found: Sequence[TreatedOutcome]) -> str:
    return f"{sum(one.rescued for one in found)} of {len(found)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _change(share: float) -> str:
    return f"{100 * share:+.1f} %" if np.isfinite(share) else "not finite"


def _with_interval(change: Estimate) -> str:
    if not np.isfinite(change.detectable):
        return f"{_change(change.value)} (too few runs)"
    return f"{_change(change.value)} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

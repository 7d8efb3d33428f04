"""What the runs say: leads and false alarms of every score against the gradient norm, and which causes are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from uncollapse.statistics import Estimate, differences, summarise

from ..short_runs.faults import CAUSES
from ..short_runs.network import RunSize
from .causes import confusion
from .judging import PARTS, TOGETHER, Usual, Watched, threshold_for
from .plan import CHOOSE, PAIRS, REPORT
from .scores import ALONE, DETECTED, LIMITS, TRIED

SHARES = (0.05, 0.01)  # of healthy runs that have a false alarm
GRADIENT = ("gradient norm spike", "gradient norm rise")
NAMES = (*ALONE, *DETECTED, *TRIED, TOGETHER)
AIM_LEAD, AIM_CAUSE = 0.2, 0.8


@dataclass(frozen=True)
class ScoreFinding:
    """One score at one share of false alarms, on the half that is reported."""

    threshold: float
    false_alarms: int
    leads: Sequence[float]  # of each run that failed, as a share of the run

    @property
    def warned(self) -> int:
        """Runs with an alarm before they fail."""
        return sum(lead > 0 for lead in self.leads)

    @property
    def median(self) -> float:
        """The median lead; 0 for a run without a warning."""
        return float(np.median(self.leads)) if self.leads else 0.0

    @property
    def mean(self) -> Estimate:
        """The mean lead with its interval."""
        return summarise(list(self.leads) or [0.0]).estimate()


@dataclass(frozen=True)
class Findings:
    """All runs, and everything that is said of them."""

    runs: Sequence[Watched]

    def _of(self, half: str) -> tuple[list[Watched], list[Watched]]:
        """The healthy runs of a half, and those that failed."""
        own = [run for run in self.runs if run.half == half]
        return [run for run in own if run.healthy], [run for run in own if run.failed is not None]

    @cached_property
    def usual(self) -> Usual:
        """Of the healthy runs that thresholds are chosen on."""
        return Usual.of(self._of(CHOOSE)[0])

    @cached_property
    def by_score(self) -> dict[float, dict[str, ScoreFinding]]:
        """Share of false alarms, score -> what it does."""
        return {share: {name: self.at(name, share, REPORT) for name in NAMES} for share in SHARES}

    def at(self, name: str, share: float, half: str) -> ScoreFinding:
        """A score at the threshold that is chosen for a share of false alarms, on one of the halves."""
        threshold = threshold_for(self._of(CHOOSE)[0], name, share)
        healthy, failed = self._of(half)
        alarms = sum(run.first_alarm(name, threshold) is not None for run in healthy)
        leads = [run.lead(run.first_alarm(name, threshold)) / RunSize().updates for run in failed]
        return ScoreFinding(threshold, alarms, leads)

    @cached_property
    def gradient(self) -> str:
        """The better of the two scores of the gradient norm, on the half that thresholds are chosen on."""
        return max(GRADIENT, key=lambda name: self.at(name, SHARES[0], CHOOSE).mean.value)

    @cached_property
    def against(self) -> dict[float, dict[str, Estimate]]:
        """Mean leads less that of the gradient norm, with Holm's correction over the scores."""
        found = {}
        for share, scores in self.by_score.items():
            summaries = {name: summarise(list(own.leads) or [0.0]) for name, own in scores.items()}
            others = {name: own for name, own in summaries.items() if name != self.gradient}
            found[share] = differences(summaries[self.gradient], others)
        return found

    @cached_property
    def shipped(self) -> dict[str, tuple[int, int]]:
        """Detectors of the watch with their own limits: false alarms in healthy runs, and runs warned of in time."""
        healthy, failed = self._of(REPORT)
        return {
            name: (
                sum(run.first_alarm(*limit) is not None for run in healthy),
                sum(run.lead(run.first_alarm(*limit)) > 0 for run in failed),
            )
            for name, limit in LIMITS.items()
        }

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """Cause, what was named, and in how many of the reported runs that failed."""
        threshold = self.by_score[SHARES[0]][TOGETHER].threshold
        return confusion(self._of(REPORT)[1], self.usual, threshold)

    @property
    def right(self) -> tuple[int, int]:
        """How often the cause that was named is the true one, and of how many failed runs."""
        table = self.confusion
        return int(table.loc[table["cause"] == table["named"], "runs"].sum()), int(table["runs"].sum())

    @property
    def beating(self) -> list[str]:
        """Detectors whose mean lead is above the gradient norm's beyond doubt, at either share of false alarms."""
        return [
            name
            for name in NAMES
            if name != self.gradient and any(self.against[share][name].verdict == "higher" for share in SHARES)
        ]

    @cached_property
    def leads(self) -> pd.DataFrame:
        """All numbers, tidy: one row for each share, score and run that failed or is healthy."""
        rows = []
        for share, scores in self.by_score.items():
            for name, own in scores.items():
                for run in self.runs:
                    alarm = run.first_alarm(name, own.threshold)
                    if run.healthy or run.failed is not None:
                        about = (run.name, run.half, run.cause, run.onset, run.failed, alarm)
                        rows.append((share, name, own.threshold, *about, run.lead(alarm)))
        columns = ["share", "score", "threshold", "run", "half", "cause", "onset", "failed", "alarm", "lead"]
        return pd.DataFrame(rows, columns=columns)

    def table(self) -> pd.DataFrame:
        """One row for each score."""
        healthy, failed = self._of(REPORT)
        rows = []
        for name in NAMES:
            row = {"score": name}
            for share in SHARES:
                own, gap = self.by_score[share][name], self.against[share].get(name)
                words = f"at {share:.0%}".replace("%", " %")
                row |= {
                    f"warned in time {words}": f"{own.warned} of {len(failed)}",
                    f"median lead {words}": f"{own.median:.0%}".replace("%", " %"),
                    f"mean lead {words}, against gradient norm": (
                        _lead(own.mean.value)
                        + (" (the gradient norm)" if gap is None else f", {_lead(gap.value, '+')} {_interval(gap)}")
                    ).replace("%", " %"),
                    f"false alarms {words}": f"{own.false_alarms} of {len(healthy)}",
                }
            told = self.shipped.get(name)
            row["with its own limits: warned, false"] = "" if told is None else f"{told[1]}, {told[0]}"
            rows.append(row)
        return pd.DataFrame(rows)

    def sentences(self) -> list[str]:
        """What it comes to, the finding first."""
        return [
            self._lead_sentence(),
            self._possible_sentence(),
            self._cause_sentence(),
            *self._detector_sentences(),
            *self._setting(),
        ]

    def _lead_sentence(self) -> str:
        _, failed = self._of(REPORT)
        scores = self.by_score[SHARES[0]]
        gradient, together = scores[self.gradient], scores[TOGETHER]
        gap = self.against[SHARES[0]][TOGETHER]
        reached = "reached" if together.median >= AIM_LEAD else "not reached"
        return (
            f"At {SHARES[0]:.0%} false alarms the gradient norm alone ({self.gradient}) warns of {gradient.warned} of "
            f"{len(failed)} runs before they fail, with a median lead of {gradient.median:.0%} of the run; "
            f"{', '.join(PARTS)} together warn of {together.warned}, with a median lead of {together.median:.0%} (mean "
            f"{_lead(together.mean.value)}, {_lead(gap.value, '+')} {_interval(gap)} against the gradient norm). The "
            f"aim, a median lead of {AIM_LEAD:.0%}, is {reached}."
        ).replace("%", " %")

    def _possible_sentence(self) -> str:
        """What could have been had: the lead of an alarm at the first measurement from the fault on."""
        failed = self._of(REPORT)[1]
        first = [run.lead(int(run.steps[run.steps >= run.onset][0])) / RunSize().updates for run in failed]
        median = float(np.median(first)) if first else 0.0
        short = sum(lead < AIM_LEAD for lead in first)
        return (
            f"No alarm could lead by more than what lies between the first measurement with the fault and the failure: "
            f"{median:.0%} of the run in the median, and less than {AIM_LEAD:.0%} in {short} of {len(first)} runs."
        ).replace("%", " %")

    def _cause_sentence(self) -> str:
        right, count = self.right
        table = self.confusion
        share = right / count if count else 0.0
        wrong = table[(table["cause"] != table["named"]) & (table["runs"] > 0)].sort_values("runs", ascending=False)
        most = "; ".join(f"{row.cause} as {row.named}, {row.runs}" for row in wrong.head(3).itertuples())
        return (
            f"The cause that is named one measurement after the alarm is the true one in {right} of {count} runs "
            f"({share:.0%}); the aim of {AIM_CAUSE:.0%} is {'reached' if share >= AIM_CAUSE else 'not reached'}. "
            f"{f'Most often wrong: {most}.' if most else ''}"
        ).replace("%", " %")

    def _detector_sentences(self) -> list[str]:
        healthy, _ = self._of(REPORT)
        beating = [name for name in self.beating if name in DETECTED]
        rest = [name for name in DETECTED if name not in beating]
        own = ", ".join(f"{name} {false}" for name, (false, _) in self.shipped.items())
        tried = [name for name in self.beating if name in TRIED]
        return [
            f"Beyond doubt ahead of the gradient norm, of the watch's detectors: {_listed(beating)}; not: "
            f"{_listed(rest)}. Of the numbers that no detector looks at: {_listed(tried)}.",
            f"With the limits that the detectors come with, healthy runs with an alarm, of {len(healthy)}: {own}.",
        ]

    def _setting(self) -> list[str]:
        size = RunSize()
        faulty = [run for run in self.runs if not run.healthy]
        failed = Counter(run.cause for run in faulty if run.failed is not None)
        each = Counter(run.cause for run in faulty)
        counts = ", ".join(f"{cause} {failed[cause]} of {each[cause]}" for cause in CAUSES)
        chosen, reported = (len({run.name[:3] for run in self.runs if run.half == half}) for half in (CHOOSE, REPORT))
        return [
            f"{len(self.runs)} of {2 * PAIRS} runs are made, half of them with a fault, in pairs of one seed: {chosen} "
            f"pairs to choose thresholds on, {reported} that this page reports. A run has failed from the first of "
            f"three measurements in a row with a held-out loss 10 % above its healthy twin's; "
            f"{sum(failed.values())} of {len(faulty)} did ({counts}).",
            f"LLaMA, {size.layers} layers of width {size.width}, half-bytes of tinyshakespeare, {size.updates} updates "
            f"of {size.batch} x {size.length}, AdamW, clipped at 1, measured every {size.every} updates. Gradient "
            "norms are those before clipping; a watch in a loop that clips sees those after it. A share of 1 % of "
            f"{chosen} healthy runs is none of them, so that threshold is the highest healthy score.",
            "Spike: standard deviations above the updates before. Rise: a running mean over its lowest so far. Update "
            "size: the update of W_Q or W_K over the weight. Logit bound: the largest logit over what the weights can "
            "make of normalised tokens. Common offset: the largest logit over the spread of its row. Detectors of the "
            "watch have a threshold in place of their limits; the last column has them as they come.",
        ]


def _lead(value: float, sign: str = "") -> str:
    return f"{value:{sign}.1%}"


def _interval(gap: Estimate) -> str:
    if not np.isfinite(gap.detectable):
        return "(too few runs)"
    return f"({100 * gap.low:+.1f} to {100 * gap.high:+.1f})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

"""The course of findings over a training run: what lasts is told, with its recovery and its relapse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from uncollapse.diagnosis.verdicts import Verdict

from .alarm import Alarm

PERSISTENCE = 3  # measurements in a row; the first updates of a healthy run pass through states that look collapsed
AT_ONCE = ("not finite",)  # NaN does not go away by itself
FORETOLD = ("forecast",)  # of what is to come: that it is no longer told is no recovery, it may have come


@dataclass(frozen=True)
class News:
    """Something to tell: what a row of `Watch.warnings` holds."""

    step: int
    kind: str
    layers: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass
class _Seen:
    """How one kind of finding has stood over the measurements."""

    present: int = 0  # measurements in a row with it, and without it
    absent: int = 0
    since: int = 0  # the step of the first of the measurements in a row
    told: bool = False
    episodes: int = 0


def alarms_of(verdicts: Iterable[Verdict], persistence: int) -> list[Alarm]:
    """The collapses among verdicts; NaN is told at once."""
    return [
        Alarm(v.kind, v.sentence, v.layers, v.heads, v.remedy, 1 if v.kind in AT_ONCE else persistence)
        for v in verdicts
        if v.is_collapse
    ]


@dataclass
class Course:
    """Findings of measurements that follow each other, turned into news.

    >>> course = Course(persistence=2)
    >>> alarm = Verdict("rank collapse", "Layer 3: rank collapse.")
    >>> course.news(10, [alarm]), course.news(20, [alarm]), course.news(30, [alarm])
    ([], ['step 20 (since step 10): Layer 3: rank collapse.'], [])
    >>> course.news(40, []), course.news(50, [])
    ([], ['step 50: recovered from the rank collapse told before, since step 40.'])
    """

    persistence: int = PERSISTENCE
    first_seen: dict[str, int] = field(default_factory=dict)  # kind that lasted -> step of its first measurement
    _kinds: dict[str, _Seen] = field(default_factory=dict)

    def news(self, step: int, verdicts: Iterable[Verdict]) -> list[str]:
        """Take the verdicts of a measurement; sentences on what has lasted, gone, or come back."""
        return [item.sentence for item in self.told(step, alarms_of(verdicts, self.persistence))]

    def told(self, step: int, alarms: Iterable[Alarm]) -> list[News]:
        """Take the findings of a measurement; what has lasted, gone, or come back. Of a kind, the first counts."""
        found: dict[str, Alarm] = {}
        for alarm in alarms:
            found.setdefault(alarm.kind, alarm)
        told = [self._present(step, alarm) for alarm in found.values()]
        told += [self._gone(step, kind) for kind in self._kinds if kind not in found]
        return [news for news in told if news is not None]

    def _present(self, step: int, alarm: Alarm) -> News | None:
        kind, seen = alarm.kind, self._kinds.setdefault(alarm.kind, _Seen())
        if not seen.present:
            seen.since = step
        seen.present, seen.absent = seen.present + 1, 0
        if (seen.told and not alarm.passes) or seen.present < alarm.patience:
            return None
        seen.told, seen.episodes = not alarm.passes, seen.episodes + 1
        self.first_seen.setdefault(kind, seen.since)
        again = "relapse: " if seen.episodes > 1 and not alarm.passes else ""
        since = f" (since step {seen.since})" if seen.since != step and not alarm.passes else ""
        return News(step, kind, alarm.layers, alarm.heads, f"step {step}{since}: {again}{alarm}")

    def _gone(self, step: int, kind: str) -> News | None:
        seen = self._kinds[kind]
        if not seen.absent:
            seen.since = step
        seen.present, seen.absent = 0, seen.absent + 1
        if not seen.told or seen.absent < self.persistence:
            return None
        seen.told = False
        gone = f"no {kind} any more" if kind in FORETOLD else f"recovered from the {kind} told before"
        return News(step, kind, (), (), f"step {step}: {gone}, since step {seen.since}.")

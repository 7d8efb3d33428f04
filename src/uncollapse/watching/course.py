"""The course of verdicts over a training run: what lasts is told, with its recovery and its relapse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from uncollapse.diagnosis.verdicts import Verdict

PERSISTENCE = 3  # measurements in a row; the first updates of a healthy run pass through states that look collapsed
AT_ONCE = ("not finite",)  # NaN does not go away by itself


@dataclass
class _Seen:
    """How one kind of collapse has stood over the measurements."""

    present: int = 0  # measurements in a row with it, and without it
    absent: int = 0
    since: int = 0  # the step of the first of the measurements in a row
    told: bool = False
    episodes: int = 0


@dataclass
class Course:
    """Verdicts of measurements that follow each other, turned into news.

    >>> course = Course(persistence=2)
    >>> alarm = Verdict("rank collapse", "Layer 3: rank collapse.")
    >>> course.news(10, [alarm]), course.news(20, [alarm]), course.news(30, [alarm])
    ([], ['step 20: Layer 3: rank collapse. (since step 10)'], [])
    >>> course.news(40, []), course.news(50, [])
    ([], ['step 50: recovered from the rank collapse told before, since step 40.'])
    """

    persistence: int = PERSISTENCE
    first_seen: dict[str, int] = field(default_factory=dict)  # kind that lasted -> step of its first measurement
    _kinds: dict[str, _Seen] = field(default_factory=dict)

    def news(self, step: int, verdicts: Iterable[Verdict]) -> list[str]:
        """Take the verdicts of a measurement; sentences on what has lasted, gone, or come back."""
        found = {verdict.kind: verdict for verdict in verdicts if verdict.is_collapse}
        told = [self._told(step, kind, verdict) for kind, verdict in found.items()]
        told += [self._gone(step, kind) for kind in self._kinds if kind not in found]
        return [sentence for sentence in told if sentence]

    def _told(self, step: int, kind: str, verdict: Verdict) -> str:
        seen = self._kinds.setdefault(kind, _Seen())
        if not seen.present:
            seen.since = step
        seen.present, seen.absent = seen.present + 1, 0
        if seen.told or seen.present < (1 if kind in AT_ONCE else self.persistence):
            return ""
        seen.told, seen.episodes = True, seen.episodes + 1
        self.first_seen.setdefault(kind, seen.since)
        again = "relapse: " if seen.episodes > 1 else ""
        since = f" (since step {seen.since})" if seen.since != step else ""
        return f"step {step}: {again}{verdict}{since}"

    def _gone(self, step: int, kind: str) -> str:
        seen = self._kinds[kind]
        if not seen.absent:
            seen.since = step
        seen.present, seen.absent = 0, seen.absent + 1
        if not seen.told or seen.absent < self.persistence:
            return ""
        seen.told = False
        return f"step {step}: recovered from the {kind} told before, since step {seen.since}."

"""What has collapsed by now: the verdicts of a diagnosis, once they have lasted."""

from __future__ import annotations

from uncollapse.diagnosis.verdicts import judge

from ..alarm import Alarm
from ..course import PERSISTENCE, alarms_of
from ..recent import Recent


def thresholds(recent: Recent) -> list[Alarm]:
    """The collapses that `diagnose` would find; NaN is told at once, the others after three measurements in a row."""
    return alarms_of(judge(recent.diagnosis), PERSISTENCE)

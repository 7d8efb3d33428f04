"""Detectors: small functions of the tables of a watch that look for trouble, one file each.

To add one, write a function of `Recent` that gives alarms, and name it in `DETECTORS`; or pass it to `watch`. Those
that did not lead the gradient norm where that was measured (docs/what-helps.md) are there on request only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..alarm import Alarm
from ..recent import Recent
from .forecast import forecast
from .sign_alignment import sign_alignment
from .spectral_entropy import spectral_entropy
from .spike import spike
from .thresholds import thresholds

Detector = Callable[[Recent], Iterable[Alarm]]
DETECTORS: dict[str, Detector] = {
    "thresholds": thresholds,
    "spike": spike,
}
ON_REQUEST: dict[str, Detector] = {
    "forecast": forecast,
    "spectral_entropy": spectral_entropy,
    "sign_alignment": sign_alignment,
}


def chosen(detectors: Iterable[str | Detector] | None) -> dict[str, Detector]:
    """Detectors by name; a ValueError names one that is not known.

    >>> list(chosen(["sign_alignment"])), len(chosen([]))
    (['sign_alignment'], 0)
    """
    known = DETECTORS | ON_REQUEST
    if detectors is None:
        return dict(DETECTORS)
    found: dict[str, Detector] = {}
    for detector in [detectors] if isinstance(detectors, str) else detectors:
        if callable(detector):
            found[getattr(detector, "__name__", repr(detector))] = detector
        elif detector in known:
            found[detector] = known[detector]
        else:
            raise ValueError(f"there is no detector {detector!r}; there are {', '.join(known)}, or give a function.")
    return found

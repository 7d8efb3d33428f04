"""Statements about trained networks: how one is registered, and what follows for a user from each verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .claim import (
    CONDITION,
    ERROR,
    FAILS,
    HOLDS,
    NOT_REPRODUCED,
    PENDING,
    SCALE,
    AuditRun,
    ClaimVerdict,
    Evidence,
    Mutation,
    claim,
)
from .plan import CellRecord

MORE_CELLS = (
    "More seeds of the cells named, or networks of the paper's own size, whose interval lies on the other side of the "
    "threshold under `Decided by`."
)


def consequences(gain: str) -> dict[ClaimVerdict, str]:
    """What follows for a user who hopes for something.

    >>> consequences("a lower perplexity")["not reproduced at small scale"]
    'Do not count on a lower perplexity in networks like those trained here; others were not tried.'
    """
    return {
        HOLDS: f"Expect {gain} in networks like those trained here; others were not tried.",
        CONDITION: f"Expect {gain} in part only; compare in your own setting.",
        FAILS: f"Do not count on {gain}.",
        NOT_REPRODUCED: f"Do not count on {gain} in networks like those trained here; others were not tried.",
        SCALE: f"The networks trained here cannot tell about {gain}; compare in your own setting.",
        PENDING: f"Nothing can be said yet about {gain}: it is open until the networks are trained.",
        ERROR: f"Nothing can be said about {gain} until the check is mended.",
    }


def trained(
    id: str,
    place: str,
    statement: str,
    artefacts: Sequence[str],
    gain: str,
    check: Callable[[AuditRun], Evidence],
    agree: Sequence[CellRecord],
    oppose: Sequence[CellRecord],
    *,
    root: str = "",
    quote: str = "",
    seed: str = "",
    unverified: str = "",
    changes_our_mind: str = MORE_CELLS,
) -> None:
    """Register a statement that cells of the reproduction decide, with made-up cells that agree and that oppose.

    What a small network shows is neither the right form of a statement about a large one nor a judgement on what the
    paper concludes, so there is no `corrected`, and `survives` is None.
    """
    claim(
        id,
        place,
        statement,
        consequence=consequences(gain),
        mutation=Mutation("made-up cells that agree with it", HOLDS, cells=agree),
        opposite=Mutation("made-up cells that oppose it", NOT_REPRODUCED, cells=oppose),
        survives=None,
        artefacts=artefacts,
        quote=quote,
        seed=seed,
        unverified=unverified,
        root=root,
        changes_our_mind=changes_our_mind,
        no_perturbation="It states a difference between trained networks and no formula.",
    )(check)

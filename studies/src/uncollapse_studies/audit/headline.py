"""From verdicts to what may be said of the papers: outcomes, roots with their statements, and the headline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from .claim import ERROR, FAILS, NOT_REPRODUCED, PENDING, ClaimVerdict
from .roots import ROOTS, RootKind

Row = Mapping[str, Any]
READING, OURS = "depends on a reading", "not the paper's own statement"
_OUTCOME_OF_KIND: dict[RootKind, str] = {"reading": READING, "not-a-statement": OURS}
_VERDICTS = get_args(ClaimVerdict)
_AFTER_FAILS = _VERDICTS.index(FAILS) + 1
OUTCOMES: tuple[str, ...] = (*_VERDICTS[:_AFTER_FAILS], READING, OURS, *_VERDICTS[_AFTER_FAILS:])  # in display order
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def outcome(verdict: str, root: str) -> str:
    """How a statement counts: as its verdict, unless it depends on a reading or is not the paper's own.

    >>> outcome("fails", "localization-eq9"), outcome("fails", "localization-kappa2-scale")
    ('fails', 'depends on a reading')
    """
    if not root or verdict in (PENDING, ERROR):
        return verdict
    return _OUTCOME_OF_KIND.get(ROOTS[root].kind, verdict)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each outcome, in the order of the outcomes; those that none has are left out.

    >>> counts([{"outcome": "fails"}, {"outcome": "holds"}, {"outcome": "fails"}])
    {'holds': 1, 'fails': 2}
    """
    found = [row["outcome"] for row in rows]
    return {name: found.count(name) for name in OUTCOMES if name in found}


def roots(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Every root with a statement that fails or is not reproduced, with the ids of these statements."""
    broken: dict[str, list[str]] = {}
    papers: dict[str, str] = {}
    for row in rows:
        if row["root"] and row["verdict"] in (FAILS, NOT_REPRODUCED):
            broken.setdefault(row["root"], []).append(row["id"])
            papers[row["root"]] = row["paper"]
    return [
        {"id": root.id, "kind": root.kind, "title": root.title, "paper": papers[root.id], "claims": broken[root.id]}
        for root in ROOTS.values()
        if root.id in broken
    ]


def kinds(found: Sequence[Mapping[str, Any]]) -> dict[RootKind, int]:
    """How many of the roots found are of each kind."""
    every = [root["kind"] for root in found]
    return {kind: every.count(kind) for kind in get_args(RootKind)}


def headline(rows: Sequence[Row]) -> str:
    """The sentence to repeat: distinct roots of substance, beside misprints; nothing else counts against a paper."""
    found, failing = roots(rows), sum(row["outcome"] == FAILS for row in rows)
    number = kinds(found)
    repairable, conclusion, misprint = number["repairable"], number["conclusion"], number["misprint"]
    return (
        f"Of {len(rows)} entries {failing} fail as printed, for {repairable + conclusion} distinct reasons of "
        f"substance and {_counted(misprint, 'misprint')}: {_counted(repairable, 'reason')} can be repaired and "
        f"{'leaves' if repairable == 1 else 'leave'} the conclusion standing, {_counted(conclusion, 'reason')} "
        f"{'touches' if conclusion == 1 else 'touch'} a conclusion."
    )


def _counted(number: int, what: str) -> str:
    """A number with its noun, small numbers in words.

    >>> _counted(1, "misprint"), _counted(13, "misprint")
    ('one misprint', '13 misprints')
    """
    return f"{_NUMBERS[number] if number < len(_NUMBERS) else number} {what}{'' if number == 1 else 's'}"

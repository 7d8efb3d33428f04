"""What a claim is: a statement of a paper, a check that computes a verdict, and a change that must alter it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from ..figure import Size
from ..locations import results

ClaimVerdict = Literal[
    "holds",
    "holds under a condition",
    "fails",
    "not reproduced at small scale",  # what "fails" is for statements about trained networks
    "cannot be checked at this scale",
    "pending",
    "error",
]
Paper = Literal["hopfield", "localization"]
HOLDS, CONDITION, FAILS, NOT_REPRODUCED, SCALE, PENDING, ERROR = get_args(ClaimVerdict)

SIGNIFICANT = 5.0  # standard errors: a claim swept over many cases and seeds must not fail by chance
ROUNDING = 1e-9  # relative; what float64 loses in the checks of identities


@dataclass(frozen=True)
class Plot:
    """Data of a small chart: one row per point (x, y, series)."""

    x: str  # title of the axis
    y: str
    rows: Sequence[tuple[float | str, float, str]]
    kind: Literal["line", "point", "bar"] = "line"
    log_x: bool = False
    log_y: bool = False
    rule: float | None = None  # a level to compare with
    rule_says: str = ""


@dataclass(frozen=True)
class Evidence:
    """What a check found."""

    verdict: ClaimVerdict
    sentence: str
    numbers: Mapping[str, float | int | str]
    plot: Plot | None = None
    standard_error: float | None = None  # of the number that decides, in Monte Carlo checks


@dataclass(frozen=True)
class AuditRun:
    """How large a run is, its seed, and where the cells of trained networks lie."""

    size: Size = "full"
    seed: int = 0
    cells: Path = field(default_factory=lambda: results() / "cells")

    def pick(self, full: int, smallest: int) -> int:
        """A number of samples, walks or cases for the size of this run."""
        return full if self.size == "full" else smallest


@dataclass(frozen=True)
class Mutation:
    """Another statement or other data, for which the check must give another verdict."""

    says: str
    verdict: ClaimVerdict
    changes: Mapping[str, Any] = field(default_factory=dict)  # arguments of the check
    cells: Sequence[Mapping[str, Any]] = ()  # made-up cells, for a check that reads those of trained networks


@dataclass(frozen=True)
class Perturbation:
    """The right form of a formula times a factor near 1, with which the check must not come to "holds" any more.

    `changes(factor)` are the arguments of the check. With factor 1 they are the right form, which holds.
    """

    changes: Callable[[float], Mapping[str, Any]]
    factors: tuple[float, ...] = (0.8, 1.2)  # one of them for a bound, which is only broken from one side


@dataclass(frozen=True)
class Claim:
    """One statement of a paper.

    `check(run)` computes the evidence for the statement as printed; its further arguments are the statement itself or
    the data, which `mutation` changes.
    """

    id: str
    place: str  # section and equation in the paper
    statement: str
    consequence: str | Mapping[ClaimVerdict, str]  # for a user; by verdict where cells that are yet to come decide
    mutation: Mutation
    check: Callable[..., Evidence]
    corrected: str = ""  # the right form; empty where the printed one is right or nothing is known to put in its place
    # where it fails: whether what the paper concludes from it stands in the right form, by our judgement; None: not
    # judged
    survives: bool | None = True
    monte_carlo: bool = False
    artefacts: tuple[str, ...] = ()  # reproductions whose cells decide
    opposite: Mutation | None = None  # a second mutation, for a claim whose verdict is not known beforehand
    quote: str = ""  # the paper's own words, verbatim, at most two sentences; " ... " where some are left out
    seed: str = ""  # name of the text that the quote was read in
    unverified: str = ""  # what was read instead, where the paper's own words were not
    root: str = ""  # what is wrong if it fails: a key of `roots.ROOTS`
    changes_our_mind: str = ""  # what would change the verdict, in one sentence
    perturbation: Perturbation | None = None
    no_perturbation: str = ""  # why there is none

    @property
    def paper(self) -> Paper:
        """The first word of the id."""
        return "hopfield" if self.id.startswith("hopfield-") else "localization"

    def for_user(self, verdict: ClaimVerdict) -> str:
        """What follows for a user from a verdict."""
        return self.consequence if isinstance(self.consequence, str) else self.consequence[verdict]

    def turn(self, verdict: ClaimVerdict) -> Mutation:
        """The mutation that leads from this verdict to another."""
        if self.opposite is not None and self.mutation.verdict == verdict:
            return self.opposite
        return self.mutation


CLAIMS: dict[str, Claim] = {}  # in the order of the papers; filled by `registry`
Check = TypeVar("Check", bound=Callable[..., Evidence])


def claim(
    id: str,
    place: str,
    statement: str,
    *,
    consequence: str | Mapping[ClaimVerdict, str],
    mutation: Mutation,
    opposite: Mutation | None = None,
    corrected: str = "",
    survives: bool | None = True,
    monte_carlo: bool = False,
    artefacts: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    quote: str = "",
    seed: str = "",
    unverified: str = "",
    root: str = "",
    changes_our_mind: str = "",
    perturbation: Perturbation | None = None,
    no_perturbation: str = "",
) -> Callable[[Check], Check]:
    """Register the function below as the check of a statement; `changes` are arguments that make it this one's.

    Several statements may share a function: stack the decorator.
    """

    def register(check: Check) -> Check:
        if id in CLAIMS:
            raise ValueError(f"there are two claims with the id {id!r}.")
        own = check if changes is None else _bound(check, changes)
        known = (id, place, statement, consequence, mutation, own, corrected, survives, monte_carlo)
        source = (quote, seed, unverified, root, changes_our_mind)
        CLAIMS[id] = Claim(*known, tuple(artefacts), opposite, *source, perturbation, no_perturbation)
        return check

    return register


def becomes(verdict: ClaimVerdict, says: str, **changes: Any) -> Mutation:
    """The mutation of a claim: what is changed, in words and as arguments, and the verdict that follows."""
    return Mutation(says, verdict, changes)


def times(factor: float, formula: Callable[..., Any]) -> Callable[..., Any]:
    """A formula multiplied by a factor, for perturbations.

    >>> times(2.0, lambda x: x + 1.0)(3.0)
    8.0
    """
    return lambda *given, **named: factor * formula(*given, **named)


def judge(always: bool, under_condition: bool = False) -> ClaimVerdict:
    """Holds, holds under a condition, or fails.

    >>> judge(False, under_condition=True)
    'holds under a condition'
    """
    return "holds" if always else "holds under a condition" if under_condition else "fails"


def _bound(check: Callable[..., Evidence], fixed: Mapping[str, Any]) -> Callable[..., Evidence]:
    """A check with some arguments given; others, or the same again, may still be."""

    def bound(run: AuditRun, **changes: Any) -> Evidence:
        return check(run, **{**fixed, **changes})

    bound.__wrapped__ = check  # type: ignore[attr-defined]  # by which inspect finds the code
    return bound

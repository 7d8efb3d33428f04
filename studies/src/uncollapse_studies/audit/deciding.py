"""From the answers of single settings to the verdict on a claim, with the sentence and numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .cells import CellSelection, CellSetting
from .claim import FAILS, HOLDS, NOT_REPRODUCED, PENDING, SCALE, ClaimVerdict, Evidence, judge
from .plan import CellRecord

LISTED = 4  # settings that a sentence names one by one; of more, the lowest and the highest


class Answer(StrEnum):
    """What the cells of one setting say about a claim."""

    AS_CLAIMED = "as claimed"
    IN_PART = "as claimed in part"
    OPPOSED = "opposed"
    TOO_SMALL = "too small"  # a difference as claimed that is large enough to count is ruled out
    UNDECIDED = "undecided"
    NOTHING = "nothing to lose"  # what should shrink is not there in the first place
    GUESSING = "both guess"  # neither network has learned anything that could be compared


UNTESTED = (Answer.NOTHING, Answer.GUESSING)  # settings that say nothing about a claim


@dataclass(frozen=True)
class SettingFinding:
    """What the cells of one setting say."""

    setting: CellSetting
    answer: Answer
    value: float  # the difference, change or level that was weighed
    shown: str  # the same in words, with its interval


@dataclass(frozen=True)
class Question:
    """What is asked of the cells, in words."""

    what: str  # the number that is weighed
    rule: str  # what the answers rest on: the end of a sentence
    too_small: str  # the words for this answer, with the number
    some: bool = False  # whether one setting as claimed is enough
    settings: str = "settings"  # what they are called


def decide(question: Question, found: CellSelection, weighed: Sequence[SettingFinding]) -> Evidence:
    """The evidence from all settings; the verdict is pending until every planned cell is trained."""
    pending = found.missing > 0 or not found.count
    verdict = PENDING if pending else _verdict([one.answer for one in weighed], question.some) or SCALE
    numbers: dict[str, float | int | str] = {f"{one.setting}: {question.what}": one.shown for one in weighed}
    numbers["cells found"] = found.count
    if found.diverged:
        numbers["diverged, left out"] = len(found.diverged)
    told = f"{question.what}: {_told(question, weighed)}{question.rule}." if weighed else _nothing(found)
    if weighed and pending:
        told = f"So far, {told}"
    return Evidence(verdict, " ".join([told, *_rest(found, verdict)]), numbers)


def _verdict(answers: Sequence[Answer], some: bool) -> ClaimVerdict | None:
    """None where nothing is decided. One setting that opposes breaks "every"; only all of them break "some".

    Small networks that oppose a statement about large ones do not refute it: it is not reproduced.
    """
    tested = [answer for answer in answers if answer not in UNTESTED]
    yes, part = tested.count(Answer.AS_CLAIMED), tested.count(Answer.IN_PART)
    no = tested.count(Answer.OPPOSED) + tested.count(Answer.TOO_SMALL)
    if some:
        return HOLDS if yes else NOT_REPRODUCED if tested and no == len(tested) else None
    if not no and (not tested or Answer.UNDECIDED in tested):
        return None
    verdict = judge(yes == len(tested), yes + part > 0)
    return NOT_REPRODUCED if verdict == FAILS else verdict


def _told(question: Question, weighed: Sequence[SettingFinding]) -> str:
    """One setting by its number, several by counts and numbers."""
    words = {Answer.TOO_SMALL: question.too_small}
    if len(weighed) == 1:
        return f"{weighed[0].shown}, {words.get(weighed[0].answer, weighed[0].answer)}"
    answers = [one.answer for one in weighed]
    counts = [f"{Answer.AS_CLAIMED} in {answers.count(Answer.AS_CLAIMED)} of {len(answers)} {question.settings}"]
    others = [answer for answer in Answer if answer != Answer.AS_CLAIMED and answer in answers]
    counts += [f"{words.get(answer, answer)} in {answers.count(answer)}" for answer in others]
    return f"{', '.join(counts)} ({_listed(weighed)})"


def _listed(weighed: Sequence[SettingFinding]) -> str:
    names = dict(zip([one.setting for one in weighed], short([one.setting for one in weighed]), strict=True))
    if len(weighed) <= LISTED:
        return "; ".join(f"{names[one.setting]}: {one.shown}" for one in weighed)
    ends = (min, "lowest"), (max, "highest")
    chosen = [(word, pick(weighed, key=lambda one: one.value)) for pick, word in ends]
    return "; ".join(f"{word} with {names[one.setting]}: {one.shown}" for word, one in chosen)


def short(settings: Sequence[CellSetting]) -> list[str]:
    """Names of settings by what sets them apart: the artefact if there are several, and what differs within it.

    >>> short([CellSetting("a", ("layers 1", "width 8")), CellSetting("a", ("layers 2", "width 8"))])
    ['layers 1', 'layers 2']
    """
    several = len({one.artefact for one in settings}) > 1
    names = []
    for one in settings:
        peers = [{*other.shared, *other.own} for other in settings if other.artefact == one.artefact]
        parts = [part for part in (*one.shared, *one.own) if not all(part in peer for peer in peers)]
        names.append(", ".join([*([one.artefact] if several else []), *parts]))
    return names


def _nothing(found: CellSelection) -> str:
    """Where there is nothing to weigh."""
    state = "Nothing is trained yet"
    if found.count:
        state = f"{found.count} cell{'s are' if found.count > 1 else ' is'} trained, too few to tell"
    return f"{state}: this is decided by the cells of {', '.join(found.artefacts)}."


def _rest(found: CellSelection, verdict: ClaimVerdict) -> Iterable[str]:
    """What is missing, what was left out, and whether more is to come."""
    if found.diverged:
        yield f"Diverged, so without a final number and left out: {'; '.join(map(_name, found.diverged))}."
    if found.missing:
        yield f"{found.missing} of {found.planned} planned cells are not trained yet."
    elif verdict == SCALE:
        yield "All planned cells are trained, so it stays open at this scale."


def _name(cell: CellRecord) -> str:
    return f"{cell['artefact']}, {cell.get('label', cell.get('method'))}, seed {cell['seed']}"

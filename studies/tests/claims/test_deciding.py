"""From answers to a verdict."""

import pytest

from uncollapse_studies.audit.cells import CellSelection, CellSetting
from uncollapse_studies.audit.claim import CONDITION, HOLDS, NOT_REPRODUCED, PENDING, SCALE
from uncollapse_studies.audit.deciding import Answer, Question, SettingFinding, decide

YES, PART, NO, SMALL, OPEN, NOTHING, GUESSING = (
    *(Answer.AS_CLAIMED, Answer.IN_PART, Answer.OPPOSED, Answer.TOO_SMALL),
    *(Answer.UNDECIDED, Answer.NOTHING, Answer.GUESSING),
)


def verdict(answers, some=False, missing=0):
    weighed = [
        SettingFinding(CellSetting("a", (f"layers {n}",)), answer, 0.0, "+0") for n, answer in enumerate(answers)
    ]
    found = CellSelection(["a"], [{"artefact": "a", "seed": 0}], [], 6, missing)
    return decide(Question("a number", "", "none", some), found, weighed).verdict


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([YES, YES], HOLDS),
        ([YES, NOTHING, GUESSING], HOLDS),
        ([YES, OPEN], SCALE),  # what is undecided is no condition
        ([PART, OPEN], SCALE),
        ([OPEN], SCALE),
        ([NOTHING, GUESSING], SCALE),
        ([], SCALE),
        ([YES, NO], CONDITION),
        ([YES, SMALL, OPEN], CONDITION),
        ([PART, NO], CONDITION),
        ([PART], CONDITION),
        ([YES, PART], CONDITION),
        ([NO, NO], NOT_REPRODUCED),
        ([SMALL, OPEN], NOT_REPRODUCED),  # one that opposes breaks "every"
    ],
)
def test_every_setting_is_asked(answers, expected):
    assert verdict(answers) == expected
    assert verdict(answers, missing=1) == PENDING


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([NO, OPEN, YES], HOLDS),
        ([NO, SMALL], NOT_REPRODUCED),
        ([NO, NOTHING], NOT_REPRODUCED),
        ([NO, OPEN], SCALE),
        ([NOTHING], SCALE),
    ],
)
def test_one_setting_is_enough_for_some(answers, expected):
    assert verdict(answers, some=True) == expected
    assert verdict(answers, some=True, missing=1) == PENDING

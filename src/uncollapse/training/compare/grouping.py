"""Groups of runs whose recipes are equal up to the seed, and the keys in which the groups differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .reading import RecordedRun, is_seed

NOT_SETTINGS = ("name", "seed")  # recipe keys that change nothing but the random numbers
LARGEST = 8  # groups that colours can tell apart


@dataclass(frozen=True)
class Group:
    """Runs of one setting."""

    name: str
    runs: Sequence[RecordedRun]

    @property
    def finished(self) -> list[RecordedRun]:
        """The runs that enter the means: those that finished, each seed once."""
        done = [run for run in self.runs if run.finished]
        return list({run.name if run.seed is None else repr(run.seed): run for run in reversed(done)}.values())[::-1]


def group_runs(runs: Sequence[RecordedRun]) -> list[Group]:
    """Groups in the order in which their first runs were given, under distinct names."""
    gathered: dict[str, list[RecordedRun]] = {}
    for run in runs:
        settings = {key: value for key, value in run.recipe.items() if key not in NOT_SETTINGS}
        gathered.setdefault(repr(sorted(settings.items(), key=lambda item: str(item[0]))), []).append(run)
    if len(gathered) > LARGEST:
        raise ValueError(f"{len(gathered)} different recipes cannot be told apart on a page; give at most {LARGEST}.")
    groups = list(gathered.values())
    names = [_name(group) for group in groups]
    for index, name in enumerate(names):
        if names.count(name) > 1 or name in names[:index]:
            names = [f"{_name(group)} ({number})" for number, group in enumerate(groups, start=1)]
            break
    return [Group(name, group) for name, group in zip(names, groups, strict=True)]


def _name(runs: Sequence[RecordedRun]) -> str:
    """The name of the folder above `seed-0`, or of the run folders without the number at their end."""
    names = [(f.parent if is_seed(f) else f).name for f in (run.folder.resolve() for run in runs)]
    stems = {re.sub(r"[-_. ]*(seed)?[-_. ]*\d*$", "", name) for name in names}
    return names[0] if len(set(names)) == 1 or len(stems) > 1 else stems.pop() or names[0]


def recipe_differences(groups: Sequence[Group]) -> pd.DataFrame:
    """The recipe keys that differ: one row per key, one column per group; "not set" where a recipe lacks it."""
    recipes = [group.runs[0].recipe for group in groups]
    keys = [key for key in dict.fromkeys(k for recipe in recipes for k in recipe) if key not in NOT_SETTINGS]
    rows = []
    for key in keys:
        values = [recipe.get(key, "not set") for recipe in recipes]
        if any(value != values[0] for value in values):
            rows.append([key, *map(_text, values)])
    return pd.DataFrame(rows, columns=["key", *(group.name for group in groups)])


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def same_tokens(runs: Sequence[RecordedRun]) -> bool:
    """Whether all runs use the same tokeniser; losses are per token and cannot be compared otherwise."""
    hashes = {run.status.get("tokenizer_sha256") for run in runs}
    if None not in hashes:
        return len(hashes) == 1
    return len({tuple(str(run.recipe.get(k)) for k in ("tokenizer", "vocab_size")) for run in runs}) == 1

"""Options from the fields of a dataclass: conversions, switches, and one sentence for what does not fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from uncollapse.cli.command import Command, UserError, option


@dataclass(frozen=True)
class EveryKind:
    files: list[Path] = option(help="one or more", positional=True)
    count: int = option(3, "a number with 100 % of its digits")
    rate: float | None = option(None, "a rate")
    keep: bool | None = option(None, "keep or not")
    dry_run: bool = option(False, "a switch")
    kind: Literal["wide", "deep"] = option("wide", "a choice")
    label: str | None = option(None, "a text")


def command(run=lambda settings: 0):
    return Command("every", "Every kind of option.", "uncollapse every a", EveryKind, run)


def test_arguments_become_values_of_the_declared_types():
    given = ["a", "b", "--count=-4", "--rate", "1e-3", "--keep", "False", "--dry-run", "--kind", "deep", "--label", "7"]
    assert command().parse([a.replace("dry-run", "dry_run") for a in given]) == EveryKind(
        [Path("a"), Path("b")], -4, 1e-3, False, True, "deep", "7"
    )
    assert command().parse(["a"]) == EveryKind([Path("a")])


@pytest.mark.parametrize("spelling", ["--dry-run", "--dry_run"])
def test_options_are_written_with_either_dash(spelling):
    seen = []
    assert command(lambda settings: seen.append(settings) or 0).main(["a-b", spelling, "--label=x-y"]) == 0
    assert seen == [EveryKind([Path("a-b")], dry_run=True, label="x-y")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a", "--count", "4.0"], "--count must be a whole number, got '4.0'."),
        (["a", "--rate", "fast"], "--rate must be a number, got 'fast'."),
        (["a", "--keep", "maybe"], "--keep must be true or false, got 'maybe'."),
        (["a", "--kind", "tall"], "--kind must be one of wide, deep, got 'tall'."),
        (["a", "--cuont", "4"], "unknown option --cuont; did you mean --count?"),
        (["a", "--zzz"], "unknown option --zzz; the options are --count, --rate, --keep, --dry_run, --kind, --label."),
        (["a", "--count"], "--count: expected one argument; see uncollapse every --help."),
        ([], "the following arguments are required: files; see uncollapse every --help."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_one_sentence(arguments, sentence):
    with pytest.raises(UserError) as error:
        command().parse(arguments)
    assert str(error.value) == sentence


def test_help_shows_every_option_its_default_and_the_example(capsys):
    with pytest.raises(SystemExit) as end:
        command().main(["--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "--count INT a number with 100 % of its digits (default: 3)",
        "--rate FLOAT a rate",
        "--keep true|false keep or not",
        "--dry_run a switch",
        "--kind wide|deep a choice (default: wide)",
        "example: uncollapse every a",
    ):
        assert part in shown


def test_an_error_of_ours_is_not_hidden():
    def broken(settings):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        command(broken).main(["a"])

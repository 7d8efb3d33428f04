"""`uncollapse reproduce`: tables, figures and claims of the papers; the entry point that adds it to `uncollapse`."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from uncollapse.cli.command import UserError, nearest
from uncollapse.cli.group import CommandGroup, Listed, Runnable

COMMANDS = {  # name -> one line for --help; the command itself is NAME.py
    "list": "list every table and figure, with its paper, time and status",
    "figure": "compute and draw a figure that needs no trained networks",
    "cells": "train the networks of a table or figure that are missing, and draw it",
    "runs": "make the short runs of a study that are missing, and draw it",
    "claims": "check every statement of the two papers",
    "calibration": "choose the thresholds of a diagnosis, and count false and missed alarms of its verdicts",
    "models": "diagnose small models that others trained",
    "pictures": "write the pictures of docs/images in a checkout: the report page and the demo",
    "results": "write docs/results.md, its pictures and README's table of remedies in a checkout of uncollapse",
}


def expand(arguments: list[str]) -> list[str]:
    """The shorthand `reproduce ID ...` is `reproduce figure ID ...`, `cells ID ...` or `runs ID ...`."""
    if not arguments:
        raise UserError("say which figure, for example localization-fig4; uncollapse reproduce list shows all.")
    name = arguments[0]
    if name == "--list":  # the name that the command list had in version 0.1
        return ["list", *arguments[1:]]
    if name in COMMANDS:
        return arguments
    if name.startswith("-"):
        raise UserError("give the name of a command or the id of a figure first; uncollapse reproduce list shows all.")
    return [command_of(name), *arguments]


def command_of(id: str) -> str:
    """The command that draws the table or figure with this id."""
    from ..artefacts import ARTEFACTS
    from ..figure import FIGURES
    from ..study import STUDIES

    if id in STUDIES:
        return "runs"
    if id in FIGURES:
        return "figure"
    if id in ARTEFACTS:
        return "cells"
    hint = nearest(id, [*FIGURES, *ARTEFACTS, *STUDIES, *COMMANDS], "uncollapse reproduce list shows all.", cutoff=0.3)
    raise UserError(f"there is no figure {id!r}; {hint}")


def check_command(id: str, command: str) -> None:
    """Refuse an id that another command draws."""
    other = command_of(id)
    if other != command:
        needs = {"figure": "no trained networks", "cells": "trained networks", "runs": "short runs"}[other]
        raise UserError(f"{id} needs {needs}; use: uncollapse reproduce {other} {id}.")


def _load(name: str) -> Runnable:
    command: Runnable = import_module(f".{name}", __package__).COMMAND
    return command


COMMAND = CommandGroup(
    name="reproduce",
    summary="reproduce the tables, figures and claims of the two papers",
    commands={name: Listed(partial(_load, name), line) for name, line in COMMANDS.items()},
    expand=expand,
    details="""\
uncollapse reproduce ID ... is short for uncollapse reproduce figure ID ..., cells ID ... or runs ID ...

example:
  uncollapse reproduce localization-fig4 --out my-figure --png""",
)

"""The command line: `uncollapse COMMAND ...`, one file for each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points

from uncollapse import __version__

from .command import UserError
from .group import CommandGroup, Listed, Runnable

COMMANDS = {  # name -> one line for --help; the command itself is cli/NAME.py, with _ for -
    "demo": "see attention collapse, watch a run go wrong and put it right, in a few minutes",
    "diagnose": "find the layers and heads of a model that have collapsed, how badly, and what helps",
    "page": "write the HTML page of saved diagnoses or watched runs, one to four side by side",
    "remedies": "list what is known to help, where it acts, and what shows it",
    "train": "train a recipe, with or without inherited scores or remedies, into a run folder",
    "compare": "compare runs or saved diagnoses: what differs, the results, and whether seeds explain them",
    "bench": "measure what inherited scores cost against torch's own attention",
    "gpu-test": "test the Triton kernels on this GPU, and measure them",
    "recipes": "list the recipes, with batch, memory and hours on one A100 by a cost model",
    "doctor": "print versions, compiler, GPU, folders and what is missing, for a bug report",
    "completion": "print a script with which a shell completes commands, options and recipes",
}
ENTRY_POINTS = "uncollapse.commands"  # the entry-point group through which other packages add commands
STUDIES = "reproduce"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script `uncollapse`."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["--version"]:
        print(f"uncollapse {__version__}")
        return 0
    group = CommandGroup(
        name="",
        summary="Finds and explains attention collapse in Transformers, and tells what is known to help.",
        commands=commands(),
    )
    if not arguments:
        from .guide import guide

        print(guide())
        return 0
    return group.main(arguments)


def commands() -> dict[str, Listed]:
    """Our own commands, then those of other packages, which cannot replace ours."""
    own = {name: Listed(partial(_own, name), line) for name, line in COMMANDS.items()}
    added = {entry.name: Listed(entry.load) for entry in entry_points(group=ENTRY_POINTS)}
    studies = Listed(_studies_missing, "reproduce the papers' figures and claims (needs uncollapse-studies)")
    return own | {STUDIES: studies} | added | own


def _own(name: str) -> Runnable:
    command: Runnable = import_module(f".{name.replace('-', '_')}", __name__).COMMAND
    return command


def _studies_missing() -> Runnable:
    raise UserError(
        f"{STUDIES} belongs to the package uncollapse-studies, which is not installed; "
        "install it in a clone of the repository with: pip install -c constraints.txt ./studies."
    )

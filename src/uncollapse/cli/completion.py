"""`uncollapse completion SHELL`: a script with which the shell completes commands, options and names of recipes."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from uncollapse.extras import require

from .command import Command, option
from .group import CommandGroup, Listed


@dataclass(frozen=True)
class CompletionOptions:
    """Options of `uncollapse completion`."""

    shell: Literal["bash", "zsh", "tcsh"] = option(help="bash, zsh or tcsh", positional=True)


def run(settings: CompletionOptions) -> int:
    """Print the script."""
    require("shtab")
    import shtab

    from . import commands

    print(shtab.complete(whole_parser(commands(), shtab.FILE), shell=settings.shell))
    return 0


def whole_parser(commands: Mapping[str, Listed], files: Any) -> ArgumentParser:
    """One parser with every command; `files` is what completes a path."""
    parser = ArgumentParser("uncollapse")
    parser.add_argument("--version", action="store_true", help="print the version")
    _fill(parser, commands, files)
    return parser


def _fill(parser: ArgumentParser, commands: Mapping[str, Listed], files: Any) -> None:
    choices = parser.add_subparsers(dest="command")
    for name, listed in commands.items():
        try:
            command = listed.load()
        except Exception:  # an extra or another package is missing: its name is all that can be offered
            choices.add_parser(name, help=listed.line or "")
            continue
        inner = choices.add_parser(name, help=_one_line(listed.line or command.summary))
        if isinstance(command, CommandGroup):
            _fill(inner, command.commands, files)
        elif isinstance(command, Command):
            command.add_options(inner, files)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("%", "%%")


COMMAND = Command(
    name="completion",
    summary="Print a script with which your shell completes commands, options and names of recipes. Write it to where "
    "the shell looks for such scripts, and again after an update.",
    example="uncollapse completion bash > ~/.local/share/bash-completion/completions/uncollapse",
    options=CompletionOptions,
    run=run,
)

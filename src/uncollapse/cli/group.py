"""Commands under one name, such as `uncollapse` itself: what --help lists, and which command is meant."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .command import UserError, guarded, nearest
from .text_table import text_table


class Runnable(Protocol):
    """What a group needs of a command: a Command, a CommandGroup, or an object of another package."""

    @property
    def summary(self) -> str:
        """One line for --help."""

    def main(self, arguments: Sequence[str]) -> int:
        """Run it and return the exit code."""


@dataclass(frozen=True)
class Listed:
    """A command in a group: one line for --help, and how to import it when it is run."""

    load: Callable[[], Runnable]
    line: str | None = None  # None: the command's own summary, which imports it


def same(arguments: list[str]) -> list[str]:
    """No shorthand: the arguments as they are."""
    return arguments


@dataclass(frozen=True)
class CommandGroup:
    """Several commands; the first argument names the one to run."""

    name: str  # as typed after `uncollapse`; empty for `uncollapse` itself
    summary: str
    commands: Mapping[str, Listed]
    expand: Callable[[list[str]], list[str]] = same  # turns a shorthand into the name of a command and its arguments
    details: str = ""  # the last lines of --help

    @property
    def prog(self) -> str:
        """The words that start every command of the group."""
        return f"uncollapse {self.name}".rstrip()

    def main(self, arguments: Sequence[str]) -> int:
        """Run the command that the first argument names and return its exit code."""
        return guarded(self.prog, "--debug" in arguments, lambda: self._main(list(arguments)))

    def _main(self, arguments: list[str]) -> int:
        if arguments[:1] in (["-h"], ["--help"]):
            print(self.usage())
            return 0
        name, *rest = self.expand(arguments)
        if name not in self.commands:
            every = f"the commands are {', '.join(self.commands)}."
            raise UserError(f"unknown command {name!r}; {nearest(name, self.commands, every)}")
        command = self.commands[name].load()
        return command.main(rest)

    def usage(self) -> str:
        """The text of --help."""
        return "\n".join(
            [
                f"usage: {self.prog} COMMAND [options]",
                "",
                self.summary,
                "",
                "commands:",
                textwrap.indent(text_table([(name, _line(listed)) for name, listed in self.commands.items()]), "  "),
                "",
                f"{self.prog} COMMAND --help shows the options of a command and an example.",
                *([self.details] if self.details else []),
            ]
        )


def _line(listed: Listed) -> str:
    """The line of a command in --help, which has to work although another package may be broken."""
    if listed.line is not None:
        return listed.line
    try:
        return listed.load().summary
    except Exception as error:
        return f"cannot be loaded ({type(error).__name__}: {error})"

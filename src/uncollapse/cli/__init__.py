"""The command line: `uncollapse COMMAND ...`, one file a command."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

from uncollapse import __version__

COMMANDS = {  # name -> one line for --help; the command itself is cli/NAME.py
    "diagnose": "which layers and heads of a model have collapsed, how badly, and what helps",
    "train": "train a recipe, with inherited scores or LocAteR or without, into a run folder",
    "compare": "set runs side by side: what differs, what came out, and what seeds explain",
    "demo": "what collapse is, and what four ways of attending do about it, in a few minutes",
    "bench": "measure what inherited scores cost against torch's own attention",
}
GROUP = "uncollapse.commands"  # entry points of other packages that add a command
ELSEWHERE = {"reproduce": "install them with: pip install uncollapse-studies."}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script `uncollapse`."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"uncollapse {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in others:
        added: int = others[name].load().main(rest)
        return added
    if name in ELSEWHERE:
        print(f"uncollapse: {name} belongs to the studies; {ELSEWHERE[name]}", file=sys.stderr)
        return 2
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}."
        print(f"uncollapse: unknown command {name!r}; {hint}", file=sys.stderr)
        return 2
    code: int = import_module(f".{name}", __name__).COMMAND.main(rest)
    return code


def usage() -> str:
    """The text of `uncollapse --help`."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: uncollapse COMMAND [options]",
            "",
            "Finds and explains attention collapse in Transformers, and tells what is known to help.",
            "",
            "commands:",
            *lines,
            "",
            "uncollapse COMMAND --help shows the options of a command and an example.",
        ]
    )

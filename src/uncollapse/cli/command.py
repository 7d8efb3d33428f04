"""How every command reads its arguments: a flat dataclass, jsonargparse behind it, one sentence for an error."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser

S = TypeVar("S")


class UserError(Exception):
    """Something the user can put right; its message is the one sentence to show."""


def option(default: Any = MISSING, help: str = "", positional: bool = False) -> Any:
    """A field of a settings dataclass, with its help text; a positional one that is a list takes one or more."""
    return field(default=default, metadata={"help": help, "positional": positional})


@dataclass(frozen=True)
class Command(Generic[S]):
    """One command: its settings, what it does, and an example for --help."""

    name: str
    summary: str
    example: str
    settings: type[S]
    run: Callable[[S], int]
    usage: str | None = None  # in place of a line with every option

    def main(self, arguments: Sequence[str]) -> int:
        """Parse, run, and turn an error into one sentence and exit code 2 (`--debug` shows the traceback)."""
        arguments = [_underscored(argument) for argument in arguments]
        debug = "--debug" in arguments
        try:
            return self.run(self.parse([a for a in arguments if a != "--debug"]))
        except BrokenPipeError:  # the reader of our output has gone, as in `uncollapse demo | head`
            sys.stderr.close()
            return 141
        except (UserError, ValueError, OSError) as error:
            if debug:
                traceback.print_exc()
            print(f"uncollapse {self.name}: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"uncollapse {self.name}: interrupted.", file=sys.stderr)
            return 130

    def parser(self) -> ArgumentParser:
        """The jsonargparse parser for this command's settings."""
        parser = ArgumentParser(
            prog=f"uncollapse {self.name}",
            usage=self.usage,
            description=self.summary,
            epilog=f"example:\n  {self.example}",
            exit_on_error=False,
            allow_abbrev=False,
            formatter_class=_Help,
        )
        hints = get_type_hints(self.settings)
        for setting in fields(self.settings):  # type: ignore[arg-type]
            text = setting.metadata["help"]
            if setting.metadata["positional"] and get_origin(hints[setting.name]) is list:
                parser.add_argument(setting.name, type=get_args(hints[setting.name])[0], nargs="+", help=text)
            elif setting.metadata["positional"] and setting.default is MISSING:
                parser.add_argument(setting.name, type=hints[setting.name], help=text)
            elif setting.metadata["positional"]:
                parser.add_argument(
                    setting.name, type=hints[setting.name], nargs="?", default=setting.default, help=text
                )
            elif hints[setting.name] is bool:
                parser.add_argument(f"--{setting.name}", action="store_true", help=text)
            else:
                parser.add_argument(
                    f"--{setting.name}",
                    type=hints[setting.name],
                    default=setting.default,
                    metavar=setting.metadata.get("metavar"),
                    help=_with_default(setting, text),
                )
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return parser

    def parse(self, arguments: Sequence[str]) -> S:
        """The settings that the arguments name, or a UserError."""
        try:
            values = self.parser().parse_args(list(arguments))
        except ArgumentError as error:
            raise UserError(self._explain(str(error), arguments)) from None
        return self.settings(**{s.name: values[s.name] for s in fields(self.settings)})  # type: ignore[arg-type]

    def _explain(self, message: str, arguments: Sequence[str]) -> str:
        known = [s.name for s in fields(self.settings) if not s.metadata["positional"]]  # type: ignore[arg-type]
        for argument in arguments:
            key = argument.split("=")[0]
            if key.startswith("--") and key[2:] not in known and key not in ("--help", "--debug"):
                near = difflib.get_close_matches(key[2:], known, n=1)
                hint = (
                    f"did you mean --{near[0]}?" if near else f"the options are {', '.join('--' + k for k in known)}."
                )
                return f"unknown option {key}; {hint}"
        value = re.search(r'Parser key "(\w+)":.*(?:Got|Given) value: (.*)', message, flags=re.DOTALL)
        if value:
            hint = get_type_hints(self.settings)[value[1]]
            return f"--{value[1]} must be {_describe(hint)}, got {value[2].strip()!r}."
        return f"{' '.join(message.split()).rstrip('.')}; see uncollapse {self.name} --help."


def _underscored(argument: str) -> str:
    """--fail-on is --fail_on: options are written either way."""
    name, equals, value = argument.partition("=")
    return name.replace("-", "_").replace("__", "--", 1) + equals + value if argument.startswith("--") else argument


def _describe(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) in (Union, UnionType):
        return _describe(next(arm for arm in get_args(hint) if arm is not type(None)))
    return {int: "a whole number", float: "a number", Path: "a path"}.get(hint, str(hint))


class _Help(RawDescriptionHelpFormatter):
    """Keep the example's line as written."""


def _with_default(setting: Any, text: str) -> str:
    return text if setting.default is None else f"{text} (default: {setting.default})"

"""How a command reads its arguments: argparse over a flat dataclass, and one sentence for an error."""

from __future__ import annotations

import difflib
import os
import sys
import textwrap
import time
import traceback
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from uncollapse.extras import MissingExtraError, naming_missing_extra
from uncollapse.files import printable

S = TypeVar("S")
WIDTH = 100  # characters of a line of --help
NOUNS = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path", str: "text"}
METAVARS = {int: "INT", float: "FLOAT", bool: "true|false", Path: "PATH", str: "TEXT"}
NO_MEMORY = "can't allocate memory"  # in the RuntimeError that torch raises in place of a MemoryError
PATIENCE = 60.0  # seconds: torchrun ends all processes when one ends, and the one that tells must be first
TRUTH = {"true": True, "false": False}


class UserError(Exception):
    """An error that the user can correct; the message is the one sentence to print."""


def option(
    default: Any = MISSING, help: str = "", positional: bool = False, suggest: Callable[[], list[str]] | None = None
) -> Any:
    """A field of an options dataclass, with its help text; a positional list takes one or more values.

    `suggest` gives the values that a shell offers, where others may be given as well.
    """
    return field(default=default, metadata={"help": help, "positional": positional, "suggest": suggest})


def guarded(name: str, debug: bool, call: Callable[[], int]) -> int:
    """Run `call` and turn an error of the user into one sentence and exit code 2; `debug` shows the traceback."""
    try:
        with naming_missing_extra(), _printable_warnings():
            return call()
    except BrokenPipeError:  # the reader of our output is gone, as in `uncollapse demo | head`
        sys.stderr.close()
        return 141
    except (UserError, ValueError, OSError, MissingExtraError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and NO_MEMORY not in str(error):
            raise  # a bug of ours, which needs its traceback
        if debug:
            print(printable(traceback.format_exc()), file=sys.stderr)
        if _is_told_by_another(error):
            time.sleep(PATIENCE)
        else:
            print(f"{name}: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted.", file=sys.stderr)
        return 130


def _is_told_by_another(error: Exception) -> bool:
    """Whether the first process that torchrun started on this machine has the same error and prints it.

    All have the same command line, and `training.processes.SharedError` is raised in all of them.
    """
    return os.environ.get("LOCAL_RANK", "0") != "0" and (isinstance(error, UserError) or hasattr(error, "shared"))


def _sentence(error: Exception) -> str:
    """An error as one line of plain characters, whatever stood in the files that it is about."""
    if isinstance(error, MemoryError | RuntimeError):
        return "there is not enough memory for this; make the model, the batch or the sequences smaller."
    return printable(" ".join(str(error).split()))


@contextmanager
def _printable_warnings() -> Iterator[None]:
    """Warnings too may quote names from files."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda *args, **options: printable(usual(*args, **options))
    try:
        yield
    finally:
        warnings.formatwarning = usual


def nearest(name: str, known: Iterable[str], otherwise: str, *, prefix: str = "", cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown name: the known name that is most similar, or `otherwise`.

    >>> nearest("dept", ["depth", "seeds"], "see --help.", prefix="--")
    'did you mean --depth?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {prefix}{near[0]}?" if near else otherwise


@dataclass(frozen=True)
class Command(Generic[S]):
    """One command: its options, the function that runs it, and an example for --help."""

    name: str  # as typed after `uncollapse`
    summary: str
    example: str
    options: type[S]
    run: Callable[[S], int]
    usage: str | None = None  # in place of a line with every option

    def main(self, arguments: Sequence[str]) -> int:
        """Parse the arguments, run the command and return its exit code."""
        arguments = [_underscored(argument) for argument in arguments]
        given = [argument for argument in arguments if argument != "--debug"]
        return guarded(f"uncollapse {self.name}", given != arguments, lambda: self.run(self.parse(given)))

    def parser(self) -> ArgumentParser:
        """The argparse parser for this command's options."""
        parser = _Parser(
            prog=f"uncollapse {self.name}",
            usage=self.usage,
            description=textwrap.fill(self.summary, WIDTH),
            epilog=f"example:\n  {self.example}",
            allow_abbrev=False,
            formatter_class=RawDescriptionHelpFormatter,
        )
        self.add_options(parser)
        return parser

    def add_options(self, parser: ArgumentParser, files: Any = None) -> None:
        """Add this command's options to a parser; `files` is what completes a path in a shell."""
        hints = get_type_hints(self.options)
        for setting in fields(self.options):  # type: ignore[arg-type]
            _add(parser, setting, hints[setting.name], files)
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def parse(self, arguments: Sequence[str]) -> S:
        """The options that the arguments set, or a UserError."""
        try:
            values = vars(self.parser().parse_args(list(arguments)))
        except _ParserError as error:
            raise UserError(self._explain(str(error), arguments)) from None
        del values["debug"]
        return self.options(**values)

    def _explain(self, message: str, arguments: Sequence[str]) -> str:
        known = [s.name for s in fields(self.options) if not s.metadata["positional"]]  # type: ignore[arg-type]
        for argument in arguments:
            name = argument.split("=")[0].removeprefix("--")
            if argument.startswith("--") and name and name not in (*known, "help"):
                every = f"the options are {', '.join(f'--{k}' for k in known)}."
                return f"unknown option --{name}; {nearest(name, known, every, prefix='--')}"
        return f"{message}; see uncollapse {self.name} --help."


class _ParserError(Exception):
    """What argparse found wrong."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ParserError(message.removeprefix("argument "))  # argparse would print the usage and exit


def _add(parser: ArgumentParser, setting: Field[Any], hint: Any, files: Any) -> None:
    """One option, or one positional argument, with the conversion that its type asks for."""
    positional = setting.metadata["positional"]
    name = setting.name if positional else f"--{setting.name}"
    text = setting.metadata["help"].replace("%", "%%")  # argparse would take % as a placeholder
    if hint is bool:
        parser.add_argument(name, action="store_true", help=text)
        return
    several = get_origin(hint) is list
    kind = get_args(hint)[0] if several else _required(hint)
    how: dict[str, Any] = {"type": _converter(name, kind)}
    if not positional:
        shown = "" if setting.default is None else f" (default: {setting.default})"
        how |= {"default": setting.default, "metavar": _metavar(kind)}
        text += shown
    elif several:
        how["nargs"] = "+"
    action: Any = parser.add_argument(name, help=text, **how)
    if files is not None:
        _complete(action, kind, setting.metadata["suggest"], files)


def _complete(action: Any, kind: Any, suggest: Callable[[], list[str]] | None, files: Any) -> None:
    """What a shell offers for a value; a text in place of an option is most often a model, so a path."""
    if get_origin(kind) is Literal:
        action.choices = list(map(str, get_args(kind)))
    elif suggest is not None:
        action.choices = suggest()
    elif kind is Path or not action.option_strings:
        action.complete = files


def _required(hint: Any) -> Any:
    """X of `X | None`.

    >>> _required(int | None), _required(Literal["a", "b"])
    (<class 'int'>, typing.Literal['a', 'b'])
    """
    if get_origin(hint) is Literal:
        return hint
    return next((arm for arm in get_args(hint) if arm is not type(None)), hint)


def _converter(name: str, kind: Any) -> Callable[[str], Any]:
    """From the text of an argument to its value; a text that does not fit is a UserError."""

    def convert(text: str) -> Any:
        try:
            if get_origin(kind) is Literal:
                return {str(choice): choice for choice in get_args(kind)}[text]
            return TRUTH[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise UserError(f"{name} must be {_noun(kind)}, got {text!r}.") from None

    return convert


def _noun(kind: Any) -> str:
    return f"one of {', '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else NOUNS[kind]


def _metavar(kind: Any) -> str:
    return "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else METAVARS[kind]


def _underscored(argument: str) -> str:
    """Options may be written with - or _: --fail-on is --fail_on.

    >>> _underscored("--fail-on=rank-collapse"), _underscored("--"), _underscored("a-b")
    ('--fail_on=rank-collapse', '--', 'a-b')
    """
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if argument.startswith("--") else argument

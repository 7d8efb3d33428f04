"""The command line as a user meets it."""

import subprocess
import sys

import pytest

from uncollapse import __version__
from uncollapse.cli import COMMANDS, main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demmo"], "unknown command 'demmo'; did you mean demo?"),
        (["xyz"], "unknown command 'xyz'; the commands are"),
        (["demo", "--dept", "3"], "unknown option --dept; did you mean --depth?"),
        (["demo", "--depth", "deep"], "--depth must be a whole number, got 'deep'."),
        (["demo", "--init", "kaiming"], "--init must be one of timm, xavier, torch, got 'kaiming'."),
        (["demo", "--depth", "0"], "depth and seeds must be at least 1, got 0 and 5."),
        (["demo", "--out", "/dev/null"], "/dev/null is a file; give a folder with --out."),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_two(arguments, sentence, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err


def test_debug_shows_the_traceback(capsys):
    assert main(["demo", "--depth", "0", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_an_example(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"example:\n  uncollapse {name}" in capsys.readouterr().out


def test_python_dash_m_is_the_command():
    run = subprocess.run([sys.executable, "-m", "uncollapse", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"uncollapse {__version__}\n"


def test_importing_the_package_is_light():
    code = (
        "import sys, uncollapse; print([m for m in ('torch', 'transformers', 'pandas', 'altair') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"

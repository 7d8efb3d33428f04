"""The command line as a user meets it."""

import os
import subprocess
import sys

import pytest
import torch

import uncollapse as uc
from uncollapse import __version__
from uncollapse.cli import COMMANDS, main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demmo"], "unknown command 'demmo'; did you mean demo?"),
        (["xyz"], "unknown command 'xyz'; the commands are"),
        (["demo", "--dept", "3"], "unknown option --dept; did you mean --depth?"),
        (["demo", "--depth", "deep"], "--depth must be a whole number, got 'deep'."),
        (["bench", "--gpu", "abacus"], "--gpu must be one of a100, h100, b200, 4090, mi300, got 'abacus'."),
        (["demo", "--depth", "0"], "depth must be at least 1, got 0."),
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
    assert main(["--help"]) == 0
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


def python(code, *path):
    """Run code in a fresh interpreter, with folders put before everything that is installed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from uncollapse.cli import main; main(['--help'])\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'altair', 'yaml') if m in sys.modules])"
    )
    assert python(code).stdout.endswith("\n[]\n")


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("yaml", "train", ["train", "quickstart"]),
        ("transformers", "hf", ["diagnose", "gpt2", "--json"]),
        ("altair", "report", ["page", "SAVED"]),
    ],
)
def test_a_missing_extra_is_one_sentence(package, extra, arguments, tmp_path):
    with uc.Observer("a model") as observer:
        observer.attention(1, *torch.randn(2, 1, 2, 9, 4))
    saved = observer.diagnosis.save(tmp_path / "saved")
    given = [str(saved) if word == "SAVED" else word for word in arguments]
    hidden = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.modules[{package!r}] = None\n"
    run = python(f"{hidden}from uncollapse.cli import main; sys.exit(main({given}))")
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert f"this needs the package {package}" in run.stderr
    assert f"pip install 'uncollapse[{extra}]'" in run.stderr


@pytest.fixture
def other_package(tmp_path):
    """An installed package with three commands: one that works, one that is broken, and one named like ours."""
    (tmp_path / "greeting.py").write_text(
        "class Greet:\n    summary = 'say hello'\n    def main(self, words):\n        print('hello', *words)\n"
        "        return 7\nCOMMAND = Greet()\n"
    )
    about = tmp_path / "greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[uncollapse.commands]\ngreet = greeting:COMMAND\nbroken = absent:COMMAND\ndemo = greeting:COMMAND\n"
    )
    return tmp_path


def test_other_packages_add_commands(other_package):
    def run(*arguments):
        return python(f"import sys; from uncollapse.cli import main; sys.exit(main({arguments}))", other_package)

    greeted = run("greet", "you", "--there")
    assert (greeted.returncode, greeted.stdout) == (7, "hello you --there\n")
    listed = {line.split()[0]: line for line in run("--help").stdout.splitlines() if line.startswith("  ")}
    assert listed["greet"].endswith("say hello")
    assert "cannot be loaded" in listed["broken"]  # and the others are listed nevertheless
    assert "hello" not in run("demo", "--depth", "0").stdout
    assert run("gret").stderr == "uncollapse: unknown command 'gret'; did you mean greet?\n"

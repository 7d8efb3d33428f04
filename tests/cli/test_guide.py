"""The first screen, shell completion and `doctor`."""

import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from uncollapse.cli import COMMANDS, commands, main
from uncollapse.cli.command import Command
from uncollapse.cli.doctor import SECTIONS, without_home
from uncollapse.cli.guide import WISHES, guide
from uncollapse.training.recipe import names


def test_without_arguments_the_guide_is_printed(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed == guide() + "\n"
    assert len(printed.splitlines()) <= 24  # one screen
    assert max(map(len, printed.splitlines())) <= 110


@pytest.mark.parametrize("command", [command for _, command in WISHES])
def test_every_line_of_the_guide_is_a_command_that_parses(command):
    program, name, *arguments = shlex.split(command)
    assert program == "uncollapse"
    assert name in commands()
    if name in COMMANDS:
        found = importlib.import_module(f"uncollapse.cli.{name.replace('-', '_')}").COMMAND
        assert isinstance(found, Command)
        found.parse(arguments)


def completions(line):
    """What bash offers at the end of a line, with the script that `uncollapse completion bash` prints."""
    script = subprocess.run(
        [sys.executable, "-m", "uncollapse", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    words = [*line.split(), ""] if line.endswith(" ") else line.split()
    quoted = " ".join(map(shlex.quote, words))
    asked = (
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_uncollapse; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    run = subprocess.run(["bash"], input=f"{script}\n{asked}\n", capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("uncollapse dia", {"diagnose"}),
        ("uncollapse train vit-", {name for name in names() if name.startswith("vit-")}),
        ("uncollapse train quickstart --alpha_h", {"--alpha_hidden"}),
        ("uncollapse bench --gpu ", {"a100", "h100", "b200", "4090", "mi300"}),
        ("uncollapse completion ", {"bash", "zsh", "tcsh"}),
    ],
)
def test_bash_completes_commands_options_and_recipes(line, offered):
    pytest.importorskip("shtab", reason="the extra completion is not installed")
    assert offered <= completions(line)


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script_too(shell, capsys):
    pytest.importorskip("shtab", reason="the extra completion is not installed")
    assert main(["completion", shell]) == 0
    assert "diagnose" in capsys.readouterr().out


def test_doctor_says_what_is_here_and_hides_the_home_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UNCOLLAPSE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_TOKEN", "a-secret")
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{title}\n" in printed for title in SECTIONS)
    assert "could not be asked" not in printed
    assert "UNCOLLAPSE_DATA=~/data" in printed
    assert str(tmp_path) not in printed
    assert "a-secret" not in printed


def test_doctor_goes_on_after_a_section_that_fails(capsys, monkeypatch):
    def broken():
        yield "a line"
        raise ImportError("libcuda.so: cannot open")

    monkeypatch.setitem(SECTIONS, "processor", broken)
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "could not be asked: ImportError: libcuda.so: cannot open" in printed
    assert printed.index("folders\n") > printed.index("libcuda.so")


def test_a_missing_extra_is_named_with_its_command():
    hidden = "import sys; sys.modules['altair'] = None\nfrom uncollapse.cli import main; sys.exit(main(['doctor']))"
    run = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, env=dict(os.environ))
    assert run.returncode == 0
    assert "missing: altair (pip install 'uncollapse[report]')" in run.stdout


def test_the_root_as_home_is_not_replaced(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path(os.sep))
    assert without_home("/etc/passwd") == "/etc/passwd"

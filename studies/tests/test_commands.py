"""`uncollapse reproduce` as a user meets it: its commands, from any folder, and installed without the repository."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from uncollapse.cli import main
from uncollapse_studies import locations
from uncollapse_studies.audit.audit import audit
from uncollapse_studies.audit.claim import PENDING, AuditRun
from uncollapse_studies.audit.registry import claims
from uncollapse_studies.cli.reproduce import COMMAND, COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def reproduce(*arguments, folder, packages=()):
    """Run the command as a process in a folder; `packages` come before those that are installed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, packages)), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "uncollapse", "reproduce", *arguments]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def refusal(run):
    assert run.returncode == 2, run.stdout + run.stderr
    assert run.stderr.count("\n") == 1
    return run.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package as a wheel installs it: its sources and results in one folder, and no repository around it."""
    site = tmp_path_factory.mktemp("site")
    source = ROOT / "studies"
    shutil.copytree(source / "src/uncollapse_studies", site / "uncollapse_studies")
    shutil.copytree(source / "results", site / "uncollapse_studies/results")
    return site


@pytest.fixture
def stranger(tmp_path):
    """Somebody else's project, which has what a careless command would write to."""
    (tmp_path / "studies/results/cells").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"))
    return tmp_path


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_an_example(name, capsys):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", name, "--help"])
    assert end.value.code == 0
    assert f"example:\n  uncollapse reproduce {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["list", "figure", "cells", "claims"])
def test_the_example_works(name, tmp_path):
    """In an empty folder; that of `results` writes into a checkout, and that of `models` needs the models."""
    words = shlex.split(COMMAND.commands[name].load().example)
    run = reproduce(*words[2:], folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_the_group_lists_its_commands(capsys):
    assert main(["reproduce", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["claims", "--jobs", "-3", "--budget", "paper"], "unknown option --jobs; the options are"),
        (["localization-fig4", "--jobs", "2"], "unknown option --jobs; the options are"),
        (["figure", "localization-fig4", "--at-most", "0"], "unknown option --at_most"),
        (["results", "--quick"], "unknown option --quick; the options are --project."),
        (["list", "--force"], "unknown option --force"),
        (["figure", "localization-fig6"], "needs trained networks; use: uncollapse reproduce cells localization-fig6."),
        (["cells", "localization-fig4"], "needs no trained networks; use: uncollapse reproduce figure localization-f"),
        (["cells", "localization-fig66"], "did you mean localization-fig6?"),
        (["cells", "localization-fig6", "--jobs", "-3"], "--jobs must be at least 1, got -3."),
        (["claims", "--cells", "absent"], "there is no folder absent"),
        (["--png"], "give the name of a command or the id of a figure first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_leaves_nothing(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_installed_package_judges_by_the_cells_it_holds(installed, tmp_path):
    run = reproduce("claims", "--only", "hopfield-probe", "--out", "c", folder=tmp_path, packages=[installed])
    assert run.returncode == 0, run.stderr
    (row,) = json.loads((tmp_path / "c/claims.json").read_text(encoding="utf-8"))["claims"]
    (here,) = audit([claims()["hopfield-probe"]], AuditRun())
    assert row["verdict"] == here["verdict"] != PENDING
    assert (ROOT / row["check"]["file"]).is_file()  # named as in the repository, not as in this installation
    page = (tmp_path / "c/claims.html").read_text(encoding="utf-8")
    assert "../" in page  # a link to the installed file


def test_an_installed_package_draws_its_cells_and_is_not_written_to(installed, tmp_path):
    before = set(installed.rglob("*.json"))
    id = "localization-fig8"
    drawn = reproduce("cells", id, "--at-most", "0", folder=tmp_path, packages=[installed])
    assert drawn.returncode == 0, drawn.stderr
    assert "6 of 6 cells are trained." in drawn.stdout
    trained = reproduce("cells", id, "--budget", "paper", "--out", "new", folder=tmp_path, packages=[installed])
    assert "an installed package is not written to; give a folder for them with --cells DIR" in refusal(trained)
    assert set(installed.rglob("*.json")) == before
    assert [path.name for path in tmp_path.iterdir()] == [id]


def test_an_installed_package_leaves_the_project_of_a_stranger_alone(installed, stranger):
    before = files(stranger)
    unnamed = reproduce("results", folder=stranger, packages=[installed])
    assert "name a checkout with --project DIR." in refusal(unnamed)
    named = reproduce("results", "--project", ".", folder=stranger, packages=[installed])
    assert "is no checkout of uncollapse" in refusal(named)
    assert files(stranger) == before


@pytest.mark.parametrize(
    "text", ["", "[project", '[project]\nname = "other"\n', 'project = "uncollapse"\n', "[tool]\n"]
)
def test_a_checkout_is_known_by_its_name(text, tmp_path):
    (tmp_path / "studies").mkdir()
    assert not locations.is_project(tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    assert not locations.is_project(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "uncollapse"\n')
    assert locations.is_project(tmp_path)
    assert locations.project() == ROOT


def test_models_that_others_trained_are_diagnosed(tmp_path):
    if "UNCOLLAPSE_DATA" not in os.environ:
        pytest.skip("the models are in the folder models of $UNCOLLAPSE_DATA, which is not set")
    run = reproduce("models", "--out", "models", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert {file.name for file in (tmp_path / "models").iterdir()} == {
        file.name for file in (locations.results() / "trained-models").iterdir()
    }

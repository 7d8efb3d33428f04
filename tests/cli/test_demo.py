"""`uncollapse demo` as a user meets it, with models small enough for a test."""

import json
import re
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse.training.demo.experiment import METHODS, QUICK, recipes

TINY = {
    **{"layers": 2, "heads": 2, "width": 16, "length": 16, "steps": 3, "batch_size": 2, "eval_examples": 2},
    **{"eval_every": 2, "diagnose_every": 2, "diagnose_examples": 2, "examples": 40},
}
SECTIONS = [
    *("How deep can attention go?", "Do they learn?", "Collapse by layer, before and after training"),
    *("How alike are the tokens after training?", "How widely does attention look after training?"),
    *("What LocAteR holds", "What differs between the recipes"),
]


@pytest.fixture
def tiny(monkeypatch):
    for key, value in TINY.items():
        monkeypatch.setitem(QUICK, key, value)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "new" / "demo"


def test_it_prints_five_findings_and_writes_page_pictures_tables_and_runs(tiny, folder, capsys):
    assert main(["demo", "--quick", "--depth", "4", "--out", str(folder)]) == 0
    printed = capsys.readouterr()
    assert re.findall(r"^(\d)\. ", printed.out, flags=re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert printed.out.splitlines()[-1] == f"page: {folder / 'demo.html'}"
    assert "\r" not in printed.err  # no terminal: no bar
    files = ["demo.html", "demo.png", "final.csv", "residual-by-depth.csv", "residual-by-depth.png", "runs"]
    assert sorted(file.name for file in folder.iterdir()) == files
    assert all((folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in ("demo", "residual-by-depth"))
    assert sorted(run.name for run in (folder / "runs").iterdir()) == sorted(METHODS)
    assert all(_status(run) == "finished" for run in (folder / "runs").iterdir())
    assert [p.name for p in folder.parent.iterdir()] == ["demo"]  # no temporary folder is left
    _check_tables(folder)
    _check_page((folder / "demo.html").read_text(encoding="utf-8"), printed.out)


def _status(run):
    return json.loads((run / "status.json").read_text())["status"]


def _check_tables(folder):
    table = pd.read_csv(folder / "residual-by-depth.csv")
    assert list(table.columns[:4]) == ["attention", "alpha", "keep", "depth"]
    assert {"mean", "spread", "seeds"} <= set(table.columns)
    assert len(table) == 6 * 4
    final = pd.read_csv(folder / "final.csv")
    assert set(final["group"]) == set(METHODS)
    assert set(final["seeds"]) == {1}


def _check_page(page, printed):
    assert "https://cdn" not in page  # self-contained
    assert len(page) < 3_000_000
    assert [title for title in SECTIONS if title not in page] == []
    assert page.count("<h2>Five findings</h2>") == 1
    learning = re.search(r"^2\. [^:]*: (.*)$", printed, flags=re.MULTILINE)
    assert learning[1] in page
    assert "self-attention: collapsed (below 0.01) from layer" in page
    assert "peak memory" not in page  # of the process that all runs share


def test_it_overwrites_only_when_told_and_a_ctrl_c_leaves_what_was_there(tiny, tmp_path, capsys):
    keep = tmp_path / "out" / "notes.txt"
    keep.parent.mkdir()
    keep.write_text("mine")
    arguments = ["demo", "--quick", "--depth", "2", "--out", str(keep.parent)]
    assert main(arguments) == 2
    assert "already holds files; choose another folder with --out, or pass --force" in capsys.readouterr().err
    command = [sys.executable, "-m", "uncollapse", *arguments, "--steps", "5000", "--force"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        while not any('"loss"' in file.read_text() for file in tmp_path.glob(".out-*/runs/*/metrics.jsonl")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)  # now that it trains
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.endswith("uncollapse demo: interrupted.\n")
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "notes.txt"]
    assert main([*arguments, "--force"]) == 0
    assert keep.read_text() == "mine"


@pytest.mark.parametrize("quick", [False, True])
def test_budgets_are_equal_and_only_the_method_differs(quick):
    planned = {name: vars(recipe) for name, recipe in recipes(quick, steps=7).items()}
    own = {key for method in METHODS.values() for key in method.keys}
    shared = [{key: value for key, value in recipe.items() if key not in own} for recipe in planned.values()]
    assert all(recipe == shared[0] for recipe in shared)
    assert shared[0]["steps"] == 7
    assert planned["alpha-hidden-only"]["alpha"] == 0
    assert planned["alpha-hidden-only"]["alpha_hidden"] == planned["hopfield"]["alpha_hidden"] == 0.5
    assert planned["self-attention"]["rule"] == "self_attention"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "steps must be at least 1, got 0."),
        (["--steps", "many"], "--steps must be a whole number, got 'many'."),
        (["--seeds", "0"], "depth and seeds must be at least 1, got 12 and 0."),
        (["--qick"], "unknown option --qick; did you mean --quick?"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, capsys, tmp_path):
    assert main(["demo", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

"""`uncollapse demo` as a user meets it, with networks small enough for a test."""

import re
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse.cli.demo import ACTS
from uncollapse.remedies import contents
from uncollapse.training.demo.experiment import RUNS
from uncollapse.training.demo.runs import REMEDY, DemoSize

TINY = DemoSize(layers=2, heads=2, width=16, piece=4, batch=2, steps=8, warmup=2, good=5, every=2, held_out=4)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr("uncollapse.training.demo.runs.QUICK", TINY)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "new" / "demo"


def test_it_prints_three_acts_and_writes_page_picture_tables_and_watches(tiny, folder, capsys):
    assert main(["demo", "--quick", "--depth", "4", "--out", str(folder)]) == 0
    printed = capsys.readouterr()
    assert re.findall(r"^\d\. (.*)$", printed.out, flags=re.MULTILINE) == list(ACTS)
    assert printed.out.splitlines()[-1] == f"page: {folder / 'demo.html'}"
    assert "\r" not in printed.err  # no terminal: no bar
    files = ["demo.html", "demo.png", "residual-by-depth.csv", "trainings.csv", *(f"{name}.jsonl" for name in RUNS)]
    assert sorted(file.name for file in folder.iterdir()) == sorted(files)
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in folder.parent.iterdir()] == ["demo"]  # no temporary folder is left
    table = pd.read_csv(folder / "residual-by-depth.csv")
    assert len(table) == 6 * 4
    assert {"attention", "depth", "mean", "spread", "seeds"} <= set(table.columns)
    trainings = pd.read_csv(folder / "trainings.csv")
    assert trainings["run"].tolist() == list(RUNS)
    rates = trainings["learning rate at the end"] / TINY.learning_rate
    assert rates.tolist() == pytest.approx([TINY.growth ** (2 / 3)] * 2 + [1.0] * 2)
    _check_page((folder / "demo.html").read_text(encoding="utf-8"), printed.out)


def _check_page(page, printed):
    assert "https://cdn" not in page  # self-contained
    assert len(page) < 3_000_000
    assert [f"<h2>{n}. {act}</h2>" in page for n, act in enumerate(ACTS, start=1)] == [True] * 3
    found = re.findall(r"^   (.*)$", printed, flags=re.MULTILINE)
    assert len(found) >= 8
    assert [sentence for sentence in found if sentence not in page] == []
    assert [sentence for sentence in found if len(re.findall(r"\d[\d.,]*", sentence)) > 1] == []  # one number at most


@pytest.mark.parametrize("known", [{}, {REMEDY: "held the scores of 3 networks; a study"}])
def test_the_page_tells_the_evidence_on_the_remedy_or_that_there_is_none(known, tiny, folder, monkeypatch, tmp_path):
    file = tmp_path / "evidence.json"
    pd.Series(known, dtype=str).to_json(file)
    monkeypatch.setattr(contents, "EVIDENCE", file)
    contents.evidence.cache_clear()
    try:
        assert main(["demo", "--quick", "--depth", "2", "--steps", "4", "--out", str(folder)]) == 0
    finally:
        contents.evidence.cache_clear()
    page = (folder / "demo.html").read_text(encoding="utf-8")
    finding = known.get(REMEDY, "not tested here").partition(";")[0]
    assert f"Evidence beyond this one run: {finding}. All of it: uncollapse remedies." in page


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
        while not any('"step"' in file.read_text() for file in tmp_path.glob(".out-*/*.jsonl")):
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "steps must be at least 1, got 0."),
        (["--steps", "many"], "--steps must be a whole number, got 'many'."),
        (["--depth", "0"], "depth must be at least 1, got 0."),
        (["--qick"], "unknown option --qick; did you mean --quick?"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, capsys, tmp_path):
    assert main(["demo", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

"""`uncollapse compare` as a user meets it."""

import json

import pandas as pd

from tests.training.compare.run_folders import write_run
from uncollapse.cli import main


def test_compare_prints_writes_and_overwrites_only_when_told(tmp_path, capsys):
    runs = [str(write_run(tmp_path / "a")), str(write_run(tmp_path / "b", alpha=0.5, floor=1.0))]
    out = tmp_path / "out"
    assert main(["compare", *runs, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "one seed is not enough for a verdict" in printed
    assert f"page: {out / 'compare.html'}" in printed
    assert {file.name for file in out.iterdir()} == {
        "compare.html",
        "final.csv",
        "history.csv",
        "differences.csv",
        "runs.csv",
    }
    assert {"measure", "group", "mean", "spread", "low", "high", "seeds"} <= set(pd.read_csv(out / "final.csv"))
    assert main(["compare", *runs, "--out", str(out)]) == 2
    assert "already holds files" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert main(["compare", "--out", str(page), *runs]) == 0
    assert main(["compare", "--out", str(page), *runs]) == 2
    assert "exists; choose another file with --out, or pass --force" in capsys.readouterr().err
    assert main(["compare", "--out", str(page), *runs, "--force"]) == 0


def test_json_is_for_programs_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [str(write_run(tmp_path / "a")), str(write_run(tmp_path / "b", alpha=0.5))]
    assert main(["compare", *runs, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["differences"] == [{"key": "alpha", "a": "0", "b": "0.5"}]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_bad_input_is_one_sentence_and_exit_code_two(tmp_path, capsys):
    run = str(write_run(tmp_path / "a"))
    (tmp_path / "empty").mkdir()
    for arguments, sentence in [
        ([run, str(tmp_path / "empty")], "is no run"),
        ([run], "give at least two runs, got 1"),
        ([run, str(write_run(tmp_path / "b", task="images"))], "different tasks"),
        ([], "items"),
    ]:
        assert main(["compare", *arguments, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()

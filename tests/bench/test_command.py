"""`uncollapse bench` as a user meets it."""

import json
import signal
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO

import pandas as pd
import pytest

from uncollapse.bench.implementations import IMPLEMENTATIONS
from uncollapse.cli import main


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder that a run writes, and what it says on the way."""
    out = tmp_path_factory.mktemp("bench") / "out"
    with redirect_stderr(StringIO()) as said:
        assert main(["bench", "--quick", "--rounds", "1", "--lengths", "8,16", "--no_models", "--out", str(out)]) == 0
    return out, said.getvalue()


@pytest.fixture
def folder(finished):
    return finished[0]


def test_a_run_writes_json_csv_page_and_picture(folder):
    assert sorted(file.name for file in folder.iterdir()) == [f"bench.{e}" for e in ("csv", "html", "json", "png")]
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "bench.html").read_text()
    assert "https://cdn" not in page  # self-contained
    assert "What inherited scores cost" in page


def test_the_record_says_on_what_and_how_it_was_measured(folder):
    record = json.loads((folder / "bench.json").read_text())
    assert {"date", "processor", "threads", "cores", "packages", "python"} <= set(record["machine"])
    assert record["settings"]["seed"] == 0
    assert record["settings"]["rule"]["name"] == "hopfield"
    assert len(record["cells"]) == 3 * 2 * len(IMPLEMENTATIONS)  # lengths 8, 16, 197; forward, forward + backward


def test_every_cell_has_a_ratio_or_a_reason(folder):
    table = pd.read_csv(folder / "bench.csv", keep_default_na=True)
    assert (table["ratio"].notna() != table["note"].notna()).all()
    assert sorted(table["length"].unique()) == [8, 16, 197]
    assert set(table["name"]) == {implementation.name for implementation in IMPLEMENTATIONS}


def test_without_a_terminal_a_line_per_cell_says_how_far_it_is(finished):
    lines = [line for line in finished[1].splitlines() if " of " in line.split(":")[0]]
    total = 3 * 2 * len(IMPLEMENTATIONS)
    assert [line.split(":")[0] for line in lines] == [f"{n} of {total}" for n in range(1, total + 1)]
    assert "B1 H12 T8 D64, causal, forward, SDPA: " in lines[0]
    assert lines[0].endswith(" of SDPA")


def test_the_output_folder_is_not_overwritten_unasked(folder, capsys):
    assert main(["bench", "--quick", "--out", str(folder)]) == 2
    assert "already holds files" in capsys.readouterr().err


def test_an_interruption_keeps_what_was_measured(tmp_path):
    command = [sys.executable, "-m", "uncollapse", "bench", "--quick", "--lengths", "8,16,32,64", "--no_models"]
    process = subprocess.Popen([*command, "--out", tmp_path / "out"], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if line.startswith("3 of "):
                process.send_signal(signal.SIGINT)
                break
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "interrupted: what was measured so far follows." in said
    assert 3 <= len(pd.read_csv(tmp_path / "out" / "bench.csv")) < 2 * 5 * len(IMPLEMENTATIONS)


def test_an_estimate_prints_every_form_and_runs_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--estimate", "gpt2", "--length", "8192"]) == 0
    printed = capsys.readouterr().out
    assert all(implementation.name in printed for implementation in IMPLEMENTATIONS)
    assert "12 layers, B1 H12 T8192 D64, causal" in printed
    assert "for training: " in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--estimate", "gpt3", "--length", "8"],
            "neither a folder with a config.json nor a known model; did you mean gpt2?",
        ),
        (["--estimate", "xyz", "--length", "8"], "a known model; the names are gpt2, gpt2-medium"),
        (["--estimate", "gpt2"], "--estimate needs --length, the number of tokens."),
        (["--estimate", "gpt2", "--length", "0"], "length and batch must be at least 1, got 0 and 1."),
        (["--length", "8"], "--length goes with --estimate MODEL"),
        (["--lengths", "8,x"], "--lengths must be whole numbers of at least 1, separated by commas, got '8,x'."),
        (["--lengths", "0"], "--lengths must be whole numbers of at least 1"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0."),
        (["--threads", "0"], "--threads must be at least 1, got 0."),
        (["--limit", "0"], "--limit must be more than 0 seconds, got 0."),
        (["--round", "3"], "unknown option --round; did you mean --rounds?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

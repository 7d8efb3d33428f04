"""The figures in benchmarks/README.md are those of the newest folders beside it: the complete one, bars, watching."""

import json
from pathlib import Path

import pandas as pd
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ROWS = [  # the words of the row, then the cell: name, work, length
    (("`carried`, forward and backward", "1,024 tokens"), ("carried, C++", "forward + backward", 1024)),
    (("`carried`, forward without gradients",), ("carried, C++", "forward", 1024)),
    (("`carried`, forward and backward", "197 tokens"), ("carried, C++", "forward + backward", 197)),
    (("`carried` without a compiler",), ("carried, torch", "forward + backward", 1024)),
    (("`stacked`, forward", "4,096 tokens"), ("stacked", "forward + backward", 4096)),
    (("`stacked`, forward", "8,192 tokens"), ("stacked", "forward + backward", 8192)),
    (("GPT-2 small, a training step |",), ("GPT-2, converted", "training step", 1024)),
    (("with LocAteR",), ("GPT-2, LocAteR", "training step", 1024)),
    (("ViT-Tiny",), ("ViT, converted", "training step", 197)),
    (("after a prompt of 512",), ("GPT-2, converted", "generate", 640)),
    (("diagnosed",), ("GPT-2, diagnosed", "diagnose", 1024)),
    (("x-transformers",), ("x-transformers, residual_attn", "training step", 1024)),
]


@pytest.fixture(scope="module")
def cells():
    newest = max(file for file in BENCHMARKS.glob("*/bench.json") if not (file.parent / "bars.csv").exists())
    found = json.loads(newest.read_text(encoding="utf-8"))["cells"]
    return {(cell["name"], cell["work"], cell["length"]): cell for cell in found}


@pytest.mark.parametrize(("words", "key"), ROWS, ids=[" ".join(words) for words, _ in ROWS])
def test_a_figure_is_that_of_the_cell(words, key, cells):
    lines = (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("| ") and all(word in line for word in words)]
    cell = cells[key]
    memory = "memory" in row
    figure = cell["peak_mb"] / cell["against_peak_mb"] if memory else cell["ratio"]
    assert row.rstrip(" |").endswith(f"| {figure:.2f}")


def test_the_bars_are_those_of_the_newest_folder_that_has_them():
    bars = pd.read_csv(max(BENCHMARKS.glob("*/bars.csv")))
    lines = (BENCHMARKS / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    told = [(float(row[1]), float(row[2].split(",")[0]), "missed" in row[2]) for row in rows if _is_bar(row)]
    found = [(round(m, 2), b, m > b) for m, b in zip(bars["measured"], bars["bar"], strict=True)]
    assert sorted(told) == sorted(found)


def test_the_figures_of_watching_are_those_of_the_newest_folder_that_has_them():
    watched = pd.read_csv(max(BENCHMARKS.glob("*/watch.csv")))
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    ends = [
        f"| {row.measured:.2f} | {row.bar:g}{'' if row.measured <= row.bar else ', missed'} |"
        for row in watched.itertuples()
    ]
    told = [
        line
        for line in text.splitlines()
        if line.startswith(("| a training step, w", "| memory added", "| a `diagnose`"))
    ]
    assert len(told) == len(ends)
    assert all(line.endswith(end) for line, end in zip(told, ends, strict=True))


def _is_bar(row):
    return len(row) == 3 and row[0].startswith("`") and row[2].split(",")[0].replace(".", "").isdigit()

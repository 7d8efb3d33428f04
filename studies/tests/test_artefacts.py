"""Every artefact of trained networks at a tiny size: its cells are trained, kept and taken over, its files appear."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from uncollapse.cli import main
from uncollapse_studies.artefact import ArtefactCells
from uncollapse_studies.artefacts import ARTEFACTS
from uncollapse_studies.cells.cell import Cell
from uncollapse_studies.cells.measured import trend
from uncollapse_studies.cells.running import CellWorkspace, run_cell, run_cells
from uncollapse_studies.cells.store import Store
from uncollapse_studies.cells.tiny import shrunk


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    return CellWorkspace(Store(folder / "cells"), folder / "runs", progress=False)


@pytest.mark.parametrize("id", ARTEFACTS)
@pytest.mark.usefixtures("tiny_artefacts")
def test_artefact_at_a_tiny_size(id, workspace, tmp_path, capsys):
    """`reproduce ID` at a tiny size; cells are shared between the ids, as they are at any size."""
    folders = ["--cells", str(workspace.store.folder), "--work", str(workspace.work)]
    assert main(["reproduce", id, "--out", str(tmp_path / "out"), "--png", *folders]) == 0
    capsys.readouterr()
    cells = ARTEFACTS[id].all_cells("tiny", store=workspace.store)
    found_cells = ArtefactCells(ARTEFACTS[id], cells, workspace.store)
    assert len(found_cells.records) == len(cells)
    for cell, record in found_cells.records:
        assert record["artefact"] == id
        assert record["numbers"]
        assert np.isfinite(list(record["numbers"].values())).all(), cell.name
        assert {"definition", "versions", "machine", "seconds", "epochs", "held_out_loss"} <= set(record)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {f"{id}.{s}" for s in ("csv", "json", "html", "png")}
    table = pd.read_csv(tmp_path / "out" / f"{id}.csv")
    assert len(table) > 0
    assert np.isfinite(table["mean" if "mean" in table else "rho"]).all()
    written = json.loads((tmp_path / "out" / f"{id}.json").read_text())
    assert written["sentences"][0] == f"{len(cells)} of {len(cells)} cells are trained."
    assert written["verdict"]
    assert written["main"]["data"]


@pytest.fixture
def cell():
    return ARTEFACTS["localization-fig6"].all_cells("tiny", 1)[0]


def test_files_of_an_artefact_and_cells_that_fill(tmp_path, capsys, monkeypatch):
    artefact = ARTEFACTS["localization-fig8"]
    two = dataclasses.replace(artefact, cells=lambda budget, seeds: artefact.cells("tiny", 1)[:2])
    monkeypatch.setitem(ARTEFACTS, artefact.id, two)
    out, store = tmp_path / "out", tmp_path / "cells"
    arguments = [
        "reproduce",
        "localization-fig8",
        "--out",
        str(out),
        "--cells",
        str(store),
        "--work",
        str(tmp_path / "w"),
    ]
    assert main([*arguments, "--at-most", "0"]) == 2
    assert "no cell of localization-fig8 is trained yet" in capsys.readouterr().err
    assert main([*arguments, "--at-most", "1"]) == 0
    assert "1 of 2 cells are trained." in capsys.readouterr().out
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "2 of 2 cells are trained." in printed.out
    assert "cell 1 of 1" in printed.err  # the first was not run again
    id = "localization-fig8"
    assert {file.name for file in out.iterdir()} == {f"{id}.{suffix}" for suffix in ("csv", "json", "html")}
    table = pd.read_csv(out / f"{id}.csv")
    assert {"label", "method", "number", "mean", "spread", "seeds"} <= set(table.columns)
    assert json.loads((out / f"{id}.json").read_text())["settings"]["in"] == 2
    assert main([*arguments, "--only", "nothing"]) == 2
    assert "it has plain, locater, kappa-mean-1." in capsys.readouterr().err


def test_a_changed_definition_is_noticed(cell, workspace, tmp_path):
    own = CellWorkspace(Store(tmp_path), workspace.work, progress=False)
    said = []
    run_cells([cell], own, say=said.append)
    run_cells([cell], own, say=said.append)
    assert said[-1].startswith("  there")
    changed = dataclasses.replace(cell, keys={**cell.keys, "learning_rate": 1e-4})
    assert own.store.read(changed) is not None
    assert own.store.current(changed) is None
    run_cells([changed], own, say=said.append)
    assert "its definition has changed since it was run" in said[-2]
    assert own.store.current(changed)["definition"] == changed.definition


def test_cells_that_train_the_same_network_are_trained_once(workspace):
    similarity = ARTEFACTS["hopfield-similarity-vit"].all_cells("tiny", 1)
    main_cells = ARTEFACTS["hopfield-main-vit"].all_cells("tiny", 1)
    assert {c.definition for c in similarity} <= {c.definition for c in main_cells}
    run_cell(main_cells[0], workspace)
    outcome = run_cell(similarity[0], workspace)
    assert outcome in ("there", "taken over")  # depending on which test came first
    assert workspace.store.read(similarity[0])["numbers"] == workspace.store.read(main_cells[0])["numbers"]
    assert len(workspace.store.tables(similarity[0])["cosine"]) > 0


def test_several_at_a_time(tmp_path):
    cells = ARTEFACTS["localization-fig8"].all_cells("tiny", 1)[:2]
    workspace = CellWorkspace(Store(tmp_path / "cells"), tmp_path / "runs", progress=False)
    run_cells(cells, workspace, jobs=2)
    assert all(workspace.store.current(cell) for cell in cells)


def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(
        "import os, time\nfrom concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing import get_context\n"
        "from uncollapse_studies.cells.running import _begin_worker\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1, get_context('spawn'), _begin_worker, (1,)) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        pool.submit(time.sleep, 600).result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
        try:
            parent.communicate(timeout=60)  # returns when nobody holds the pipe any more
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def test_an_interrupted_cell_goes_on(tmp_path):
    """SIGTERM in the third step of a cell: nothing is kept; the same command goes on from the checkpoint."""
    script = tmp_path / "run.py"
    script.write_text(
        "import signal, sys\nfrom uncollapse_studies.cells.cell import Cell\n"
        "from uncollapse_studies.cells.running import *\nfrom uncollapse_studies.cells.store import Store\n"
        "from test_artefacts import long_cell\n"
        "from tests.training.signalled import MOMENTS, signal_at\n"
        "signal_at(signal.SIGTERM, *MOMENTS['in a step'], call=3)\n"
        f"store = Store(Path({str(tmp_path / 'cells')!r}))\n"
        f"workspace = CellWorkspace(store, Path({str(tmp_path / 'runs')!r}), progress=False)\n"
        "try:\n    run_cell(long_cell(), workspace)\n"
        "except StoppedError as stopped:\n    sys.exit(f'stopped: {stopped}')\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    cell = long_cell()
    workspace = CellWorkspace(Store(tmp_path / "cells"), tmp_path / "runs", progress=False)
    metrics = workspace.folder(cell) / "metrics.jsonl"
    assert "the same command goes on from there" in done.stderr
    assert workspace.store.read(cell) is None
    assert '"step": 3,' in metrics.read_text()
    short = dataclasses.replace(cell, keys={**cell.keys, "steps": 8})  # the same run, with its end in sight
    os.rename(workspace.folder(cell), workspace.folder(short))
    assert run_cell(short, workspace) == "trained"
    steps = [json.loads(line)["step"] for line in (workspace.folder(short) / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert workspace.store.current(short)["status"] == "finished"


def long_cell():
    tiny = ARTEFACTS["localization-fig6"].all_cells("tiny", 1)[0]
    keys = {**tiny.keys, "steps": 100_000, "save_every": 1, "eval_every": 50_000, "diagnose_every": 0}
    return Cell("example", "long", "plain", 0, "tiny", tiny.recipe, keys)


# The violins have the cells of the central comparison, and the second paper's figures differ in width and depth alone.
STARTED = [id for id in ARTEFACTS if id.startswith("hopfield-") and "similarity" not in id and "entropy" not in id]


@pytest.mark.parametrize("id", [*STARTED, "localization-fig8", "localization-fig12"])
def test_the_papers_own_setting_starts(id, tmp_path):
    """The paper's recipe and method; only data, batch, updates are cut, and the width and length of large networks."""
    cell = ARTEFACTS[id].all_cells("paper", 1)[-1]
    started = _cut(cell)
    kept = {"layers", "heads", "rule", "alpha", "alpha_hidden", "kappa_scale", "kappa_mean", "residual", "family"}
    assert all(getattr(started.resolved(), key) == getattr(cell.resolved(), key) for key in kept)
    workspace = CellWorkspace(Store(tmp_path / "cells"), tmp_path / "runs", progress=False)
    assert run_cell(started, workspace) == "trained"
    assert np.isfinite(workspace.store.current(started)["numbers"]["eval_loss"])


def _cut(cell):
    recipe = cell.resolved()
    cut = {"steps": 1, "batch_size": 2, "warmup_epochs": 0.0, "eval_examples": 2, "eval_every": 1, "save_every": 1}
    cut |= {"examples": 8, "diagnose_every": 0}
    language = {"data": "embedded", "tokenizer": "bpe", "vocab_size": 300}
    cut |= language if recipe.task == "language" else {"data": "digits"}
    if recipe.width > 700:  # GPT-2 and ViT-B
        cut |= {"width": 48, "backend": "reference"} | ({"length": 64} if recipe.task == "language" else {})
    base = None if cell.base is None else _cut(cell.base)
    return dataclasses.replace(cell, keys={**cell.keys, **cut}, base=base)


def test_laptop_cells_have_one_budget_and_rate_in_an_artefact():
    for artefact in ARTEFACTS.values():
        recipes = [cell.resolved() for cell in artefact.all_cells("laptop")]
        assert len({(r.steps, r.batch_size, r.weight_decay, r.data) for r in recipes}) == 1
        by_rate = artefact.following is not None or artefact.module == "remedies.rates"  # what these are about
        assert by_rate or len({r.learning_rate for r in recipes}) == 1
        names = [cell.name for cell in artefact.all_cells("laptop")]
        assert len(set(names)) == len(names)
        seeds = [cell.seed for cell in artefact.all_cells("laptop")]
        assert seeds == sorted(seeds)  # seed 0 of all methods first


def test_self_attention_has_no_skip_at_the_papers_scale():
    plain = ARTEFACTS["hopfield-main-gpt2"].all_cells("paper", 1)[0].resolved()
    assert plain.rule == "self_attention"
    assert plain.alpha is None


def test_a_damaged_cell_is_one_sentence(cell, tmp_path):
    store = Store(tmp_path)
    store.file(cell).write_text('{"artefact": ')
    with pytest.raises(ValueError, match=r"is damaged .* remove it"):
        store.current(cell)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["localization-fig6", "--seeds", "0"], "--seeds must be at least 1, got 0."),
        (["localization-fig6", "--jobs", "0"], "--jobs must be at least 1, got 0."),
        (["localization-fig6", "--budget", "huge"], "--budget must be one of laptop, paper"),
        (["localization-fig66"], "did you mean localization-fig6?"),
        (["localization-fig4", "--only", "plain"], "unknown option --only; the options are --out, --png, --svg"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_list_says_paper_time_and_status(capsys, tmp_path):
    assert main(["reproduce", "--list", "--cells", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("localization-fig6"))
    assert "Bao et al." in row
    assert "min" in row
    assert "0 of 21 cells" in row
    assert "not kept" in next(line for line in lines if line.startswith("localization-fig4"))


def test_list_says_what_is_kept_in_results(capsys, tmp_path):
    file = tmp_path / "localization-fig4" / "localization-fig4.json"
    file.parent.mkdir()
    file.write_text("{}")
    assert main(["reproduce", "--list", "--cells", str(tmp_path / "cells")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("localization-fig4"))
    assert "in results" in row


def test_trend_is_judged_over_the_last_fifth():
    assert trend([10, 80, 90, 100], [5.0, 4.0, 3.97, 3.97]) == "flat"
    assert trend([10, 80, 100], [5.0, 4.0, 3.9]) == "falling"
    assert trend([10, 80, 100], [5.0, 4.0, 4.1]) == "rising"
    assert trend([100], [4.0]) == "unknown"


def test_tiny_keeps_the_method():
    for artefact in ARTEFACTS.values():
        for cell in artefact.all_cells("laptop", 1):
            assert not {"rule", "alpha", "alpha_hidden", "kappa_scale", "kappa_mean", "residual"} & set(
                shrunk(cell.resolved())
            )

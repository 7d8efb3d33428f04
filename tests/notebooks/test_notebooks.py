"""The notebooks run from top to bottom, show something, and are kept without outputs."""

import ast
import contextlib
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code(path):
    return ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]


def shown(source, namespace):
    """Run a cell as a notebook does: what its last line gives, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3


@each
def test_a_notebook_is_kept_without_outputs(path):
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
        assert cell["metadata"] == {}
    assert path.read_text(encoding="utf-8").count("\n") < 400


@each
def test_a_notebook_begins_with_a_title_and_ends_with_its_limits(path):
    first, *_, last = ("".join(cell["source"]) for cell in cells(path))
    assert first.startswith("# ")
    assert "**Limits.**" in last


@each
@pytest.mark.filterwarnings("error:uncollapse:DeprecationWarning")
def test_a_notebook_runs_and_shows_pictures_or_tables(path, tmp_path):
    pytest.importorskip("altair")
    namespace, pages = {"__name__": "__main__"}, []
    with contextlib.chdir(tmp_path):
        for source in code(path):
            value = shown(source, namespace)
            if hasattr(value, "_repr_html_"):
                pages.append(value._repr_html_())
    assert len(pages) >= 2
    assert all("<script" not in page for page in pages)
    assert any("data:image/svg+xml" in page for page in pages)

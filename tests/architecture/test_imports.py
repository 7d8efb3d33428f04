"""The rooms of the source tree import in one direction, leave each other's private names alone and form no cycle."""

import itertools
import textwrap
from pathlib import Path

import pytest

from tests.architecture import rules
from tests.architecture.imports import Tree

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tree():
    return Tree(ROOT / "src", ROOT / "studies" / "src")


def test_both_packages_are_read(tree):
    assert {"uncollapse.attention.functional", "uncollapse_studies.audit.claim"} <= tree.modules.keys()
    assert len(tree.imports) > len(tree.modules)


def test_imports_follow_the_arrow(tree):
    assert rules.against_the_arrow(tree) == []


def test_every_room_has_its_place_on_the_arrow(tree):
    assert rules.without_a_level(tree) == []


def test_no_private_name_is_used_across_rooms(tree):
    assert rules.private_across_rooms(tree) == []


def test_no_files_import_each_other_in_a_circle(tree):
    assert rules.file_cycles(tree) == []


def test_the_name_of_a_type_has_one_meaning(tree):
    assert rules.repeated_types(tree) == []


def test_names_are_plain(tree):
    assert rules.forbidden_names(tree) == []


@pytest.fixture
def made(tmp_path):
    """A tree with the given files, made up for one test: `made({"cli/train.py": "import os"})`."""
    number = itertools.count()

    def make(files):
        root = tmp_path / str(next(number))
        for name, code in files.items():
            package = "" if name.startswith("uncollapse_studies/") else "uncollapse/"
            path = root / f"{package}{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(code), encoding="utf-8")
        for folder in [path for path in root.rglob("*") if path.is_dir()]:
            (folder / "__init__.py").touch()
        return Tree(root)

    return make


METRIC = {"metrics/rank.py": "def stable_rank(x): ...\ndef _norm(x): ...\n"}


@pytest.mark.parametrize(
    "code",
    [
        "from uncollapse.metrics import stable_rank",
        "from uncollapse.metrics.rank import stable_rank",
        "from ..metrics.rank import stable_rank",
        "from .. import metrics",
        "import uncollapse.metrics.rank as rank",
        "def f():\n    from uncollapse.metrics import rank",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from uncollapse.metrics import rank",
        "from importlib import import_module\nimport_module('uncollapse.metrics.rank')",
        "from importlib import import_module\nimport_module('..metrics.rank', __package__)",
    ],
)
def test_an_import_is_found_in_every_form(made, code):
    assert len(rules.against_the_arrow(made({**METRIC, "attention/rule.py": code}))) == 1  # the same level
    assert len(rules.against_the_arrow(made({**METRIC, "files.py": code.replace("..", ".")}))) == 1  # the level below
    assert rules.against_the_arrow(made({**METRIC, "theory/bound.py": code})) == []  # the level above


def test_the_library_may_not_import_the_studies(made):
    files = {"uncollapse_studies/figure.py": "import uncollapse.cli.train", "cli/train.py": ""}
    assert rules.against_the_arrow(made(files)) == []
    found = rules.against_the_arrow(made({**files, "cli/train.py": "import uncollapse_studies.figure"}))
    assert found == ["uncollapse.cli.train:1 imports uncollapse_studies.figure"]


def test_the_front_of_the_package_is_no_way_around_the_arrow(made):
    assert rules.against_the_arrow(made({"metrics/rank.py": "from uncollapse import __version__"})) == []
    assert rules.against_the_arrow(made({"metrics/rank.py": "import uncollapse as uc\nuc.train"}))
    assert rules.against_the_arrow(made({"metrics/rank.py": "from uncollapse import train"}))
    assert rules.against_the_arrow(made({"cli/train.py": "from uncollapse import train"})) == []


def test_a_new_room_needs_a_place(made):
    assert rules.without_a_level(made({"kitchen/stove.py": ""})) == ["kitchen"]


@pytest.mark.parametrize(
    "code",
    [
        "from uncollapse.metrics.rank import _norm",
        "from uncollapse.metrics._fast import norm",
        "from uncollapse.metrics import _fast",
        "from uncollapse.metrics import rank\nrank._norm(1)",
        "import uncollapse.metrics.rank\nuncollapse.metrics.rank._norm(1)",
        "def f():\n    from uncollapse.metrics.rank import _norm",
    ],
)
def test_a_private_name_of_another_room_is_found(made, code):
    files = {**METRIC, "metrics/_fast.py": "def norm(x): ..."}
    assert rules.private_across_rooms(made({**files, "theory/bound.py": code}))
    assert rules.private_across_rooms(made({**files, "uncollapse_studies/bound.py": code}))
    assert rules.private_across_rooms(made({**files, "metrics/similarity.py": code})) == []


def test_dunder_names_and_other_peoples_private_names_are_not_ours_to_judge(made):
    code = "import torch\nfrom uncollapse import __version__\ntorch._C\nself._own = 1"
    assert rules.private_across_rooms(made({"theory/bound.py": code})) == []


def test_a_circle_of_files_is_found(made):
    circle = {
        "metrics/a.py": "from uncollapse.metrics.b import f",
        "metrics/b.py": "from . import c",
        "metrics/c.py": "import uncollapse.metrics.a",
        "metrics/d.py": "from .a import g",  # leads into the circle and is not part of it
    }
    assert rules.file_cycles(made(circle)) == ["uncollapse.metrics.a <-> uncollapse.metrics.b <-> uncollapse.metrics.c"]
    in_a_function = {"metrics/c.py": "def f():\n    import uncollapse.metrics.a"}
    assert rules.file_cycles(made({**circle, **in_a_function})) == []
    for_types = {"metrics/c.py": "import typing\nif typing.TYPE_CHECKING:\n    import uncollapse.metrics.a"}
    assert rules.file_cycles(made({**circle, **for_types})) == []


def test_a_file_that_imports_the_package_which_imports_it_is_a_circle(made):
    files = {"metrics/__init__.py": "from .rank import stable_rank", "metrics/rank.py": "from . import stable_rank"}
    assert rules.file_cycles(made(files)) == ["uncollapse.metrics <-> uncollapse.metrics.rank"]


def test_the_name_of_a_type_that_is_used_twice_is_found(made):
    files = {"training/run.py": "class Run: ...", "uncollapse_studies/cells.py": "class Cell:\n    class Run: ..."}
    assert rules.repeated_types(made(files)) == [
        "Run is defined in uncollapse.training.run:1 and uncollapse_studies.cells:2"
    ]
    files = {"training/run.py": "class Run: ...", "bench/timing.py": "LONG = 1\nRun = dict", "cli/bench.py": "LONG = 2"}
    assert rules.repeated_types(made(files)) == [
        "Run is defined in uncollapse.bench.timing:2 and uncollapse.training.run:1"
    ]


def test_a_forbidden_name_is_found(made):
    code = "class _Past: ...\nPlace = tuple[int, int]\nSummary = Pasture = dict"
    assert rules.forbidden_names(made({"models/hooks.py": code})) == [
        "uncollapse.models.hooks:1 defines _Past",
        "uncollapse.models.hooks:2 defines Place",
    ]

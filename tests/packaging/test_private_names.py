"""Private names of other packages: few, listed in private_names.py, and there in the installed versions."""

import ast
from importlib.metadata import version
from pathlib import Path

import pytest

import uncollapse
from tests.packaging.private_names import PRIVATE

SOURCE = Path(uncollapse.__file__).parent
OF_TUPLES = {"_replace", "_asdict", "_fields"}  # documented parts of NamedTuple, for all their underscores
ACCESS = ("getattr", "setattr", "hasattr", "delattr")


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def names_in(tree):
    """Private names that a file defines, and those that it uses as attributes or imports, with their lines."""
    defined, used = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            own = isinstance(node, ast.Name) or (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
            defined |= {node.id if isinstance(node, ast.Name) else node.attr} if own else set()
            if not own:
                used.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.Attribute):
            used.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.ImportFrom) and not node.level and not node.module.startswith("uncollapse"):
            if any(map(is_private, node.module.split("."))):
                used[node.module] = node.lineno
            used |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ACCESS:
            used |= {name.value: node.lineno for name in node.args[1:2] if isinstance(name, ast.Constant)}
    return defined, used


def foreign_names():
    """Private names that no file of the library defines, with the places where they are used."""
    files = {path: names_in(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")}
    ours = set.union(*(defined for defined, _ in files.values())) | OF_TUPLES
    return {
        name: f"{path.relative_to(SOURCE)}:{line}"
        for path, (_, used) in files.items()
        for name, line in used.items()
        if (name in PRIVATE or name not in ours) and any(map(is_private, name.split(".")))
    }


def test_no_private_name_of_another_package_is_used_that_is_not_listed():
    found = foreign_names()
    new = {name: place for name, place in found.items() if name not in PRIVATE}
    assert not new, f"{new}: find a public way, or add a reason and a check to tests/packaging/private_names.py"
    assert found.keys() == PRIVATE.keys(), f"no longer used: {PRIVATE.keys() - found.keys()}"


@pytest.mark.parametrize("name", PRIVATE)
def test_each_is_there_and_does_what_is_expected(name):
    why, holds = PRIVATE[name]
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers", "accelerate"))
    try:
        good = holds()
    except AttributeError as error:
        good, why = False, f"{why}; {error}"
    assert good, f"{name} is gone or has changed in one of {versions}; it is used so that: {why}"

"""Where the results of the studies are: inside an installed wheel, or beside the sources in a checkout."""

from __future__ import annotations

import tomllib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = Path("studies/src")  # of this package, from the root of the repository
RESULTS = Path("studies/results")


def results() -> Path:
    """The folder of committed results.

    >>> (results() / "claims.json").is_file()
    True
    """
    packaged = PACKAGE / "results"
    return packaged if packaged.is_dir() else PACKAGE.parents[1] / "results"


def cells() -> Path:
    """The folder of committed results of trained networks."""
    return results() / "cells"


def project() -> Path | None:
    """The root of the checkout that this package runs from; None where it is installed without one."""
    root = PACKAGE.parents[2]
    return root if root / SOURCES == PACKAGE.parent and is_project(root) else None


def is_project(root: Path) -> bool:
    """Whether a folder is a checkout of uncollapse: its pyproject.toml says so, and it has the studies.

    >>> is_project(Path("/"))
    False
    """
    file = root / "pyproject.toml"
    if not file.is_file() or not (root / "studies").is_dir():
        return False
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    named = found.get("project")
    return isinstance(named, dict) and named.get("name") == "uncollapse"


def path_in_repository(file: Path) -> Path:
    """A source file of this package from the root of the repository, wherever the package is installed.

    >>> path_in_repository(Path(__file__)).as_posix()
    'studies/src/uncollapse_studies/locations.py'
    """
    file = file.resolve()
    return SOURCES / file.relative_to(PACKAGE.parent) if file.is_relative_to(PACKAGE) else file


def source_file(path: Path) -> Path:
    """The file that `path_in_repository` gave the path of."""
    return PACKAGE.parent / path.relative_to(SOURCES) if path.is_relative_to(SOURCES) else path

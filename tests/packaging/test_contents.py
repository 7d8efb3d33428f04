"""What is published: the library without the studies, the studies with their results, and nothing else."""

import re
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

from tests.packaging.conftest import ROOT

LIBRARY, STUDIES = ROOT / "src" / "uncollapse", ROOT / "studies" / "src" / "uncollapse_studies"


def in_wheel(wheel):
    """The files of a wheel, without its metadata."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def in_sdist(sdist):
    """The files of a source distribution, below the folder that they are all in."""
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def below(folder, named):
    """The files below a folder of the checkout, as if the folder were called `named`."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(Path(named) / path.relative_to(folder)) for path in files}


def test_the_library_is_all_that_its_wheel_holds(library):
    names = in_wheel(library.wheel)
    assert names == below(LIBRARY, "uncollapse")
    assert {
        "uncollapse/py.typed",
        "uncollapse/attention/_native/matrices.h",
        "uncollapse/attention/_native/row_statistics.cpp",
        "uncollapse/attention/_native/token_pairs.cpp",
        "uncollapse/attention/_native/tiles.cpp",
        "uncollapse/recipes/quickstart.yaml",
        "uncollapse/report/page.css",
        "uncollapse/report/page.js",
    } <= names


def test_the_library_holds_no_study(library):
    studies = ("uncollapse_studies", "reproduc", "claims", "results")
    assert [name for name in in_wheel(library.wheel) if any(word in name for word in studies)] == []


def test_the_source_of_the_library_holds_what_its_wheel_is_made_of(library):
    names = in_sdist(library.sdist)
    beside = {name for name in names if not name.startswith("src/")}
    # hatchling adds .gitignore, which it needs to make the same wheel again
    expected = {"PKG-INFO", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", ".gitignore"}
    assert beside == expected
    assert names - beside == below(LIBRARY, "src/uncollapse")


def test_the_studies_come_with_their_results(studies):
    results = below(ROOT / "studies" / "results", "results")
    assert "results/claims.json" in results
    assert in_wheel(studies.wheel) == below(STUDIES, "uncollapse_studies") | {
        f"uncollapse_studies/{name}" for name in results
    }
    beside = {"PKG-INFO", "pyproject.toml", "README.md", ".gitignore"}
    assert in_sdist(studies.sdist) == beside | results | below(STUDIES, "src/uncollapse_studies")


def test_the_core_needs_four_packages(library):
    with zipfile.ZipFile(library.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.split("[<>=!~]", line)[0] for line in needed} == {"numpy", "pandas", "torch", "tqdm"}
    extras = {"hf", "report", "train", "completion", "all", "docs", "lightning", "dev"}
    assert set(metadata.get_all("Provides-Extra")) == extras

"""How large an attack is, and how its outcome is counted."""

import json
import os
from pathlib import Path

import pytest

from tests.attack.forked import runner
from tests.attack.small_runs import SMALL
from uncollapse import files

COUNTS = Path(__file__).parent / "counts.json"


@pytest.fixture(scope="session")
def full():
    """Whether everything is tried, or the subset that the ordinary tests have time for."""
    return os.environ.get("UNCOLLAPSE_ATTACK") == "full"


@pytest.fixture
def promise(full, record_property):
    """promise("kills resumed bit-identical", tried=367, kept=364): prints the count and fails unless all were kept.

    A whole attack also keeps the count for docs/reliability.md.
    """

    def check(what, *, tried, kept):
        print(f"{what}: {kept} of {tried}")
        record_property(what, f"{kept} of {tried}")
        if full:
            known = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
            known[what] = {"tried": tried, "kept": kept}
            files.write(COUNTS, json.dumps(known, indent=1, sort_keys=True) + "\n")
        assert tried > 0, f"{what}: nothing was tried"
        assert kept == tried, f"{what}: {kept} of {tried}"

    return check


@pytest.fixture(scope="session")
def forked():
    """A process that runs commands in its children."""
    with runner() as found:
        yield found


@pytest.fixture(scope="session")
def undisturbed(forked, tmp_path_factory):
    """The folder of a whole run, which stays as it is, and the number of its file-system calls."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    forked.train(folder.with_name("warm"), **SMALL)  # the tokens are in the cache now
    ended = forked.train(folder, **SMALL)
    assert ended["exit"] == 0, ended["said"]
    assert ended["calls"] > 100
    return folder, ended["calls"]

"""What several tests of the studies share."""

import dataclasses

import pytest

from uncollapse_studies.artefacts import ARTEFACTS


@pytest.fixture
def tiny_artefacts(monkeypatch):
    """The registry with entries whose cells are tiny, of one seed, whatever the budget; the paper's own stay."""
    for id, artefact in list(ARTEFACTS.items()):
        tiny = dataclasses.replace(artefact, cells=_tiny(artefact.cells), following=_tiny(artefact.following))
        monkeypatch.setitem(ARTEFACTS, id, tiny)
    return ARTEFACTS


def _tiny(cells):
    if cells is None:
        return None
    return lambda budget, seeds, *store: cells("paper" if budget == "paper" else "tiny", 1, *store)

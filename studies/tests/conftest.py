"""What several tests of the studies share."""

import dataclasses

import pytest

from uncollapse_studies.artefacts import ARTEFACTS


@pytest.fixture
def tiny_artefacts(monkeypatch):
    """The registry with entries whose cells are tiny, of one seed, whatever the budget; the paper's own stay."""
    for id, artefact in list(ARTEFACTS.items()):
        monkeypatch.setitem(ARTEFACTS, id, dataclasses.replace(artefact, cells=_tiny(artefact.cells)))
    return ARTEFACTS


def _tiny(cells):
    return lambda budget, seeds: cells("paper" if budget == "paper" else "tiny", 1)

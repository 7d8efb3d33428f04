"""For all tests and docstring examples: what is compiled or tokenised goes into a temporary folder, not the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.browser.fixtures"]  # one browser for the pages of the library and of the studies


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the folder above theirs, so that one of them compiles
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNCOLLAPSE_CACHE", str(folder / "cache"))
        yield

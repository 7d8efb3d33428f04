"""For all tests and docstring examples: tokenised data is cached in a temporary folder, not in the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNCOLLAPSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

"""Pages of figures draw themselves without a word on the console and fit the window."""

import pytest

from uncollapse.cli import main


@pytest.mark.parametrize("id", ["localization-fig2", "localization-fig5", "hopfield-bounds"])
def test_figure_page_is_drawn(id, visit, tmp_path):
    assert main(["reproduce", id, "--quick", "--out", str(tmp_path / "out")]) == 0
    seen = visit(tmp_path / "out" / f"{id}.html")
    assert seen.said == []
    assert all(request.startswith(("file:", "data:", "blob:")) for request in seen.requests)
    assert seen.page.locator("#figure svg.marks").count() == 1
    assert seen.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

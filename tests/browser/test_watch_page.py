"""What a reader of the page over training meets in the browser."""

import pytest

from tests.watching.test_page import write_run
from uncollapse.watching.pages import write_page


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    runs = [write_run(folder / "a.jsonl"), write_run(folder / "b.jsonl", 900.0)]
    return write_page(runs, folder / "page.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_it_is_drawn_without_a_word_and_fits(visit, page_file, width, scheme):
    watched = visit(page_file, width, scheme)
    assert watched.said == []
    assert watched.requests == [page_file.as_uri()]
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width
    assert watched.page.locator("figure svg.marks").count() == 8  # two maps a run, two lines of a head, two of updates


def test_choosing_a_layer_changes_the_heads_that_are_shown(visit, page_file):
    page = visit(page_file).page
    title = page.locator("#heads-over-steps-1 svg.marks").text_content()
    assert "layer 2" in title  # where the largest logit is
    page.select_option("select[data-choice=layer]", "1")
    page.wait_for_function("document.querySelector('#heads-over-steps-1 svg.marks').textContent.includes('layer 1')")

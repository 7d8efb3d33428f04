"""What a reader of the demo's page meets in the browser."""

import pytest

from uncollapse.report.demo_page import demo_page
from uncollapse.training.demo.experiment import demonstrate
from uncollapse.training.demo.runs import DemoSize

CHARTS = [
    *("cosines-1", "cosines-2", "depth-networks", "layers-over-steps-1", "layers-over-steps-2"),
    *("line-loss-wrong", "line-loss-inherited", "cosine-mean-lines", "entropy-normalised-lines"),
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    tiny = DemoSize(layers=2, heads=2, width=16, piece=4, batch=2, steps=24, warmup=2, every=2, held_out=4)
    demo = demonstrate(tiny, 4, 1, folder, lambda: None, lambda name, loss: None, lambda name, run: None)
    file = folder / "demo.html"
    file.write_text(demo_page(demo.content("Made in a <test>.")), encoding="utf-8")
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_opens_from_disk_in_silence_draws_every_chart_and_fits(scheme, width, visit, page_file):
    watched = visit(page_file, width=width, scheme=scheme)
    page = watched.page
    assert [chart.get_attribute("id") for chart in page.locator(".chart").all()] == CHARTS
    for name in CHARTS:
        assert page.locator(f"#{name} svg.marks .role-mark path").count() > 0, name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.said == []
    assert all(url.startswith(("file:", "data:")) for url in watched.requests)
    assert page.locator("section.card > h2, section.card .head h2").count() == 3
    assert page.locator("table:visible").count() == 0  # behind folds
    assert "Made in a <test>." in page.locator("footer").inner_text()

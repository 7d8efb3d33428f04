"""What a reader of the demo's page meets in the browser."""

import pandas as pd
import pytest

from tests.training.compare.run_folders import write_run
from uncollapse.report.demo_page import demo_page
from uncollapse.training.demo.depth import VARIANTS
from uncollapse.training.demo.experiment import METHODS, measure

CHARTS = [
    *("depth-networks", "curve-eval-bits-per-byte", "curve-loss"),
    *(
        f"{measure}-lines-{moment}-training"
        for measure in ("residual-ratio", "cosine-mean", "entropy-normalised")
        for moment in ("before", "after")
    ),
    *(f"{kind}-violins-{n}" for kind in ("similarity", "entropy") for n in (1, 2, 3, 4)),
    *("curve-trace", "curve-scale"),
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    for name, method in METHODS.items():
        write_run(folder / name, diagnose_at=(8, 40), **{"alpha": 0.0} | dict(method.keys))
    rows = [(cell.name, n, 10.0 ** -(n * i), 0.0) for i, cell in enumerate(VARIANTS) for n in (1, 2, 3)]
    depth = pd.DataFrame(rows, columns=["attention", "depth", "mean", "spread"])
    content = measure(depth, [folder / name for name in METHODS]).content("Made in a <test>.")
    file = folder / "demo.html"
    file.write_text(demo_page(content), encoding="utf-8")
    return file


@pytest.mark.parametrize(("scheme", "width"), [("light", 1040), ("dark", 360)])
def test_opens_from_disk_in_silence_draws_every_chart_and_fits(scheme, width, visit, page_file):
    watched = visit(page_file, width=width, scheme=scheme)
    page = watched.page
    assert [chart.get_attribute("id") for chart in page.locator(".chart").all()] == CHARTS
    for name in CHARTS:
        assert page.locator(f"#{name} svg.marks .role-mark path").count() > 0, name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.said == []
    assert all(url.startswith(("file:", "data:")) for url in watched.requests)
    assert page.locator("section:has(h2:text('Five findings')) li").count() == 5
    assert "Made in a <test>." in page.locator("footer").inner_text()

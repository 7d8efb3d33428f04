"""What a reader of a comparison of runs meets in the browser."""

import pytest

import uncollapse as uc
from tests.training.compare.run_folders import write_run

CHARTS = [
    *("curve-final-eval-bits-per-byte", "curve-final-residual-ratio", "curve-final-cosine-mean"),
    *("curve-final-entropy-normalised", "curve-eval-bits-per-byte", "curve-eval-loss", "curve-eval-perplexity"),
    *("curve-loss", "curve-residual-ratio", "curve-cosine-mean", "curve-entropy-normalised"),
    *("similarity-violins-1", "similarity-violins-2", "entropy-violins-1", "entropy-violins-2"),
    *("rho-map-1", "rho-map-2", "curve-locater-trace", "curve-locater-scale", "curve-locater-penalty"),
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(folder / "plain" / f"seed-{seed}", seed=seed, diagnose_at=(8, 40))
    write_run(folder / "plain" / "seed-2", seed=2, status="diverged", until=20, diagnose_at=(8,))
    write_run(folder / "locater", kappa_scale=0.1, kappa_mean=1.0, diagnose_at=(8, 40))
    return uc.compare([folder / "plain", folder / "locater"]).to_html(folder / "page.html")


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


def test_a_layer_and_a_head_can_be_chosen(visit, page_file):
    page = visit(page_file).page
    page.locator('select[data-choice="layer"]').select_option("2")
    page.wait_for_function("document.querySelector('#curve-residual-ratio').textContent.includes('layer 2')")
    before = page.locator("#rho-map-1 svg.marks").inner_html()
    page.locator('select[data-choice="scope"]').select_option("head")
    page.locator('select[data-choice="head"]').select_option("2")
    page.wait_for_function("document.querySelector('#rho-map-1').textContent.includes('layer 2, head 2')")
    assert page.locator("#rho-map-1 svg.marks").inner_html() != before
    assert "plain/seed-2 diverged at step 20 of 40" in page.locator("body").inner_text()

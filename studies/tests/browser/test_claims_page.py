"""The page of the audit: drawn without a word on the console, filters work, it fits a phone."""

import json
from pathlib import Path

import pytest

from uncollapse_studies.charts.claims_page import claims_page

RECORD = json.loads((Path(__file__).resolve().parents[2] / "results/claims.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("claims") / "claims.html"
    path.write_text(claims_page(RECORD, lambda check: None, "source"), encoding="utf-8")
    assert path.stat().st_size < 3e6
    return path


def shown(page) -> list[str]:
    return page.eval_on_selector_all(".claim:not([hidden])", "cards => cards.map(card => card.id)")


def test_every_claim_and_chart_is_there_and_nothing_is_asked_of_the_network(visit, file):
    seen = visit(file)
    assert seen.said == []
    assert all(request.startswith(("file:", "data:", "blob:")) for request in seen.requests)
    assert sorted(shown(seen.page)) == sorted(row["id"] for row in RECORD["claims"])
    assert seen.page.locator(".claim svg.marks").count() == sum(row["plot"] is not None for row in RECORD["claims"])


def test_filters_of_paper_verdict_and_words(visit, file):
    page = visit(file).page
    page.select_option("#filter-paper", "hopfield")
    page.select_option("#filter-verdict", "fails")
    expected = [r["id"] for r in RECORD["claims"] if r["paper"] == "hopfield" and r["outcome"] == "fails"]
    assert sorted(shown(page)) == sorted(expected)  # on the page they stand under their roots
    assert page.locator("#shown").inner_text() == f"{len(expected)} of {len(RECORD['claims'])} shown"
    assert page.locator(".kind:visible").count() == 1
    assert page.locator("h4.root:visible").count() == len({r["root"] for r in RECORD["claims"] if r["id"] in expected})
    page.fill("#filter-words", "recursion")
    assert "hopfield-eq15-recursion" in shown(page)
    assert len(shown(page)) < len(expected)
    page.evaluate("location.hash = '#localization-eq3'")  # a link to a claim shows it whatever the filters
    page.wait_for_function("!document.getElementById('localization-eq3').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(visit, file, scheme):
    page = visit(file, width=360, scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360

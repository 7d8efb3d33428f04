"""Comparisons say in words, with numbers, what differs."""

import re
from html import unescape

import pandas as pd
import pytest

import uncollapse as uc
from tests.report.diagnoses import diagnosis
from uncollapse.report.content import DiagnosisContent, Finding
from uncollapse.report.differences import differences


def content(name: str, ratios: list[float], findings=(), **columns: list[float]) -> DiagnosisContent:
    layers = pd.DataFrame({"layer": range(1, len(ratios) + 1), "residual_ratio": ratios, **columns})
    empty = pd.DataFrame()
    return DiagnosisContent(name, "", layers, empty, empty, 0.005, empty, 0.1, empty, empty, findings)


def test_the_layer_furthest_apart_is_named_with_both_numbers():
    skip = content("skip", [0.9, 0.4, 0.05])
    plain = content("plain", [0.8, 0.1, 3e-16])
    assert "Layer 3: residual ratio 0.05 (skip) against 3e-16 (plain), 14 powers of ten apart." in differences(
        [skip, plain]
    )


def test_small_differences_are_called_alike():
    a, b = (content(n, [0.9, shift], cosine_mean=[0.1, 0.2 + shift / 100]) for n, shift in (("a", 0.5), ("b", 0.51)))
    sentences = differences([a, b])
    assert "Residual ratio: alike in every layer (at most 2% apart)." in sentences
    assert any(s.startswith("Mean cosine of tokens: alike in every layer") for s in sentences)


def test_depths_may_differ():
    sentences = differences([content("short", [0.9, 0.5]), content("deep", [0.9, 0.5, 0.1, 0.01])])
    assert sentences[0] == (
        "Depth: 2 layers (short) against 4 layers (deep); layers are compared by number, from 1 to 2."
    )


def test_who_collapses_is_named():
    collapse = Finding("rank collapse", "...", layers=(3, 4), collapse=True)
    sentences = differences([content("a", [1.0]), content("b", [1.0], [collapse]), content("c", [1.0])])
    assert "Rank collapse: b (2 layers, first in layer 3); not found in a and c." in sentences
    assert "Collapse: found in none of them." in differences([content("a", [1.0]), content("c", [1.0])])


def test_page_of_four_models_of_different_depth(tmp_path):
    reports = [diagnosis(n, heads, name=f"model {n}") for n, heads in ((2, 4), (3, 2), (5, 4), (6, 8))]
    html = uc.compare(reports).to_html(tmp_path / "four.html").read_text(encoding="utf-8")
    text = unescape(re.sub("<[^>]+>", "", html))
    assert "Depth: 2 layers (model 2) against 3 layers (model 3)" in text
    assert all(f'id="head-map-{n}"' in html for n in (1, 2, 3, 4))


def test_like_named_reports_are_numbered_and_names_can_be_given(tmp_path):
    a, b = diagnosis(2), diagnosis(3)
    assert "a model (1) against a model (2)" in uc.compare([a, b]).to_html(tmp_path / "1.html").read_text("utf-8")
    named = uc.compare([a, b], names=["before", "after"]).to_html(tmp_path / "2.html")
    assert "before against after" in named.read_text("utf-8")


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(ValueError, match="two to 4 diagnoses"):
        uc.compare([diagnosis()])
    with pytest.raises(ValueError, match="one name for each diagnosis: 2 diagnoses, got 1"):
        uc.compare([diagnosis(), diagnosis()], names=["one"])

"""Pages are self-contained, small, quickly made, and safe with any name; they replace nothing but themselves."""

import json
import re
import time
from html import unescape

import altair as alt
import pandas as pd
import pytest
import torch

import uncollapse as uc
from tests.report.diagnoses import HOSTILE, diagnosis
from uncollapse.diagnosis.pages import content_of
from uncollapse.diagnosis.thresholds import SATURATED_GAP
from uncollapse.diagnosis.usual import SHOWN, quantiles
from uncollapse.report import depth_lines, eigenvalues, entropy_histogram, entropy_violins, head_map, propagation
from uncollapse.report.diagnosis_page import strip
from uncollapse.report.final_strip import FinalValues, final_strip
from uncollapse.report.rho_map import binned, rho_map
from uncollapse.report.similarity_violins import similarity_violins
from uncollapse.report.training_curves import MEAN, TrainingCurve, training_chart


@pytest.fixture(scope="module")
def large():
    return diagnosis(layers=24, heads=16, size=64)


def data(html: str, name: str):
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.DOTALL)[1])


def outside_scripts(html: str) -> str:
    return re.sub(r"<(script|style)[ >].*?</\1>", "", html, flags=re.DOTALL)


def test_24_layers_of_16_heads_stay_under_3_megabytes_and_are_written_in_time(large, tmp_path):
    diagnosis(1, 1).to_html(tmp_path / "first.html")  # the libraries are bundled once a process
    seconds = []
    for name in ("one.html", "two.html"):  # the better one counts: the machine may be busy
        start = time.process_time()
        file = large.to_html(tmp_path / name)
        seconds.append(time.process_time() - start)
    assert file.stat().st_size < 3_000_000
    assert min(seconds) < 5.0


def test_page_loads_nothing(large, tmp_path):
    html = large.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href|action)\s*=\s*[\"']?(?!data:)[a-z]", outside_scripts(html))
    assert "@import" not in html
    assert "url(" not in re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_names_are_escaped_everywhere(tmp_path):
    report = diagnosis(name=HOSTILE)
    report.missing["spectrum"] = HOSTILE
    report.notes.append(HOSTILE)
    one = report.to_html(tmp_path / "one.html").read_text(encoding="utf-8")
    two = uc.compare([report, diagnosis(5)]).to_html(tmp_path / "two.html").read_text(encoding="utf-8")
    for html in (one, two, report._repr_html_(), uc.compare([report, diagnosis(5)])._repr_html_()):
        assert "<img src=x" not in html
        assert "<script>document" not in html
        assert HOSTILE.strip() in unescape(outside_scripts(html))
    names = [p["value"] for spec in data(two, "charts").values() for p in spec["params"] if p["name"] == "names"]
    assert names
    assert all(HOSTILE in shown for shown in names)


def test_an_earlier_page_is_replaced_and_any_other_file_is_kept(tmp_path):
    report, file = diagnosis(), tmp_path / "new" / "report.html"
    assert report.to_html(file) == file
    before = file.read_bytes()
    report.info["model"] = "another"
    assert report.to_html(file).read_bytes() != before
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="force=True"):
        report.to_html(file)
    assert file.read_text(encoding="utf-8") == "mine"
    report.to_html(file, force=True)
    assert file.stat().st_size > 100_000
    with pytest.raises(FileExistsError, match="is a folder"):
        report.to_html(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "report.html"]


def test_verdicts_remedies_gaps_and_notes_are_in_words(tmp_path):
    report = diagnosis(collapsed=True)
    report.missing["spectrum"] = "its weights are not known."
    report.notes.append("Positions are rotations.")
    text = unescape(re.sub("<[^>]+>", "", report.to_html(tmp_path / "r.html").read_text(encoding="utf-8")))
    assert any(verdict.kind == "rank collapse" for verdict in report.verdicts)
    for verdict in report.verdicts:
        assert verdict.sentence in text
        assert verdict.remedy in text
    assert "Not measured: spectrum, because its weights are not known." in text
    assert "Note: Positions are rotations." in text


def test_the_main_numbers_stand_beside_what_is_usual(tmp_path):
    report = diagnosis(layers=3, heads=4)  # one of twelve heads is saturated
    table = content_of(report).usual.set_index("number")
    assert set(SHOWN) <= set(quantiles())
    assert len(table) == len(SHOWN)
    gap = table.loc[SHOWN["gap_mean"].words]
    usual = quantiles()["gap_mean"]["0.95"]
    assert gap["usual"] == f"up to {usual:.2g}"
    assert gap["here"].endswith(f" to {report.heads['gap_mean'].max():.0f}")
    assert gap["outside"] == f"{(report.heads['gap_mean'] > usual).sum()} of 12 above"
    assert table.loc[SHOWN["cosine_aligned"].words, "outside"] == "none"
    html = report.to_html(tmp_path / "r.html").read_text(encoding="utf-8")
    assert html.index("The main numbers, beside what is usual") < html.index("Depth at a glance")


@pytest.mark.parametrize("part", ["tokens", "attention", "weights"])
def test_a_part_that_was_not_measured_leaves_a_sentence_instead_of_its_charts(part, tmp_path):
    report = diagnosis()
    empty = {name: table.iloc[:0] for name, table in report.tables.items()}
    if part == "tokens":
        report.layers = report.layers[["layer", "entropy_mean", "entropy_normalised"]]
        report.histograms["cosine"] = empty["cosine_histogram"]
    elif part == "attention":
        report.heads, report.propagation = empty["heads"][["layer", "head"]], empty["propagation"]
        report.histograms["entropy"], report.eigenvalues = empty["entropy_histogram"], empty["eigenvalues"]
    else:
        report.eigenvalues = empty["eigenvalues"]
    html = report.to_html(tmp_path / "one.html").read_text(encoding="utf-8")
    assert "Not measured: " in html
    gone = {"tokens": "similarity-violins", "attention": "head-map", "weights": "eigenvalues"}[part]
    assert gone not in data(html, "charts")
    assert "depth-strip" in data(html, "charts")
    both = uc.compare([report, diagnosis(2)]).to_html(tmp_path / "two.html").read_text(encoding="utf-8")
    assert "Not measured: " in both


def test_every_chart_is_valid_vega_lite():
    content, names = content_of(diagnosis(collapsed=True)), ["first", "second"]
    layers = content.layers.assign(report=1)
    shapes = entropy_violins.head_violins(content.entropies, content.entropy_width, 4, 4.0).tables[
        entropy_violins.HEAD_TABLE
    ]
    charts = [
        strip(content),
        similarity_violins(content.cosines, content.cosine_width, content.layers, 3),
        entropy_violins.entropy_violins(content.entropies, content.entropy_width, 3, 4.0),
        entropy_violins.head_violins(content.entropies, content.entropy_width, 4, 4.0),
        head_map.head_map(content.heads, 3, 4, head_map.extents([content.heads])),
        eigenvalues.eigenvalue_plane(content.eigenvalues, ["one"]),
        propagation.propagation_line(content.propagation, ["one"]),
        entropy_histogram.entropy_histogram(shapes, content.entropy_width, 4.0, ["one"]),
        *(depth_lines.depth_lines(layers, column, names) for column in depth_lines.MEASURES),
    ]
    for chart in charts:
        alt.Chart.from_dict(chart.standalone())  # raises if it does not meet Vega-Lite's schema
        assert chart.caption
        assert "\n" not in chart.caption


def test_every_chart_of_runs_is_valid_vega_lite():
    steps = pd.DataFrame({"report": [1, 1, 2, 2], "run": [MEAN, MEAN, "x", "x"], "step": [1, 2, 1, 2], "value": 1.0})
    curve = steps.assign(low=[0.5, 0.6, None, None], high=[1.5, 1.6, None, None])
    means = pd.DataFrame({"report": [1, 2], "mean": 1.0, "low": [0.5, None], "high": [1.5, None]})
    charts = [
        training_chart(TrainingCurve("Loss", curve), "loss", ["one", "two"]),
        training_chart(TrainingCurve("Rank", curve.assign(layer=1), logarithmic=True), "rank", ["one"]),
        final_strip(FinalValues("Loss", steps, means), "final", ["one", "two"]),
        rho_map(binned(diagnosis().propagation.assign(step=1), ["step", "layer", "head"]), "rho", [1]),
    ]
    for chart in charts:
        alt.Chart.from_dict(chart.standalone())  # raises if it does not meet Vega-Lite's schema


def test_notebook_shows_the_summary_and_a_picture_without_scripts():
    report = diagnosis(collapsed=True)
    html = report._repr_html_()
    assert all(verdict.kind in html for verdict in report.verdicts)
    assert 'src="data:image/svg+xml;base64,' in html
    assert "<script" not in html
    assert len(html) < 100_000


def test_a_notebook_shows_a_comparison_as_sentences_and_a_strip_of_each():
    comparison = uc.compare([diagnosis(collapsed=True), diagnosis(5)], names=["one", "two"])
    html = comparison._repr_html_()
    assert html.count('src="data:image/svg+xml;base64,') == 2
    assert all(sentence in unescape(html) for sentence in comparison.findings)
    assert "<script" not in html


def test_shown_first_is_the_worst_head():
    content = content_of(diagnosis(layers=5, heads=4))
    assert content.first_choice() == (5, 1)


def test_tables_keep_their_values_to_four_digits(tmp_path):
    report = diagnosis()
    table = data(report.to_html(tmp_path / "r.html").read_text(encoding="utf-8"), "tables")["head-map"]["values"]
    rows = [line.split(",") for line in table.splitlines()]
    column = rows[0].index("entropy_mean")
    shown = pd.Series([float(row[column]) for row in rows[1:]])
    assert (shown / report.heads["entropy_mean"] - 1).abs().max() < 5e-4  # four digits


def test_thresholds_and_what_is_usual_are_drawn_in_the_charts(tmp_path):
    html = diagnosis().to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    charts = data(html, "charts")
    rules = [layer for layer in charts["gap-points"]["layer"] if layer["mark"]["type"] == "rule"]
    assert [rule["encoding"]["y"]["datum"] for rule in rules] == [SATURATED_GAP, quantiles()["gap_mean"]["0.95"]]
    words = [layer["mark"]["text"] for layer in charts["gap-points"]["layer"] if layer["mark"]["type"] == "text"]
    assert words[0] == f"saturated: {SATURATED_GAP:g}"
    assert re.fullmatch(r"usual: up to [\d.]+", words[1])
    assert any(layer["mark"]["type"] == "rule" for layer in charts["similarity-violins"]["layer"])
    no_heads = uc.Observer("tokens only")
    with no_heads:
        no_heads.tokens(1, torch.randn(2, 8, 4))
    assert "gap-points" not in data(no_heads.diagnosis.to_html(tmp_path / "two.html").read_text(), "charts")


def test_a_sample_that_cannot_be_read_is_red(tmp_path):
    report = diagnosis()
    report.info |= {"loss": 9.0, "guessing": 6.0}
    html = report.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r'class="verdict collapse"><p><b>▲ The model cannot read this sample</b>', html)

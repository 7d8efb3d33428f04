"""The page over training, from the files that a watch wrote."""

import numpy as np
import pandas as pd
import pytest

import uncollapse as uc
from tests.models.builders import batch, build
from tests.watching.loops import sgd, train
from tests.watching.tables import heads_table
from uncollapse.cli import main
from uncollapse.diagnosis.thresholds import SATURATED_GAP
from uncollapse.report.step_map import step_maps
from uncollapse.watching.course import News
from uncollapse.watching.logs import JsonLines
from uncollapse.watching.pages import forecasts

STEPS = np.arange(50, 1050, 50)


def write_run(path, doubling=300.0):
    """Two layers of two heads, of which one doubles; one warning, with characters that HTML would read."""
    gaps = {(1, 1): [1.0] * 20, (1, 2): [2.0] * 20, (2, 1): [1.5] * 20}
    gaps[2, 2] = list(8.0 * 2.0 ** ((STEPS - STEPS[-1]) / doubling))
    logits = {place: [4 * gap for gap in values] for place, values in gaps.items()}
    heads = heads_table(STEPS, gap_mean=gaps, logit_max=logits)
    lines = JsonLines(path, {"model": "<b>Mine</b>", "every": 50})
    for step in STEPS:
        of_step = heads[heads["step"] == step].drop(columns="step")
        steps = range(step - 49, step + 1)
        updates = pd.DataFrame({"step": steps, "loss": [3.0] * 50, "gradient_norm": [1.0] * 50})
        news = [News(int(step), "forecast", (2,), ((2, 2),), "layer 2: <script>. What helps: rest.")]
        lines.write(int(step), {"heads": of_step, "updates": updates}, news if step == 1000 else [])
    return path


def test_a_page_of_one_run_and_of_two(tmp_path, capsys):
    one, two = write_run(tmp_path / "a.jsonl"), write_run(tmp_path / "b.jsonl", 900.0)
    assert main(["page", str(one), "--out", str(tmp_path / "one.html")]) == 0
    assert main(["page", str(one), str(two), "--out", str(tmp_path / "two.html")]) == 0
    page = (tmp_path / "two.html").read_text(encoding="utf-8")
    assert "a against b" in page
    assert "20 measurements from update 50 to 1,000" in page
    assert "layer 2: &lt;script&gt;." in page
    assert "<b>Mine" not in page
    for chart in ("layers-over-steps-1", "heads-over-steps-2", "line-gap-mean", "line-logit-max", "line-loss"):
        assert f'id="{chart}"' in page
    assert f"page: {tmp_path / 'two.html'}" in capsys.readouterr().out


def test_a_file_of_something_else_is_refused_in_one_sentence(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"loss": 3}\n')
    assert main(["page", str(path), "--out", str(tmp_path / "page.html")]) == 2
    assert "metrics.jsonl is no file that uncollapse.watch wrote" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_the_forecast_ends_where_the_head_saturates(tmp_path):
    heads = heads_table(STEPS, gap_mean={(1, 1): list(8.0 * 2.0 ** ((STEPS - 1000) / 300)), (1, 2): [1.0] * 20})
    line = forecasts(heads)
    assert set(zip(line["layer"], line["head"], strict=True)) == {(1, 1)}
    assert line["value"].max() == pytest.approx(SATURATED_GAP)
    assert line["step"].max() == pytest.approx(1000 + 300 * np.log2(SATURATED_GAP / 8.0))


def test_a_notebook_shows_a_watch_as_pictures_without_scripts():
    model, inputs = build("gpt2").float().train(), batch("gpt2", rows=2)
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=1) as watch:
        assert "nothing is measured yet" in watch._repr_html_()
        train(model, optimizer, [inputs, inputs])
    shown = watch._repr_html_()
    assert shown.count("data:image/svg+xml") == 2  # the heads, and the updates
    assert "✓ No warning." in shown
    assert "measurements from update 1 to 2" in shown
    assert "<script" not in shown


def test_values_that_span_orders_of_magnitude_have_a_logarithmic_colour():
    wide, narrow = (
        heads_table(STEPS, logit_max={(1, 1): list(np.geomspace(1.0, end, 20))}, gap_mean={(1, 1): [1.0] * 20})
        for end in (1e5, 10.0)
    )
    for heads, expected in ((wide, True), (narrow, False)):
        ends = {"logit_max": [float(heads["logit_max"].min()), float(heads["logit_max"].max())]}
        chart, _ = step_maps(heads, ends, 1, "")
        parameters = {parameter["name"]: parameter["value"] for parameter in chart.spec["params"]}
        assert parameters["wide"] == {"logit_max": expected}

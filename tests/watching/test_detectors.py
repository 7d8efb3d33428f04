"""Detectors on tables whose course is known."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.watching.tables import heads_table, recent, updates_table
from uncollapse.diagnosis.thresholds import SATURATED_GAP
from uncollapse.watching.course import Course
from uncollapse.watching.detectors import DETECTORS, ON_REQUEST, chosen
from uncollapse.watching.detectors.forecast import forecast
from uncollapse.watching.detectors.sign_alignment import sign_alignment
from uncollapse.watching.detectors.spectral_entropy import spectral_entropy
from uncollapse.watching.detectors.spike import spike
from uncollapse.watching.detectors.thresholds import thresholds

STEPS = np.arange(1050, 1500, 50)  # nine measurements


def growing(doubling, gap_end=10.5, logit_end=34.0, steps=STEPS, noise=0.0):
    """Layer 7, head 3 doubles; another head stays as it is."""
    rng = np.random.default_rng(0)
    factor = 2.0 ** ((steps - steps[-1]) / doubling) * np.exp(noise * rng.standard_normal(len(steps)))
    flat = np.full(len(steps), 3.0)
    return heads_table(
        steps,
        gap_mean={(7, 3): gap_end * factor, (7, 4): flat},
        logit_max={(7, 3): logit_end * factor, (7, 4): flat},
    )


def test_the_sentence_of_a_forecast():
    (alarm,) = forecast(recent(growing(180)))
    when = STEPS[-1] + 180 * np.log2(SATURATED_GAP / 10.5)  # the gap that `growing` ends with
    assert alarm.sentence.startswith(
        f"layer 7, head 3: largest logit 34, doubling every 180 updates, saturates near update {when:,.0f}: "
    )
    assert alarm.heads == ((7, 3),)
    assert '"qk_norm"' in alarm.remedy


@settings(max_examples=60, deadline=None)
@given(doubling=st.floats(60, 390), gap=st.floats(6, 0.95 * SATURATED_GAP), shift=st.floats(-50, 50))
def test_doubling_time_and_saturation_are_those_of_an_exact_course(doubling, gap, shift):
    """A constant that is added to the logits, which softmax ignores, moves neither the finding nor its time."""
    heads = growing(doubling, gap)
    heads["logit_max"] += shift
    (alarm,) = forecast(recent(heads))
    when = STEPS[-1] + doubling * np.log2(SATURATED_GAP / gap)
    told = float(re.search(r"near update ([\d,]+)", alarm.sentence)[1].replace(",", ""))
    assert told == pytest.approx(when, abs=1.0)
    if shift == 0:
        assert f"doubling every {doubling:,.0f} updates" in alarm.sentence


@pytest.mark.parametrize(
    "heads",
    [
        growing(1e9),  # does not grow
        growing(-200),  # shrinks
        growing(180, gap_end=2.0),  # a head that learns
        growing(2000),  # too far away to know
        growing(180, gap_end=30.0),  # is saturated already, which the thresholds tell
        growing(180, steps=STEPS[:4]),  # too few measurements
        growing(180, noise=1.0),  # no trend beyond doubt
    ],
)
def test_what_is_no_forecast(heads):
    assert forecast(recent(heads)) == []


def test_a_forecast_is_told_once_and_its_recovery():
    course, sentences = Course(), []
    for last in range(5, 10):
        sentences += [n.sentence for n in course.told(last, forecast(recent(growing(180, steps=STEPS[:last]))))]
    assert len(sentences) == 1
    for last in range(10, 13):
        sentences += [n.sentence for n in course.told(last, [])]
    assert sentences[1:] == ["step 12: no forecast any more, since step 10."]


def test_thresholds_are_the_verdicts_of_a_diagnosis():
    heads = heads_table(
        [50],
        entropy_normalised={(1, 1): [0.001], (1, 2): [0.8]},
        entropy_mean={(1, 1): [0.003], (1, 2): [3.0]},
        gap_mean={(1, 1): [40.0], (1, 2): [1.0]},
        gap_max={(1, 1): [60.0], (1, 2): [2.0]},
        sink_strongest={(1, 1): [0.9], (1, 2): [0.1]},
        sink={(1, 1): [0.9], (1, 2): [0.1]},
    )
    (alarm,) = thresholds(recent(heads))
    assert (alarm.kind, alarm.heads, alarm.patience) == ("entropy collapse", ((1, 1),), 3)
    healthy = heads[heads["head"] == 2]
    (alarm,) = thresholds(recent(healthy, not_finite=2))
    assert (alarm.kind, alarm.patience) == ("not finite", 1)


@pytest.mark.parametrize("column", ["loss", "gradient_norm"])
def test_a_spike_is_six_standard_deviations_above_the_last_128(column):
    rng = np.random.default_rng(1)
    values = 2.0 + 0.1 * rng.standard_normal(300)
    assert spike(recent(updates=updates_table(values, column), since=250)) == []
    window = values[280 - 128 : 280]
    values[280] = window.mean() + 6.1 * window.std()
    (alarm,) = spike(recent(updates=updates_table(values, column), since=250))
    assert alarm.kind == f"{column.replace('_', ' ')} spike"
    assert "at update 281 is 6.1 standard deviations above the mean of the 128 updates before" in alarm.sentence
    assert spike(recent(updates=updates_table(values, column), since=281)) == []  # told before
    values[280] = window.mean() + 5.9 * window.std()
    assert spike(recent(updates=updates_table(values, column), since=250)) == []


def test_a_loss_that_is_not_finite_is_a_spike_and_clipped_gradients_are_none():
    values = np.full(100, 2.0)
    values[80:] = np.nan
    (alarm,) = spike(recent(updates=updates_table(values), since=50))
    assert alarm.sentence == "loss nan at update 81 is not finite; the updates before had 2."
    clipped = 1.0 + 1e-7 * np.random.default_rng(0).standard_normal(200)
    clipped[150] += 1e-5
    assert spike(recent(updates=updates_table(clipped, "gradient_norm"), since=100)) == []
    assert spike(recent(updates=updates_table(np.full(300, np.nan)), since=100)) == []  # no loss is known


def optimizer_table(**columns):
    rows = []
    for name, by_layer in columns.items():
        for layer, values in by_layer.items():
            rows += [{"step": 50 * (i + 1), "layer": layer, "column": name, "value": v} for i, v in enumerate(values)]
    table = pd.DataFrame(rows).pivot_table(index=["step", "layer"], columns="column", values="value").reset_index()
    return table.assign(decomposed_head=2, update_ratio_query=1e-3)


def test_updates_without_directions():
    table = optimizer_table(spectral_entropy={1: [0.8, 0.9], 2: [0.8, 0.1]})
    (alarm,) = spectral_entropy(recent(optimizer=table))
    assert (alarm.layers, alarm.heads) == ((2,), ((2, 2),))
    assert "lowest in layer 2, head 2: spectral entropy 0.10 of what it could have" in alarm.sentence
    assert spectral_entropy(recent(optimizer=optimizer_table(spectral_entropy={1: [0.1, 0.8]}))) == []
    assert spectral_entropy(recent()) == []


def test_updates_along_the_top_direction():
    steady, changing = [0.5] * 8, [0.5] * 7 + [-0.1]
    (alarm,) = sign_alignment(recent(optimizer=optimizer_table(update_alignment={1: changing, 3: steady})))
    assert alarm.layers == (3,)
    assert "with a mean cosine of 0.50" in alarm.sentence
    assert sign_alignment(recent(optimizer=optimizer_table(update_alignment={3: steady[:7]}))) == []
    assert sign_alignment(recent()) == []


@pytest.mark.parametrize("name", [*DETECTORS, *ON_REQUEST])
def test_every_detector_bears_empty_tables(name):
    assert list(chosen(name)[name](recent())) == []


def test_choice_of_detectors():
    assert list(chosen(None)) == list(DETECTORS)
    assert list(chosen("spike")) == ["spike"]
    assert list(chosen([*ON_REQUEST])) == list(ON_REQUEST)
    assert list(chosen([forecast, "spike"])) == ["forecast", "spike"]

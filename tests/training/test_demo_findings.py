"""The demo's sentences follow the numbers, whichever way these fall, and have one number each at most."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from uncollapse.training.demo.depth import BOTH, HIDDEN_ONLY, PLAIN, SKIP_ONLY
from uncollapse.training.demo.findings import depth_findings, inherited_findings, wrong_findings
from uncollapse.training.demo.runs import DemoSize, TrainedRun, train

BREAKS = [3.0] * 40 + [9.0] * 40
FALLS = [3.0 - 0.01 * n for n in range(80)]


def run(losses=FALLS, logit=12.0, told=(), bits=2.0, cosine=0.3, entropy=0.8):
    """A run with these losses, largest logit, warnings as (step, kind), and numbers at its end."""
    steps = [20, 40, 60, 80]
    heads = pd.DataFrame({"step": steps, "layer": 1, "head": 1, "logit_max": [1.0, 2.0, logit, 3.0]})
    layers = pd.DataFrame(
        [(s, n, cosine, entropy) for s in steps for n in (1, 2)],
        columns=["step", "layer", "cosine_mean", "entropy_normalised"],
    )
    updates = pd.DataFrame({"step": range(1, 81), "loss": losses})
    warnings = pd.DataFrame([(s, k, f"step {s}: {k}") for s, k in told], columns=["step", "kind", "sentence"])
    return TrainedRun(0.01, heads, layers, updates, warnings, bits)


def depths(**first):
    """Networks of 12 layers that collapse at these layers; None: not at all."""
    names = {"plain": PLAIN, "inherited": HIDDEN_ONLY, "skip": SKIP_ONLY, "both": BOTH}
    rows = [
        (names[name], n, 0.5 if layer is None or n < layer else 1e-5)
        for name, layer in first.items()
        for n in range(1, 13)
    ]
    return pd.DataFrame(rows, columns=["attention", "depth", "mean"])


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        ({"plain": 3, "inherited": 5, "skip": None, "both": None}, "as good as equal after 3 layers."),
        ({"plain": 3, "inherited": 5, "skip": None, "both": None}, "put this off to layer 5."),
        ({"plain": 3, "inherited": 5, "skip": None, "both": None}, "they still differ after 12 layers."),
        ({"plain": 1, "inherited": 1, "skip": 8, "both": 8}, "as good as equal after 1 layer."),
        ({"plain": 1, "inherited": 1, "skip": 8, "both": 8}, "hardly change that."),
        ({"plain": 1, "inherited": 1, "skip": 8, "both": 8}, "puts it off to layer 8."),
        ({"plain": None, "inherited": None, "skip": None, "both": None}, "stay apart at this depth."),
    ],
)
def test_depth(first, sentence):
    assert any(found.endswith(sentence) for found in depth_findings(depths(**first)))


def test_a_forecast_that_comes_before_the_loss_goes_bad():
    told = [(20, "gradient norm spike"), (30, "forecast"), (50, "entropy collapse")]
    found = wrong_findings(run(BREAKS, 8000.0, told), run(logit=49.0), run(), "qk_norm")
    assert "grows to 8,000." in found[0]
    assert found[1] == "The watch saw it coming and warned at update 30."
    assert found[2] == "The loss went bad 16 updates later."
    assert found[3].startswith("In a healthy run")
    assert found[4].endswith("the largest score is 49.")
    assert found[5] == "And the loss does not go bad."


def test_a_warning_that_comes_late_or_not_at_all_is_told_as_such():
    late = wrong_findings(run(BREAKS, 8000.0, [(60, "entropy collapse")]), run(BREAKS), run(), "qk_norm")
    assert late[1:3] == ["The watch warned at update 60.", "The loss went bad 14 updates earlier."]
    assert late[-1] == "But the loss went bad here as well, at update 46."
    silent = wrong_findings(run(), run(), run(), "qk_norm")
    assert silent[1:3] == ["The watch did not warn.", "The loss did not go bad within this run."]
    told = run(BREAKS, 8000.0, [(30, "forecast")])
    assert "not always right" in wrong_findings(told, run(), told, "qk_norm")[3]


def test_what_inherited_scores_change_is_told_only_if_it_is_more_than_chance():
    same = inherited_findings(run(), run(bits=2.01, cosine=0.32))
    assert "equally well" in same[0]
    assert same[1:] == [
        "Tokens are about as different as with plain attention.",
        "Attention looks about as widely as before.",
    ]
    other = inherited_findings(run(), run(bits=1.9, cosine=0.1, entropy=0.95))
    assert "0.100 bits per byte fewer" in other[0]
    assert "may be chance" in other[0]
    assert "more different" in other[1]
    assert "more widely" in other[2]


def test_a_sentence_has_one_number_at_most():
    sentences = [
        *depth_findings(depths(plain=3, inherited=5, skip=None, both=None)),
        *wrong_findings(run(BREAKS, 8000.0, [(30, "forecast")]), run(BREAKS), run(), "qk_norm"),
        *inherited_findings(run(), run(bits=1.9, cosine=0.1, entropy=0.95)),
    ]
    assert [text for text in sentences if len(re.findall(r"\d[\d.,]*", text)) > 1] == []


def test_runs_differ_in_what_is_changed_and_in_nothing_else(tmp_path):
    tiny = DemoSize(layers=2, heads=2, width=16, piece=4, batch=2, steps=4, warmup=2, every=2, held_out=4)
    plain = train(tiny, tmp_path / "a.jsonl")
    again = train(tiny, tmp_path / "b.jsonl")
    pd.testing.assert_frame_equal(plain.updates, again.updates)
    faster = train(replace(tiny, warmup=1), tmp_path / "c.jsonl")
    assert faster.updates["loss"].iloc[0] == plain.updates["loss"].iloc[0]  # the same weights and batch
    assert faster.updates["loss"].iloc[-1] != plain.updates["loss"].iloc[-1]
    inherited = train(tiny, tmp_path / "d.jsonl", inherited=True)
    assert inherited.updates["loss"].iloc[0] != plain.updates["loss"].iloc[0]

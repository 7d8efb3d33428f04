"""Verdicts: collapse is told from what only looks like it, and a healthy model is told so."""

import re

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import uncollapse as uc
from tests.diagnosis.trained import TRAINED, needs_data
from uncollapse.diagnosis.thresholds import SATURATED_GAP


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def of_tokens(*layers):
    with uc.Observer() as observer:
        for n, x in enumerate(layers, start=1):
            observer.tokens(n, x)
    return observer.diagnosis


def of_scores(*layers):
    """Scores (T, T) as queries and keys: q the scores themselves, k the unit matrix."""
    with uc.Observer() as observer:
        for n, scores in enumerate(layers, start=1):
            size = scores.shape[-1]
            observer.attention(n, scores[None, None], torch.eye(size)[None, None], scale=1.0)
            observer.tokens(n, drawn(1, size, size))
    return observer.diagnosis


def kinds(report):
    return [verdict.kind for verdict in report.verdicts]


def test_random_tokens_are_healthy_and_attention_that_nobody_saw_is_not():
    report = of_tokens(drawn(4, 32, 24))
    assert kinds(report) == ["not measured"]
    assert report.verdicts[0].sentence.startswith("Tokens healthy (")
    assert "attention not measured: no queries and keys were seen" in report.verdicts[0].sentence


def test_tokens_that_are_all_alike_are_a_rank_collapse_with_its_numbers():
    apart, alike = drawn(4, 32, 24), drawn(1, 1, 24) + 0.004 * drawn(4, 32, 24)
    report = of_tokens(apart, alike, alike)
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.layers, verdict.is_collapse) == ("rank collapse", (2, 3), True)
    assert verdict.sentence.startswith("Layers 2-3: rank collapse")
    assert "100% of token pairs above 0.99" in verdict.sentence
    assert verdict.remedy


def test_one_token_apart_does_not_hide_the_collapse_of_all_others():
    """A first token of its own, the rest alike: small residuals are hidden by it, centred cosines are not."""
    x = drawn(1, 1, 24) + 0.01 * drawn(2, 40, 24)
    x[:, 0] = 20 * drawn(24, seed=3)
    report = of_tokens(x)
    assert report.layers["residual_frobenius"].item() > 0.5
    assert kinds(report) == ["rank collapse"]


@pytest.mark.parametrize("first", [16, 24])
def test_two_kinds_of_tokens_are_a_rank_collapse_too(first):
    """As in skip-free networks that did not learn: whatever the first token is, half of the tokens equal it."""
    x = 1e-3 * drawn(2, 32, 24)
    x[:, :first] += drawn(24, seed=1)
    x[:, first:] += drawn(24, seed=2)
    report = of_tokens(x)
    assert report.layers["residual_frobenius"].item() > 0.3
    assert kinds(report) == ["rank collapse"]


@pytest.mark.parametrize("cosine", [0.95, 0.98])
def test_a_common_coordinate_is_an_offset_and_not_a_collapse(cosine):
    """Full-rank tokens with one large coordinate in common have a mean cosine of `cosine`."""
    x = drawn(4, 64, 48)
    x[..., 0] = (cosine / (1 - cosine) * 47) ** 0.5
    report = of_tokens(x)
    assert report.layers["cosine_mean"].item() == pytest.approx(cosine, abs=0.01)
    assert kinds(report) == ["not measured", "common offset"]
    assert not any(verdict.is_collapse for verdict in report.verdicts)


def test_attention_only_of_depth_12_collapses():
    torch.manual_seed(0)
    network = uc.AttentionOnly(12, 64, 4, alpha=0.0, alpha_hidden=0.0, init="xavier", layer_norm=True)
    with torch.no_grad():
        report = of_tokens(*network(drawn(4, 32, 64)))
    assert report.verdicts[0].kind == "rank collapse"
    assert report.verdicts[0].layers[-1] == 12


def test_a_visible_skip_keeps_the_same_network_healthy():
    torch.manual_seed(0)
    settings = {"alpha_hidden": 0.0, "skip": "normed", "init": "xavier", "layer_norm": True}
    network = uc.AttentionOnly(12, 64, 4, alpha=0.9, **settings)
    with torch.no_grad():
        assert kinds(of_tokens(*network(drawn(4, 32, 64)))) == ["not measured"]  # the tokens are healthy


def test_attention_that_treats_all_keys_alike_is_dead_and_nearly_so_is_not():
    (verdict,) = of_scores(torch.zeros(16, 16)).verdicts
    assert (verdict.kind, verdict.heads, verdict.is_collapse) == ("dead attention", ((1, 1),), True)
    assert kinds(of_scores(1e-3 * drawn(16, 16))) == ["healthy"]  # as at an initialisation


@pytest.mark.parametrize("key", [0, 5])
def test_all_rows_on_one_key_are_a_sink_whichever_key_it_is(key):
    """[CLS], [SEP], a register: trained models keep sinks at any place, and softmax does not know places."""
    scores = 0.1 * drawn(16, 16)
    scores[:, key] = 15.0
    report = of_scores(scores)
    assert kinds(report) == ["healthy", "sink"]
    assert report.verdicts[1].heads == ((1, 1),)
    assert "100% of its weight" in report.verdicts[1].sentence


def test_a_saturated_head_is_an_entropy_collapse():
    scores = 0.1 * drawn(16, 16)
    scores[:, 5] = 60.0
    verdict, sink = of_scores(0.1 * drawn(16, 16), scores).verdicts
    assert (verdict.kind, verdict.heads, verdict.is_collapse) == ("entropy collapse", ((2, 1),), True)
    assert "1 of 2 heads" in verdict.sentence
    assert "largest gap 60" in verdict.sentence
    assert sink.kind == "sink"


def test_a_head_that_looks_at_its_neighbour_is_healthy_until_its_scores_saturate():
    neighbour = torch.eye(16).roll(1, 1)
    assert kinds(of_scores(0.9 * SATURATED_GAP * neighbour)) == ["healthy"]
    assert kinds(of_scores(1.1 * SATURATED_GAP * neighbour)) == ["entropy collapse"]


def test_nan_is_a_verdict_of_its_own():
    x = drawn(2, 8, 4)
    x[:, 0] = float("nan")
    report = of_tokens(drawn(2, 8, 4), x)
    assert (kinds(report), report.not_finite) == (["not finite"], 2)
    assert report.verdicts[0].is_collapse


def test_every_sentence_has_numbers_and_ends():
    scores = torch.zeros(16, 16)
    scores[:, 5] = 90.0
    for verdict in [*of_scores(scores).verdicts, *of_tokens(torch.ones(2, 8, 4)).verdicts]:
        assert re.search(r"\d", verdict.sentence)
        assert str(verdict).endswith(".")


def of_network(tokens, scores):
    with uc.Observer() as observer:
        observer.tokens(1, tokens)
        observer.attention(1, scores, torch.eye(scores.shape[-1]).expand(*scores.shape[:2], -1, -1), scale=1.0)
    return observer.diagnosis


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([0.01, 1.0, 10.0, 30.0, 100.0]),
    target=st.sampled_from(["random", "one key", "neighbour"]),
    shift=st.sampled_from([0.0, 10.0, 1000.0]),
)
@settings(max_examples=60, deadline=None)
def test_what_softmax_ignores_changes_no_verdict(seed, size, target, shift):
    """Random constants added to rows, and tokens in another order: keys with their queries, then heads, then batch."""
    batch, heads, tokens = 3, 2, 12
    scores = drawn(batch, heads, tokens, tokens, seed=seed)
    if target != "random":
        where = torch.full((tokens,), 5) if target == "one key" else (torch.arange(tokens) + 1) % tokens
        scores[..., torch.arange(tokens), where] += 3.0
    scores, x = size * scores, drawn(batch, tokens, 8, seed=seed + 1)
    wanted = of_network(x, scores)
    assert kinds(of_network(x, scores + shift * drawn(batch, heads, tokens, 1, seed=seed + 2))) == kinds(wanted)
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
    assert kinds(of_network(x[:, order], scores[:, :, order][..., order])) == kinds(wanted)
    moved = of_network(x.flip(0), scores.flip(0).flip(1))
    assert kinds(moved) == kinds(wanted)
    flipped = [tuple(sorted((layer, heads + 1 - head) for layer, head in v.heads)) for v in moved.verdicts]
    assert flipped == [tuple(sorted(v.heads)) for v in wanted.verdicts]


def test_a_report_without_attention_is_judged_by_its_tokens():
    report = of_tokens(torch.ones(2, 8, 4) + 1e-4 * drawn(2, 8, 4))
    assert isinstance(report.heads, pd.DataFrame)
    assert report.heads.empty
    assert kinds(report) == ["rank collapse"]
    assert "Not measured: attention" in report.verdicts[0].sentence


@needs_data
@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_are_healthy(name):
    model, inputs = TRAINED[name]()
    report = uc.diagnose(model, inputs)
    assert report.verdicts[0].kind == "healthy", str(report)
    assert not any(verdict.is_collapse for verdict in report.verdicts)
    assert len(report.layers) == model.config.num_hidden_layers

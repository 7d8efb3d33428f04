"""The six numbers of a dashboard are the worst values in the tables."""

import pytest
import torch

import uncollapse as uc
from uncollapse.watching.summary_scalars import PREFIX, SUMMARY, summary_scalars, verdict_text


@pytest.fixture(scope="module")
def report():
    random = torch.Generator().manual_seed(0)
    with uc.Observer("mine") as observer:
        for layer, size in ((1, 1.0), (2, 30.0)):
            observer.tokens(layer, torch.randn(2, 9, 16, generator=random))
            q, k = size * torch.randn(2, 2, 4, 9, 4, generator=random)
            observer.attention(layer, q, k, is_causal=True)
    return observer.diagnosis


def test_there_are_six_and_each_is_the_worst_of_its_column(report):
    numbers = summary_scalars(report)
    assert len(numbers) == len(SUMMARY) == 6
    assert numbers["attention/largest_gap"] == max(report.heads["gap_max"])
    assert numbers["attention/largest_logit"] == max(report.heads["logit_max"])
    assert numbers["attention/lowest_entropy"] == min(report.heads["entropy_normalised"])
    assert numbers["attention/strongest_sink"] == max(report.heads["sink"])
    assert numbers["attention/most_aligned"] == max(report.layers["cosine_aligned"])
    assert numbers["attention/lowest_residual"] == min(report.layers["residual_ratio"])
    assert all(name.startswith(PREFIX) for name in numbers)


def test_what_was_not_measured_is_left_out():
    with uc.Observer("tokens alone") as observer:
        observer.tokens(1, torch.randn(2, 9, 16))
    assert set(summary_scalars(observer.diagnosis)) == {"attention/most_aligned", "attention/lowest_residual"}


def test_the_text_has_every_verdict(report):
    text = verdict_text(report)
    assert text.count("\n- ") + 1 == len(report.verdicts)
    assert all(verdict.sentence in text for verdict in report.verdicts)

"""The compiled count of token pairs: its numbers are those of torch and of float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uncollapse.attention import token_pairs
from uncollapse.attention.token_pairs import compiled_pairs
from uncollapse.diagnosis.token_statistics import TokenStatistics
from uncollapse.metrics.similarity import Cosines, cosine_pairs, count_raw_and_centred


@pytest.fixture(autouse=True)
def _however_small(monkeypatch):
    monkeypatch.setattr(token_pairs, "WORTH", 0)


def counted(x, count):
    raw, centred = Cosines.empty(), Cosines.empty()
    count_raw_and_centred(x, raw, centred, count)
    return raw.histogram, centred.histogram


def served(*arguments):
    """The compiled pass, which has to be there."""
    found = compiled_pairs(*arguments)
    assert found is not None
    return found


@given(tokens=st.integers(2, 150), width=st.integers(1, 40), offset=st.floats(0, 2), seed=st.integers(0, 1000))
def test_counts_and_sums_are_those_of_the_reference(tokens, width, offset, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=generator) + offset * torch.randn(width, generator=generator)
    pairs = tokens * (tokens - 1) // 2
    for ours, theirs, exact in zip(
        counted(x, compiled_pairs), counted(x, None), (x, x.double() - x.double().mean(dim=0)), strict=True
    ):
        assert ours.total == theirs.total == pairs
        # a cosine at the edge of a bin may fall to either side by rounding, and moves two counts
        assert (ours.counts - theirs.counts).abs().sum() <= 2 + 0.02 * pairs
        # rounding of float32, for directions that are centred: some ten units for lengths that are sums of 40 squares
        if exact.norm(dim=-1).min() > 1e-2:
            assert ours.mean == pytest.approx(cosine_pairs(exact.double()).mean().item(), abs=2e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tokens", [2, 31, 32, 33, 64, 65, 2500])  # a block has 32, and sums are of 2,048
def test_every_pair_is_counted_once_whatever_the_blocks(tokens, threads):
    x = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(tokens)) + 1.0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        raw, centred = counted(x, served)
    finally:
        torch.set_num_threads(before)
    theirs = counted(x, None)
    assert raw.total == centred.total == tokens * (tokens - 1) // 2
    assert raw.mean == pytest.approx(theirs[0].mean, abs=1e-6)
    assert centred.mean == pytest.approx(theirs[1].mean, abs=1e-6)


def test_tokens_that_are_alike_are_aligned():
    raw, centred = counted(torch.ones(40, 6) + 1e-3 * torch.randn(40, 6), served)
    assert raw.mean == pytest.approx(1.0, abs=1e-5)
    assert raw.counts[-1] == raw.total
    assert centred.mean == pytest.approx(-1 / 39, abs=0.05)  # of residuals, which sum to zero


def test_what_it_does_not_serve_is_left_to_torch(monkeypatch):
    x, factor = torch.randn(4, 3), torch.ones(4)
    assert compiled_pairs(x.double(), factor, factor, factor, 400) is None
    assert compiled_pairs(x.to("meta"), factor, factor, factor, 400) is None
    monkeypatch.setattr(token_pairs, "WORTH", 17)
    assert compiled_pairs(x, factor, factor, factor, 400) is None
    monkeypatch.setattr(token_pairs, "WORTH", 0)
    monkeypatch.setenv("UNCOLLAPSE_NATIVE", "0")
    assert compiled_pairs(x, factor, factor, factor, 400) is None


def test_the_statistics_of_a_layer_are_those_without_it(monkeypatch):
    x = torch.randn(2, 50, 12, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = []
    for native in ("1", "0"):
        monkeypatch.setenv("UNCOLLAPSE_NATIVE", native)
        statistics = TokenStatistics(decompositions=1)
        statistics.add(x, None)
        rows.append(statistics.row())
    assert rows[0] == pytest.approx(rows[1], rel=1e-5, abs=1e-5)

"""The size of the stream at initialisation is that of the sums written out with random vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uncollapse.theory import stream_sizes

WIDTH = 200_000  # sizes of random vectors are right to 1 / sqrt(2 WIDTH) = 0.16 %


def written_out(skip, alpha, layers, embedding, attention, feed_forward):
    """The three sums of the block, with independent normal vectors for what attention and feed-forward net write."""
    random = np.random.default_rng(0)
    start = stream = embedding * random.standard_normal(WIDTH)
    for _ in range(layers):
        a, m = (size * random.standard_normal(WIDTH) for size in (attention, feed_forward))
        normed = (stream - stream.mean()) / stream.std()
        sums = {
            "none": stream + a,
            "stream": stream + alpha * stream + (1 - alpha) * a,
            "normed": stream + alpha * normed + (1 - alpha) * a,
            "replace": alpha * stream + (1 - alpha) * a,
        }
        stream = sums[skip] + m
    return stream.std(), 1 - np.corrcoef(stream, start)[0, 1] ** 2


@pytest.mark.parametrize("skip", ["none", "stream", "normed", "replace"])
def test_sizes_are_those_of_the_sums_written_out(skip):
    setting = {"alpha": 0.4, "layers": 5, "embedding": 0.3, "attention": 0.2, "feed_forward": 0.1}
    found = stream_sizes(skip, **setting)
    size, share = written_out(skip, **setting)
    assert found.size[-1] == pytest.approx(size, rel=0.01)
    assert found.block_share[-1] == pytest.approx(share, abs=0.01)


@given(st.floats(0.05, 0.95), st.integers(0, 12), st.floats(0.01, 2.0))
def test_closed_forms_where_blocks_write_nothing(alpha, layers, embedding):
    wanted = {
        "none": embedding,
        "stream": embedding * (1 + alpha) ** layers,
        "normed": embedding + alpha * layers,
        "replace": embedding * alpha**layers,
    }
    for skip, size in wanted.items():
        found = stream_sizes(skip, alpha, layers, embedding, 0.0, 0.0)
        assert found.size[-1] == pytest.approx(size)
        assert found.block_share[-1] == pytest.approx(0.0, abs=1e-9)


def test_an_unknown_skip_is_refused():
    with pytest.raises(ValueError, match='skip must be "none", "stream", "normed" or "replace", got \'inner\''):
        stream_sizes("inner", 0.5, 1, 1.0, 1.0, 1.0)

"""The entropy bound is tight, falls, and is never above log T; the printed one is no bound."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.extras import needs_scipy
from uncollapse.metrics import entropy
from uncollapse.theory import entropy_lower_bound, entropy_minimiser, generator, scores_norm_bound

norms = st.floats(0.0, 60.0)
lengths = st.integers(2, 5000)


def entropy_of(scores) -> float:
    return entropy(torch.as_tensor(scores, dtype=torch.float64).softmax(-1)).item()


@given(norms, lengths)
def test_tight(nu, tokens):
    scores = entropy_minimiser(nu, tokens)
    assert np.linalg.norm(scores) == pytest.approx(nu)
    assert entropy_of(scores) == pytest.approx(float(entropy_lower_bound(nu, tokens)), abs=1e-9)


@given(norms, st.floats(0.01, 5.0), lengths)
def test_monotone_and_never_above_log_of_tokens(nu, more, tokens):
    bound, later = entropy_lower_bound([nu, nu + more], tokens)
    assert 0.0 <= later <= bound <= math.log(tokens) + 1e-12


@given(st.integers(2, 40), st.integers(0, 10**6), st.floats(0.0, 12.0))
def test_no_scores_go_below(tokens, seed, nu):
    scores = torch.randn(tokens, dtype=torch.float64, generator=generator(seed))
    scores *= nu / scores.norm()
    assert entropy_of(scores) >= float(entropy_lower_bound(nu, tokens)) - 1e-10


@needs_scipy
@pytest.mark.parametrize(("nu", "tokens"), [(0.5, 3), (2.0, 8), (6.0, 5)])
def test_minimisation_finds_nothing_lower(nu, tokens):
    """Descent on the sphere from 20 random starts ends at the formula."""
    from scipy.optimize import minimize
    from scipy.special import softmax

    def at(direction):
        p = softmax(nu * direction / np.linalg.norm(direction))
        return -(p * np.log(p)).sum()

    starts = np.random.default_rng(0).standard_normal((20, tokens))
    lowest = min(minimize(at, start, tol=1e-12).fun for start in starts)
    assert lowest == pytest.approx(float(entropy_lower_bound(nu, tokens)), abs=1e-6)


def test_printed_form_exceeds_the_largest_entropy():
    assert entropy_lower_bound(4.0, 64, form="as_printed") > 4 * math.log(64)
    nu = np.linspace(0.01, 10.0, 300)
    assert (entropy_lower_bound(nu, 64, form="as_printed") > math.log(64)).all()


@pytest.mark.parametrize("form", ["corrected", "as_printed"])
def test_attention_layers(form):
    """The least entropy of a query over 60 random layers: never below the corrected bound, always below the printed."""
    below = 0
    for seed in range(60):
        random = generator(seed)
        tokens, width = 6 + seed % 20, 4
        x = 0.3 * torch.randn(width, tokens, dtype=torch.float64, generator=random)
        w = torch.randn(width, width, dtype=torch.float64, generator=random)
        least = entropy((x.mT @ w @ x / 2.0).softmax(dim=0).mT).min().item()
        below += least < entropy_lower_bound(scores_norm_bound(x, w, 2.0), tokens, form) - 1e-12
    assert below == 0 if form == "corrected" else below == 60


@pytest.mark.parametrize(("nu", "tokens", "sentence"), [(1.0, 1, "at least 2"), (-1.0, 4, "nu bounds a norm")])
def test_bad_input(nu, tokens, sentence):
    with pytest.raises(ValueError, match=sentence):
        entropy_lower_bound(nu, tokens)

"""The continuous network: energy, retrieval, limits, and the order of the steppers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extras import needs_scipy
from uncollapse.theory import HopfieldNetwork, stepper_errors

PATTERNS = np.sign(np.random.default_rng(0).standard_normal((5, 24))) / np.sqrt(24)
CUE = PATTERNS[2] + 0.1 * np.random.default_rng(1).standard_normal(24)


@needs_scipy
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.floats(0.5, 20.0), st.sampled_from([0.0, 0.05, 1.0, 5.0]))
def test_energy_never_rises(seed, beta, tau_hidden):
    random = np.random.default_rng(seed)
    network = HopfieldNetwork(random.standard_normal((4, 6)), beta, tau_visible=1.0, tau_hidden=tau_hidden)
    hidden = None if tau_hidden == 0.0 else random.standard_normal(4)
    path = network.solve(random.standard_normal(6), time=10.0, hidden=hidden)
    assert np.diff(path.energy).max() <= 1e-6


def test_energy_falls_at_the_rate_of_the_formula():
    network = HopfieldNetwork(PATTERNS, beta=4.0, tau_visible=0.7, tau_hidden=1.3)
    random = np.random.default_rng(3)
    x, h = random.standard_normal(24), random.standard_normal(5)
    dx, dh = network.velocity(x, h)
    step = 1e-6
    slope = (network.energy(x + step * dx, h + step * dh) - network.energy(x - step * dx, h - step * dh)) / (2 * step)
    f = np.exp(h) / np.exp(h).sum()
    spread = dh @ (np.diag(f) - np.outer(f, f)) @ dh
    assert slope == pytest.approx(-0.7 * dx @ dx - 1.3 / 4.0 * spread, rel=1e-6)


def test_adiabatic_energy():
    network = HopfieldNetwork(PATTERNS, beta=4.0, tau_hidden=0.0)
    scores = network.scores(CUE)
    expected = CUE @ CUE / 2 - np.log(np.exp(scores).sum()) / 4.0
    assert network.energy(CUE) == pytest.approx(expected)


def test_values_of_their_own_have_no_energy():
    network = HopfieldNetwork(PATTERNS, beta=4.0, values=-PATTERNS)
    with pytest.raises(ValueError, match="no energy"):
        network.energy(CUE)


@needs_scipy
def test_the_path_of_values_of_their_own_has_no_energy():
    network = HopfieldNetwork(PATTERNS, beta=4.0, values=-PATTERNS)
    assert network.solve(CUE, time=1.0).energy is None


@needs_scipy
def test_fixed_points_are_those_of_the_softmax_update():
    network = HopfieldNetwork(PATTERNS, beta=12.0)
    end = network.solve(CUE, time=60.0).visible[-1]
    np.testing.assert_allclose(network.softmax_update(end), end, atol=1e-6)


@needs_scipy
def test_a_noisy_cue_retrieves_its_pattern():
    network = HopfieldNetwork(PATTERNS, beta=20.0)
    assert network.retrieve(CUE) == 2
    assert network.solve(CUE).overlap[-1, 2] > 0.99


@needs_scipy
def test_fast_hidden_state_gives_the_softmax_update():
    adiabatic = HopfieldNetwork(PATTERNS, beta=6.0, tau_hidden=0.0)
    gaps = []
    for tau in (1e-2, 1e-3, 1e-4):
        near = HopfieldNetwork(PATTERNS, beta=6.0, tau_hidden=tau).solve(CUE, time=2.0).visible[-1]
        gaps.append(np.abs(near - adiabatic.solve(CUE, time=2.0).visible[-1]).max())
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2]  # falls in proportion to tau_hidden
    one_step = adiabatic.steps(CUE, time=1.0, count=1)[0]  # dt = tau_visible
    np.testing.assert_allclose(one_step, adiabatic.softmax_update(CUE), atol=1e-14)


@needs_scipy
@pytest.mark.parametrize(
    ("scheme", "order"),
    [
        (("forward", "forward"), 1),
        (("forward", "backward"), 1),
        (("backward", "forward"), 1),
        (("backward", "backward"), 1),
        (("central", "forward"), 1),
        (("forward", "central"), 1),
        (("central", "central"), 2),
    ],
)
def test_order_of_the_steppers(scheme, order):
    network = HopfieldNetwork(PATTERNS, beta=6.0, tau_visible=1.0, tau_hidden=0.8)
    errors, measured = stepper_errors(network, CUE, scheme, counts=(50, 100, 200))
    assert measured == pytest.approx(order, abs=0.2)
    assert errors[-1] < 0.02


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"patterns": [1.0, 2.0]}, "one pattern per row"),
        ({"patterns": PATTERNS, "beta": 0.0}, "beta must be positive"),
        ({"patterns": PATTERNS, "tau_hidden": -1.0}, "tau_hidden must not be negative"),
        ({"patterns": PATTERNS, "values": PATTERNS[:2]}, "shape of the patterns"),
    ],
)
def test_bad_networks(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        HopfieldNetwork(**arguments)


def test_bad_questions():
    with pytest.raises(ValueError, match="24 components"):
        HopfieldNetwork(PATTERNS).solve([1.0])
    with pytest.raises(ValueError, match="raise count"):
        HopfieldNetwork(PATTERNS).steps(CUE, time=10.0, count=2)
    with pytest.raises(ValueError, match="hidden cannot be given"):
        HopfieldNetwork(PATTERNS, tau_hidden=0.0).solve(CUE, hidden=np.zeros(5))

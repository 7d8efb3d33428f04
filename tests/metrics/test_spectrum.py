"""The QK spectrum from small products equals that of the M x M matrix, which is formed here only."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uncollapse.metrics import qk_spectrum, qk_traces


def naive(query, key, softmax_scale):
    w = query.double().numpy().T @ key.double().numpy()  # (M, M)
    s = (w + w.T) / 2
    squares = np.trace(s @ s)
    return {
        "trace": np.trace(w),
        "square": np.trace(w @ w),
        "scale": np.trace(w.T @ w),
        "variance": len(w) * squares - np.trace(w) ** 2,
        "spectral_norm": np.linalg.norm(w, 2),
        "xi": np.trace(w) / np.sqrt(squares),
        "eta": np.sqrt(squares) * softmax_scale,
    }


def pair(size, width, seed, kind):
    query, key = torch.randn(2, size, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if kind == "symmetric":
        key = query.clone()
    if kind == "low rank":
        query[1:] = query[:1]
    return query, key


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 6),
    width=st.integers(2, 12),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["general", "symmetric", "low rank"]),
)
def test_every_number_is_that_of_the_whole_matrix(size, width, seed, kind):
    query, key = pair(size, width, seed, kind)
    spectrum, wanted = qk_spectrum(query, key, 0.3), naive(query, key, 0.3)
    size_of_w = wanted["scale"] ** 0.5
    for name, value in wanted.items():
        scale = {"trace": size_of_w, "spectral_norm": size_of_w, "xi": 1.0, "eta": size_of_w}.get(name, size_of_w**2)
        # singular values come from squares, so a double one is good to the root of float64's rounding
        close = 1e-7 if name == "spectral_norm" else 1e-10
        assert getattr(spectrum, name).item() == pytest.approx(value, rel=close, abs=close * max(scale, 1e-300)), name


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 5), extra=st.integers(0, 6), seed=st.integers(0, 10_000))
def test_the_eigenvalues_are_those_of_w_but_for_zeros(size, extra, seed):
    query, key = pair(size, size + extra, seed, "general")
    all_of_w = list(np.linalg.eigvals((query.T @ key).numpy()))
    for value in qk_spectrum(query, key, 1.0).eigenvalues.tolist():
        nearest = min(all_of_w, key=lambda other: abs(other - value))
        assert abs(nearest - value) < 1e-7 * (1 + abs(value))  # eigenvalues of matrices that are not normal
        all_of_w.remove(nearest)
    assert all(abs(rest) < 1e-6 for rest in all_of_w)


def test_identity():
    eye = torch.eye(4, dtype=torch.float64)
    spectrum = qk_spectrum(eye, eye, 0.5)
    assert [t.item() for t in qk_traces(eye, eye)] == [4, 4, 4]
    assert spectrum.variance.item() == 0  # all eigenvalues alike
    assert spectrum.spectral_norm.item() == pytest.approx(1)
    assert spectrum.xi.item() == pytest.approx(2)  # sqrt(d)
    assert spectrum.eta.item() == pytest.approx(1)  # sqrt(d) / lambda, lambda = 2
    assert spectrum.eigenvalues.real.tolist() == [1, 1, 1, 1]


def test_a_rotation_has_imaginary_eigenvalues_a_negative_square_and_no_symmetric_part():
    query, key = torch.eye(2), torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    spectrum = qk_spectrum(query, key, 1.0)
    assert (spectrum.square.item(), spectrum.scale.item()) == (-2, 2)
    assert (spectrum.xi.item(), spectrum.eta.item(), spectrum.variance.item()) == (0, 0, 0)
    assert sorted(spectrum.eigenvalues.imag.tolist()) == [-1, 1]


def test_rank_one():
    spectrum = qk_spectrum(torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([[2.0, 0.0, 0.0]]), 1.0)
    assert (spectrum.trace.item(), spectrum.spectral_norm.item()) == (6, 6)
    assert spectrum.xi.item() == pytest.approx(1)
    assert spectrum.variance.item() == pytest.approx(3 * 36 - 36)


def test_heads_do_not_mix_and_half_precision_weights_are_measured_in_float64():
    query, key = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    together = qk_spectrum(query, key, 1.0)
    for head in range(3):
        alone = qk_spectrum(query[head], key[head], 1.0)
        assert together.xi.dtype == torch.float64
        torch.testing.assert_close(together.spectral_norm[head], alone.spectral_norm)
        assert together.variance[head].item() == pytest.approx(naive(query[head], key[head], 1.0)["variance"])


def test_weights_that_are_not_finite_give_nan_for_their_head_only():
    query, key = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(0))
    query[1, 0, 0] = float("nan")
    spectrum = qk_spectrum(query, key, 1.0)
    for name in ("trace", "square", "scale", "variance", "spectral_norm", "xi", "eta"):
        assert getattr(spectrum, name).isnan().tolist() == [False, True], name
    assert spectrum.eigenvalues.isnan().all(dim=-1).tolist() == [False, True]

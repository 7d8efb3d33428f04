"""A report compared with what the oracle computed, number by number."""

import numpy as np
import pytest

from tests.diagnosis import oracle

# Scores are taken in float32 (1e-7 of scores up to some 50); LLaMA's norms run in float32 in both passes.
CLOSE = {"rel": 2e-5, "abs": 2e-5}
MIXING = {"rel": 2e-5, "abs": 4e-3}  # the bound allows for float32 rounding below its root: 1e-3 of the size of P
TOKEN_COLUMNS = ("residual_ratio", "residual_frobenius", "norm_mean", "stable_rank", "effective_rank", "cosine_mean")
TOKEN_COLUMNS += ("cosine_aligned", "cosine_centred", "cosine_centred_aligned")


def check(report, layers, decompositions=1, query=-1):
    """Compare a report with what the oracle saw."""
    assert report.layers["layer"].tolist() == list(range(1, len(layers) + 1))
    for n, seen in enumerate(layers, start=1):
        row = report.layers.loc[report.layers["layer"] == n].iloc[0]
        wanted = oracle.layer_row(seen, decompositions)
        for name in TOKEN_COLUMNS:
            assert row[name] == pytest.approx(wanted[name], **CLOSE), (n, name)
        low, high = wanted["cosine_median"]
        assert low <= row["cosine_median"] <= high
        assert min(abs(row["cosine_mode"] - mode) for mode in wanted["cosine_mode"]) < 1e-9
        if seen.scores:
            check_heads(report, n, row, oracle.head_rows(seen, query))


def check_heads(report, n, layer, wanted):
    heads = report.heads[report.heads["layer"] == n]
    assert heads["head"].tolist() == list(range(1, len(wanted) + 1))
    for (_, row), expected in zip(heads.iterrows(), wanted, strict=True):
        rho, position = expected.pop("rho"), expected.pop("position")
        for name, value in expected.items():
            close = MIXING if name == "mixing_bound" else CLOSE
            assert row[name] == pytest.approx(value, **close, nan_ok=True), (n, row["head"], name)
        table = report.propagation.query(f"layer == {n} and head == {row['head']}")
        np.testing.assert_allclose(table["rho"], rho)
        np.testing.assert_allclose(table["position"], position)
    assert layer["entropy_mean"] == pytest.approx(np.mean([h["entropy_mean"] for h in wanted]), **CLOSE)
    assert layer["entropy_normalised"] == pytest.approx(np.mean([h["entropy_normalised"] for h in wanted]), **CLOSE)
    assert layer["entropy_min"] == pytest.approx(min(h["entropy_min"] for h in wanted), **CLOSE)
    assert layer["sink"] == pytest.approx(np.mean([h["sink"] for h in wanted]), **CLOSE)
    assert layer["logit_max"] == pytest.approx(max(h["logit_max"] for h in wanted), **CLOSE)
    assert layer["mixing_bound"] == pytest.approx(max(h["mixing_bound"] for h in wanted), **MIXING, nan_ok=True)


def same_table(ours, theirs, rtol, atol):
    """Two tables are the same to rounding; the bound of mixing as far as float32 tells."""
    if "mixing_bound" in ours:
        np.testing.assert_allclose(ours["mixing_bound"], theirs["mixing_bound"], atol=MIXING["abs"])
        ours, theirs = ours.drop(columns="mixing_bound"), theirs.drop(columns="mixing_bound")
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)

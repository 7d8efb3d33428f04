"""Observer: models outside Hugging Face, masks of every shape."""

import numpy as np
import pytest
import torch

import uncollapse as uc
from tests.diagnosis import oracle
from tests.diagnosis.compared import MIXING, check


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def watched(network, x, observer, seen):
    """Pass an AttentionOnly network's tokens, queries and keys to the observer, its scores to the oracle."""
    with torch.no_grad():
        outputs, entering = network(x, is_causal=True), x
        for n, (layer, tokens) in enumerate(zip(network.layers, outputs, strict=True), start=1):
            y = layer.norm(entering)
            q, k = layer.query(y), layer.key(y)
            q, k = (torch.stack(t.chunk(layer.heads, dim=-1), dim=1) for t in (q, k))
            observer.attention(n, q, k, is_causal=True)
            observer.tokens(n, tokens)
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
            oracle.add(seen[n - 1], tokens, scores + torch.full(scores.shape[-2:], -torch.inf).triu(1))
            entering = tokens


def test_attention_only_observed_by_hand():
    torch.manual_seed(0)
    network = uc.AttentionOnly(3, 16, 4, alpha=0.5, alpha_hidden=0.0, init="torch", layer_norm=True).double()
    seen = [oracle.Seen() for _ in network.layers]
    with uc.Observer("mine") as observer:
        for seed, tokens in ((0, 9), (1, 5)):
            watched(network, drawn(3, tokens, 16, seed=seed).double(), observer, seen)
        for n, layer in enumerate(network.layers, start=1):
            query, key = (m.weight.view(4, 4, 16) for m in (layer.query, layer.key))
            observer.weights(n, query, key, 0.5)
    check(observer.diagnosis, seen)
    for n, layer in enumerate(network.layers, start=1):
        for head in range(4):
            rows = slice(4 * head, 4 * head + 4)
            w = (layer.query.weight[rows].T @ layer.key.weight[rows]).detach().numpy()
            row = observer.diagnosis.heads.query(f"layer == {n} and head == {head + 1}").iloc[0]
            for column, value in oracle.spectrum_row(w, 0.5).items():
                assert row[column] == pytest.approx(value, rel=1e-7, abs=1e-9)


B, H, Q, K, D = 3, 4, 6, 8, 5
SHAPES = [(K,), (Q, K), (1, 1, 1, K), (B, 1, 1, K), (B, 1, Q, K), (1, H, Q, K), (B, H, Q, K), (B, H, 1, K)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["bool", "-inf", "smallest", "-1e9", "-1e4", "bias"])
def test_masks_of_every_shape_and_kind(shape, kind):
    """Among them masks that differ between heads, and rows that see one key or none."""
    q, k = drawn(B, H, Q, D), drawn(B, H, K, D, seed=1)
    visible = drawn(*shape, seed=2) > -0.2
    if kind == "bool":
        mask = visible
    elif kind == "bias":
        mask = torch.where(visible, 2 * drawn(*shape, seed=3), -torch.inf)
    else:
        hidden = {"-inf": -torch.inf, "smallest": torch.finfo(torch.float32).min}.get(kind) or float(kind)
        mask = torch.zeros(shape).masked_fill(~visible, hidden)
    with uc.Observer() as observer:
        observer.attention(1, q, k, attn_mask=mask)
        observer.tokens(1, drawn(B, Q, D))
    added = mask.double() if kind == "bias" else torch.zeros(shape).double().masked_fill(~visible, -torch.inf)
    seen = oracle.Seen()
    oracle.add(seen, drawn(B, Q, D), q.double() @ k.double().mT / D**0.5 + added)
    compare_heads(observer.diagnosis, seen)


def compare_heads(report, seen):
    for (_, row), wanted in zip(report.heads.iterrows(), oracle.head_rows(seen), strict=True):
        np.testing.assert_allclose(
            report.propagation.query(f"head == {row['head']}")["rho"], wanted.pop("rho"), err_msg="rho"
        )
        wanted.pop("position")
        for name, value in wanted.items():
            close = MIXING if name == "mixing_bound" else {"rel": 1e-5, "abs": 1e-5}
            assert row[name] == pytest.approx(value, **close, nan_ok=True), (row["head"], name)


def test_grouped_keys_serve_consecutive_heads():
    q, k = drawn(2, 6, 5, 4), drawn(2, 2, 5, 4, seed=1)
    with uc.Observer() as observer:
        observer.attention(1, q, k, scale=0.7, is_causal=True)
    scores = 0.7 * q.double() @ k.double().repeat_interleave(3, dim=1).mT
    seen = oracle.Seen()
    oracle.add(seen, drawn(2, 5, 4), scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf))
    compare_heads(observer.diagnosis, seen)


def test_float64_tokens_keep_their_digits():
    """A study of collapse follows residuals far below the rounding of float32."""
    x = torch.ones(1, 6, 4).double() + 1e-11 * drawn(1, 6, 4).double()
    with uc.Observer() as observer:
        observer.tokens(1, x)
    seen = oracle.Seen()
    oracle.add(seen, x, torch.zeros(1, 1, 6, 6))
    wanted = oracle.layer_row(seen)["residual_frobenius"]
    assert observer.diagnosis.layers["residual_frobenius"].item() == pytest.approx(wanted, rel=1e-3)
    assert wanted < 1e-10


def test_scores_with_nan_are_left_out_and_named():
    q, k = drawn(2, 2, 6, 4), drawn(2, 2, 6, 4, seed=1)
    q[1, 0, 3] = float("nan")
    with uc.Observer() as observer:
        observer.attention(4, q, k)
    report = observer.diagnosis
    assert report.not_finite == 4
    assert report.heads["entropy_mean"].notna().all()


def test_nan_under_a_mask_does_no_harm():
    q, k = drawn(2, 2, 6, 4), drawn(2, 2, 6, 4, seed=1)
    k[:, :, 0] = float("nan")
    mask = torch.ones(6, dtype=torch.bool)
    mask[0] = False
    with uc.Observer() as observer:
        observer.attention(1, q, k, attn_mask=mask)
    assert observer.diagnosis.not_finite is None
    assert observer.diagnosis.heads.notna().all().all()


def test_arguments_that_cannot_go_together_are_refused():
    q, k = drawn(1, 2, 4, 3), drawn(1, 2, 6, 3)
    with uc.Observer() as observer:
        with pytest.raises(ValueError, match="as many queries as keys"):
            observer.attention(1, q, k, is_causal=True)
        with pytest.raises(ValueError, match="cannot go together"):
            observer.attention(1, q, q, is_causal=True, attn_mask=torch.ones(4, 4).bool())
        with pytest.raises(ValueError, match="bool or floating point"):
            observer.attention(1, q, k, attn_mask=torch.ones(4, 6, dtype=torch.long))
        with pytest.raises(ValueError, match="batch, heads, tokens, size"):
            observer.attention(1, q[0], k)
        with pytest.raises(ValueError, match="batch, tokens, width"):
            observer.tokens(1, q)
        with pytest.raises(RuntimeError, match="available after the `with` block"):
            _ = observer.diagnosis


@pytest.mark.parametrize("size", [0.0, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("causal", [False, True])
def test_no_head_leaves_more_than_its_bound(size, causal):
    """What sets tokens apart after attention, over what did before, with padding on the left."""
    q, k, v = size * drawn(3, 2, 9, 4), drawn(3, 2, 9, 4, seed=1), drawn(3, 2, 9, 5, seed=2).double()
    real = torch.arange(9) >= torch.tensor([[0], [2], [5]])
    mask = real[:, None, None, :] & (torch.ones(9, 9).tril().bool() if causal else torch.ones(9, 9).bool())
    bounds = []
    for index in range(3):  # a bound holds for each sequence, a report has their mean
        with uc.Observer() as observer:
            rows = slice(index, index + 1)
            observer.attention(1, q[rows], k[rows], attn_mask=mask[rows], real=real[rows])
        bounds.append(observer.diagnosis.heads["mixing_bound"].to_numpy())
        own = real[index]
        scores = (q[index].double() @ k[index].double().mT / 2.0).masked_fill(~mask[index], -torch.inf)
        before = v[index][:, own]
        after = scores.softmax(dim=-1)[:, own][..., own] @ before
        left, right = (uc.metrics.residual(x).flatten(1).norm(dim=1).numpy() for x in (after, before))
        assert (left <= bounds[-1] * right).all()
    with uc.Observer() as observer:
        observer.attention(1, q, k, attn_mask=mask, real=real)
    np.testing.assert_allclose(observer.diagnosis.heads["mixing_bound"], np.mean(bounds, axis=0), atol=1e-3)
    assert observer.diagnosis.layers["mixing_bound"].item() == observer.diagnosis.heads["mixing_bound"].max()

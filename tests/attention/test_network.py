"""AttentionOnly against the formula, and what it accepts."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import uncollapse as uc
from uncollapse.metrics import residual_ratio

ROUNDING = {"rtol": 1e-10, "atol": 1e-12}  # float64


def by_formula(network, x, alpha, rule, is_causal=False, skip="stream"):
    """x_{n+1} = alpha x + (1 - alpha) W_O softmax(H_n) V, from the weights alone, heads as slices of the width."""
    tokens, hidden = [], None
    for n, layer in enumerate(network.layers, start=1):
        y = functional.layer_norm(x, x.shape[-1:], layer.norm.weight, layer.norm.bias)
        keep, take = rule.coefficients(n)
        size = x.shape[-1] // layer.heads
        scores = torch.stack(
            [
                (y @ layer.query.weight.T + layer.query.bias)[..., h * size : (h + 1) * size]
                @ (y @ layer.key.weight.T + layer.key.bias)[..., h * size : (h + 1) * size].mT
                / size**0.5
                for h in range(layer.heads)
            ],
            dim=1,
        )
        hidden = take * scores if hidden is None else keep * hidden + take * scores
        shown = hidden + torch.full(hidden.shape[-2:], -torch.inf, dtype=x.dtype).triu(1) if is_causal else hidden
        v = y @ layer.value.weight.T + layer.value.bias
        heads = [shown.softmax(-1)[:, h] @ v[..., h * size : (h + 1) * size] for h in range(layer.heads)]
        skipped = y if skip == "normed" else x
        x = alpha * skipped + (1 - alpha) * (torch.cat(heads, -1) @ layer.output.weight.T + layer.output.bias)
        tokens.append(x)
    return tokens


@pytest.mark.parametrize("skip", ["stream", "normed"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rule", [uc.ScoreRule.hopfield(0.6), uc.ScoreRule.revit(0.3)], ids=["hopfield", "revit"])
def test_equals_the_formula(rule, is_causal, skip):
    torch.manual_seed(0)
    settings = {"alpha": 0.4, "rule": rule, "layer_norm": True, "init": "torch"}
    network = uc.AttentionOnly(4, width=12, heads=3, skip=skip, **settings).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    wanted = by_formula(network, x, 0.4, rule, is_causal, skip)
    for out, expected in zip(network(x, is_causal=is_causal), wanted, strict=True):
        torch.testing.assert_close(out, expected, **ROUNDING)


def test_alpha_defaults_to_the_rules_own():
    assert uc.AttentionOnly(1, 4, 1).alpha == 0.5
    assert uc.AttentionOnly(1, 4, 1, rule=uc.ScoreRule.realformer()).alpha == 0.0
    assert uc.AttentionOnly(1, 4, 1, alpha=0.0).alpha == 0.0


def test_what_is_switched_off_has_no_weights():
    full = uc.AttentionOnly(2, 8, 2, layer_norm=True)
    bare = uc.AttentionOnly(2, 8, 2, value_projection=False, output_projection=False, bias=False)
    assert len(dict(full.named_parameters())) == 2 * (2 + 4 * 2)
    assert {name.split(".", 2)[2] for name, _ in bare.named_parameters()} == {"query.weight", "key.weight"}


def test_without_projections_tokens_are_averages_of_tokens():
    network = uc.AttentionOnly(3, 8, 2, alpha=0.0, value_projection=False, output_projection=False)
    x = torch.rand(1, 6, 8)
    for out in network(x):
        assert (out >= x.amin(1, keepdim=True) - 1e-6).all()  # float32 rounding of a weighted mean
        assert (out <= x.amax(1, keepdim=True) + 1e-6).all()


def test_initialisations_have_their_spread():
    width, spread = 256, {}
    for init in ("timm", "xavier", "torch"):
        torch.manual_seed(0)
        network = uc.AttentionOnly(1, width, 4, init=init)
        spread[init] = network.layers[0].query.weight.std().item()
        assert (network.layers[0].query.bias == 0).all() == (init != "torch")
    assert spread["timm"] == pytest.approx(0.02, rel=0.02)  # 65,536 draws: 0.3 % sampling error
    assert spread["xavier"] == pytest.approx((2 / (2 * width)) ** 0.5, rel=0.02)
    assert spread["torch"] == pytest.approx((1 / (3 * width)) ** 0.5, rel=0.02)


def test_attention_alone_collapses_and_the_visible_skip_prevents_it():
    torch.manual_seed(0)
    x = torch.randn(2, 32, 48)
    ratios = {}
    for alpha in (0.0, 0.5):
        torch.manual_seed(1)
        settings = {"alpha_hidden": 0.0, "skip": "normed", "layer_norm": True, "init": "xavier"}
        network = uc.AttentionOnly(12, 48, 3, alpha=alpha, **settings)
        with torch.no_grad():
            ratios[alpha] = residual_ratio(network(x)[-1]).mean().item()
    assert ratios[0.0] < 1e-5 < 0.01 < ratios[0.5]


def test_it_trains():
    torch.manual_seed(0)
    network = uc.AttentionOnly(3, 8, 2, layer_norm=True, init="torch")
    x, target = torch.randn(4, 5, 8), torch.randn(4, 5, 8)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = nn.functional.mse_loss(network(x)[-1], target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


BAD = {
    "alpha": ({"alpha": -0.5}, "alpha must lie in [0, 1], got -0.5."),
    "alpha_hidden": ({"alpha_hidden": 2}, "alpha_hidden must lie in [0, 1], got 2."),
    "heads": ({"heads": 3}, "heads must divide width, got width 8 and 3 heads."),
    "depth": ({"depth": 0}, "depth must be at least 1, got 0."),
    "init": ({"init": "zeros"}, "init must be one of timm, xavier, torch, got 'zeros'."),
    "scheme": ({"scheme": ("forward", "sideways")}, "scheme must name two of forward, backward, central"),
    "one difference": (
        {"scheme": ("forward",)},
        "scheme must name two differences, for x and for h, got ('forward',).",
    ),
    "backend": ({"backend": "nonsense"}, "backend must be one of auto, reference"),
    "rule": ({"rule": "realformer"}, "rule must be ScoreRule.hopfield(alpha_hidden, start)"),
    "scheme and backend": (
        {"scheme": ("forward", "forward"), "backend": "reference"},
        "backend 'reference' goes with scheme ('forward', 'backward')",
    ),
    "scheme and rule": (
        {"scheme": ("forward", "forward"), "rule": uc.ScoreRule.realformer()},
        "scheme ('forward', 'forward') goes with rule 'hopfield', not 'realformer'.",
    ),
    "scheme and LayerNorm": (
        {"scheme": ("backward", "forward"), "layer_norm": True},
        "layer_norm=True needs a forward visible difference, got 'backward'.",
    ),
}


def test_settings_are_keyword_only():
    with pytest.raises(TypeError, match="positional argument"):
        uc.AttentionOnly(1, 8, 2, 0.5)


@pytest.mark.parametrize(("options", "sentence"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        uc.AttentionOnly(**{"depth": 1, "width": 8, "heads": 2} | options)

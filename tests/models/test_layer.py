"""HopfieldAttention against `convert` of the same model with ordinary attention, and what it accepts."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import uncollapse as uc
from uncollapse.attention.learned import raw_value, share

WIDTH, HEADS, DEPTH, TOKENS = 16, 4, 3, 7
READINGS = ("stream", "normed", "replace")
ROUNDING = {"rtol": 1e-10, "atol": 1e-12}  # float64


class StockAttention(nn.Module):
    """Ordinary attention with the weights of a HopfieldAttention."""

    def __init__(self, kv_heads, causal):
        super().__init__()
        self.size, self.causal = WIDTH // HEADS, causal
        self.query, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = (nn.Linear(WIDTH, kv_heads * self.size) for _ in range(2))

    def forward(self, y):
        q, k, v = (p(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.query, self.key, self.value))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)
        return self.output(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class StockBlock(Block):
    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class OwnBlock(Block):
    def __init__(self, attention, skip):
        super().__init__(attention)
        self.skip = skip

    def forward(self, x, state):
        y = self.ln_1(x)
        if self.skip == "replace":
            x, state = self.attn(y, state, x=x)
        elif self.skip == "stream":
            out, state = self.attn(y, state, x=x)
            x = x + out
        else:
            out, state = self.attn(y, state)
            x = x + out
        return x + self.mlp(self.ln_2(x)), state


class OwnModel(nn.Module):
    def __init__(self, blocks, checkpointed=False):
        super().__init__()
        self.blocks, self.checkpointed = nn.ModuleList(blocks), checkpointed

    def forward(self, x):
        state = None
        for block in self.blocks:
            if self.checkpointed:
                x, state = checkpoint(block, x, state, use_reentrant=False)
            else:
                x, state = block(x, state)
        return x


class StockModel(nn.Module):
    def __init__(self, kv_heads=HEADS, causal=True):
        super().__init__()
        self.blocks = nn.ModuleList(StockBlock(StockAttention(kv_heads, causal)) for _ in range(DEPTH))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def own_model(stock, skip="stream", checkpointed=False, **settings):
    """The same weights, with HopfieldAttention for the attention."""
    layers = [uc.HopfieldAttention(WIDTH, HEADS, **settings) for _ in range(DEPTH)]
    model = OwnModel([OwnBlock(layer, skip) for layer in layers], checkpointed).to(torch.float64)
    missing, unexpected = model.load_state_dict(stock.state_dict(), strict=False)
    assert not unexpected
    assert all(".uncollapse." in name for name in missing)
    return model


def stock_model(**shape):
    torch.manual_seed(0)
    model = StockModel(**shape).double()
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, StockAttention):
                layer.query.weight.mul_(4.0)  # attention far from uniform
    return model


def tokens(seed=0):
    return torch.randn(2, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(model):
    """Output, and the gradients of the input and of every weight that both models have."""
    x = tokens(1).requires_grad_()
    out = model(x)
    out.square().sum().backward()
    names = {name: p.grad for name, p in model.named_parameters() if ".uncollapse." not in name}
    return out.detach(), x.grad, names


@pytest.mark.parametrize("backend", ["auto", "reference", "stacked"])
@pytest.mark.parametrize("skip", READINGS)
def test_equals_convert_in_outputs_and_gradients(skip, backend):
    stock = stock_model()
    own = own_model(stock, skip, alpha=0.3, alpha_hidden=0.6, causal=True, backend=backend)
    converted = uc.convert(stock, alpha=0.3, alpha_hidden=0.6, skip=skip, backend=backend, example=tokens())
    torch.testing.assert_close(gradients(own), gradients(converted), **ROUNDING)


@pytest.mark.parametrize("rule", [uc.ScoreRule.realformer(), uc.ScoreRule.revit(0.3), uc.ScoreRule.self_attention()])
def test_equals_convert_with_other_rules_grouped_heads_and_no_mask(rule):
    stock = stock_model(kv_heads=2, causal=False)
    own = own_model(stock, rule=rule, kv_heads=2)
    converted = uc.convert(stock, rule=rule, example=tokens())
    torch.testing.assert_close(gradients(own), gradients(converted), **ROUNDING)


def test_without_alpha_and_alpha_hidden_it_is_ordinary_attention():
    stock = stock_model()
    own = own_model(stock, alpha=0.0, alpha_hidden=0.0, causal=True)
    torch.testing.assert_close(gradients(own), gradients(stock), **ROUNDING)


@pytest.mark.parametrize("skip", READINGS)
def test_checkpointing_a_block_changes_nothing(skip):
    stock = stock_model()
    plain, checkpointed = (own_model(stock, skip, checkpointed=c, causal=True).train() for c in (False, True))
    torch.testing.assert_close(gradients(checkpointed), gradients(plain), **ROUNDING)


@pytest.mark.parametrize("skip", READINGS)
def test_learned_coefficients_get_the_gradient_of_the_numbers_they_stand_for(skip):
    own = own_model(stock_model(), skip, alpha="learned:0.3", alpha_hidden="learned:0.6", causal=True)
    with torch.no_grad():  # they were made in float32
        for block in own.blocks:
            block.attn.uncollapse.visible.fill_(raw_value(0.3))
            block.attn.uncollapse.hidden.fill_(raw_value(0.6))
    numbers = own_model(stock_model(), skip, alpha=0.3, alpha_hidden=0.6, causal=True)
    torch.testing.assert_close(gradients(own), gradients(numbers), **ROUNDING)
    learned = own.blocks[1].attn.uncollapse
    for parameter, key in ((learned.hidden, "alpha_hidden"), (learned.visible, "alpha")):
        raw = parameter.detach()[:1].clone().requires_grad_()
        slope = torch.autograd.grad(share(raw).sum(), raw)[0].item()
        assert parameter.grad.sum().item() == pytest.approx(slope * by_difference(key, skip), rel=1e-5)


@pytest.mark.parametrize("skip", READINGS)
def test_learned_coefficients_equal_those_of_convert(skip):
    stock, learned = stock_model(), {"alpha": "learned:0.5", "alpha_hidden": "learned:0.5"}  # 0.5 is exact in float32
    own = own_model(stock, skip, **learned, causal=True)
    converted = uc.convert(stock, **learned, skip=skip, example=tokens())
    torch.testing.assert_close(gradients(own), gradients(converted), **ROUNDING)
    ours, theirs = (dict(m.named_parameters())["blocks.1.attn.uncollapse.hidden"].grad for m in (own, converted))
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def by_difference(key, skip, step=1e-5):
    """The derivative of the loss by a coefficient of layer 2, from two models whose coefficients are numbers."""
    losses = []
    for sign in (1, -1):
        model = own_model(stock_model(), skip, alpha=0.3, alpha_hidden=0.6, causal=True)
        start = {"alpha": 0.3, "alpha_hidden": 0.6}[key]
        uc.set_alpha(model.blocks[1], **{key: start + sign * step})
        losses.append(model(tokens(1)).square().sum().item())
    return (losses[0] - losses[1]) / (2 * step)


def test_learned_coefficients_have_a_parameter_group_and_travel_in_the_state_dict():
    own = own_model(stock_model(), alpha="learned:0", alpha_hidden="learned:0", causal=True)
    torch.testing.assert_close(own(tokens()), stock_model()(tokens()), **ROUNDING)  # starts as ordinary attention
    _, learned = uc.parameter_groups(own, lr=1e-3, weight_decay=0.1)
    assert len(learned["params"]) == 2 * DEPTH
    assert learned["weight_decay"] == 0.0
    with torch.no_grad():
        own.blocks[0].attn.uncollapse.hidden.add_(1.0)
    again = own_model(stock_model(), alpha="learned:0", alpha_hidden="learned:0", causal=True)
    again.load_state_dict(own.state_dict())
    assert torch.equal(again(tokens()), own(tokens()))
    assert torch.equal(copy.deepcopy(own)(tokens()), own(tokens()))


def test_set_alpha_changes_every_layer():
    stock = stock_model()
    raised = uc.set_alpha(own_model(stock, alpha=0.0, alpha_hidden=0.0, causal=True), alpha=0.3, alpha_hidden=0.6)
    torch.testing.assert_close(raised(tokens()), own_model(stock, alpha=0.3, alpha_hidden=0.6, causal=True)(tokens()))
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\], got 2"):
        uc.set_alpha(raised, alpha=2.0)
    with pytest.raises(ValueError, match="alpha of this model is learned"):
        uc.set_alpha(own_model(stock, alpha="learned"), alpha=0.1)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_of_padding_does_not_lift_causality(kind):
    layer = uc.HopfieldAttention(WIDTH, HEADS, causal=True).double()
    x = tokens()
    real = torch.ones(2, TOKENS, dtype=torch.bool)
    real[1, 5:] = False
    mask = real[:, None, None, :]
    if kind == "float":
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))
    out, _ = layer(x, attn_mask=mask)
    torch.testing.assert_close(out[0], layer(x)[0][0], **ROUNDING)  # no padding in the first
    later = x.clone()
    later[1, 3:] += 1.0
    torch.testing.assert_close(layer(later, attn_mask=mask)[0][1, :3], out[1, :3], **ROUNDING)
    padded = x.clone()
    padded[1, 5:] += 1.0
    torch.testing.assert_close(layer(padded, attn_mask=mask)[0][1, :5], out[1, :5], **ROUNDING)


def test_project_may_be_overridden_for_rotary_positions():
    angle = torch.arange(TOKENS, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)

    def rotated(t):  # coordinate pairs (i, i + D/2)
        one, other = t.chunk(2, dim=-1)
        return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], dim=-1)

    class Rotary(uc.HopfieldAttention):
        def project(self, y):
            q, k, v = super().project(y)
            return rotated(q), rotated(k), v

    layer = Rotary(WIDTH, HEADS, alpha=0.0, alpha_hidden=0.0).double()
    q, k, v = (p(tokens()).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (layer.query, layer.key, layer.value))
    wanted = functional.scaled_dot_product_attention(rotated(q), rotated(k), v)
    torch.testing.assert_close(layer(tokens())[0], layer.output(wanted.transpose(1, 2).flatten(2)), **ROUNDING)


def test_dropout_acts_in_training_only():
    layer = uc.HopfieldAttention(WIDTH, HEADS, dropout=0.5).double()
    torch.manual_seed(0)
    assert not torch.equal(layer(tokens())[0], layer(tokens())[0])
    layer.eval()
    assert torch.equal(layer(tokens())[0], layer(tokens())[0])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"heads": 3}, "heads must divide width, got width 16 and 3 heads"),
        ({"kv_heads": 3}, "kv_heads must divide heads, got 4 heads and 3 key/value heads"),
        ({"dropout": 1.5}, "dropout must lie in [0, 1], got 1.5"),
        ({"alpha": -0.1}, "alpha must lie in [0, 1], got -0.1"),
        ({"alpha": "often"}, "alpha must be a number from 0 to 1, 'learned' or"),
        ({"backend": "fast"}, "backend must be one of auto,"),
    ],
)
def test_what_does_not_go_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        uc.HopfieldAttention(**{"width": WIDTH, "heads": HEADS} | settings)


def test_tokens_of_another_shape_are_refused():
    layer = uc.HopfieldAttention(WIDTH, HEADS)
    with pytest.raises(ValueError, match=r"x must have the shape of y, \(2, 7, 16\), got \(2, 6, 16\)"):
        layer(torch.randn(2, 7, 16), x=torch.randn(2, 6, 16))
    with pytest.raises(ValueError, match=r"y must be \(batch, tokens, width\), got \(7, 16\)"):
        layer(torch.randn(7, 16))


def test_compiled_fullgraph_equals_eager():
    torch._dynamo.reset()
    own = own_model(stock_model(), alpha="learned:0.3", alpha_hidden="learned:0.6", causal=True)
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens()), own(tokens()), **ROUNDING)


def test_a_model_of_such_layers_is_planned_and_diagnosed_with_its_inherited_scores():
    stock = stock_model()
    own = own_model(stock, alpha=0.3, alpha_hidden=0.6, causal=True)
    converted = uc.convert(stock, alpha=0.3, alpha_hidden=0.6, example=tokens())
    plan = uc.plan(own, example=tokens())
    assert [layer.name for layer in plan.stacks[0].layers] == [f"blocks.{n}.attn" for n in range(DEPTH)]
    assert {layer.kind for layer in plan.stacks[0].layers} == {"hopfield"}
    ours, theirs = (uc.diagnose(model, tokens(), progress=False) for model in (own, converted))
    assert ours.missing == {}
    for table in ("layers", "heads"):
        one, other = getattr(ours, table), getattr(theirs, table)
        torch.testing.assert_close(*(torch.tensor(t.select_dtypes("number").to_numpy()) for t in (one, other)))
    with pytest.raises(ValueError, match=r"blocks\.0\.attn inherits scores already"):
        uc.convert(own, example=tokens())

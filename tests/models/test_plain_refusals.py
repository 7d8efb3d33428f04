"""Plain modules that cannot inherit scores: each gets a sentence, and is left as it was."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import uncollapse as uc
from tests.models.modules import (
    WIDTH,
    Biased,
    BranchedDecoder,
    ImageTransformer,
    NanoGPT,
    Recursion,
    build,
    first,
    ids,
    images,
    split,
    vectors,
)


class Block(nn.Module):
    """One layer; `attend` says how."""

    def __init__(self, attend):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend = attend

    def branch(self, x):
        q, k, v = (split(t) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        return x + self.branch(x)


sdpa = functional.scaled_dot_product_attention


def causal(q, k, v):
    return sdpa(q, k, v, is_causal=True)


def window(q, k, v):
    near = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril().triu(-1)
    return sdpa(q, k, v, attn_mask=near)


class Windows(Block):
    """As Swin: attention within windows of the sequence."""

    def branch(self, x):
        return super().branch(x.unflatten(1, (-1, 4)).flatten(0, 1)).unflatten(0, (len(x), -1)).flatten(1, 2)


class Pooled(Block):
    def forward(self, x):
        return super().forward(x)[:, ::2]


class Twice(Block):
    """As differential attention: two maps, one subtracted from the other."""

    def branch(self, x):
        q, k, v = (split(t) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return self.proj((sdpa(q, k, v) - 0.5 * sdpa(k, q, v)).transpose(1, 2).flatten(2))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(sdpa)

    def forward(self, x):
        return self.block(self.block(x))


class Crossed(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, memory):
        q, k, v = split(self.q(x)), split(self.k(memory)), split(self.v(memory))
        return x + self.o(sdpa(q, k, v).transpose(1, 2).flatten(2))


class Unprojected(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        return x + sdpa(q, k, v).transpose(1, 2).flatten(2)


def of(*blocks):
    return lambda: nn.Sequential(*[block() for block in blocks])


def zero_key():
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 3, 24, batch_first=True), 2, enable_nested_tensor=False
    )


def add_zero_attn(model):
    for layer in model.layers:
        layer.self_attn.add_zero_attn = True
    return model


REFUSED = {
    "windows": (
        of(lambda: Windows(sdpa), lambda: Windows(sdpa)),
        lambda: vectors(tokens=8),
        {},
        r"0 attends over 4 groups of 4 tokens where tokens of shape \(2, 8, 12\) enter 0, .*\(windows\?\)",
    ),
    "different tokens": (
        of(lambda: Pooled(sdpa), lambda: Pooled(sdpa)),
        vectors,
        {},
        r"its layers attend over different tokens: 0 has scores of shape \(2, 3, 7, 7\), 1 of \(2, 3, 4, 4\)",
    ),
    "attends twice": (
        of(lambda: Twice(sdpa), lambda: Twice(sdpa)),
        vectors,
        {},
        "0 attends more than once in a forward pass, so its layers cannot be told apart",
    ),
    "one module for all layers": (Shared, vectors, {}, "block attends more than once in a forward pass"),
    "cross-attention only": (
        Crossed,
        lambda: (vectors(), vectors(tokens=5)),
        {},
        "no self-attention was found; the model itself: cross-attention: its keys come from other tokens",
    ),
    "no output projection": (
        of(Unprojected, Unprojected),
        vectors,
        {},
        "no output projection was found after 0; use alpha=0",
    ),
    "extra keys": (
        lambda: add_zero_attn(zero_key()),
        vectors,
        {},
        "no self-attention was found; layers.0.self_attn: it uses add_zero_attn, which adds keys that are no tokens",
    ),
    "a causal layer before a window": (
        of(lambda: Block(causal), lambda: Block(window)),
        vectors,
        {},
        r"1 has a mask of its own \(a window\?\) after a layer that is causal without one.*use backend='reference'",
    ),
    "LayerScale and replace": (
        lambda: ImageTransformer(scaled=True),
        images,
        {"skip": "replace"},
        "blocks.0.attn: something other than the sum, such as LayerScale or a gate, follows W_O; use skip='stream'",
    ),
    "dropout and replace": (
        lambda: ImageTransformer(drop=0.1),
        images,
        {"skip": "replace"},
        r"dropout or stochastic depth of 0\.1 lies between W_O and the block's sum; use skip='stream'",
    ),
}


@pytest.mark.parametrize(("make", "example", "settings", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_converted_is_refused_and_left_alone(make, example, settings, sentence):
    model = make().train()
    with pytest.raises(ValueError, match=sentence):
        uc.convert(model, alpha=0.3, **settings, example=example())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("_uncollapse" in key for m in model.modules() for key in m.__dict__)
    assert all(module.training for module in model.modules())


def test_a_window_after_a_causal_layer_is_served_by_the_reference():
    model = uc.convert(nn.Sequential(Block(causal), Block(window)), backend="reference", example=vectors())
    assert model(vectors()).shape == (2, 7, WIDTH)


def test_without_an_output_projection_scores_are_inherited_at_alpha_0():
    model = nn.Sequential(Unprojected(), Unprojected()).double()
    x = vectors().double()
    stock = model(x)
    assert not torch.allclose(uc.convert(model, alpha=0.0, alpha_hidden=0.6, example=x)(x), stock)


def test_a_refused_second_conversion_leaves_the_first():
    model, batch = build("timm_layer_scale")
    wanted = uc.convert(model, alpha=0.3, example=batch)(batch)
    with pytest.raises(ValueError, match="skip='replace' cannot be exact"):
        uc.convert(model, alpha=0.3, skip="replace", example=batch)
    assert torch.equal(model(batch), wanted)


def test_stochastic_depth_on_a_part_of_the_batch_is_refused():
    """DINOv2 attends to a random subset of the sequences while it trains."""

    class Subset(Block):
        def forward(self, x):
            if not self.training:
                return super().forward(x)
            chosen = torch.randperm(len(x))[: len(x) // 2]
            return x.index_add(0, chosen, self.branch(x[chosen]))

    for alpha in (0.0, 0.3):
        model = uc.convert(nn.Sequential(Subset(sdpa), Subset(sdpa)), alpha=alpha, example=vectors(rows=4))
        model.eval()(vectors(rows=4))
        with pytest.raises(ValueError, match=r"0 attends over 2 sequences of 7 tokens .* part of the batch"):
            model.train()(vectors(rows=4))


def test_layers_that_are_skipped_or_out_of_order_are_refused():
    model = uc.convert(nn.Sequential(*[Block(sdpa) for _ in range(3)]), example=vectors())
    with pytest.raises(ValueError, match="2 ran without the layer before it"):
        model[2](model[0](vectors()))
    with pytest.raises(ValueError, match="1 ran without the layer before it"):
        model[1](model[1](model[0](vectors())))


def test_a_module_that_stops_attending_is_noticed():
    model, batch = build("timm")
    uc.convert(model, example=batch)
    model.blocks[1].attn.fused_attn = False
    with pytest.raises(ValueError, match=r"blocks\.1\.attn attended 0 times in one forward"):
        model(batch)


def test_a_change_that_zero_does_not_undo_is_refused():
    """Something of the model that looks at its own hooks: the converted one is another model, even at 0."""

    class Wary(Block):
        def forward(self, x):
            return super().forward(x) * (
                2.0 if any(f.__name__ == "remember" for f in self._forward_pre_hooks.values()) else 1.0
            )

    model = nn.Sequential(Wary(sdpa), Wary(sdpa))
    with pytest.raises(ValueError, match="with alpha = alpha_hidden = 0 it does not give its stock output"):
        uc.convert(model, example=vectors())
    assert not any(m._forward_hooks for m in model.modules())


def test_flex_attention_is_named():
    from torch.nn.attention.flex_attention import flex_attention

    model = nn.Sequential(Block(flex_attention), Block(flex_attention))
    with pytest.raises(ValueError, match=r"no attention was found in Sequential: it calls .*flex_attention"):
        uc.convert(model, example=vectors())


def test_a_module_called_in_another_way_is_noticed():
    model = uc.convert(nn.Sequential(Block(sdpa), Block(sdpa)), alpha=0.3, example=vectors())
    with pytest.raises(ValueError, match="was called with other arguments than in the trial"):
        model[0](x=vectors())


def test_layers_and_blocks_may_be_named():
    model = NanoGPT()
    plan = uc.plan(model, example=ids(), layers="h.[12].attn")
    assert [layer.name for layer in plan.stacks[0].layers] == ["h.1.attn", "h.2.attn"]
    assert ("h.0.attn", "layers does not name it") in plan.left_out
    with pytest.raises(
        ValueError, match=r"layers names 'g\.\*', where no attention was seen; it was seen in h\.0\.attn"
    ):
        uc.plan(model, example=ids(), layers="g.*")
    with pytest.raises(
        ValueError, match=r"blocks must name one module around each layer, and names 0 around h\.0\.attn"
    ):
        uc.plan(model, example=ids(), blocks="g.*")


@pytest.mark.parametrize("skip", ["stream", "normed", "replace"])
def test_named_blocks_and_layers_give_the_recursion(skip):
    model, batch = build("nanogpt")
    wanted = model.written_out(batch, Recursion(0.3, 0.6, skip))
    names = {"layers": [f"h.{n}.attn" for n in range(4)], "blocks": "h.?"}
    got = first(uc.convert(model, alpha=0.3, alpha_hidden=0.6, skip=skip, example=batch, **names)(batch))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)  # float64 through four layers


def test_tokens_are_those_that_leave_the_named_blocks():
    torch.manual_seed(1)
    model, x, recursion = Biased().double().eval(), vectors().double(), Recursion(0.0, 0.0, "stream")
    with torch.no_grad():
        model.written_out(x, recursion)
    for blocks, offset in (("?.0", 0.0), ("?", 1.0)):  # the offset is added outside of the inner block
        streams = [stream + offset for stream in recursion.streams]
        wanted = [float(torch.stack([uc.metrics.residual_ratio(one) for one in x]).mean()) for x in streams]
        report = uc.diagnose(model, x, blocks=blocks, progress=False)
        assert report.layers["residual_ratio"].tolist() == pytest.approx(wanted, abs=3e-6)  # taken in float32


def test_named_layers_are_the_ones_converted():
    torch.manual_seed(0)
    model = NanoGPT().double().eval()
    uc.convert(model, alpha=0.0, alpha_hidden=0.6, layers="h.[01].attn", example=ids())
    assert len([m for m in model.modules() if m._forward_hooks]) == 4  # two attentions and two output projections
    report = uc.diagnose(uc.restore(model), ids(), layers="h.[23].attn", progress=False)
    assert report.layers["name"].tolist() == ["h.2.attn", "h.3.attn"]


def test_branches_have_no_blocks_to_name():
    with pytest.raises(ValueError, match=r"the modules around it are layers\.0\.1\.attend, layers\.0\.1"):
        uc.plan(BranchedDecoder(), example=ids(), blocks="layers.?")

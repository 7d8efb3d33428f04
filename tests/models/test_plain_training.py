"""What goes on working in a converted plain module: checkpointing, compilation, adapters, threads, and so on."""

import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import uncollapse as uc
from tests.models.modules import WIDTH, Encoder, NanoGPT, Recursion, build, first, ids, split, vectors
from uncollapse.models import _recomputation as recomputation

READINGS = ("stream", "normed", "replace")
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64 through four layers
ALPHAS = {"alpha": 0.3, "alpha_hidden": 0.6}


def converted(name="nanogpt", **settings):
    model, batch = build(name)
    return uc.convert(model, **(ALPHAS | settings), example=batch), batch


def gradients(model, *losses):
    model.zero_grad()
    sum(losses).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other, **ROUNDING)


def selective(ctx, function, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if function in products else CheckpointPolicy.PREFER_RECOMPUTE


KINDS = {
    "plain": {},
    "selective": {"context_fn": partial(create_selective_checkpoint_contexts, selective)},
    "without early stop": {"early_stop": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", READINGS)
@pytest.mark.parametrize("flash", [True, False], ids=["sdpa", "written out"])
def test_checkpointed_gradients_are_the_unchecked_ones(flash, skip, kind):
    model, batch = converted("nanogpt" if flash else "nanogpt_written_out", skip=skip)
    wanted = gradients(model, first(model(batch)).square().sum())
    model.checkpointing = {"use_reentrant": False} | KINDS[kind]
    assert_same(gradients(model, first(model(batch)).square().sum()), wanted)


@pytest.mark.parametrize("backend", ["reference", "carried", "stacked"])
def test_two_passes_before_one_backward(backend):
    model, batch = converted(backend=backend)
    other = (batch + 1) % 11
    wanted = gradients(model, first(model(batch)).square().sum(), first(model(other)).sin().sum())
    model.checkpointing = {"use_reentrant": False}
    assert_same(gradients(model, first(model(batch)).square().sum(), first(model(other)).sin().sum()), wanted)


def test_checkpointing_keeps_nothing_after_backward():
    model, batch = converted()
    model.checkpointing = {"use_reentrant": False}
    loss = first(model(batch)).square().sum()
    held = len(recomputation._KEPT)
    loss.backward()
    del loss
    gc.collect()
    assert held >= 4
    assert len(recomputation._KEPT) == held - 4


def test_dropout_is_drawn_again_as_it_was():
    torch.manual_seed(0)
    model = uc.convert(NanoGPT(dropout=0.3).double(), **ALPHAS, example=ids()).train()
    found = []
    for checkpointing in (None, {"use_reentrant": False}):
        model.checkpointing = checkpointing
        torch.manual_seed(5)
        found.append(gradients(model, first(model(ids())).square().sum()))
    assert_same(*found)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_switch_as_timm_has_it(when, every):
    """`set_grad_checkpointing` wraps one block or several in a region, before or after the conversion."""
    model, batch = build("timm")
    wanted = model.written_out(batch, Recursion(0.3, 0.6, "stream"))
    wanted_gradients = gradients(model, wanted.square().sum())
    model.set_grad_checkpointing(when == "before", every)
    uc.convert(model.train(), **ALPHAS, example=batch)
    model.set_grad_checkpointing(every=every)
    got = model(batch)
    torch.testing.assert_close(got, wanted, **ROUNDING)
    assert_same(gradients(model, got.square().sum()), wanted_gradients)


def test_reentrant_checkpointing_is_refused():
    model, batch = converted()
    model.checkpointing = {"use_reentrant": True}
    x = first(model(batch))
    with pytest.raises(
        ValueError, match=r"h\.3\.attn: inherited scores under reentrant or nested .* use_reentrant=False"
    ):
        x.square().sum().backward()


def test_nested_checkpointing_is_right_or_refused():
    model, batch = converted()
    wanted = gradients(model, first(model(batch)).square().sum())
    block, model.checkpointing = model.h[2], {"use_reentrant": False}

    def attended(x):
        return x + block.attn(block.ln_1(x))

    def fed(x):
        return x + block.mlp(block.ln_2(x))

    block.forward = lambda x: checkpoint(lambda z: fed(attended(z)), x, use_reentrant=False)
    assert_same(gradients(model, first(model(batch)).square().sum()), wanted)
    block.forward = lambda x: fed(checkpoint(attended, x, use_reentrant=False))
    with pytest.raises(ValueError, match=r"h\.2\.attn: inherited scores under reentrant or nested"):
        first(model(batch)).square().sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_inside_the_attention_is_refused(reentrant):
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.proj, self.careful = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), False

        def attend(self, q, k, v):
            return functional.scaled_dot_product_attention(q, k, v)

        def forward(self, x):
            q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
            out = checkpoint(self.attend, q, k, v, use_reentrant=reentrant) if self.careful else self.attend(q, k, v)
            return x + self.proj(out.transpose(1, 2).flatten(2))

    model = uc.convert(nn.Sequential(Careful(), Careful()), **ALPHAS, example=vectors())
    for layer in model:
        layer.careful = True
    with pytest.raises(ValueError, match=r"0 checkpoints its own attention, .*checkpoint the block around it"):
        model(vectors())


def test_a_torch_with_other_records_refuses_checkpointing_and_nothing_else(monkeypatch):
    model, batch = converted()

    def pack_hook(x):
        return x

    pack_hook.__module__ = "torch.utils.checkpoint"
    monkeypatch.setattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: (pack_hook, pack_hook))
    with pytest.raises(ValueError, match=r"was tested with torch 2\.13; torch .* switch checkpointing off"):
        model(batch)
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    first(model(batch)).sum().backward()
    model.checkpointing = {"use_reentrant": False}
    with pytest.raises(ValueError, match="checkpointing"):
        first(model(batch)).sum().backward()


def test_a_torch_that_cannot_switch_modes_off_gets_a_sentence(monkeypatch):
    model, batch = build("nanogpt")
    monkeypatch.delattr(torch._C, "DisableTorchFunction")
    with pytest.raises(ValueError, match=r"were tested with torch 2\.13; torch .* install a version that was tested"):
        uc.convert(model, example=batch)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["nanogpt", "timm_written_out", "encoder_pre", "x_transformers"])
def test_compiled_fullgraph_equals_eager(name):
    torch._dynamo.reset()
    model, batch = converted(name)
    wanted = first(model(batch))
    wanted_gradients = gradients(model, wanted.square().sum())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got = first(compiled(batch))
    torch.testing.assert_close(got, wanted, **ROUNDING)
    assert_same(gradients(model, got.square().sum()), wanted_gradients)


def test_compiled_fullgraph_with_checkpointing_is_torchs_error_unless_torch_is_told_to_go_on():
    """Layers remember their tokens and scores for each other; inside a region torch calls that a side effect."""
    model, batch = uc.convert(NanoGPT(layers=2).double().eval(), **ALPHAS, example=ids()), ids()
    wanted = gradients(model, first(model(batch)).square().sum())
    model.checkpointing = {"use_reentrant": False}
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="HOP: Unsafe side effect"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(batch)
    for fullgraph in (False, True):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=fullgraph):
            got = first(torch.compile(model, fullgraph=fullgraph, backend="aot_eager")(batch))
            assert_same(gradients(model, got.square().sum()), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": False}], ids=["plain", "checkpointed"])
def test_compiled_by_inductor_equals_eager(checkpointing):
    model, batch = uc.convert(NanoGPT(layers=2).double().eval(), **ALPHAS, example=ids()), ids()
    wanted = first(model(batch))
    wanted_gradients = gradients(model, wanted.square().sum())
    model.checkpointing = checkpointing
    torch._dynamo.reset()
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=checkpointing is not None):
        got = first(torch.compile(model, fullgraph=True)(batch))
        torch.testing.assert_close(got, wanted, **ROUNDING)  # inductor sums in another order, also in float64
        assert_same(gradients(model, got.square().sum()), wanted_gradients)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["nanogpt", "nanogpt_written_out"])
def test_lora_on_the_output_projection(name, when):
    model, batch = build(name)
    adapt = LoraConfig(target_modules=["c_proj"], r=2, init_lora_weights=False)
    torch.manual_seed(2)
    if when == "before":
        wrapped = uc.convert(get_peft_model(model, adapt), **ALPHAS, example=batch)
    else:
        wrapped = get_peft_model(uc.convert(model, **ALPHAS, example=batch), adapt)
    got = first(wrapped(batch))
    uc.restore(wrapped)
    wanted = model.written_out(batch, Recursion(0.3, 0.6, "stream"))
    torch.testing.assert_close(got, wanted, **ROUNDING)


def test_threads_do_not_see_each_other():
    model, batch = converted()
    batches = [(batch + n) % 11 for n in range(6)]
    with torch.no_grad():
        wanted = [first(model(one)) for one in batches]
    found = [[] for _ in batches]

    def work(n):
        with torch.no_grad():
            found[n] += [first(model(batches[n])) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, results in enumerate(found):
        assert len(results) == 20
        assert all(torch.equal(result, wanted[n]) for result in results)


def test_autocast_is_close_to_float32():
    torch.manual_seed(0)
    model = uc.convert(NanoGPT().eval(), **ALPHAS, example=ids())
    wanted = first(model(ids()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = first(model(ids()))
    assert (got.float() - wanted).abs().max() < 0.03 * wanted.abs().max()  # bfloat16 has 8 bits


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context):
    model, batch = converted()
    wanted = first(model(batch))
    with context():
        torch.testing.assert_close(first(model(batch)), wanted, **ROUNDING)


def test_functional_call_uses_the_given_weights():
    model, batch = converted()
    doubled = {name: 2 * value for name, value in model.state_dict().items()}
    got = first(torch.func.functional_call(model, doubled, (batch,)))
    model.load_state_dict(doubled)
    torch.testing.assert_close(got, first(model(batch)), **ROUNDING)


def test_vmap_is_refused():
    model, _ = converted("encoder_pre")
    with pytest.raises(ValueError, match=r"self_attn: inherited scores do not work inside torch\.func\.vmap"):
        torch.func.vmap(model)(torch.randn(2, 1, 7, WIDTH, dtype=torch.float64))


class CachedAttention(nn.Module):
    """Keys and values of earlier tokens are kept, as in generation."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.cache = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), None

    def forward(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        if self.cache is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(self.cache, (k, v), strict=True))
            self.cache = k, v
        causal = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return x + self.proj(
            functional.scaled_dot_product_attention(q, k, v, attn_mask=causal).transpose(1, 2).flatten(2)
        )


def test_cached_decoding_equals_a_whole_forward():
    torch.manual_seed(0)
    model = uc.convert(
        nn.Sequential(*[CachedAttention() for _ in range(3)]).double(), **ALPHAS, example=vectors().double()
    )
    x = vectors().double()
    with torch.no_grad():
        wanted = model(x)
        for layer in model:
            empty = torch.zeros(2, 3, 0, WIDTH // 3, dtype=torch.float64)
            layer.cache = empty, empty
        got = torch.cat([model(part) for part in (x[:, :4], x[:, 4:5], x[:, 5:6], x[:, 6:])], 1)
    torch.testing.assert_close(got, wanted, **ROUNDING)


def test_padding_and_nested_tensors_of_an_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3).double().eval()
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    x = vectors().double()
    uc.convert(model, **ALPHAS, example={"src": x, "src_key_padding_mask": padding})
    with torch.no_grad():
        got = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(got[1, :4], model(x[1:, :4])[0], **ROUNDING)
    assert uc.restore(model).use_nested_tensor


def test_padded_encoder_equals_the_recursion():
    model, x = build("encoder_post")
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    wanted = model.written_out(x, Recursion(0.3, 0.6, "stream"), padding)
    got = uc.convert(model, **ALPHAS, example=x)(x, padding)
    torch.testing.assert_close(got, wanted, **ROUNDING)


def test_weights_that_are_asked_for_are_those_of_the_inherited_scores():
    model, x = build("encoder_pre")
    recursion = Recursion(0.3, 0.6, "stream")
    model.written_out(x, recursion)
    uc.convert(model, **ALPHAS, example=x)
    found = []
    for layer in model.encoder.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs | {"need_weights": True}), with_kwargs=True
        )
        layer.self_attn.register_forward_hook(lambda module, args, result: found.append(result[1]))
    model(x)
    for weights, scores in zip(found, recursion.scores, strict=True):
        torch.testing.assert_close(weights, scores.softmax(-1).mean(1), **ROUNDING)


def test_a_failed_forward_leaves_no_mode_behind():
    model, batch = converted()
    wanted = first(model(batch))
    broken = model.h[1].attn.c_proj.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(batch)
    broken.remove()
    assert torch.overrides._get_current_function_mode() is None
    assert torch.equal(first(model(batch)), wanted)


def test_a_model_inside_another_is_converted_by_itself():
    inner, x = build("encoder_pre")
    outer = nn.ModuleDict({"left": inner, "right": Encoder(norm_first=True).double().eval()})
    uc.convert(inner, **ALPHAS, example=x)
    wanted, other = inner(x), outer["right"](x)
    assert torch.equal(outer["left"](x), wanted)
    assert torch.equal(outer["right"](x), other)
    uc.restore(outer)
    assert not torch.equal(outer["left"](x), wanted)


def test_a_deleted_model_is_freed():
    model, batch = converted()
    first(model(batch)).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None

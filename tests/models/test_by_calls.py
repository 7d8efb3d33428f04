"""Models of transformers that the attention interface does not serve: converted through their attention calls."""

import pytest
import torch
import transformers as hf
from torch.nn import functional

import uncollapse as uc
from tests.models.builders import GROUPED, SPECIAL, TEXT, batch, logits
from tests.models.modules import Recursion, split
from tests.models.test_refusals import T5, footprint

READINGS = ("stream", "normed", "replace")
SIZES = {"vocab_size": 40, "max_position_embeddings": 48}
OPT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 32, "word_embed_proj_dim": 32}
NEO = {
    "hidden_size": 32,
    "num_layers": 4,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 3,
}
GPT1 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 40, "n_positions": 48}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def windowed(tokens, window):
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(
        (distance < 0) | (distance >= window), -torch.inf
    )


def opt(model, ids, recursion):
    decoder = model.model.decoder
    x = decoder.embed_tokens(ids) + decoder.embed_positions.weight[torch.arange(ids.shape[1]) + 2]
    for block in decoder.layers:
        y, a = block.self_attn_layer_norm(x), block.self_attn
        q, k, v = (split(p(y), 4) for p in (a.q_proj, a.k_proj, a.v_proj))
        x = recursion.add(x, y, a.out_proj(recursion.attend(q, k, v, causal=True)))
        x = x + block.fc2(functional.relu(block.fc1(block.final_layer_norm(x))))
    return model.lm_head(decoder.final_layer_norm(x))


def gpt_neo(model, ids, recursion):
    base = model.transformer
    x = base.wte(ids) + base.wpe(torch.arange(ids.shape[1]))
    for n, block in enumerate(base.h):
        y, a = block.ln_1(x), block.attn.attention
        q, k, v = (split(p(y), 4) for p in (a.q_proj, a.k_proj, a.v_proj))
        bias = windowed(ids.shape[1], 3 if n % 2 else 99)
        x = recursion.add(x, y, a.out_proj(recursion.attend(q, k, v, bias=bias, scale=1.0)))
        x = x + block.mlp(block.ln_2(x))
    return model.lm_head(base.ln_f(x))


def gpt_1(model, ids, recursion):
    base = model.transformer
    x = base.tokens_embed(ids) + base.positions_embed(torch.arange(ids.shape[1]))
    for block in base.h:
        q, k, v = (split(part, 4) for part in block.attn.c_attn(x).chunk(3, -1))
        x = block.ln_1(recursion.add(x, x, block.attn.c_proj(recursion.attend(q, k, v, causal=True))))
        x = block.ln_2(x + block.mlp(x))
    return model.lm_head(x)


def gemma_2(model, ids, recursion):
    base, config = model.model, model.config
    x = base.embed_tokens(ids)
    cos, sin = base.rotary_emb(x, torch.arange(ids.shape[1])[None])

    def rotated(t):
        half = t.shape[-1] // 2
        return t * cos[:, None] + torch.cat([-t[..., half:], t[..., :half]], -1) * sin[:, None]

    for n, block in enumerate(base.layers):
        y, a = block.input_layernorm(x), block.self_attn
        q, k, v = split(a.q_proj(y), 4), split(a.k_proj(y), 2), split(a.v_proj(y), 2)
        bias = windowed(ids.shape[1], config.sliding_window if config.layer_types[n] == "sliding_attention" else 99)
        scale, cap = config.query_pre_attn_scalar**-0.5, config.attn_logit_softcapping
        out = a.o_proj(recursion.attend(rotated(q), rotated(k), v, bias=bias, cap=cap, scale=scale))
        skipped = y if recursion.skip == "normed" else x
        x = x + block.post_attention_layernorm(recursion.alpha * skipped + (1 - recursion.alpha) * out)
        x = x + block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(x)))
    capped = config.final_logit_softcapping
    return capped * torch.tanh(model.lm_head(base.norm(x)) / capped)


def t5_encoder(model, ids, recursion):
    x, stack = model.shared(ids), model.encoder
    bias = stack.block[0].layer[0].SelfAttention.compute_bias(ids.shape[1], ids.shape[1])
    for block in stack.block:
        a = block.layer[0].SelfAttention
        y = block.layer[0].layer_norm(x)
        q, k, v = (split(p(y), 4) for p in (a.q, a.k, a.v))
        x = recursion.add(x, y, a.o(recursion.attend(q, k, v, bias=bias, scale=1.0)))
        x = block.layer[1](x)
    return stack.final_layer_norm(x)


GEMMA = {**TEXT, **SPECIAL, **GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 16}
MODELS = {
    "OPT": (lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, **SIZES, **NO_DROPOUT)), opt),
    "GPT-Neo": (lambda: hf.GPTNeoForCausalLM(hf.GPTNeoConfig(**NEO, **SIZES)), gpt_neo),
    "GPT-1": (
        lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**GPT1, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)),
        gpt_1,
    ),
    "Gemma-2": (
        lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GEMMA, attn_logit_softcapping=2.0, attn_implementation="eager")),
        gemma_2,
    ),
    "T5 encoder": (lambda: hf.T5EncoderModel(hf.T5Config(**T5, dropout_rate=0.0)), t5_encoder),
}
IN_FLOAT32 = ("Gemma-2", "T5 encoder", "GPT-Neo")  # norms, or GPT-Neo's scores, whatever the model's dtype
ROUNDING = {
    name: {"rtol": 1e-5, "atol": 1e-5} if name in IN_FLOAT32 else {"rtol": 1e-10, "atol": 1e-10} for name in MODELS
}


def build(name):
    torch.manual_seed(0)
    return MODELS[name][0]().double().eval()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("skip", READINGS)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_those_of_the_recursion(name, skip):
    model, ids = build(name), batch("gpt2")["input_ids"]
    if (name, skip) == ("Gemma-2", "replace"):
        with pytest.raises(ValueError, match="something other than the sum, such as LayerScale or a gate, follows W_O"):
            uc.convert(model, alpha=0.3, skip=skip)
        return
    wanted = MODELS[name][1](model, ids, Recursion(0.3, 0.6, skip))
    wanted_gradients = gradients(model, wanted.square().sum())
    uc.convert(model, alpha=0.3, alpha_hidden=0.6, skip=skip)
    got = model(ids)[0]
    torch.testing.assert_close(got, wanted, **ROUNDING[name])
    size = max(gradient.abs().max() for gradient in wanted_gradients)
    for one, other in zip(gradients(model, got.square().sum()), wanted_gradients, strict=True):
        assert (one - other).abs().max() <= ROUNDING[name]["rtol"] * size


@pytest.mark.parametrize("name", MODELS)
def test_restored_is_stock_and_nothing_is_left(name):
    model, inputs = build(name), batch("gpt2")
    before, stock = footprint(model), model(**inputs)[0]
    uc.convert(model, alpha=0.3)
    assert model.config.uncollapse["alpha"] == 0.3
    uc.set_alpha(model, alpha=0.0, alpha_hidden=0.0)
    assert model.config.uncollapse["alpha"] == 0.0
    uc.restore(model)
    assert torch.equal(model(**inputs)[0], stock)
    assert footprint(model) == before


@pytest.mark.parametrize("name", ["OPT", "Gemma-2"])
def test_saved_and_loaded(name, tmp_path):
    model, inputs = uc.convert(build(name), alpha=0.3), batch("gpt2")
    model.save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded, **inputs), logits(model, **inputs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["OPT", "GPT-Neo", "GPT-1"])
def test_generation_with_and_without_a_cache(name):
    model, ids = uc.convert(build(name), alpha=0.3), batch("gpt2")["input_ids"][:, :4]
    found = [model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*found)


def test_a_converted_one_is_diagnosed_by_its_inherited_scores():
    model, inputs = build("OPT"), batch("gpt2")
    stock = uc.diagnose(model, inputs, progress=False)
    uc.convert(model, alpha=0.0, alpha_hidden=0.0)
    again = uc.diagnose(model, inputs, progress=False)
    assert (stock.heads["entropy_mean"] - again.heads["entropy_mean"]).abs().max() < 1e-5
    uc.set_alpha(model, alpha_hidden=0.9)
    assert (uc.diagnose(model, inputs, progress=False).heads["entropy_mean"] > again.heads["entropy_mean"]).all()

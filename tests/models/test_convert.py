"""What users do with a model goes on working after convert(), for every family."""

import copy
import gc
import pickle
import threading
import warnings

import pytest
import torch
import transformers as hf
from torch.utils._pytree import tree_map
from transformers import DynamicCache, StaticCache

import uncollapse as uc
from tests.models.builders import BUILDERS, CAUSAL, ENCODERS, batch, build, logits
from uncollapse.models.families import blocks_of, family_of, query_key_weights

ROUNDING = {"rtol": 1e-9, "atol": 1e-9}  # float64 through four layers
NORM32 = {"rtol": 2e-5, "atol": 2e-5}  # families whose RMSNorm runs in float32 whatever the model's dtype
HALF_NORM = ("llama", "mistral", "qwen2", "qwen3")


def close(name):
    return NORM32 if name in HALF_NORM else ROUNDING


def every(*names):
    return pytest.mark.parametrize("name", names)


@every(*BUILDERS)
def test_zero_is_the_stock_model(name):
    model, inputs = build(name), batch(name)
    stock = logits(model, **inputs)
    torch.testing.assert_close(logits(uc.convert(model, alpha=0.0, alpha_hidden=0.0), **inputs), stock, **ROUNDING)
    plain = uc.convert(model, rule=uc.ScoreRule.self_attention())
    torch.testing.assert_close(logits(plain, **inputs), stock, **ROUNDING)


@every(*BUILDERS)
def test_nothing_is_added_and_restore_gives_back_the_stock_model(name):
    model, inputs = build(name), batch(name)
    stock, keys, config = logits(model, **inputs), list(model.state_dict()), model.config.to_dict()
    hooks = {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
    attributes = {path: set(vars(m)) for path, m in model.named_modules()}

    assert uc.convert(model) is model
    assert list(model.state_dict()) == keys
    assert (logits(model, **inputs) - stock).abs().max() > 0.01 * stock.abs().max()

    assert uc.restore(model) is model
    assert torch.equal(logits(model, **inputs), stock)
    assert model.config.to_dict() == config
    assert hooks == {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
    assert attributes == {path: set(vars(m)) for path, m in model.named_modules()}


@every(*BUILDERS)
def test_settings_survive_saving_copying_and_pickling(name, tmp_path):
    model, inputs = uc.convert(build(name), alpha=0.3, alpha_hidden=0.6, start="raw"), batch(name)
    wanted = logits(model, **inputs)

    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # weights that were saved with the settings need no warning
        loaded = uc.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded) is type(model)
    assert loaded.config.uncollapse == model.config.uncollapse
    torch.testing.assert_close(logits(loaded.eval(), **inputs), wanted, **ROUNDING)

    copied = copy.deepcopy(model)
    uc.set_alpha(model, 0.0, 0.0)  # a copy has settings of its own
    assert torch.equal(logits(copied, **inputs), wanted)
    assert torch.equal(logits(pickle.loads(pickle.dumps(copied)), **inputs), wanted)
    stock = build(name)
    assert torch.equal(logits(uc.restore(copied), **inputs), logits(stock, **inputs))


def test_plain_transformers_ignores_the_settings_and_from_pretrained_takes_a_class(tmp_path):
    model, inputs = uc.convert(build("gpt2")), batch("gpt2")
    model.save_pretrained(tmp_path)
    plain = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(plain, **inputs), logits(build("gpt2"), **inputs), **ROUNDING)
    loaded = uc.from_pretrained(tmp_path, auto_class=hf.AutoModelForCausalLM, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **inputs), logits(model, **inputs), **ROUNDING)


def test_a_stock_checkpoint_loads_as_a_stock_model(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    loaded = uc.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **batch("gpt2")), logits(build("gpt2"), **batch("gpt2")), **ROUNDING)
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not converted"):
        uc.set_alpha(loaded, 0.5)


@every(*BUILDERS)
def test_set_alpha_is_convert_with_other_numbers(name):
    inputs = batch(name)
    model = uc.convert(build(name), alpha=0.0, alpha_hidden=0.0)
    assert uc.set_alpha(model, 0.4, 0.7) is model
    wanted = uc.convert(build(name), alpha=0.4, alpha_hidden=0.7)
    assert torch.equal(logits(model, **inputs), logits(wanted, **inputs))
    assert model.config.uncollapse == wanted.config.uncollapse
    uc.set_alpha(model, alpha=0.1)
    assert model.config.uncollapse["alpha"] == 0.1
    assert model.config.uncollapse["rule"]["keep"] == 0.7


@every(*CAUSAL)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cached_decoding_equals_the_full_forward(name, kind):
    model, ids = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6), batch(name)["input_ids"]
    full = logits(model, input_ids=ids)
    cache = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(model.config, max_cache_len=20)
    pieces = [logits(model, input_ids=ids[:, :5], past_key_values=cache, use_cache=True)]
    for t in range(5, 8):
        pieces.append(logits(model, input_ids=ids[:, t : t + 1], past_key_values=cache, use_cache=True))
    pieces.append(logits(model, input_ids=ids[:, 8:], past_key_values=cache, use_cache=True))  # several at once
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, **close(name))


@every(*CAUSAL, *ENCODERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_equals_unpadded(name, side):
    model, ids = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6), batch(name)["input_ids"]
    pad, seen = torch.zeros(2, 3, dtype=torch.long), torch.ones_like(ids)
    order = (lambda a, b: [a, b]) if side == "left" else (lambda a, b: [b, a])
    padded, mask = torch.cat(order(pad, ids), 1), torch.cat(order(pad, seen), 1)
    inputs = {"input_ids": padded, "attention_mask": mask}
    if side == "left" and name != "roberta":  # RoBERTa counts positions past the padding by itself
        if name == "distilbert":
            pytest.skip("DistilBERT takes no position_ids, so stock left padding shifts its positions")
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    kept = slice(3, None) if side == "left" else slice(None, -3)
    torch.testing.assert_close(logits(model, **inputs)[:, kept], logits(model, input_ids=ids), **close(name))


@every(*CAUSAL)
def test_a_later_token_never_changes_an_earlier_logit(name):
    model, ids = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6), batch(name)["input_ids"]
    changed = ids.clone()
    changed[:, 7] = (changed[:, 7] - 3 + 1) % 37 + 3
    before, after = logits(model, input_ids=ids), logits(model, input_ids=changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


def gradients(model, inputs):
    model.zero_grad()
    model(**inputs).logits.square().mean().backward()
    return {path: p.grad.clone() for path, p in model.named_parameters() if p.grad is not None}


@every(*BUILDERS)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_checkpointed_gradients_equal_unchecked_ones(name, backend):
    model, inputs = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6, backend=backend).train(), batch(name)
    plain = gradients(model, inputs)
    model.gradient_checkpointing_enable()
    checkpointed = gradients(model, inputs)
    assert plain.keys() == checkpointed.keys()
    scale = max(grad.abs().max() for grad in plain.values())
    for path, grad in plain.items():
        assert (grad - checkpointed[path]).abs().max() <= close(name)["rtol"] * scale, path


def test_reentrant_checkpointing_is_refused():
    model, inputs = uc.convert(build("gpt2")).train(), batch("gpt2")
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="reentrant gradient checkpointing would give wrong gradients; use"):
        model(**inputs)
    model.eval()(**inputs)  # nothing is checkpointed in evaluation


def test_reentrant_checkpointing_by_hand_is_refused_too():
    from torch.utils.checkpoint import checkpoint

    model, inputs = uc.convert(build("gpt2")).train(), batch("gpt2")
    for block in model.transformer.h:
        forward = block.forward
        block.forward = lambda *a, _f=forward, **k: checkpoint(lambda x: _f(x, *a[1:], **k), a[0], use_reentrant=True)
    loss = model(**inputs).logits.sum()
    with pytest.raises(ValueError, match="reentrant gradient checkpointing would give wrong gradients"):
        loss.backward()


@every(*BUILDERS)
def test_output_attentions_are_the_weights_after_inheritance(name):
    inputs = batch(name)
    raw = uc.convert(
        build(name), alpha=0.0, alpha_hidden=1.0, start="raw"
    )  # every layer attends with the first layer's scores
    with torch.no_grad():
        out = raw(**inputs, output_attentions=True)
    assert len(out.attentions) == 4
    for weights in out.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)), **ROUNDING)
        torch.testing.assert_close(weights, out.attentions[0], **ROUNDING)
    with torch.no_grad():
        mixed = uc.convert(build(name), alpha=0.0, alpha_hidden=0.5)(**inputs, output_attentions=True)
    assert not torch.allclose(mixed.attentions[1], mixed.attentions[0], atol=1e-3)
    torch.testing.assert_close(
        mixed.logits, logits(uc.convert(build(name), alpha=0.0, alpha_hidden=0.5), **inputs), **ROUNDING
    )


@every("gpt2", "llama", "bert_decoder")
@pytest.mark.parametrize("how", ["greedy", "sampling", "beam", "static"])
def test_generate(name, how):
    model, ids = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6), batch(name, length=5)["input_ids"]
    options = {
        "greedy": {"do_sample": False},
        "sampling": {"do_sample": True, "top_k": 5},
        "beam": {"do_sample": False, "num_beams": 3},
        "static": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    }[how]
    texts = []
    for use_cache in (True, False):
        if how == "static" and not use_cache:
            options.pop("cache_implementation")
        torch.manual_seed(0)
        texts.append(model.generate(ids, max_new_tokens=8, min_new_tokens=8, use_cache=use_cache, **options))
    assert texts[0].shape == (2, 13)
    assert torch.equal(texts[0], texts[1])  # with and without a cache


def test_generate_with_left_padding_equals_generate_alone():
    model, ids = uc.convert(build("gpt2"), alpha=0.4, alpha_hidden=0.6), batch("gpt2", length=6, rows=1)["input_ids"]
    alone = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    other = batch("gpt2", length=9, rows=1, seed=3)["input_ids"]
    together = torch.cat([torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1), other])
    mask = (together != 0).long()
    out = model.generate(together, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert torch.equal(out[0, 9:], alone[0, 6:])


def test_the_cache_holds_keys_and_values_only():
    model, ids = uc.convert(build("llama")), batch("llama")["input_ids"]
    stock = build("llama")
    caches = [m(input_ids=ids, use_cache=True).past_key_values for m in (model, stock)]
    shapes = [[(layer.keys.shape, layer.values.shape) for layer in cache.layers] for cache in caches]
    assert shapes[0] == shapes[1]
    assert set(vars(caches[0])) == set(vars(caches[1]))


def states_alive():
    return sum(issubclass(type(thing), uc.HiddenState) for thing in gc.get_objects())


def test_evaluation_holds_the_scores_of_two_layers_at_most():
    model, alive, before = uc.convert(build("gpt2")), [], states_alive()
    for block in model.transformer.h:
        # one inside the pass; W_O runs when the layer's attention function has returned
        block.attn.c_proj.register_forward_pre_hook(lambda *_: alive.append(states_alive() - before))
    logits(model, **batch("gpt2"))
    assert len(alive) == 4
    assert max(alive) <= 2
    assert min(alive[:-1]) >= 1  # the states of a pass are seen at all
    assert states_alive() == before  # and none is left once the pass is over


def test_half_precision():
    exact, model, inputs = (
        uc.convert(build("llama"), alpha=0.4, alpha_hidden=0.6),
        uc.convert(build("llama"), alpha=0.4, alpha_hidden=0.6),
        batch("llama"),
    )
    wanted, out = logits(exact, **inputs), logits(model.bfloat16(), **inputs)
    stock = logits(build("llama").bfloat16(), **inputs).double() - logits(build("llama"), **inputs)
    assert out.dtype == torch.bfloat16
    assert (
        out.double() - wanted
    ).abs().mean() < 2 * stock.abs().mean()  # no worse than bfloat16 does to the stock model


@every("gpt2", "llama", "bert", "vit")
def test_autocast(name):
    model, inputs = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6).float(), batch(name)
    inputs = {key: t.float() if t.is_floating_point() else t for key, t in inputs.items()}
    wanted = logits(model, **inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(**inputs).logits
    out.float().square().mean().backward()
    assert (out.float() - wanted).abs().mean() < 0.1 * wanted.abs().mean()  # bfloat16 has 3 digits, 4 layers peaked
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_attention_dropout_in_train_mode():
    torch.manual_seed(0)
    config = hf.ViTConfig(
        **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    )
    config.image_size, config.patch_size, config.attention_probs_dropout_prob = 12, 4, 0.5
    model, inputs = uc.convert(hf.ViTForImageClassification(config)), {"pixel_values": torch.randn(1, 3, 12, 12)}
    assert torch.equal(logits(model.eval(), **inputs), logits(model, **inputs))
    assert not torch.equal(logits(model.train(), **inputs), logits(model, **inputs))


def test_two_converted_models_used_in_turn():
    a, b = (
        uc.convert(build("gpt2"), alpha=0.2, alpha_hidden=0.8),
        uc.convert(build("gpt2", seed=7), alpha=0.6, alpha_hidden=0.3),
    )
    inputs = batch("gpt2")
    alone = gradients(a, inputs)
    loss_a, loss_b = (m(**inputs).logits.square().mean() for m in (a, b))
    a.zero_grad()
    loss_b.backward()
    loss_a.backward()
    for path, parameter in a.named_parameters():
        torch.testing.assert_close(parameter.grad, alone[path], **ROUNDING)


def test_one_model_in_two_threads():
    model = uc.convert(build("gpt2"), alpha=0.4, alpha_hidden=0.6)
    inputs = [batch("gpt2", length=20, seed=seed) for seed in range(2)]
    wanted = [logits(model, **i) for i in inputs]
    wrong = []

    def work(i):
        for _ in range(20):
            if not torch.equal(logits(model, **inputs[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@every("gpt2", "llama", "bert", "vit")
def test_compiled_fullgraph_equals_eager(name):
    model, inputs = uc.convert(build(name), alpha=0.4, alpha_hidden=0.6), batch(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(logits(compiled, **inputs), logits(model, **inputs), **ROUNDING)
    eager = gradients(model, inputs)
    model.zero_grad()
    compiled(**inputs).logits.square().mean().backward()
    scale = max(grad.abs().max() for grad in eager.values())
    for path, parameter in model.named_parameters():
        if path in eager:
            assert (parameter.grad - eager[path]).abs().max() <= close(name)["rtol"] * scale, path


def test_rebuilt_containers_change_nothing():
    """FSDP2 rebuilds dict, list and tuple arguments on the way into a block; the scores must go through unharmed."""
    model, inputs = uc.convert(build("llama"), alpha=0.4, alpha_hidden=0.6), batch("llama")
    wanted = gradients(model, inputs)
    for block in model.model.layers:
        block.register_forward_pre_hook(lambda _, a, k: tree_map(lambda leaf: leaf, (a, k)), with_kwargs=True)
    rebuilt = gradients(model, inputs)
    assert all(torch.equal(rebuilt[path], grad) for path, grad in wanted.items())


LORA = {"gpt2": ["c_attn", "attn.c_proj"], "llama": ["q_proj", "o_proj"], "bert": ["query", "attention.output.dense"]}


@every(*LORA)
@pytest.mark.parametrize("first", ["convert", "wrap"])
def test_lora_before_or_after_convert(name, first):
    peft = pytest.importorskip("peft", reason="peft comes with the dev extra")
    inputs = batch(name)

    def wrapped(model):
        config = peft.LoraConfig(r=2, target_modules=LORA[name], init_lora_weights=False)
        torch.manual_seed(0)
        return peft.get_peft_model(model, config).double().eval()

    if first == "convert":
        model = wrapped(uc.convert(build(name), alpha=0.4, alpha_hidden=0.6))
    else:
        model = uc.convert(wrapped(build(name)), alpha=0.4, alpha_hidden=0.6)
    adapted = logits(model, **inputs)
    merged = model.merge_and_unload()  # W + BA as one matrix: the plain converted model
    torch.testing.assert_close(logits(merged, **inputs), adapted, **close(name))
    fresh = build(name)
    fresh.load_state_dict(merged.state_dict())
    torch.testing.assert_close(logits(uc.convert(fresh, alpha=0.4, alpha_hidden=0.6), **inputs), adapted, **close(name))


@every(*BUILDERS)
def test_the_tables_weights_are_the_ones_attention_uses(name):
    """At the first token rotary positions turn nothing, so q = W_Q y + b there (QK-norms follow it in Qwen3)."""
    if name == "qwen3":
        pytest.skip("Qwen3 normalises queries and keys after W_Q and W_K")
    model, seen, entering = build(name), [], []
    uc.convert(model, alpha=0.0, alpha_hidden=0.0)
    family = family_of(model)
    attention = blocks_of(model, family)[0].get_submodule(family.attention)
    attention.register_forward_pre_hook(
        lambda _, a, k: entering.append(a[0] if a else k["hidden_states"]), with_kwargs=True
    )
    original = hf.AttentionInterface._global_mapping["hopfield"]
    try:
        hf.AttentionInterface.register(
            "hopfield", lambda module, q, k, v, *a, **kw: (seen.append((q, k)), original(module, q, k, v, *a, **kw))[1]
        )
        logits(model, **batch(name))
    finally:
        hf.AttentionInterface.register("hopfield", original)
    weights, y = query_key_weights(model)[0], entering[0][:, 0]
    for tensor, weight, bias in zip(
        seen[0], (weights.query, weights.key), (weights.query_bias, weights.key_bias), strict=True
    ):
        wanted = torch.einsum("bm,hdm->bhd", y, weight) + (0 if bias is None else bias)
        torch.testing.assert_close(tensor[:, :, 0], wanted, **ROUNDING)


def test_loaded_weights_bring_a_warning_that_names_the_warmup(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    model = hf.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"were not trained for inherited scores.*alpha_warmup"):
        uc.convert(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        uc.convert(model, alpha=0.0, alpha_hidden=0.0)
        uc.convert(build("gpt2"))


def test_other_rules_and_the_skip_that_belongs_to_them():
    model = uc.convert(build("gpt2"), rule=uc.ScoreRule.realformer())
    assert model.config.uncollapse["alpha"] == 0.0
    with pytest.raises(ValueError, match="alpha_hidden belongs to the rule 'hopfield'; this model runs 'realformer'"):
        uc.set_alpha(model, alpha_hidden=0.5)
    uc.set_alpha(model, alpha=0.5)
    assert model.config.uncollapse["alpha"] == 0.5


def test_an_attention_module_called_on_its_own_says_what_to_do():
    model = uc.convert(build("vit"))
    with pytest.raises(ValueError, match="ViTAttention was called outside the forward pass of a converted model"):
        model.vit.layers[0].attention(torch.randn(1, 3, 32, dtype=torch.float64))


def test_an_unknown_keyword_is_refused_by_name():
    model = uc.convert(build("gpt2"))
    with pytest.raises(ValueError, match=r"h\.0\.attn passes 's_aux' to its attention function"):
        model(**batch("gpt2"), s_aux=torch.ones(4))

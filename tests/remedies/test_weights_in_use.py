"""Remedies of weights in use: plain modules, adapters, checkpointing, compilation, plain transformers, taking back."""

import copy
from itertools import product

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model

import uncollapse as uc
from tests.models import modules
from tests.models.builders import batch, build, logits
from tests.remedies.formulas import Formulas, Recursion
from tests.remedies.test_weights import adamw, largest, settled
from uncollapse.remedies.sigma_reparam import reparametrised

AT_STEPS = {"qk_clip": {"threshold": 0.5}, "qk_rate": {"factor": 0.25}, "locater": {"kappa_scale": 0.01}}
WEIGHTS = {**AT_STEPS, "sigma_reparam": {}}
FUSED = ("c_attn.weight", "qkv.weight", "in_proj_weight", "c_attn.bias", "qkv.bias", "in_proj_bias")


def with_optimizer(model, remedy, rate=0.01, example=None):
    """The model with a remedy, and an optimizer that it follows."""
    if remedy == "sigma_reparam":
        uc.apply(model, remedy, example=example)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=rate)
    if remedy != "sigma_reparam":
        uc.apply(model, remedy, optimizer=optimizer, example=example, **AT_STEPS[remedy])
    return optimizer


def step(model, optimizer, run):
    optimizer.zero_grad()
    run(model).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["nanogpt", "timm", "encoder_pre"])
def test_sigma_reparam_of_a_plain_module_is_its_formula(name):
    stock, example = modules.build(name)
    model = settled(uc.apply(modules.build(name)[0], "sigma_reparam", example=example))
    with torch.no_grad():
        for n, (_, _, one) in enumerate(reparametrised(model)):
            one.gamma.mul_(1.0 + 0.05 * (n % 5)).mul_(torch.linspace(0.9, 1.2, len(one.gamma)))
    gammas = [one.gamma.detach().clone().requires_grad_() for _, _, one in reparametrised(model)]
    weights = {key: value.detach().clone().requires_grad_() for key, value in stock.named_parameters()}
    used, left = dict(weights), iter(gammas)
    for key, weight in weights.items():
        if weight.dim() == 2 and any(part.isdigit() for part in key.split(".")):
            gamma = next(left)
            parts = weight.chunk(3) if key.endswith(FUSED) else (weight,)
            parts = [g * part / torch.linalg.matrix_norm(part, ord=2) for g, part in zip(gamma, parts, strict=True)]
            used[key] = torch.cat(parts)
    assert next(left, None) is None
    wanted = modules.first(torch.func.functional_call(stock, used, example))
    got = modules.first(model(example))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    wanted.square().mean().backward()
    got.square().mean().backward()
    found = {name.replace("parametrizations.", "").replace(".original", ""): p for name, p in model.named_parameters()}
    for key, weight in weights.items():
        torch.testing.assert_close(found[key].grad, weight.grad, rtol=1e-7, atol=1e-10)
    for gamma, (_, _, one) in zip(gammas, reparametrised(model), strict=True):
        torch.testing.assert_close(one.gamma.grad, gamma.grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", ["nanogpt", "encoder_pre", "x_transformers"])
def test_qk_rate_of_a_plain_module_is_adamw_with_a_rate_for_each_entry(name):
    (model, example), (reference, _) = modules.build(name), modules.build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    uc.apply(model, "qk_rate", factor=0.25, optimizer=optimizer, example=example)
    rates = {key: torch.full_like(p, 0.01) for key, p in reference.named_parameters()}
    for key, rate in rates.items():
        if key.endswith(FUSED):
            rate[: 2 * modules.WIDTH] *= 0.25
        elif key.endswith(("to_q.weight", "to_k.weight")):
            rate *= 0.25
    moments = {}
    for count in range(1, 3):
        for one in (model, reference):
            one.zero_grad()
            modules.first(one(example)).square().mean().backward()
        optimizer.step()
        trained = dict(reference.named_parameters())
        with torch.no_grad():
            adamw(trained, {key: p.grad for key, p in trained.items()}, moments, count, rates)
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, trained[key], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["nanogpt", "timm", "encoder_pre"])
def test_qk_clip_of_a_plain_module_scales_what_its_formula_scales(name):
    (model, example), (reference, _) = modules.build(name), modules.build(name)
    formulas = Formulas(reference)
    reference.written_out(example, Recursion(formulas, reference))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.0)
    tau = 0.5 * min(float(one.max()) for one in largest(formulas))  # some head of each layer is clipped
    assert tau > 0
    uc.apply(model, "qk_clip", threshold=tau, balance=0.3, optimizer=optimizer, example=example)
    step(model, optimizer, lambda m: modules.first(m(example)))
    layers = [tau / seen.clamp(min=tau) for seen in largest(formulas)]
    for key, value in model.state_dict().items():
        wanted = before[key]
        if key.endswith(FUSED):
            eta = layers[int(next(part for part in key.split(".") if part.isdigit()))]
            factors = torch.cat([eta**0.3, eta**0.7, torch.ones_like(eta)]).repeat_interleave(4)
            wanted = wanted * factors.view(-1, *[1] * (wanted.dim() - 1))
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-9)  # factors are float32


def test_logits_that_overflowed_scale_nothing():
    from uncollapse.models.anatomy import anatomy
    from uncollapse.remedies.weights import query_key_rows

    model, clip = build("llama"), uc.remedies.QKClip(threshold=1.0)
    pair = next(query_key_rows(anatomy(model), "qk_clip"))
    before = pair[0].weight.detach().clone()
    eta = clip.scale(*pair, torch.tensor([float("nan"), float("inf"), 4.0, -torch.inf]))
    assert eta.tolist() == [1.0, 1.0, 0.25, 1.0]
    factors = torch.tensor([1.0, 1.0, 0.5, 1.0], dtype=torch.float64).repeat_interleave(8).unsqueeze(1)
    assert torch.equal(pair[0].weight.detach(), before * factors)


ADAPTED = {"gpt2": ["c_attn"], "llama": ["q_proj", "k_proj"], "bert": ["query", "key"], "vit": ["q_proj", "k_proj"]}


@pytest.mark.parametrize("remedy", ["qk_clip", "qk_rate", "sigma_reparam"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_weights_that_an_adapter_wraps_are_refused_until_it_is_merged(name, remedy):
    adapted = get_peft_model(build(name), LoraConfig(r=2, target_modules=ADAPTED[name]))
    with pytest.raises(
        ValueError, match=rf"{remedy} needs plain weights.* is wrapped by an adapter.*; merge the adapt"
    ):
        with_optimizer(adapted, remedy)
    assert uc.remedies.applied(adapted) == []
    merged = adapted.merge_and_unload()
    for parameter in merged.parameters():
        parameter.requires_grad_()
    optimizer = with_optimizer(merged, remedy)
    step(merged, optimizer, lambda m: m(**batch(name)).logits)
    assert uc.remedies.check(merged, batch(name)).acts


@pytest.mark.parametrize("remedy", ["qk_clip", "qk_rate", "sigma_reparam"])
def test_an_adapter_that_comes_later_is_an_error_and_not_silence(remedy):
    model = build("llama")
    optimizer = with_optimizer(model, remedy)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=ADAPTED["llama"])).double()
    with pytest.raises(ValueError, match=f"{remedy} (needs plain weights|does nothing)"):
        uc.remedies.check(adapted, batch("llama"))
    if remedy == "qk_clip":
        with pytest.raises(ValueError, match="qk_clip needs plain weights"):
            step(adapted, optimizer, lambda m: m(**batch("llama")).logits)


@pytest.mark.parametrize("remedy", WEIGHTS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_what_is_saved_is_a_stock_checkpoint_with_the_same_logits(name, remedy, tmp_path):
    model, inputs = build(name), batch(name)
    optimizer = with_optimizer(model, remedy)
    for _ in range(2):
        step(model, optimizer, lambda m: m(**inputs).logits)
    wanted = logits(model.eval(), **inputs)
    model.save_pretrained(tmp_path)
    for plain in (type(model).from_pretrained(tmp_path, dtype=torch.float64), uc.from_pretrained(tmp_path)):
        assert set(plain.state_dict()) == set(build(name).state_dict())
        assert uc.remedies.applied(plain) == []
        torch.testing.assert_close(logits(plain.double().eval(), **inputs), wanted, rtol=1e-5, atol=1e-5)


def fresh(name):
    """A model, a batch and how it is run, for transformers and for plain modules."""
    if name in modules.MODULES:
        model, example = modules.build(name)
        return model, example, lambda m: modules.first(m(example))
    inputs = batch(name)
    return build(name), None, lambda m: m(**inputs).logits


@pytest.mark.parametrize(
    ("name", "remedy"),
    [*product(("gpt2", "llama"), WEIGHTS), *product(("nanogpt",), ("qk_clip", "qk_rate", "sigma_reparam"))],
)
def test_a_restored_model_takes_the_steps_of_a_stock_one(name, remedy):
    (model, example, run), stock = fresh(name), fresh(name)[0].train()
    optimizer = with_optimizer(model, remedy, rate=0.03, example=example)
    before = run(model)
    uc.restore(model)
    assert torch.equal(run(model), before)
    assert torch.equal(before, run(stock))
    if remedy == "sigma_reparam":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for one, steps in ((model, optimizer), (stock, torch.optim.SGD(stock.parameters(), lr=0.03))):
        step(one, steps, run)
    assert all(torch.equal(value, stock.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("remedy", WEIGHTS)
def test_checkpointing_takes_the_same_step(remedy):
    results, inputs = [], batch("llama")
    for saving in (False, True):
        model = build("llama")
        optimizer = with_optimizer(model, remedy)
        if saving:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for _ in range(2):
            step(model, optimizer, lambda m: m(**inputs).logits)
        results.append(model.state_dict())
    for key, value in results[0].items():
        torch.testing.assert_close(results[1][key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("remedy", ["qk_clip", "sigma_reparam"])  # the others leave the forward as it is
def test_a_compiled_model_takes_the_same_step(remedy):
    torch.compiler.reset()
    torch.manual_seed(0)
    config = hf.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=40, n_positions=16, use_cache=False)
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.0
    stock, inputs = hf.GPT2LMHeadModel(config).double(), batch("gpt2")
    results = []
    for compiles in (False, True):
        model = copy.deepcopy(stock)
        optimizer = with_optimizer(model, remedy, rate=0.1)
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiles else model
        for _ in range(2):
            step(model, optimizer, lambda _, run=run: run(**inputs).logits)
        results.append(model.state_dict())
    for key, value in results[0].items():
        torch.testing.assert_close(results[1][key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("remedy", ["qk_clip", "sigma_reparam"])
def test_caches_padding_and_packing_change_nothing(remedy):
    model, ids = build("llama"), batch("llama")["input_ids"]
    optimizer = with_optimizer(model, remedy)
    step(model, optimizer, lambda m: m(input_ids=ids).logits)
    proof = uc.remedies.check(model.eval(), {"input_ids": ids})
    assert all(proof.survival[how] < 1e-5 for how in ("saved and loaded", "with a cache", "packed"))
    how = {"max_new_tokens": 4, "do_sample": False, "min_new_tokens": 4}
    assert torch.equal(model.generate(ids, **how), model.generate(ids, use_cache=False, **how))


def test_qk_clip_sees_no_key_that_is_hidden_by_padding_or_packing():
    """The largest logits of two sequences in one padded batch, or in one packed row, are those of each alone."""
    from uncollapse.models.editing import edited_model

    model = build("llama")
    with_optimizer(model, "qk_clip")
    taps = [layer.edits[0] for layer in edited_model(model).layers]

    def seen(**inputs):
        for tap in taps:
            tap.largest = None
        model(**inputs)
        return torch.stack([tap.largest for tap in taps])

    ids = batch("llama")["input_ids"]
    wanted = torch.maximum(*(seen(input_ids=row.unsqueeze(0)) for row in ids))
    positions = torch.arange(ids.shape[1]).repeat(2).unsqueeze(0)
    packed = seen(input_ids=ids.view(1, -1), position_ids=positions, use_cache=False)
    torch.testing.assert_close(packed, wanted, rtol=1e-4, atol=1e-5)
    left = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
    mask = (torch.arange(left.shape[1]) >= 3).long().expand(2, -1)
    padded = seen(input_ids=left, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    torch.testing.assert_close(padded, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "encoder_pre"])
def test_padding_changes_nothing_under_sigma_reparam(name):
    """Trained for a step, so that gamma is no longer the spectral norm."""
    model, example, run = fresh(name)
    step(model, with_optimizer(model, "sigma_reparam", rate=0.1, example=example), run)
    model.eval()
    if example is not None:
        longer = torch.cat([example, torch.ones_like(example[:, :3])], 1)
        padding = (torch.arange(longer.shape[1]) >= example.shape[1]).expand(len(example), -1)
        got, wanted = model(longer, padding)[:, : example.shape[1]], run(model)
    else:
        ids = batch(name)["input_ids"]
        padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)  # on the left
        mask = (torch.arange(padded.shape[1]) >= 3).long().expand(2, -1)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        got, wanted = logits(model, input_ids=padded, attention_mask=mask, position_ids=places)[:, 3:], run(model)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)  # LLaMA's norms run in float32

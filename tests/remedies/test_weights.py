"""Remedies of weights and of their updates: sigma-reparam, QK-clip, QK rate, LocAteR at an optimizer's steps."""

import copy

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models import modules
from tests.models.builders import batch, build, logits
from tests.remedies.formulas import Formulas, Recursion, written_out
from uncollapse.models.families import query_key_weights
from uncollapse.remedies._spectral_product import plain_spectral_product, spectral_product
from uncollapse.remedies.sigma_reparam import reparametrised

FAMILIES = ("gpt2", "llama", "bert", "vit", "gpt_neox")


def settled(model):
    """u and v of every weight, moved to the singular vectors."""
    for _, _, one in reparametrised(model):
        u, _, v = torch.linalg.svd(one._matrices(one.holder[0].original.detach()))
        one.left.copy_(u[..., 0])
        one.right.copy_(v[:, 0])
    return model


def linear_maps(model, family):
    """Names of the weights in the blocks that are matrices; and which of them hold queries, keys and values."""
    kinds = (torch.nn.Linear, hf.pytorch_utils.Conv1D)
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, kinds) and any(part.isdigit() for part in path.split(".")):
            found[f"{path}.weight"] = path.endswith(("c_attn", "query_key_value"))
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_sigma_reparam_is_its_formula(name):
    stock, inputs = build(name), batch(name)
    model = settled(uc.apply(build(name), "sigma_reparam"))
    with torch.no_grad():
        for n, (_, _, one) in enumerate(reparametrised(model)):
            one.gamma.mul_(1.0 + 0.05 * (n % 5)).mul_(torch.linspace(0.9, 1.2, len(one.gamma)))
    gammas = [one.gamma.detach().clone().requires_grad_() for _, _, one in reparametrised(model)]
    weights = {key: value.detach().clone().requires_grad_() for key, value in stock.named_parameters()}
    used = dict(weights)
    for gamma, (key, fused) in zip(gammas, linear_maps(stock, name).items(), strict=True):
        weight = weights[key]
        if not fused:
            used[key] = gamma * weight / torch.linalg.matrix_norm(weight, ord=2)
        elif name == "gpt2":
            parts = [p / torch.linalg.matrix_norm(p, ord=2) for p in weight.chunk(3, 1)]
            used[key] = torch.cat([gamma[n] * part for n, part in enumerate(parts)], 1)
        else:
            parts = weight.view(4, 3, 8, 32).unbind(1)
            parts = [part / torch.linalg.matrix_norm(part.reshape(32, 32), ord=2) for part in parts]
            used[key] = torch.stack([gamma[n] * part for n, part in enumerate(parts)], 1).view(96, 32)
    wanted = torch.func.functional_call(stock, used, kwargs=inputs).logits
    got = model(**inputs).logits
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    wanted.square().mean().backward()
    got.square().mean().backward()
    found = {key.replace("parametrizations.weight.original", "weight"): p.grad for key, p in model.named_parameters()}
    scale = max(p.grad.abs().max() for p in weights.values() if p.grad is not None)
    for key, weight in weights.items():
        if weight.grad is not None:
            assert (found[key] - weight.grad).abs().max() <= 1e-5 * scale, key
    for gamma, (_, _, one) in zip(gammas, reparametrised(model), strict=True):
        torch.testing.assert_close(one.gamma.grad, gamma.grad, rtol=1e-4, atol=1e-6 * float(scale))


@pytest.mark.parametrize("name", FAMILIES)
def test_sigma_reparam_starts_as_the_stock_model_and_leaves_a_stock_checkpoint(name, tmp_path):
    model, inputs = build(name), batch(name)
    before, keys, weights = logits(model, **inputs), set(model.state_dict()), copy.deepcopy(model.state_dict())
    uc.apply(model, "sigma_reparam")
    assert torch.equal(logits(model, **inputs), before)
    with torch.no_grad():
        for _, _, one in reparametrised(model):
            one.gamma.mul_(1.1)
    wanted = logits(model, **inputs)
    assert set(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(plain, **inputs), wanted, rtol=1e-6, atol=1e-6)
    fresh = uc.apply(build(name, seed=7), "sigma_reparam")
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(fresh, **inputs), wanted, rtol=1e-6, atol=1e-6)
    model.load_state_dict(weights)
    uc.restore(model)
    assert torch.equal(logits(model, **inputs), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert [key for key, _ in model.named_parameters()] == [key for key, _ in build(name).named_parameters()]


@pytest.mark.parametrize("columns", [False, True])
def test_the_fast_spectral_product_is_the_definition(columns):
    """Both ways of storing a weight, values and gradients to the second order."""
    torch.manual_seed(0)
    stored = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    gamma = torch.rand(3, dtype=torch.float64, requires_grad=True)
    left, right = (torch.nn.functional.normalize(torch.randn(3, n, dtype=torch.float64), dim=-1) for n in (4, 5))

    def matrices(weight):
        return (weight.T if columns else weight.T.contiguous()).unflatten(0, (3, 4))

    def fast(weight, gain):
        return spectral_product(matrices(weight), gain, left, right)

    plain = plain_spectral_product(matrices(stored), gamma, left, right)
    assert torch.equal(fast(stored, gamma), plain)
    weights = torch.randn(plain.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((plain * weights).sum(), (stored, gamma))
    for got, expected in zip(
        torch.autograd.grad((fast(stored, gamma) * weights).sum(), (stored, gamma)), wanted, strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradgradcheck(fast, (stored, gamma))


def test_sigma_reparam_moves_its_vectors_once_a_step_and_not_in_a_forward():
    model, inputs = uc.apply(build("gpt2"), "sigma_reparam").train(), batch("gpt2")
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    before = [one.left.clone() for _, _, one in reparametrised(twin)]
    twin(**inputs).logits.square().mean().backward()
    assert all(torch.equal(a, one.left) for a, (_, _, one) in zip(before, reparametrised(twin), strict=True))
    optimizer.step()
    moved = [one for a, (_, _, one) in zip(before, reparametrised(twin), strict=True) if not torch.equal(a, one.left)]
    assert len(moved) == len(before)
    assert all(torch.equal(a, one.left) for a, (_, _, one) in zip(before, reparametrised(model), strict=True))
    for _ in range(20):
        optimizer.zero_grad()
        twin(**inputs).logits.square().mean().backward()
        optimizer.step()
    proof = uc.remedies.check(twin, inputs)
    assert proof.acts
    assert sorted(set(proof.table["layer"])) == [1, 2, 3, 4]
    assert proof.table["note"].tolist()[0] == "transformer.h.0.attn.c_attn.weight"
    assert proof.table["error"].max() < 0.02  # of the largest singular value, after one iteration a step


def test_sigma_reparam_under_checkpointing_and_of_a_plain_module():
    results = []
    for saving in (False, True):
        model = uc.apply(build("gpt2"), "sigma_reparam").train()
        if saving:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(**batch("gpt2")).logits.square().mean().backward()
        results.append([p.grad for p in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for name in ("nanogpt", "encoder_pre"):
        module, example = modules.build(name)
        before, keys = modules.first(module(example)), set(module.state_dict())
        uc.apply(module, "sigma_reparam", example=example)
        assert torch.equal(modules.first(module(example)), before)
        assert set(module.state_dict()) == keys
        modules.first(module(example)).square().mean().backward()
        assert uc.remedies.check(module, example).acts
        uc.restore(module)
        assert torch.equal(modules.first(module(example)), before)


def adamw(parameters, gradients, moments, step, rates, decay=0.1, betas=(0.9, 0.99), eps=1e-8):
    """One step of AdamW, with a rate for each entry."""
    for key, parameter in parameters.items():
        grad, (m, v) = gradients[key], moments.setdefault(key, [torch.zeros_like(parameter)] * 2)
        m, v = betas[0] * m + (1 - betas[0]) * grad, betas[1] * v + (1 - betas[1]) * grad**2
        moments[key] = [m, v]
        unbiased = (m / (1 - betas[0] ** step)) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
        parameter.copy_(parameter - rates[key] * decay * parameter - rates[key] * unbiased)


@pytest.mark.parametrize("name", FAMILIES)
def test_qk_rate_is_adamw_with_a_rate_for_each_entry(name):
    model, reference, inputs = build(name), build(name), batch(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    uc.apply(model, "qk_rate", factor=0.25, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    rates = {key: torch.full_like(p, 0.01) for key, p in reference.named_parameters()}
    for key, rate in rates.items():
        if "c_attn" in key:
            rate[..., :64] *= 0.25
        elif "query_key_value" in key:
            rate.view(4, 3, -1)[:, :2] *= 0.25
        elif any(part in key for part in ("q_proj", "k_proj", "self.query", "self.key")):
            rate *= 0.25
    moments = {}
    for step in range(1, 4):
        for one in (model, reference):
            one.zero_grad()
            one(**inputs).logits.square().mean().backward()
        optimizer.step()
        scheduler.step()
        trained = {key: p for key, p in reference.named_parameters() if p.grad is not None}
        now = {key: rates[key] / step for key in trained}
        with torch.no_grad():
            adamw(trained, {key: p.grad for key, p in trained.items()}, moments, step, now)
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, dict(reference.named_parameters())[key], rtol=1e-9, atol=1e-10)
            parameter.data.copy_(dict(reference.named_parameters())[key])  # rounding of Adam's quotient does not add up
    assert uc.remedies.check(model, inputs).acts
    uc.restore(model)
    assert {group["lr"] for group in optimizer.param_groups} == {0.01 / 4}


def test_qk_rate_after_a_scheduler_or_with_another_optimizer_is_refused():
    model = build("llama")
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(ValueError, match="apply qk_rate first"):
        uc.apply(model, "qk_rate", optimizer=optimizer)
    for remedy in ("qk_rate", "qk_clip", "locater"):
        with pytest.raises(ValueError, match="give the one that trains it"):
            uc.apply(model, remedy, optimizer=torch.optim.AdamW(build("gpt2").parameters()))
    assert uc.remedies.applied(model) == []


def largest(formulas):
    return [scores.amax((0, 2, 3)) for scores in formulas.scores]


@pytest.mark.parametrize("balance", [0.5, 0.2])
@pytest.mark.parametrize("name", FAMILIES)
def test_qk_clip_is_its_formula(name, balance):
    inputs, tau = batch(name), 1.5
    formulas = Formulas(build(name))
    written_out(build(name), formulas)(**inputs)
    logit = largest(formulas)
    model, plain = build(name).train(), build(name).train()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, plain)]
    uc.apply(model, "qk_clip", threshold=tau, balance=balance, optimizer=optimizers[0])
    for one, optimizer in zip((model, plain), optimizers, strict=True):
        one(**inputs).logits.square().mean().backward()
        optimizer.step()
    assert any((one > tau).any() for one in logit)
    for seen, ours, stock in zip(logit, query_key_weights(model), query_key_weights(plain), strict=True):
        eta = torch.tensor([min(1.0, tau / max(float(value), tau)) for value in seen])
        group = eta.view(len(stock.key), -1).min(1).values
        for got, wanted, factor in (
            (ours.query, stock.query, eta**balance),
            (ours.key, stock.key, group ** (1 - balance)),
            (ours.query_bias, stock.query_bias, eta**balance),
            (ours.key_bias, stock.key_bias, group ** (1 - balance)),
        ):
            if wanted is not None:
                torch.testing.assert_close(
                    got, wanted * factor.view(-1, *[1] * (wanted.dim() - 1)), rtol=1e-5, atol=1e-9
                )
    values = [key for key in model.state_dict() if not any(part in key for part in ("q", "k", "attn"))]
    assert all(torch.equal(model.state_dict()[key], plain.state_dict()[key]) for key in values)
    assert set(model.state_dict()) == set(plain.state_dict())


def test_qk_clip_holds_the_logits_and_the_checkpoint_is_stock(tmp_path):
    model, inputs = build("llama").train(), batch("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    uc.apply(model, uc.remedies.QKClip(threshold=1.0), optimizer=optimizer)
    for _ in range(3):  # a clipped layer changes what enters the next
        model(**inputs).logits.square().mean().backward()
        optimizer.step()
    formulas = Formulas(build("llama"))
    twin = build("llama")
    twin.load_state_dict(model.state_dict())
    written_out(twin, formulas)(**inputs)
    assert max(float(one.max()) for one in largest(formulas)) < 1.2
    assert float(largest(formulas)[0].max()) == pytest.approx(1.0, rel=1e-4)
    model.eval().save_pretrained(tmp_path)
    plain = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(
        logits(plain, **inputs), logits(model, **inputs), rtol=1e-5, atol=1e-6
    )  # angles in float32


def test_qk_clip_sees_every_micro_batch_and_only_those_of_training():
    model, one, other = build("gpt2").train(), batch("gpt2"), batch("gpt2", seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    uc.apply(model, "qk_clip", threshold=1.0, optimizer=optimizer)
    from uncollapse.models.editing import edited_model

    tap = edited_model(model).layers[0].edits[0]
    seen = []
    for inputs in (one, other):
        tap.largest = None
        model(**inputs)
        seen.append(tap.largest)
    tap.largest = None
    for inputs in (one, other):
        model(**inputs).logits.square().mean().backward()
    assert torch.equal(tap.largest, torch.maximum(*seen))
    with torch.no_grad():
        tap.largest = None
        model(**one)
    assert tap.largest is None


def test_qk_clip_of_a_plain_module():
    model, example = modules.build("nanogpt")
    reference, _ = modules.build("nanogpt")
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.0)
    uc.apply(model, "qk_clip", threshold=0.05, optimizer=optimizer, example=example)
    modules.first(model(example)).square().mean().backward()
    optimizer.step()
    formulas = Formulas(reference)
    reference.load_state_dict(model.state_dict())
    reference.written_out(example, Recursion(formulas, reference))
    assert float(largest(formulas)[0].max()) == pytest.approx(0.05, rel=1e-4)
    assert uc.remedies.check(model, example).acts


def test_qk_rate_and_qk_clip_go_together_in_either_order():
    results = []
    for order in (("qk_rate", "qk_clip"), ("qk_clip", "qk_rate")):
        model, inputs = build("gpt2").train(), batch("gpt2")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for name in order:
            settings = {"factor": 0.5} if name == "qk_rate" else {"threshold": 1.0}
            uc.apply(model, name, optimizer=optimizer, **settings)
        for _ in range(2):
            model(**inputs).logits.square().mean().backward()
            optimizer.step()
        results.append(model.state_dict())
    assert all(torch.equal(value, results[1][key]) for key, value in results[0].items())


def test_locater_in_any_loop_adds_its_gradient():
    model, plain, inputs = build("gpt2"), build("gpt2"), batch("gpt2")
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain)]
    uc.apply(model, "locater", kappa_scale=0.01, kappa_mean=0.1, optimizer=optimizers[0])
    model(**inputs).logits.square().mean().backward()
    (plain(**inputs).logits.square().mean() + uc.locater_penalty(plain, 0.01, 0.1)).backward()
    for optimizer in optimizers:
        optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    proof = uc.remedies.check(model, inputs)
    assert proof.acts
    assert (proof.table["effect"] > 0).all()
    assert (proof.table["error"] < 1e-12).all()  # the gradient that is added beside the one of autograd
    assert all(torch.equal(p.grad, before) for p, before in zip(model.parameters(), gradients, strict=True))
    for block in model.transformer.h[1:]:
        block.attn.c_attn.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="locater does nothing in layer 2: its optimizer does not train W_Q and W_K"):
        uc.remedies.check(model, inputs)

"""Inherited scores as a remedy: measured in every layer against Eqs. 53 and 54 in float64, and beside the others."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

import uncollapse as uc
from tests.models import modules
from tests.models.builders import batch, build
from tests.remedies.formulas import shaken
from tests.remedies.test_formulas import EDITS

SCORES = {"alpha": 0.0, "alpha_hidden": 0.4}
SETTINGS = {
    "scores": SCORES,
    "scores from layer 2 on": {**SCORES, "start": "raw"},
    "tokens": {"alpha": 0.3, "alpha_hidden": 0.0},
    "tokens after the norm": {"alpha": 0.3, "alpha_hidden": 0.4, "skip": "normed"},
    "learned": {"alpha": "learned:0.3", "alpha_hidden": "learned:0.4"},
}


def converted(name, **settings):
    """A model with inherited scores, and a batch."""
    plain = name in modules.MODULES
    model, inputs = modules.build(name) if plain else (build(name), batch(name))
    return uc.apply(model, "hopfield", **settings, example=inputs if plain else None), inputs


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "nanogpt", "encoder_pre"])
def test_inherited_scores_and_tokens_are_proved_in_every_layer(name, settings):
    model, inputs = converted(name, **SETTINGS[settings])
    proof = uc.remedies.check(model, inputs)
    table = proof.table
    assert proof.acts
    assert table["layer"].tolist() == ([2, 3, 4] if "from layer 2" in settings else [1, 2, 3, 4])
    assert (table["effect"] > 1e-3).all()
    assert (table["error"] < 1e-5).all()  # scores of some backends are float32
    assert (table["gradient"] > 0).all() == (settings == "learned")


def test_a_softmax_that_is_written_out_is_proved_by_the_output():
    model, example = converted("nanogpt_written_out", **SCORES)
    proof = uc.remedies.check(model, example)
    assert proof.acts
    assert proof.table["note"].str.contains("written out").all()


def test_the_proof_leaves_the_model_as_it_was():
    model, inputs = converted("gpt2", **SCORES)
    hooks = [[len(m._forward_hooks), len(m._forward_pre_hooks)] for m in model.modules()]
    before = model(**inputs).logits
    uc.remedies.check(model, inputs)
    assert torch.equal(model(**inputs).logits, before)
    assert [[len(m._forward_hooks), len(m._forward_pre_hooks)] for m in model.modules()] == hooks


@pytest.mark.parametrize("name", ["gpt2", "nanogpt"])
def test_scores_that_are_not_inherited_are_an_error(name, monkeypatch):
    nothing, inputs = converted(name, alpha=0.0, alpha_hidden=0.0)
    with pytest.raises(ValueError, match="hopfield does nothing in layer 2"):
        uc.remedies.check(nothing, inputs)
    model, inputs = converted(name, **SCORES, start="raw")
    from uncollapse.models import _inheriting, _interface

    where = _interface if name == "gpt2" else _inheriting
    stock = where.hopfield_attention
    monkeypatch.setattr(where, "hopfield_attention", lambda q, k, v, state, **how: stock(q, k, v, None, **how))
    with pytest.raises(ValueError, match=r"hopfield is .* away from its formula in layer 2"):
        uc.remedies.check(model, inputs)


def test_it_is_proved_inside_an_adapter():
    adapted = get_peft_model(build("llama"), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).double()
    proof = uc.remedies.check(uc.apply(adapted, "hopfield", **SCORES), batch("llama"))
    assert proof.acts
    assert set(proof.survival) == {"saved and loaded", "with a cache", "packed"}


@pytest.mark.parametrize("order", ["convert first", "convert last"])
@pytest.mark.parametrize("remedy", ["qk_norm", "output_gate", "value_mixing"])
@pytest.mark.parametrize("name", ["gpt2", "nanogpt"])
def test_inherited_scores_go_with_remedies_in_either_order(name, remedy, order):
    """At alpha' = 0 the converted model with the remedy is the stock model with the remedy."""
    plain = name == "nanogpt"

    def fresh():
        return modules.build(name) if plain else (build(name), batch(name))

    def run(model, example):
        with torch.no_grad():
            return modules.first(model(example)) if plain else model(**example).logits

    (one, example), (other, _), (inherits, _) = fresh(), fresh(), fresh()
    how = {"example": example} if plain else {}
    shaken(uc.apply(one, remedy, **EDITS[remedy], **how))
    for model, alphas in ((other, (0.0, 0.0)), (inherits, (0.0, 0.7))):
        steps = [
            lambda m=model, a=alphas: uc.convert(m, alpha=a[0], alpha_hidden=a[1], **how),
            lambda m=model: uc.apply(m, remedy, **EDITS[remedy], **how),
        ]
        for step in steps if order == "convert first" else reversed(steps):
            step()
        shaken(model)
    torch.testing.assert_close(run(other, example), run(one, example), rtol=1e-9, atol=1e-9)
    assert (run(inherits, example) - run(one, example)).abs().max() > 1e-3
    uc.restore(inherits)
    assert torch.equal(run(inherits, example), run(fresh()[0], example))


@pytest.mark.parametrize("remedy", ["soft_cap", "sink"])
def test_inherited_scores_and_a_cap_or_a_sink_are_refused(remedy):
    with pytest.raises(ValueError, match=f"{remedy} does not go with hopfield"):
        uc.apply(uc.convert(build("gpt2")), remedy)
    model = uc.apply(build("gpt2"), remedy)
    with pytest.raises(ValueError, match=f"hopfield does not go with {remedy}"):
        uc.convert(model)

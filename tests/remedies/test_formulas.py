"""Each remedy is its formula, written plainly in torch: outputs and all gradients, in float64."""

import pytest
import torch

import uncollapse as uc
from tests.models import modules
from tests.models.builders import batch, build
from tests.remedies.formulas import Formulas, Recursion, shaken, written_out

MIXTURE = {"attended": 0.8, "own": 0.3, "mean": -0.4, "first": 0.2, "attended_first": 0.1}
EDITS = {
    "qk_norm": {},
    "qk_norm without gains": {"gain": False},
    "qk_norm of each head": {"gain": "head"},
    "soft_cap": {"cap": 2.0},
    "sink": {"start": 0.5},
    "output_gate": {},
    "output_gate of elements": {"per": "element"},
    "value_mixing": MIXTURE,
    "value_mixing learned": {"learned": True, **MIXTURE},
    "value_mixing without layer 1": {"own": 0.3, "mean": -0.4},
}
every_edit = pytest.mark.parametrize("remedy", EDITS)


def applied(model, remedy, **how):
    return shaken(uc.apply(model, remedy.partition(" ")[0], **EDITS[remedy], **how))


def compare(model, reference, formulas, run, written, close):
    """Outputs, and the gradients of the model's own parameters and of the remedy's."""
    got, wanted = run(model), written(reference)
    torch.testing.assert_close(got, wanted, **close)
    got.square().mean().backward()
    wanted.square().mean().backward()
    ours = {name: p.grad for name, p in model.named_parameters()}
    own = [grad for name, grad in ours.items() if ".uncollapse_" in name]
    stock = [grad for name, grad in ours.items() if ".uncollapse_" not in name]
    numbers = [value.grad for layer in formulas.numbers for value in layer.values()]
    for grads, expected in ((stock, [p.grad for p in reference.parameters()]), (own, numbers)):
        scale = max((grad.abs().max() for grad in expected if grad is not None), default=1.0)
        for grad, wanted_grad in zip(grads, expected, strict=True):
            assert (grad is None) == (wanted_grad is None)
            if grad is not None:
                assert (grad - wanted_grad).abs().max() <= close["rtol"] * scale


@every_edit
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_a_transformers_model_computes_the_formula(name, remedy):
    model = applied(build(name), remedy)
    formulas = Formulas(model)
    reference = written_out(build(name), formulas)
    inputs = batch(name)
    if name != "vit":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, -3:] = 0
    close = {"rtol": 1e-5, "atol": 1e-5} if name == "llama" else {"rtol": 1e-9, "atol": 1e-9}  # norms in float32
    compare(model, reference, formulas, lambda m: m(**inputs).logits, lambda m: m(**inputs).logits, close)


@every_edit
@pytest.mark.parametrize("name", ["nanogpt", "timm", "encoder_pre"])
def test_a_plain_module_computes_the_formula(name, remedy):
    model, example = modules.build(name)
    reference, _ = modules.build(name)
    model = applied(model, remedy, example=example)
    formulas = Formulas(model)
    recursion = Recursion(formulas, reference)
    compare(
        model,
        reference,
        formulas,
        lambda m: modules.first(m(example)),
        lambda m: m.written_out(example, recursion),
        {"rtol": 1e-9, "atol": 1e-9},
    )


def test_a_llama_with_qk_norm_is_a_qwen3():
    model = shaken(uc.apply(build("llama"), "qk_norm"))
    twin, inputs = uc.remedies.to_qwen3(model), batch("llama")
    ours, theirs = model(**inputs).logits, twin(**inputs).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # Qwen3's norms run in float32
    ours.square().mean().backward()
    theirs.square().mean().backward()
    scale = max(p.grad.abs().max() for p in twin.parameters())
    for n, layer in enumerate(model.model.layers):
        own, other = layer.self_attn, twin.model.layers[n].self_attn
        for grad, wanted in (
            (own.uncollapse_qk_norm.query.grad, other.q_norm.weight.grad),
            (own.uncollapse_qk_norm.key.grad, other.k_norm.weight.grad),
            (own.q_proj.weight.grad, other.q_proj.weight.grad),
        ):
            assert (grad - wanted).abs().max() <= 1e-5 * scale


def test_a_qwen3_is_written_and_read_as_one(tmp_path):
    import transformers as hf

    model, inputs = shaken(uc.apply(build("llama"), "qk_norm")), batch("llama")
    uc.remedies.to_qwen3(model).save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert type(loaded).__name__ == "Qwen3ForCausalLM"
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=1e-5, atol=1e-5)
    for other in ({"gain": "head"}, {"gain": False}):
        with pytest.raises(ValueError, match="gains that the heads share"):
            uc.remedies.to_qwen3(uc.apply(build("llama"), "qk_norm", **other))


@pytest.mark.parametrize("pair", [("soft_cap", "sink"), ("qk_norm", "soft_cap"), ("sink", "value_mixing")])
def test_remedies_in_one_layer_are_one_formula(pair):
    model = build("gpt2")
    for remedy in pair:
        model = uc.apply(model, remedy, **EDITS[remedy])
    formulas = Formulas(shaken(model))
    inputs = batch("gpt2")
    wanted = written_out(build("gpt2"), formulas)(**inputs).logits
    torch.testing.assert_close(model(**inputs).logits, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gain", [True, "head"])
def test_gains_from_data_keep_a_model_closer_to_what_it_was(gain):
    stock, inputs = build("gpt2"), batch("gpt2", length=24, rows=4)
    with torch.no_grad():
        wanted = stock(**inputs).logits
        plain = uc.apply(build("gpt2"), "qk_norm")(**inputs).logits
        fitted = uc.apply(build("gpt2"), "qk_norm", gain=gain, fit=True, example=inputs)
        moved = fitted(**inputs).logits - wanted
    assert moved.norm() < 0.9 * (plain - wanted).norm()
    note = uc.remedies.check(fitted, inputs).notes["qk_norm"]
    assert note == f"the output on the example moved by {(moved.norm() / wanted.norm()).item():.2%} of its norm"
    labelled = inputs | {"labels": inputs["input_ids"]}
    other = uc.apply(build("gpt2"), "qk_norm", fit=True, example=labelled)
    assert "the loss of the example moved from" in uc.remedies.check(other, labelled).notes["qk_norm"]


def test_gains_of_weights_with_normalised_queries_and_keys_are_found():
    """Where every query and key has one length, the fitted norm changes nothing: its gains are that length."""
    model, inputs = build("gpt2"), batch("gpt2")
    uc.apply(model, "qk_norm")
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.attn.uncollapse_qk_norm.query.fill_(1.7)
            layer.attn.uncollapse_qk_norm.key.fill_(0.6)
        wanted = model(**inputs).logits
    sums = []
    from uncollapse.models.editing import edited_model
    from uncollapse.remedies.qk_norm import _regression

    shared = edited_model(model)
    shared.observe = lambda seen: sums.append(_regression(seen.call))
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, wanted)
    for above, below in sums:
        torch.testing.assert_close(above / below, torch.full((4,), 1.7 * 0.6, dtype=torch.float64), rtol=1e-5, atol=0)

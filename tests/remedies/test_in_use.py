"""Remedies in use: checkpointing, compilation, adapters, saving, copying and taking back."""

import copy
import pickle
from itertools import product

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model

import uncollapse as uc
from tests.models import modules
from tests.models.builders import batch, build, logits
from tests.remedies.formulas import shaken
from tests.remedies.test_formulas import EDITS

MAIN = ("qk_norm", "soft_cap", "sink", "output_gate", "value_mixing learned")
main_edits = pytest.mark.parametrize("remedy", MAIN)


def changed(name, remedy, model=None):
    return shaken(uc.apply(build(name) if model is None else model, remedy.partition(" ")[0], **EDITS[remedy]))


def gradients(model, inputs):
    model.zero_grad()
    model(**inputs).logits.square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@main_edits
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_checkpointing_gives_the_same_gradients(name, remedy):
    model, inputs = changed(name, remedy).train(), batch(name)
    wanted = gradients(model, inputs)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    got = gradients(model, inputs)
    assert got.keys() == wanted.keys()
    for key, grad in wanted.items():
        torch.testing.assert_close(got[key], grad, rtol=1e-9, atol=1e-12)


def with_all(model, example=None, edits=MAIN):
    """The model with every edit at once."""
    for remedy in edits:
        uc.apply(model, remedy.partition(" ")[0], **EDITS[remedy], example=example)
    return shaken(model)


@pytest.mark.parametrize("name", ["bert", "vit", "nanogpt"])
def test_checkpointing_gives_the_same_gradients_with_all_of_them(name):
    plain = name == "nanogpt"
    model, inputs = modules.build(name) if plain else (build(name), batch(name))
    with_all(model.train(), inputs if plain else None)
    found = []
    for saving in (False, True):
        if saving and plain:
            model.checkpointing = {"use_reentrant": False}
        elif saving:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.zero_grad()
        (modules.first(model(inputs)) if plain else model(**inputs).logits).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_values_of_layer_1_are_refused_under_reentrant_checkpointing():
    model = changed("gpt2", "value_mixing").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(ValueError, match="reentrant or nested gradient checkpointing would give wrong gradients"):
        gradients(model, batch("gpt2"))


def test_two_passes_before_one_backward_keep_their_own_values_of_layer_1():
    model, one, other = changed("gpt2", "value_mixing").train(), batch("gpt2"), batch("gpt2", seed=5)
    both = [gradients(model, inputs) for inputs in (one, other)]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.zero_grad()
    losses = [model(**inputs).logits.square().mean() for inputs in (one, other)]
    sum(losses).backward()
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, both[0][key] + both[1][key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "encoder_pre",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "bert", "vit", "nanogpt")),
    ],
)
def test_a_compiled_model_gives_the_same_and_the_same_gradients(name):
    torch.compiler.reset()
    plain = name in modules.MODULES
    model, inputs = modules.build(name) if plain else (build(name), batch(name))
    (blocks,) = (module for module in model.modules() if type(module) is torch.nn.ModuleList)
    del blocks[2:]  # the second has the values of the first; a third would only be compiled like it
    if hasattr(model, "config"):
        model.config.use_cache, model.config.num_hidden_layers = False, 2
    with_all(model, inputs if plain else None)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = []
    for run in (model, compiled):
        model.zero_grad()
        out = modules.first(run(inputs)) if plain else run(**inputs).logits
        out.square().mean().backward()
        found.append([out, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_half_precision_by_autocast_stays_near(name):
    model, inputs = with_all(build(name).float()), batch(name)
    inputs = {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}
    wanted = model(**inputs).logits
    with torch.autocast("cpu", torch.bfloat16):
        got = model(**inputs).logits
    assert (got - wanted).norm() < 0.05 * wanted.norm()  # bfloat16 has 8 bits
    got.float().square().mean().backward()
    assert all(p.grad is not None for key, p in model.named_parameters() if ".uncollapse_" in key)


LORA = {
    "gpt2": ["c_attn", "c_proj"],
    "llama": ["q_proj", "k_proj", "o_proj"],
    "bert": ["query", "key", "value"],
    "vit": ["q_proj", "k_proj", "o_proj"],
}


@main_edits
@pytest.mark.parametrize("name", LORA)
def test_adapters_before_and_after_give_the_same(name, remedy):
    def adapted(model):
        torch.manual_seed(3)
        config = LoraConfig(r=2, target_modules=LORA[name], init_lora_weights=False)
        return get_peft_model(model, config).double().eval()

    inputs = batch(name)
    one = shaken(adapted(uc.apply(build(name), remedy.partition(" ")[0], **EDITS[remedy])))
    other = shaken(uc.apply(adapted(build(name)), remedy.partition(" ")[0], **EDITS[remedy]))
    got, wanted = logits(one, **inputs), logits(other, **inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    merged = copy.deepcopy(other).merge_and_unload()
    torch.testing.assert_close(logits(merged, **inputs), wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("name", "targets"), [("nanogpt", ["c_attn", "c_proj"]), ("timm", ["qkv", "attn.proj"])])
def test_adapters_of_a_plain_module_give_the_same_before_and_after(name, targets):
    def adapted(model):
        torch.manual_seed(3)
        return get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).double().eval()

    def output(model):
        with torch.no_grad():
            return modules.first(model(example))

    example, call_edits = modules.build(name)[1], ("soft_cap", "sink", "value_mixing learned")
    one = adapted(with_all(modules.build(name)[0], example))
    torch.testing.assert_close(output(one), output(copy.deepcopy(one).merge_and_unload()), rtol=1e-9, atol=1e-9)
    before = adapted(with_all(modules.build(name)[0], example, call_edits))
    other = adapted(modules.build(name)[0])
    stock = output(other)
    with pytest.raises(
        ValueError, match=r"qk_norm cannot act in PeftModel: .* has W_Q and W_K where they were not found"
    ):
        uc.apply(other, "qk_norm", example=example)
    torch.testing.assert_close(output(with_all(other, example, call_edits)), output(before), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(output(before), stock)


@pytest.mark.parametrize(("name", "remedy"), [*product(("gpt2", "llama"), EDITS), *product(("bert", "vit"), MAIN)])
def test_it_is_saved_loaded_copied_and_taken_back(name, remedy, tmp_path):
    stock, inputs = build(name), batch(name)
    before, weights = logits(stock, **inputs), {key: value.clone() for key, value in stock.state_dict().items()}
    stock.save_pretrained(tmp_path / "stock")  # which writes its class and dtype into the config
    config = copy.deepcopy(stock.config.to_dict())
    model = changed(name, remedy, stock)
    wanted = logits(model, **inputs)
    assert not torch.equal(wanted, before)
    model.save_pretrained(tmp_path / "remedy")
    loaded = uc.from_pretrained(tmp_path / "remedy", dtype=torch.float64).eval()
    torch.testing.assert_close(logits(loaded, **inputs), wanted, rtol=1e-6, atol=1e-6)
    assert uc.remedies.applied(loaded) == uc.remedies.applied(model)
    assert torch.equal(logits(copy.deepcopy(model), **inputs), wanted)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model)), **inputs), wanted)
    uc.restore(model)
    assert torch.equal(logits(model, **inputs), before)
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert model.config.to_dict() == config
    assert not any(hooks for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks))
    assert uc.remedies.applied(model) == []


@main_edits
@pytest.mark.parametrize("name", ["nanogpt", "encoder_pre"])
def test_a_plain_module_is_saved_loaded_and_taken_back(name, remedy, tmp_path):
    model, example = modules.build(name)
    before, keys = modules.first(model(example)), list(model.state_dict())
    shaken(uc.apply(model, remedy.partition(" ")[0], **EDITS[remedy], example=example))
    wanted = modules.first(model(example))
    folder = uc.save(model, tmp_path / "model")
    loaded = uc.load(lambda: modules.build(name)[0], folder)
    assert torch.equal(modules.first(loaded.eval()(example)), wanted)
    assert torch.equal(modules.first(copy.deepcopy(model)(example)), wanted)
    uc.restore(model)
    assert torch.equal(modules.first(model(example)), before)
    assert list(model.state_dict()) == keys


def test_a_model_loaded_by_plain_transformers_is_stock(tmp_path):
    model, inputs = changed("gpt2", "soft_cap"), batch("gpt2")
    model.save_pretrained(tmp_path)
    plain = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(plain, **inputs), logits(build("gpt2"), **inputs), rtol=1e-9, atol=1e-9)


def test_a_checkpoint_without_the_parameters_is_refused_by_name(tmp_path):
    model = changed("gpt2", "sink")
    stock = {key: value for key, value in model.state_dict().items() if "uncollapse" not in key}
    model.save_pretrained(tmp_path, state_dict=stock)
    with pytest.raises(
        ValueError, match=r"a remedy's parameters, and h\.0\.attn\.uncollapse_sink\.logits .* not in the"
    ):
        uc.from_pretrained(tmp_path)


def test_a_config_of_a_stranger_is_refused():
    for data, why in (
        ({"name": "no_such"}, "there is no remedy 'no_such'"),
        ({"name": "sink", "start": "often"}, "start must be a number"),
        ({"name": "sink", "depth": 1}, "sink has no setting 'depth'"),
        ({"name": "qk_rate"}, "belongs to no saved model"),
        ("sink", "must be an object with a name"),
    ):
        from uncollapse.remedies.remedy import from_data

        with pytest.raises(ValueError, match=why):
            from_data(data)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_another_implementation_is_an_error_and_not_silence(name):
    model = changed(name, "sink")
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="called scaled_dot_product_attention 0 times"):
        logits(model, **batch(name))
    eager = build(name)
    eager.set_attn_implementation("eager")
    uc.apply(eager, "sink")
    assert eager.config._attn_implementation == "sdpa"
    uc.restore(eager)
    assert eager.config._attn_implementation == "eager"


def test_what_cannot_work_is_refused_in_a_sentence():
    model, example = modules.build("nanogpt_written_out")
    stock = modules.first(model(example))
    with pytest.raises(ValueError, match=r"soft_cap cannot act in NanoGPT: h\.0\.attn writes its softmax out"):
        uc.apply(model, "soft_cap", example=example)
    uc.apply(model, "qk_norm", example=example)  # the projections are modules, whatever follows
    assert not torch.equal(modules.first(model(example)), stock)
    for bad, why in (
        (lambda: uc.apply(build("gpt2"), "cap"), "there is no remedy 'cap'"),
        (lambda: uc.apply(build("gpt2"), "soft_cap", cap=-1), "cap must be a positive number"),
        (lambda: uc.apply(build("gpt2"), "soft_cap", size=2), "soft_cap has no setting 'size'; it has cap"),
        (lambda: uc.apply(build("gpt2"), uc.remedies.SoftCap(), cap=2), "has its settings already"),
        (lambda: uc.apply(build("qwen3"), "qk_norm"), "has a norm of its own already"),
        (lambda: uc.apply(uc.apply(build("gpt2"), "sink"), "sink"), "has sink already"),
        (lambda: uc.apply(build("gpt2"), "value_mixing"), "is stock attention"),
        (lambda: uc.apply(build("gpt2"), "qk_norm", fit=True), "give a batch as example"),
        (lambda: uc.apply(build("gpt2"), "qk_clip"), "give optimizer="),
        (lambda: uc.apply(modules.build("nanogpt")[0], "sink"), "give a batch as example="),
        (lambda: uc.apply(build("gpt2"), torch.nn.Linear(1, 1)), "expected the name of a remedy"),
    ):
        with pytest.raises(ValueError, match=why):
            bad()


def test_parameters_of_remedies_have_their_group():
    model = uc.apply(uc.apply(build("gpt2"), "sink"), "output_gate")
    groups = uc.parameter_groups(model, lr=1e-3, weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {p.dim() for p in groups[1]["params"]} == {1}
    assert len(groups[1]["params"]) == 4
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))

"""check() shows with numbers that a remedy runs, and says so when it does not."""

import copy

import pytest
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model

import uncollapse as uc
from tests.models import modules
from tests.models.builders import GROUPED, SPECIAL, TEXT, batch, build
from tests.remedies.formulas import shaken
from tests.remedies.test_formulas import EDITS, every_edit
from uncollapse.models.editing import edited_model


@every_edit
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_every_remedy_is_proved_in_every_layer(name, remedy):
    model = shaken(uc.apply(build(name), remedy.partition(" ")[0], **EDITS[remedy]))
    proof = uc.remedies.check(model, batch(name))
    table = proof.table
    assert proof.acts
    assert table["layer"].tolist() == [1, 2, 3, 4]
    assert (table["effect"] > 1e-3).all()
    assert (table["error"] < 1e-6).all()
    with_parameters = any(".uncollapse_" in path for path, _ in model.named_parameters())
    assert (table["gradient"] > 0).all() == with_parameters
    wanted = {"saved and loaded", "with a cache", "packed"} if name != "bert" else {"saved and loaded"}
    assert set(proof.survival) == wanted
    assert "differs by" in str(proof)


def test_a_remedy_that_starts_as_the_stock_model_acts_by_its_gradient():
    proof = uc.remedies.check(uc.apply(build("gpt2"), "output_gate"), batch("gpt2"))
    assert (proof.table["effect"] < 1e-12).all()
    assert (proof.table["gradient"] > 0).all()


def test_a_remedy_that_does_nothing_is_an_error():
    model = uc.apply(build("gpt2"), "qk_norm")
    edited_model(model).layers[2].projections.clear()  # as a fault in finding them would leave it
    with pytest.raises(ValueError, match=r"qk_norm does nothing in layer 3: h\.2\.attn did not run it"):
        uc.remedies.check(model, batch("gpt2"))
    far = uc.apply(build("gpt2"), "sink", start=-1e4)
    with pytest.raises(ValueError, match="sink does nothing in layer 1"):
        uc.remedies.check(far, batch("gpt2"))
    trained = build("gpt2")
    uc.apply(trained, "qk_clip", optimizer=torch.optim.SGD(trained.parameters(), lr=0.1))
    assert uc.remedies.check(trained, batch("gpt2")).acts
    with pytest.raises(ValueError, match="follows the steps of no optimizer"):
        uc.remedies.check(copy.deepcopy(trained), batch("gpt2"))


def test_parameters_that_get_no_gradient_are_an_error_and_frozen_ones_are_not():
    model = uc.apply(build("gpt2"), "qk_norm")
    edit = edited_model(model).layers[1].edits[0]
    edit.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    assert uc.remedies.check(model, batch("gpt2")).acts  # the gains get theirs
    edit.queries = edit.keys = lambda heads: heads / heads.square().mean(-1, keepdim=True).sqrt()
    with pytest.raises(ValueError, match="qk_norm has parameters that get no gradient in layer 2"):
        uc.remedies.check(model, batch("gpt2"), saving=False)
    frozen = uc.apply(build("gpt2"), "qk_norm").requires_grad_(False)
    assert uc.remedies.check(frozen, batch("gpt2")).table["gradient"].isna().all()


def test_what_the_stock_model_cannot_do_is_not_asked_of_its_remedies():
    config = hf.OPTConfig(**{**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 32}, **SPECIAL, dropout=0.0)
    proof = uc.remedies.check(uc.apply(hf.OPTForCausalLM(config).eval(), "sink"), batch("gpt2"))
    assert proof.acts
    assert proof.survival["packed"] is None  # its positions are counted, whatever position_ids say
    assert proof.survival["with a cache"] < 1e-3


def test_a_remedy_that_is_not_its_formula_is_an_error(monkeypatch):
    from uncollapse.models import _attention_call

    model = uc.apply(build("gpt2"), "soft_cap", cap=1.0)
    monkeypatch.setattr(_attention_call, "capped_attention", lambda q, k, v, cap, sink, **_: v)
    with pytest.raises(ValueError, match=r"soft_cap is .* away from its formula in layer 1"):
        uc.remedies.check(model, batch("gpt2"))


@pytest.mark.parametrize("name", ["nanogpt", "timm", "encoder_pre", "encoder_tokens_first"])
@pytest.mark.parametrize("remedy", ["qk_norm", "soft_cap", "sink", "output_gate", "value_mixing learned"])
def test_a_plain_module_is_proved(name, remedy):
    model, example = modules.build(name)
    shaken(uc.apply(model, remedy.partition(" ")[0], **EDITS[remedy], example=example))
    proof = uc.remedies.check(model, example)
    assert proof.acts
    assert (proof.table["error"] < 1e-6).all()
    assert proof.survival == {"saved and loaded": pytest.approx(0.0, abs=1e-12)}


def test_remedies_of_the_stock_model_are_found_and_measured():
    assert uc.remedies.check(build("gpt2"), batch("gpt2")).stock == []
    assert str(uc.remedies.check(build("gpt2"), batch("gpt2"))) == "no remedy was found."
    qwen = uc.remedies.check(build("qwen3"), batch("qwen3"))
    assert [(one.name, len(one.effects), one.acts) for one in qwen.stock] == [("qk_norm", 4, True)]
    gemma = hf.Gemma2ForCausalLM(hf.Gemma2Config(**TEXT, **SPECIAL, **GROUPED, head_dim=8)).double().eval()
    found = uc.remedies.check(gemma, batch("gpt2")).stock
    assert [(one.name, one.acts, one.implementation) for one in found] == [("soft_cap", True, "eager")]


def test_sinks_that_the_attention_implementation_ignores_are_named():
    config = hf.GptOssConfig(**TEXT, **SPECIAL, **GROUPED, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    model = hf.GptOssForCausalLM(config).eval()
    inputs = batch("gpt2")
    acting = uc.remedies.check(model, inputs)
    assert [(one.name, one.acts) for one in acting.stock] == [("sink", True)]
    for part in (model.config, model.model.config):
        part._attn_implementation_internal = "sdpa"  # as code that forces it would do
    ignored = uc.remedies.check(model, inputs)
    assert [(one.name, one.acts) for one in ignored.stock] == [("sink", False)]
    assert not ignored.acts
    assert "does not act under attention 'sdpa'" in str(ignored)


def test_all_edits_of_an_image_model_are_proved_at_once():
    model = build("vit")
    names = ["qk_norm", "soft_cap", "sink", "output_gate", "value_mixing learned"]
    for remedy in names:
        uc.apply(model, remedy.partition(" ")[0], **EDITS[remedy])
    proof = uc.remedies.check(shaken(model), batch("vit"))
    assert len(proof.table) == 4 * len(names)
    assert (proof.table["error"] < 1e-6).all()
    assert proof.acts


def test_a_cap_that_no_score_meets_is_proved_by_lower_ones(monkeypatch):
    """Rounding in float32 is larger than what such a cap changes, so that its own effect would show nothing."""
    from uncollapse.models import _attention_call

    model, inputs = uc.apply(build("gpt2").float(), "soft_cap", cap=1e5), batch("gpt2")
    proof = uc.remedies.check(model, inputs)
    assert proof.acts
    assert (proof.table["effect"] > 1e-2).all()
    assert proof.table["note"].str.contains("do not meet the cap 100000 on this batch").all()
    assert {layer.edits[0].cap for layer in edited_model(model).layers} == {1e5}
    stock = _attention_call.capped_attention
    monkeypatch.setattr(_attention_call, "capped_attention", lambda *args, cap, **how: stock(*args, cap=1e9, **how))
    with pytest.raises(ValueError, match=r"soft_cap is .* away from its formula in layer 1"):
        uc.remedies.check(model, inputs)


def test_a_cap_of_half_precision_weights_is_proved_although_rounding_is_larger():
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=40, n_positions=48)).bfloat16()
    proof = uc.remedies.check(uc.apply(model.eval(), "soft_cap"), batch("gpt2"), saving=False)
    assert proof.acts
    assert proof.table["note"].str.contains("a tenth of that was tried").all()


def test_a_change_below_rounding_is_no_change():
    model = uc.apply(build("gpt2").float(), "value_mixing", own=1e-9)
    with pytest.raises(ValueError, match="value_mixing does nothing in layer 1"):
        uc.remedies.check(model, batch("gpt2"))


@pytest.mark.parametrize("remedy", ["qk_norm", "value_mixing learned"])
def test_a_model_inside_an_adapter_is_proved(remedy):
    adapted = get_peft_model(build("llama"), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).double()
    shaken(uc.apply(adapted, remedy.partition(" ")[0], **EDITS[remedy]))
    proof = uc.remedies.check(adapted, batch("llama"))
    assert proof.acts
    assert set(proof.survival) == {"saved and loaded", "with a cache", "packed"}


@pytest.mark.parametrize("remedy", ["soft_cap", "qk_clip", "qk_rate", "hopfield"])
def test_a_batch_with_more_than_the_model_takes_is_run_as_told(remedy):
    """`run` gets every forward of the proof."""
    (model, example), settings = modules.build("nanogpt"), {"cap": 2.0} if remedy == "soft_cap" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    uc.apply(model, remedy, optimizer=optimizer, example=example, **settings)
    proof = uc.remedies.check(model, {"tokens": example, "name": "a"}, run=lambda m, b: m(b["tokens"]))
    assert proof.acts

"""check() shows with numbers that a remedy runs, and says so when it does not."""

import copy

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models import modules
from tests.models.builders import GROUPED, SPECIAL, TEXT, batch, build
from tests.remedies.formulas import shaken
from tests.remedies.test_formulas import EDITS, every_edit
from uncollapse.models.editing import edited_model
from uncollapse.remedies.contents import APART, BY_NAME, ENTRIES, together


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


def test_the_table_of_contents_lists_every_remedy():
    table = uc.remedies.list()
    assert table["name"].tolist() == list(BY_NAME)
    assert set(table["evidence"]) == {"not tested here"}
    assert {"name", "against", "checkpoint", "evidence"} <= set(table)
    for entry in ENTRIES:
        file, _, kind = entry.home.partition(":")
        assert getattr(uc.remedies, kind).name == entry.name, file


SMALL = {
    "qk_clip": {"threshold": 1.0},
    "qk_rate": {"factor": 0.5},
    "soft_cap": {"cap": 2.0},
    "value_mixing": {"own": 0.3},
    "hopfield": {"alpha": 0.0, "alpha_hidden": 0.3},
    "locater": {},
    "qk_norm": {},
    "sigma_reparam": {},
    "sink": {},
    "output_gate": {},
}


def two_layers():
    torch.manual_seed(0)
    names = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 24}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**names, **SPECIAL, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))


@pytest.mark.parametrize("one", BY_NAME)
def test_which_remedies_go_together(one):
    """Each pair acts, or is refused naming both."""
    names = list(BY_NAME)
    for other in names[names.index(one) + 1 :]:
        first, second = (other, one) if len(one + other) % 2 else (one, other)  # some in either order
        model, inputs = two_layers(), batch("gpt2", length=6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        uc.apply(model, first, optimizer=optimizer, **SMALL[first])
        if frozenset((one, other)) in APART:
            with pytest.raises(ValueError, match=f"{second} does not go with {first}"):
                uc.apply(model, second, optimizer=optimizer, **SMALL[second])
            continue
        uc.apply(model, second, optimizer=optimizer, **SMALL[second])
        model(**inputs).logits.square().mean().backward()
        optimizer.step()
        proof = uc.remedies.check(model, inputs, saving=False)
        assert set(proof.table["remedy"]) == {one, other}
        assert proof.acts, (one, other)


def test_refused_pairs_name_remedies():
    assert all(set(pair) <= BY_NAME.keys() for pair in APART)
    with pytest.raises(ValueError, match="sink does not go with hopfield"):
        together("sink", ["qk_norm", "hopfield"])

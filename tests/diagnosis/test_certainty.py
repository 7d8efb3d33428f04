"""How sure a verdict is, whether a second sample agrees, and advice that knows what a model has."""

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.diagnosis.trained import TRAINED, needs_data
from tests.models.builders import batch, build
from uncollapse.diagnosis.advice import advice, known
from uncollapse.diagnosis.baseline import worse
from uncollapse.diagnosis.certainty import certainty
from uncollapse.diagnosis.thresholds import RESIDUAL_SHARE
from uncollapse.remedies.contents import BY_NAME, against, main_finding
from uncollapse_studies.calibration import architectures


def of_sequences(collapsed, healthy, small=1e-3, large=1e3):
    """So many sequences whose tokens differ by `small` of what they share, and so many by `large` of it."""
    generator = torch.Generator().manual_seed(0)
    with uc.Observer() as observer:
        for n in range(collapsed + healthy):
            x = torch.randn(1, 24, 16, generator=generator)
            observer.tokens(1, 1.0 + (small if n < collapsed else large) * x)
    return observer.diagnosis


def around_the_threshold():
    return of_sequences(4, 4, small=0.9 * RESIDUAL_SHARE, large=1.1 * RESIDUAL_SHARE)


def test_a_clear_case_is_sure_and_a_narrow_one_is_not():
    assert "sure: it holds in 100%" in of_sequences(8, 0).verdicts[0].sentence
    assert "sure: it holds in 100%" in of_sequences(0, 8).verdicts[0].sentence
    narrow = around_the_threshold()
    share = certainty(narrow).shares["rank collapse"]
    assert share == pytest.approx(certainty(narrow).shares["rank collapse"])  # the same each time
    assert 0.02 < share < 0.98
    assert of_sequences(1, 0).verdicts[0].sentence.count("one sequence cannot say how sure that is") == 1


def test_a_saved_report_is_as_sure_as_before(tmp_path):
    report = around_the_threshold()
    report.save(tmp_path / "saved")
    assert [str(v) for v in uc.Diagnosis.load(tmp_path / "saved").verdicts] == [str(v) for v in report.verdicts]


@needs_data
@pytest.mark.parametrize("name", TRAINED)
def test_a_second_sample_of_a_trained_model_agrees(name):
    """Of all layers and heads, sinks and collapses included, 99 % get the same answer from other sequences."""
    model, inputs = TRAINED[name]()
    rows = len(inputs["input_ids"])
    halves = [
        {key: value[part] for key, value in inputs.items()} for part in (slice(0, rows // 2), slice(rows // 2, rows))
    ]
    reports = [uc.diagnose(model, half) for half in halves]
    places = len(reports[0].heads) + len(reports[0].layers)
    named = [
        {(v.kind, place) for v in report.verdicts for place in (v.heads or v.layers)}  # (kind, layer or head)
        for report in reports
    ]
    assert len(named[0] ^ named[1]) <= 0.01 * places
    assert worse(reports[0], reports[1]) == []  # and none of them is worse than the other


def test_advice_names_what_helped_with_its_evidence_and_never_what_made_it_worse():
    for kind in ("rank collapse", "entropy collapse"):
        words = advice(kind, {})
        assert "a smaller learning rate" in words
        assert "a warm-up" in words
        assert "a warm-up" not in advice(kind, {"warmup": 100})
        assert "stronger residual" not in words
        assert all(f"; {main_finding(entry.name)})" in words for entry in against(kind))  # what our studies say of it
        assert all(line.evidence in words for line in known(kind))


def test_a_model_is_not_told_to_use_what_it_has():
    converted = uc.convert(build("gpt2"), alpha=0.5)
    with torch.no_grad():
        converted.transformer.wte.weight.copy_(converted.transformer.wte.weight[0].clone())
        converted.transformer.wpe.weight.zero_()
    (verdict, *_) = uc.diagnose(converted, batch("gpt2")).verdicts
    assert verdict.kind == "rank collapse"
    assert "alpha=0.5" not in verdict.remedy
    assert verdict.remedy.endswith("The model has residual branches scaled down with depth, alpha = 0.5 already.")


def granite():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16}
    config = hf.GraniteConfig(vocab_size=40, num_hidden_layers=2, residual_multiplier=0.5, **sizes)
    return hf.GraniteForCausalLM(config)


def with_spectral_norm():
    model = build("llama")
    for layer in model.model.layers:
        torch.nn.utils.parametrizations.spectral_norm(layer.self_attn.q_proj)
    return model


HAS = {  # setting of an advice -> models that have it, and their inputs
    "alpha": lambda: (uc.convert(build("llama"), alpha=0.5), batch("llama")),
    "qk_norm": lambda: (build("qwen3"), batch("qwen3")),
    "soft_cap": lambda: (architectures.build("gemma2"), architectures.batch("gemma2")),
    "sigma_reparam": lambda: (with_spectral_norm(), batch("llama")),
    "scaled_residuals": lambda: (granite(), batch("llama")),
}


@pytest.mark.parametrize("setting", HAS)
def test_every_setting_is_found_in_the_models_that_have_it_and_in_no_other(setting):
    model, inputs = HAS[setting]()
    settings = uc.diagnose(model, inputs, progress=False).info["settings"]
    assert set(settings) == {setting}
    kind = "rank collapse" if setting in ("alpha", "scaled_residuals") else "entropy collapse"
    (line,) = [line for line in known(kind) if line.settled_by == setting]
    assert line.what in advice(kind, {})
    assert line.what not in advice(kind, settings)


def test_all_that_an_advice_asks_for_is_found_somewhere():
    asked = {line.settled_by for kind in ("rank collapse", "entropy collapse") for line in known(kind)} - {""}
    assert asked - set(HAS) - set(BY_NAME) == {"warmup"}  # which is the Trainer's
    capped = uc.diagnose(uc.apply(build("gpt2"), "soft_cap"), batch("gpt2"), progress=False)
    assert capped.info["settings"]["soft_cap"] is True  # as of every remedy that was applied
    assert uc.diagnose(build("llama"), batch("llama"), progress=False).info["settings"] == {}


@pytest.mark.parametrize(("name", "scaled"), [("gpt2", True), ("dinov2", True), ("bert", False)])
def test_scaled_residual_branches_are_known_by_the_family_or_by_learned_factors(name, scaled):
    report = uc.diagnose(architectures.build(name), architectures.batch(name), progress=False)
    assert report.info["settings"].get("scaled_residuals", False) is scaled


@pytest.mark.parametrize("kind", ["rank collapse", "entropy collapse"])
def test_every_call_that_an_advice_names_can_be_made(kind):
    calls = [line.what for line in known(kind) if line.what.startswith("uncollapse.")]
    assert calls
    for call in calls:
        model = build("gpt2")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        eval(call, {"uncollapse": uc, "model": model, "optimizer": optimizer})

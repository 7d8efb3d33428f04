"""How sure a verdict is, whether a second sample agrees, and advice that knows what a model has."""

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.diagnosis.trained import TRAINED, needs_data
from tests.models.builders import batch, build
from uncollapse.diagnosis.advice import BY_KIND, advice
from uncollapse.diagnosis.baseline import worse
from uncollapse.diagnosis.certainty import certainty


def of_sequences(collapsed, healthy, small=1e-3, large=1e3):
    """So many sequences whose tokens differ by `small` of what they share, and so many by `large` of it."""
    generator = torch.Generator().manual_seed(0)
    with uc.Observer() as observer:
        for n in range(collapsed + healthy):
            x = torch.randn(1, 24, 16, generator=generator)
            observer.tokens(1, 1.0 + (small if n < collapsed else large) * x)
    return observer.diagnosis


def test_a_clear_case_is_sure_and_a_narrow_one_is_not():
    assert "sure: it holds in 100%" in of_sequences(8, 0).verdicts[0].sentence
    assert "sure: it holds in 100%" in of_sequences(0, 8).verdicts[0].sentence
    narrow = of_sequences(4, 4, small=0.045, large=0.055)  # the threshold is 0.05
    share = certainty(narrow).shares["rank collapse"]
    assert share == pytest.approx(certainty(narrow).shares["rank collapse"])  # the same each time
    assert 0.02 < share < 0.98
    assert of_sequences(1, 0).verdicts[0].sentence.count("one sequence cannot say how sure that is") == 1


def test_a_saved_report_is_as_sure_as_before(tmp_path):
    report = of_sequences(4, 4, small=0.045, large=0.055)
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
        assert all(line.evidence in words for line in BY_KIND[kind])


def test_a_model_is_not_told_to_use_what_it_has():
    converted = uc.convert(build("gpt2"), alpha=0.5)
    with torch.no_grad():
        converted.transformer.wte.weight.copy_(converted.transformer.wte.weight[0].clone())
        converted.transformer.wpe.weight.zero_()
    (verdict, *_) = uc.diagnose(converted, batch("gpt2")).verdicts
    assert verdict.kind == "rank collapse"
    assert "alpha=0.5" not in verdict.remedy
    assert "The model has alpha = 0.5 already." in verdict.remedy
    assert uc.diagnose(build("qwen3"), batch("qwen3")).info["settings"] == {"qk_norm": True}
    gemma = hf.Gemma2Config(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, head_dim=8)
    gemma.intermediate_size, gemma.vocab_size, gemma.num_hidden_layers = 16, 40, 2
    assert "soft cap" not in advice(
        "entropy collapse", uc.diagnose(hf.Gemma2ForCausalLM(gemma), batch("gpt2")).info["settings"]
    )

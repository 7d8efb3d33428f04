"""Every stack and every layer's attention is measured, or the first verdict names what is not."""

import math

import pytest
import torch
import transformers as hf

import uncollapse as uc
from uncollapse_studies.calibration.architectures import ARCHITECTURES, LAYERS, batch, build

TWO_STACKS = ("t5", "bart", "whisper", "clip")
CROSS = ("t5", "bart", "whisper")


@pytest.fixture(autouse=True)
def quiet():
    hf.logging.set_verbosity_error()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_layer_of_every_architecture_is_measured(name):
    report = uc.diagnose(build(name), batch(name))
    layers = 2 * LAYERS if name in TWO_STACKS else LAYERS
    rows = layers + (LAYERS if name in CROSS else 0)
    assert report.layers["layer"].tolist() == list(range(1, rows + 1))
    assert report.layers["residual_ratio"].notna().tolist() == [True] * layers + [False] * (rows - layers)
    first = report.verdicts[0]
    if name == "qwen3_next":
        assert first.kind == "not measured"
        assert "attention of layers 1-3 not measured: Qwen3NextDecoderLayer has no attention with" in first.sentence
        assert set(report.heads["layer"]) == {4}
    else:
        assert first.kind == "healthy", first.sentence
        assert set(report.heads["layer"]) == set(report.layers["layer"])


KEYS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
EAGER = ("gemma2", "gpt_oss", "t5", "modernbert", "bloom", "gptj", "gpt_neo", "deberta_v2", "falcon")


def large(name):
    """Weights that are large enough for attention to be far from uniform."""
    model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


@pytest.mark.parametrize("name", EAGER)
def test_sinks_caps_and_biases_are_in_the_numbers(name):
    """The entropies are those of the weights that the model itself returns when it runs eagerly."""
    model, inputs = large(name), batch(name)
    report = uc.diagnose(model, inputs)
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    else:
        model.config._attn_implementation_internal = "eager"
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    stacks = [output.get(key) or () for key in KEYS]
    weights = [layer for stack in stacks for layer in stack]
    assert len(weights) == len(report.layers)
    for n, layer in enumerate(weights, start=1):
        rest = (1.0 - layer.sum(dim=-1, keepdim=True)).clamp(min=0.0)  # what a learned sink took
        full = torch.cat([layer, rest * (rest > 0.01)], dim=-1).double()
        entropies = torch.special.entr(full).sum(dim=-1)  # (B, H, Q)
        seen = (layer > 0).sum(dim=-1) > 1 if name != "gpt_oss" else torch.ones_like(entropies, dtype=torch.bool)
        wanted = [entropies[:, h][seen[:, h]].mean().item() for h in range(layer.shape[1])]
        got = report.heads.query(f"layer == {n}")["entropy_mean"].tolist()
        assert got == pytest.approx(wanted, abs=2e-4), n  # T5 on SDPA and eager round otherwise
    assert report.heads["entropy_normalised"].max() < 0.999  # far from uniform, so the test can fail


def test_a_tower_that_does_not_run_is_named_in_the_first_line():
    model = build("clip")
    with torch.no_grad():
        for parameter in model.vision_model.parameters():
            parameter.fill_(math.nan)
    ids = batch("clip")["input_ids"]
    report = uc.diagnose(model, batch("clip"))
    assert report.verdicts[0].kind == "not finite"
    assert "vision_model.encoder.layers" in report.verdicts[0].sentence
    text = uc.diagnose(model.text_model, {"input_ids": ids})
    assert text.verdicts[0].kind == "healthy"


def test_a_stack_that_did_not_run_is_not_healthy(monkeypatch):
    model = build("clip")
    ids = batch("clip")["input_ids"]
    monkeypatch.setattr(model, "forward", lambda input_ids, **_: model.text_model(input_ids=input_ids))
    first = uc.diagnose(model, {"input_ids": ids}).verdicts[0]
    assert first.kind == "not measured"
    assert "vision_model.encoder.layers (4 layers) not measured: it did not run on these batches" in first.sentence


def test_a_collapse_in_the_decoder_is_placed_there():
    model = build("bart")
    with torch.no_grad():
        model.model.decoder.layers[1].fc1.weight.fill_(math.nan)
    first = uc.diagnose(model, batch("bart")).verdicts[0]
    assert (first.kind, first.layers) == ("not finite", (6,))
    assert "(in decoder.layers)" in first.sentence


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "falcon", "bloom", "gptj", "deberta_v2", "t5"])
def test_logits_far_too_large_are_an_entropy_collapse_in_every_family(name):
    model = build(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if any(key in path for key in ("q_proj", "query_proj", ".q.weight", "query_key_value")):
                parameter.mul_(16_000.0)
    report = uc.diagnose(model, batch(name))
    if name == "gemma2":  # its cap of 50 holds the scores
        assert report.heads["gap_max"].max() < 101.0
        return
    assert "entropy collapse" in [verdict.kind for verdict in report.verdicts], report.verdicts[0].sentence


def test_zeros_are_a_dead_network():
    vit = build("vit")
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.zero_()
    first = uc.diagnose(vit, batch("vit")).verdicts[0]
    assert (first.kind, first.is_collapse, first.layers) == ("dead network", True, (1, 2, 3, 4))
    for name in ("llama", "gpt2"):
        model = build(name)
        with torch.no_grad():
            model.get_input_embeddings().weight.zero_()
        assert uc.diagnose(model, batch(name)).verdicts[0].kind == "dead network"


@pytest.mark.parametrize(
    ("name", "matrix"), [("gpt_oss", "o_proj"), ("gpt2", "c_proj"), ("bert", "query"), ("t5", ".v.")]
)
def test_weights_that_are_all_zero_are_dead_attention_where_they_are(name, matrix):
    model = build(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if matrix in path and ".2." in path and "encoder.block.2" not in path.replace("decoder", ""):
                parameter.zero_()
    dead = [v for v in uc.diagnose(model, batch(name)).verdicts if v.kind == "dead attention"]
    assert dead
    assert set(dead[0].layers) <= {3, 7}


def test_a_constant_added_to_a_key_bias_changes_no_verdict():
    """Softmax ignores it: the output stays, and so must the verdict."""
    model, inputs = build("gpt2"), batch("gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight.mul_(8.0)
            block.attn.c_attn.bias[:32].fill_(1.0)  # of the queries, so that a key bias adds to every score of a row
        wanted, before = uc.diagnose(model, inputs), model(**inputs).logits
        for block in model.transformer.h:
            block.attn.c_attn.bias[32:64].add_(100.0)
        report, after = uc.diagnose(model, inputs), model(**inputs).logits
    torch.testing.assert_close(after, before, rtol=0.0, atol=1e-3)  # scores of 300 keep 5 digits behind the point
    assert report.heads["logit_max"].max() > 80.0  # by which a head was once judged
    assert [v.kind for v in report.verdicts] == [v.kind for v in wanted.verdicts] == ["healthy"]

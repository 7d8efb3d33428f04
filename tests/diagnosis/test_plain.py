"""Diagnosis of plain PyTorch modules, against numbers computed from the forward written out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import uncollapse as uc
from tests.models.modules import HEADS, LAYERS, MODULES, NanoGPT, Recursion, build, ids, vectors

TOLERANCE = 3e-6  # statistics are taken in float32


def entropies(scores):
    """Mean entropy of each head over the rows that see two keys or more."""
    weights = scores.softmax(-1)
    rows = torch.special.entr(weights).sum(-1)
    counted = (scores > -torch.inf).sum(-1) >= 2
    return ((rows * counted).sum((0, 2)) / counted.sum((0, 2))).tolist()


@pytest.mark.parametrize("converted", [False, True], ids=["stock", "converted"])
@pytest.mark.parametrize("name", MODULES)
def test_numbers_are_those_of_the_forward_written_out(name, converted):
    model, batch = build(name)
    recursion = Recursion(0.3, 0.6, "stream") if converted else Recursion(0.0, 0.0, "stream")
    with torch.no_grad():
        model.written_out(batch, recursion)
    if converted:
        uc.convert(model, alpha=0.3, alpha_hidden=0.6, example=batch)
    report = uc.diagnose(model, batch, progress=False)
    wanted = [float(torch.stack([uc.metrics.residual_ratio(x) for x in stream]).mean()) for stream in recursion.streams]
    np.testing.assert_allclose(report.layers["residual_ratio"], wanted, atol=TOLERANCE)
    wanted = [value for scores in recursion.scores for value in entropies(scores)]
    np.testing.assert_allclose(report.heads["entropy_mean"], wanted, atol=TOLERANCE)
    paths = [path for path, _ in model.named_modules()]
    assert len(report.layers) == LAYERS
    assert set(report.layers["name"]) <= set(paths)
    assert not report.missing


def test_the_spectrum_is_that_of_the_weights():
    for name, weight in (
        ("nanogpt", "h.0.attn.c_attn.weight"),
        ("encoder_post", "encoder.layers.0.self_attn.in_proj_weight"),
    ):
        model, batch = build(name)
        query, key, _ = model.get_parameter(weight).detach().unflatten(0, (3, HEADS, -1)).unbind()
        spectrum = uc.metrics.qk_spectrum(query, key, query.shape[1] ** -0.5)
        heads = uc.diagnose(model, batch, progress=False).heads
        for column, values in (("qk_trace", spectrum.trace), ("eta", spectrum.eta), ("xi", spectrum.xi)):
            np.testing.assert_allclose(heads[column][:HEADS], values, rtol=1e-12)


def test_grouped_heads_share_the_rows_of_their_key():
    model, batch = build("x_transformers")
    layer = uc.plan(model, example=batch).stacks[0].layers[0]
    assert layer.query.starts == (0, 4, 8)
    assert layer.key.starts == (0, 0, 0)


def test_batches_of_every_form_give_one_report():
    model, batch = build("nanogpt")
    tables = [
        uc.diagnose(model, given, run=run, progress=False).heads
        for given, run in (
            (batch, None),
            ({"idx": batch}, None),
            ((batch, batch), None),
            ([batch[:1], batch[1:]], None),
            ([{"tokens": batch, "labels": batch}], lambda model, batch: model(batch["tokens"])),
        )
    ]
    for table in tables[1:]:
        np.testing.assert_allclose(table["entropy_mean"], tables[0]["entropy_mean"], atol=TOLERANCE)


def test_the_model_is_left_as_found():
    model, batch = build("x_transformers")
    model.train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    uc.diagnose(model, batch, progress=False)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_both_stacks_and_the_cross_attention_have_rows():
    torch.manual_seed(0)
    model = nn.Transformer(12, 3, 2, 3, 24, batch_first=True, dropout=0.0)
    report = uc.diagnose(model, (vectors(), vectors(tokens=5)), progress=False)
    names = report.layers["name"].tolist()
    assert names == [
        *(f"encoder.layers.{n}.self_attn" for n in range(2)),
        *(f"decoder.layers.{n}.self_attn" for n in range(3)),
        *(f"decoder.layers.{n}.multihead_attn" for n in range(3)),
    ]
    cross = report.layers.iloc[-3:]
    assert cross["residual_ratio"].isna().all()
    assert cross["entropy_mean"].notna().all()
    assert report.layers["residual_ratio"][:5].notna().all()


def test_padding_of_an_encoder_with_nested_tensors():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 24, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3).eval()
    assert model.use_nested_tensor
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    report = uc.diagnose(model, {"src": vectors(), "src_key_padding_mask": padding}, progress=False)
    assert len(report.heads) == 6
    assert model.use_nested_tensor


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        (None, "NanoGPT is no transformers model, so no sample is known for it: give batches"),
        ([], "no batch was given"),
        (7, "batches must be a batch or an iterable of batches, got int"),
    ],
)
def test_bad_batches_get_a_sentence(batches, sentence):
    with pytest.raises(ValueError, match=sentence):
        uc.diagnose(NanoGPT(), batches)


def test_a_model_without_attention_gets_a_sentence():
    with pytest.raises(ValueError, match="no attention was found in Sequential: it calls neither"):
        uc.diagnose(nn.Sequential(nn.Linear(12, 12), nn.Softmax(dim=-1)), vectors())


def test_a_report_with_names_is_saved_and_drawn(tmp_path):
    report = uc.diagnose(NanoGPT(), ids(), progress=False)
    report.save(tmp_path / "saved")
    assert uc.Diagnosis.load(tmp_path / "saved").layers["name"].tolist() == [f"h.{n}.attn" for n in range(LAYERS)]
    assert "h.2.attn" in report.to_html(tmp_path / "page.html").read_text()

"""Every number of a report equals the one computed plainly from whole score matrices and all token pairs."""

import numpy as np
import pytest
import torch

import uncollapse as uc
from tests.diagnosis import oracle
from tests.diagnosis.compared import check, check_heads, same_table
from tests.models.builders import BUILDERS, CAUSAL, ENCODERS, VISION, batch, build
from tests.models.plain import PLAIN


def padded(name, side, lengths=(11, 7, 2, 5), seed=0):
    """A batch of sequences of different lengths, padded on one side."""
    inputs = batch(name, length=max(lengths), rows=len(lengths), seed=seed)
    mask = torch.zeros_like(inputs["input_ids"])
    for row, length in enumerate(lengths):
        mask[row, slice(-length, None) if side == "left" else slice(length)] = 1
    return {"input_ids": inputs["input_ids"] * mask, "attention_mask": mask}


def batches_of(name):
    """Two batches of different lengths; of images, of different numbers."""
    return [batch(name, length=11, rows=2), batch(name, length=6, rows=3, seed=1)]


@pytest.mark.parametrize("name", BUILDERS)
def test_stock_models(name):
    model, batches = build(name), batches_of(name)
    report = uc.diagnose(model, batches)
    check(report, oracle.eager(model, batches))
    assert report.missing == {}
    assert report.info["sequences"] == 5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [*CAUSAL, *ENCODERS])
def test_padding_is_not_measured(name, side):
    model, batches = build(name), [padded(name, side), batch(name, length=4)]
    report = uc.diagnose(model, batches)
    check(report, oracle.eager(model, batches))
    assert report.info["tokens"] == 11 + 7 + 2 + 5 + 2 * 4


@pytest.mark.parametrize(("name", "side"), [("gpt2", "left"), ("bert", "left"), ("llama", "right"), ("vit", None)])
def test_eager_attention_whose_masks_are_added(name, side):
    model = build(name)
    model.set_attn_implementation("eager")
    batches = batches_of(name) if side is None else [padded(name, side), batch(name, length=4)]
    check(uc.diagnose(model, batches), oracle.eager(model, batches))


@pytest.mark.parametrize("name", BUILDERS)
def test_spectrum_of_every_family(name):
    model = build(name)
    report = uc.diagnose(model, batch(name, rows=1))
    for n, block in enumerate(oracle.blocks(model), start=1):
        matrices, scale = oracle.query_key_matrices(name, block)
        for head, w in enumerate(matrices, start=1):
            row = report.heads.query(f"layer == {n} and head == {head}").iloc[0]
            for column, value in oracle.spectrum_row(w, scale).items():
                assert row[column] == pytest.approx(value, rel=1e-7, abs=1e-7), (n, head, column)
            values = report.eigenvalues.query(f"layer == {n} and head == {head}")
            assert len(values) == round(1 / scale**2)  # D
            assert values["real"].sum() == pytest.approx(np.trace(w))
            assert values["imag"].sum() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("name", BUILDERS)
def test_converted_models(name):
    """Entropy, sinks, logits and propagation are those of the inherited scores that the softmax is taken of."""
    model = uc.convert(build(name), alpha=0.3, alpha_hidden=0.6, backend="reference")
    batches = batches_of(name) if name in VISION else [padded(name, "right"), padded(name, "left", (3, 9))]
    report = uc.diagnose(model, batches)
    check(report, oracle.watch(model, batches, softmax=(torch, "softmax")))
    stock = uc.diagnose(uc.restore(model), batches)
    assert (report.heads["entropy_mean"] - stock.heads["entropy_mean"]).abs().max() > 0.01  # so the test can fail


@pytest.mark.parametrize("name", PLAIN)
def test_converted_models_against_the_definition_in_plain_torch(name):
    model, inputs = uc.convert(build(name), alpha=0.3, alpha_hidden=0.6, backend="reference"), batch(name)
    report = uc.diagnose(model, inputs)
    with torch.no_grad(), oracle.captured(torch.Tensor, "softmax") as scores:
        PLAIN[name](dict(model.named_parameters()), model.config, *inputs.values(), 0.3, 0.6, "zero", "stream")
    for n, layer in enumerate(scores, start=1):
        seen = oracle.Seen()
        oracle.add(seen, torch.zeros(len(layer), layer.shape[2], 1), layer)
        check_heads(report, n, report.layers.iloc[n - 1], oracle.head_rows(seen))


@pytest.mark.parametrize("query", [1, 3, -2])
def test_propagation_at_any_query_counts_real_tokens(query):
    model, batches = build("gpt2"), [padded("gpt2", "left"), batch("gpt2", length=9)]
    check(uc.diagnose(model, batches, query=query), oracle.eager(model, batches), query=query)


def test_ranks_are_of_the_first_sequences():
    model, batches = build("bert"), batches_of("bert")
    for decompositions in (1, 4):
        report = uc.diagnose(model, batches, decompositions=decompositions)
        check(report, oracle.eager(model, batches), decompositions=decompositions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_one_batch_of_eight_and_eight_of_one_give_the_same(name, dtype):
    whole, model = batch(name, rows=8), build(name).to(dtype)
    single = [{key: value[i : i + 1] for key, value in whole.items()} for i in range(8)]
    one, eight = uc.diagnose(model, whole), uc.diagnose(model, single)
    # a float32 model rounds products of other shapes otherwise, four layers deep; that is not the pass's doing
    close = {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for table in ("layers", "heads", "propagation", "eigenvalues"):
        ours, theirs = getattr(one, table), getattr(eight, table)
        if dtype == torch.float32 and table == "layers":  # rounding may move a pair across an edge of its bin
            ours, theirs = ours.drop(columns="cosine_mode"), theirs.drop(columns="cosine_mode")
        if dtype == torch.float64 and table in ("layers", "heads"):
            for column in ours.columns[ours.columns.str.startswith(("gap", "spread"))]:
                # differences of float32 scores: they keep the digits of the scores, not of what is left
                np.testing.assert_allclose(ours.pop(column), theirs.pop(column), atol=4e-6)
        same_table(ours, theirs, **close)


def test_padding_to_a_longer_length_changes_nothing():
    model = build("bert")
    short, mask = batch("bert", length=6)["input_ids"], torch.ones(2, 6, dtype=torch.long)
    zeros = torch.zeros(2, 5, dtype=torch.long)
    long = {"input_ids": torch.cat([short, zeros], 1), "attention_mask": torch.cat([mask, zeros], 1)}
    one, other = uc.diagnose(model, {"input_ids": short}), uc.diagnose(model, long)
    same_table(one.layers, other.layers, rtol=1e-5, atol=1e-6)
    same_table(one.heads, other.heads, rtol=1e-5, atol=1e-6)


def test_long_sequences_are_measured_in_tiles_without_a_seam():
    """600 tokens of 4 heads are several tiles of scores and three of cosines."""
    torch.manual_seed(0)
    x, q, k = torch.randn(1, 600, 8), torch.randn(1, 4, 600, 8) * 2, torch.randn(1, 4, 600, 8)
    with uc.Observer() as observer:
        observer.tokens(1, x)
        observer.attention(1, q, k, is_causal=True)
    scores = (q.double() @ k.double().mT / 8**0.5).masked_fill(torch.ones(600, 600).triu(1).bool(), -torch.inf)
    seen = oracle.Seen()
    oracle.add(seen, x, scores)
    check(observer.diagnosis, [seen])

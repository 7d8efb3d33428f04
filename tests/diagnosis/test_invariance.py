"""Changes of the weights that leave what a model computes as it is change no verdict of `uc.diagnose`."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM

import uncollapse as uc

TOKENS = 12
INPUTS = {
    "input_ids": torch.randint(3, 64, (3, TOKENS), generator=torch.Generator().manual_seed(1)),
    "position_ids": torch.arange(TOKENS).expand(3, -1),
}


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bert(queries):
    """Two layers; the queries of the second are `queries` times as large: dead, healthy or saturated."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=64, max_position_embeddings=TOKENS, **sizes)).eval()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:  # biases that are zero would hide what a shift does
            for part in (layer.attention.self.key, layer.attention.self.value):
                part.bias.copy_(0.1 * drawn(32, seed=2))
        query = model.bert.encoder.layer[1].attention.self.query
        query.bias.copy_(0.02 * drawn(32, seed=3))
        query.weight.mul_(queries)
        query.bias.mul_(queries)
    return model


def diagnosed(model, inputs=INPUTS):
    report = uc.diagnose(model, inputs, progress=False)
    with torch.no_grad():
        return [(v.kind, v.layers, v.heads) for v in report.verdicts], model(**inputs).logits


EXPECTED = {0.0: "dead attention", 1.0: "healthy", 30_000.0: "entropy collapse"}


@cache
def before(queries):
    return diagnosed(bert(queries))


def shifted(model, shift, seed):
    """A bias of the keys adds q.b to every score of a row."""
    with torch.no_grad():
        for n, layer in enumerate(model.bert.encoder.layer):
            size = layer.attention.self.query.weight.norm().clamp(min=1.0)
            layer.attention.self.key.bias.add_(shift / size * drawn(32, seed=seed + n))


@pytest.mark.parametrize("queries", EXPECTED)
def test_the_models_are_what_they_should_be(queries):
    assert EXPECTED[queries] in [kind for kind, _, _ in before(queries)[0]]


def test_a_shift_makes_scores_large_and_a_healthy_model_stays_healthy():
    model = bert(1.0)
    shifted(model, 1000.0, seed=0)
    report = uc.diagnose(model, INPUTS, progress=False)
    assert report.heads["logit_max"].max() > 80.0
    assert [verdict.kind for verdict in report.verdicts] == ["healthy"]


@given(
    queries=st.sampled_from(list(EXPECTED)),
    shift=st.sampled_from([0.0, 10.0, 1000.0]),
    values=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=20, deadline=None)
def test_key_biases_values_and_the_order_of_tokens_change_no_verdict(queries, shift, values, seed):
    verdicts, logits = before(queries)
    model = bert(queries)
    shifted(model, shift, seed)
    with torch.no_grad():
        for layer in model.bert.encoder.layer:  # values times s, and an output projection by 1/s
            layer.attention.self.value.weight.mul_(values)
            layer.attention.self.value.bias.mul_(values)
            layer.attention.output.dense.weight.div_(values)
    changed, new_logits = diagnosed(model)
    # float32 keeps seven digits of scores of some hundreds: 1e-4 of a score, and the logits follow it
    torch.testing.assert_close(new_logits, logits, rtol=1e-3, atol=1e-3)
    assert changed == verdicts
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(seed))
    assert diagnosed(model, {name: tensor[:, order] for name, tensor in INPUTS.items()})[0] == verdicts

"""The cross-attention of encoder-decoders: rows of its own, with the numbers of the weights that the model returns."""

import pytest
import torch
import transformers as hf

import uncollapse as uc

SOURCE, TARGET, LAYERS, HEADS = 9, 6, 2, 2
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}


def pair(model, config):
    sizes = {
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", LAYERS), ("ffn_dim", 16))
    }
    heads = {f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")}
    return model(config(d_model=16, vocab_size=20, max_position_embeddings=16, init_std=0.1, **sizes, **heads, **IDS))


def bart():
    return pair(hf.BartForConditionalGeneration, hf.BartConfig)


def mvp():
    """Like BART, but its attention does not go through transformers' interface, and returns its weights."""
    return pair(hf.MvpForConditionalGeneration, hf.MvpConfig)


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": LAYERS, "num_heads": HEADS, "vocab_size": 20}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0))


def prophetnet():
    """Its cross-attention does not go through transformers' interface, and returns scores in place of weights."""
    sides = ("encoder", "decoder")
    sizes = {f"num_{side}_layers": LAYERS for side in sides} | {f"num_{side}_attention_heads": HEADS for side in sides}
    sizes |= {f"{side}_ffn_dim": 16 for side in sides} | {"hidden_size": 16, "vocab_size": 20, "ngram": 2}
    return hf.ProphetNetForConditionalGeneration(
        hf.ProphetNetConfig(**sizes, max_position_embeddings=32, **IDS, init_std=0.1)
    )


MODELS = {"BART": bart, "T5": t5}
PATHS = {"BART": "decoder.layers.*.encoder_attn", "T5": "decoder.block.*.layer.1.EncDecAttention"}


def large(make):
    """Weights that are large enough for attention to be far from uniform."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


def batch(source=SOURCE, target=TARGET):
    """Two sequences, the second one padded: three tokens of the source and one of the target."""
    generator = torch.Generator().manual_seed(0)
    ids = {"input_ids": torch.randint(3, 20, (2, source), generator=generator)}
    ids["decoder_input_ids"] = torch.randint(3, 20, (2, target), generator=generator)
    masks = {"attention_mask": torch.ones(2, source), "decoder_attention_mask": torch.ones(2, target)}
    masks["attention_mask"][1, -3:] = 0
    masks["decoder_attention_mask"][1, -1:] = 0
    return ids | {name: mask.long() for name, mask in masks.items()}


def eager_weights(model, inputs):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def entropies(weights, real):
    """Mean entropy of each head over the real rows that see two keys or more."""
    rows = torch.special.entr(weights.double()).sum(-1)
    counted = ((weights > 0).sum(-1) >= 2) & real.bool()[:, None]
    return ((rows * counted).sum((0, 2)) / counted.sum((0, 2))).tolist()


@pytest.mark.parametrize("target", [TARGET, SOURCE], ids=["shorter", "as long as the source"])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_the_weights(name, target):
    """With a target as long as the source, the masks of the two must not be taken for each other."""
    model, inputs = large(MODELS[name]), batch(target=target)
    report = uc.diagnose(model, inputs)
    output = eager_weights(model, inputs)
    weights = [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    masks = [inputs["attention_mask"]] * LAYERS + [inputs["decoder_attention_mask"]] * 2 * LAYERS
    for n, (layer, real) in enumerate(zip(weights, masks, strict=True), start=1):
        got = report.heads.query(f"layer == {n}")
        assert got["entropy_mean"].tolist() == pytest.approx(entropies(layer, real), abs=2e-4), n  # two float32 passes
    last = report.heads.query(f"layer == {3 * LAYERS}")
    rows = inputs["decoder_attention_mask"].bool()
    sinks = [output.cross_attentions[-1][:, head, :, 0][rows].mean().item() for head in range(HEADS)]
    assert last["sink"].tolist() == pytest.approx(sinks, abs=2e-4)
    assert report.heads["entropy_normalised"].max() < 0.999  # far from uniform, so the test can fail


@pytest.mark.parametrize("name", MODELS)
def test_rows_stand_behind_the_layers_and_have_no_tokens(name):
    report = uc.diagnose(large(MODELS[name]), [batch(), batch(target=SOURCE)])
    assert report.layers["residual_ratio"].notna().tolist() == [True] * 2 * LAYERS + [False] * LAYERS
    stacks = report.info["stacks"]
    assert list(stacks)[-1] == PATHS[name]
    assert list(stacks.values()) == [[1, 2], [3, 4], [5, 6]]
    assert report.layers["name"].tolist()[-LAYERS:] == [PATHS[name].replace("*", str(n)) for n in range(LAYERS)]


def test_a_collapse_of_cross_attention_is_placed_there(tmp_path):
    model = large(bart)
    with torch.no_grad():
        model.model.decoder.layers[1].encoder_attn.q_proj.weight.mul_(16_000.0)
    report = uc.diagnose(model, batch())
    first = next(verdict for verdict in report.verdicts if verdict.is_collapse)
    assert (first.kind, first.layers) == ("entropy collapse", (6,))
    assert "Layer 6 (in decoder.layers.*.encoder_attn)" in first.sentence
    assert "decoder.layers.1.encoder_attn" in report.to_html(tmp_path / "page.html").read_text()
    report.save(tmp_path / "saved")
    assert first in uc.Diagnosis.load(tmp_path / "saved").verdicts


def test_a_known_family_with_cross_attention():
    sizes = {"n_embd": 16, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": 20, "n_positions": 16}
    model = large(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, add_cross_attention=True, initializer_range=0.1)))
    inputs = {"input_ids": batch()["input_ids"], "encoder_hidden_states": torch.randn(2, 5, 16)}
    report = uc.diagnose(model, inputs)
    assert list(report.info["stacks"].values()) == [[1, 2], [3, 4]]
    output = eager_weights(model, inputs)
    real = torch.ones(2, SOURCE)
    wanted = [value for layer in output.cross_attentions for value in entropies(layer, real)]
    assert report.heads.query("layer > 2")["entropy_mean"].tolist() == pytest.approx(wanted, abs=2e-4)
    assert report.heads["qk_trace"].notna().tolist() == [True] * 4 + [False] * 4  # of self-attention only


def test_cross_attention_that_is_measured_from_weights():
    model, inputs = large(mvp), batch()
    report = uc.diagnose(model, inputs)
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    rows = report.info["stacks"]["decoder.layers.*.encoder_attn"]
    wanted = [v for layer in output.cross_attentions for v in entropies(layer, inputs["decoder_attention_mask"])]
    assert report.heads[report.heads["layer"].isin(rows)]["entropy_mean"].tolist() == pytest.approx(wanted, abs=2e-4)


def test_cross_attention_that_cannot_be_measured_is_named_in_the_first_line():
    first = uc.diagnose(large(prophetnet), batch()).verdicts[0]
    assert "decoder.layers.*.cross_attn not measured: ProphetNetAttention neither goes through" in first.sentence

"""Whether a model can read its sample: the loss of encoder-decoders and masked models, and what is said without one."""

import json
import math

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

import uncollapse as uc
from uncollapse.cli import main
from uncollapse.data.sample import embedded_text
from uncollapse.diagnosis.loss import without_spans
from uncollapse_studies.calibration.architectures import build

LETTERS = {chr(code): code - 32 for code in range(32, 128)}
UNKNOWN, SENTINELS, MASK, VOCABULARY = 96, (97, 98, 99), 100, 104


def folder_of(path, model):
    """A saved model with a tokenizer of single characters that knows T5's sentinels and a mask."""
    names = {f"<extra_id_{n}>": id for n, id in enumerate(SENTINELS)} if model.config.model_type == "t5" else {}
    tokenizer = Tokenizer(models.WordLevel(LETTERS | {"[UNK]": UNKNOWN, "[MASK]": MASK} | names, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"unk_token": "[UNK]", "mask_token": "[MASK]"}
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(path)
    model.save_pretrained(path)
    return path


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    torch.manual_seed(0)
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0))


def bart(kind=hf.BartForConditionalGeneration, config=hf.BartConfig):
    sizes = {"d_model": 32, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 0}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 64}
    torch.manual_seed(0)
    return kind(config(**sizes, decoder_start_token_id=1, bos_token_id=1, eos_token_id=1))


def sample_ids(sequences=8, length=64):
    """The embedded text in the letters' ids, as `uc.diagnose` cuts it."""
    text = embedded_text()[: max(60_000, 8 * sequences * length)]
    ids = torch.tensor([LETTERS.get(letter, UNKNOWN) for letter in text])
    starts = torch.linspace(0, len(ids) - length, sequences).long()
    return torch.stack([ids[start : start + length] for start in starts])


def test_the_loss_of_bart_is_that_of_its_decoder_on_the_same_text(tmp_path):
    """As the model itself computes it from labels, without the last token, which has no successor."""
    model = bart().eval()
    info = uc.diagnose(folder_of(tmp_path, model)).info
    labels = sample_ids()
    labels[:, -1] = -100
    with torch.no_grad():
        wanted = model(input_ids=sample_ids(), labels=labels).loss.item()
    assert info["loss"] == pytest.approx(wanted, rel=1e-5)
    assert info["guessing"] == pytest.approx(math.log(VOCABULARY))


def test_the_loss_of_t5_is_that_of_filling_spans(tmp_path):
    model = t5().eval()
    info = uc.diagnose(folder_of(tmp_path, model), progress=False).info
    kept, spans = without_spans(sample_ids(length=256), SENTINELS)
    labels = spans.masked_fill(torch.isin(spans, torch.tensor(SENTINELS)), -100)
    with torch.no_grad():
        start = torch.zeros(len(spans), 1, dtype=torch.long)
        before = torch.cat([start, spans[:, :-1]], dim=1)  # what the decoder reads, sentinels included
        wanted = model(input_ids=kept, decoder_input_ids=before, labels=labels).loss.item()
    assert info["loss"] == pytest.approx(wanted, rel=1e-5)
    assert (labels != -100).sum() == 8 * 3 * len(SENTINELS)


def train(model, steps=60):
    """Letters by their frequency are learned at once: that is already better than guessing."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = sample_ids(1, 60_000)[0]
    for step in range(steps):
        kept, spans = without_spans(text[512 * step : 512 * (step + 1)].view(8, 64), SENTINELS)
        model(input_ids=kept, labels=spans).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model


def test_a_t5_that_can_read_is_healthy_and_one_with_another_vocabulary_is_told_first(tmp_path, capsys):
    model = train(t5())
    (tmp_path / "text.txt").write_text(embedded_text()[5000:12000])
    data = ["--data", str(tmp_path / "text.txt")]  # a file has no tokens for the decoder
    for more in ([], data):
        assert main(["diagnose", str(folder_of(tmp_path / "t5", model)), "--json", "--sequences", "4", *more]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["info"]["loss"] < 0.8 * printed["info"]["guessing"]
        assert printed["verdicts"][0]["kind"] == "healthy"
    with torch.no_grad():  # what it has learned belongs to other tokens
        order = torch.randperm(VOCABULARY - 8, generator=torch.Generator().manual_seed(0))
        model.lm_head.weight[: VOCABULARY - 8] = 6.0 * model.lm_head.weight[order]
    assert main(["diagnose", str(folder_of(tmp_path / "mixed", model)), "--json", "--sequences", "4"]) == 5
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["kind"] == "unreadable sample"


def test_a_masked_model_is_checked_on_given_data_too_and_without_its_dropout(tmp_path, capsys):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = hf.BertForMaskedLM(hf.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes))
    folder = folder_of(tmp_path / "bert", model)
    (tmp_path / "text.txt").write_text(embedded_text()[5000:12000])
    assert main(["diagnose", str(folder), "--json", "--data", str(tmp_path / "text.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["loss"] > 0.0
    trained = hf.BertForMaskedLM.from_pretrained(folder).train()
    assert uc.diagnose(trained).info["loss"] == uc.diagnose(trained.eval()).info["loss"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: build("vit"), "ViTForImageClassification predicts no tokens, and the sample has no labels"),
        (
            lambda: bart(hf.MarianMTModel, hf.MarianConfig),
            "MarianMTModel translates, and the sample is in one language",
        ),
    ],
)
def test_where_no_loss_can_be_compared_the_report_says_so(make, why, tmp_path):
    report = uc.diagnose(folder_of(tmp_path, make()))
    assert "loss" not in report.info
    assert f"Whether the model can read the sample was not checked by its loss: {why}" in " ".join(report.notes)
    assert why in str(report)
    assert why in report.to_html(tmp_path / "page.html").read_text()


def test_data_of_the_callers_own_is_not_checked_and_nothing_is_noted():
    batch = {"input_ids": torch.from_numpy(np.arange(16).reshape(2, 8)), "decoder_input_ids": torch.zeros(2, 8).long()}
    report = uc.diagnose(bart(), batch)
    assert "loss" not in report.info
    assert report.notes == []

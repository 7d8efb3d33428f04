"""Towers and encoder-decoders of transformers, each stack with its rows, through their attention calls."""

import pytest
import torch
import transformers as hf

import uncollapse as uc

TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGE = {**TOWER, "image_size": 8, "patch_size": 4}
TEXT = {
    **TOWER,
    "vocab_size": 20,
    "max_position_embeddings": 12,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
IDS, PIXELS = torch.arange(16).view(2, 8) % 20, torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def clip():
    return hf.CLIPModel(hf.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=8))


def siglip():
    return hf.SiglipModel(hf.SiglipConfig(text_config=TEXT, vision_config=IMAGE))


def whisper():
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 20, "max_source_positions": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return hf.WhisperModel(hf.WhisperConfig(**sizes, **heads, **special, num_mel_bins=4, max_target_positions=12))


PAIRS = {"input_ids": IDS, "pixel_values": PIXELS}
TOWERS = {
    "CLIP": (clip, PAIRS, {"vision_model": 2, "text_model": 2}, 0),
    "SigLIP": (siglip, PAIRS, {"vision_model": 2, "text_model": 2}, 1),  # its pooling head attends to the tokens
    "Whisper": (
        whisper,
        {"input_features": torch.rand(2, 4, 16), "decoder_input_ids": IDS},
        {"encoder": 2, "decoder": 2},
        2,
    ),
}


@pytest.mark.parametrize("name", TOWERS)
def test_every_stack_has_rows_and_cross_attention_its_own(name):
    torch.manual_seed(0)
    make, batch, stacks, cross = TOWERS[name]
    report = uc.diagnose(make().eval(), [batch], run=lambda model, batch: model(**batch), progress=False)
    measured = report.layers[report.layers["residual_ratio"].notna()]
    for tower, layers in stacks.items():
        assert measured["name"].str.contains(tower).sum() == layers
    assert report.layers["residual_ratio"].isna().sum() == cross
    assert report.heads["entropy_mean"].notna().all()


def test_the_encoder_of_whisper_alone():
    torch.manual_seed(0)
    encoder = whisper().get_encoder().eval()
    report = uc.diagnose(encoder, [torch.rand(2, 4, 16)], run=lambda model, batch: model(batch), progress=False)
    assert report.layers["name"].tolist() == ["layers.0.self_attn", "layers.1.self_attn"]

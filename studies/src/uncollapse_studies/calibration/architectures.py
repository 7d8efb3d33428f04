"""Tiny models of many architectures of transformers, with random weights, and inputs that reach all of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor

LAYERS, WIDTH, HEADS, VOCABULARY, TOKENS = 4, 32, 4, 64, 24
Inputs = dict[str, Tensor]

_TEXT = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
_TEXT |= {"intermediate_size": 2 * WIDTH, "max_position_embeddings": 64}
_ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 8} | _ENDS
_IMAGE = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
_IMAGE |= {"intermediate_size": 2 * WIDTH, "image_size": 16, "patch_size": 4}
_PAIR = {"d_model": WIDTH, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "num_mel_bins": 8}
_PAIR |= {f"{side}_layers": LAYERS for side in ("encoder", "decoder")}
_PAIR |= {f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")}
_PAIR |= {f"{side}_ffn_dim": 2 * WIDTH for side in ("encoder", "decoder")}


def _clip() -> Any:
    return hf.CLIPModel(hf.CLIPConfig(text_config=_TEXT | _ENDS, vision_config=_IMAGE, projection_dim=16))


def _of(model: Any, config: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: model(config(**settings))


_OLD = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": 64}
_OLD |= {"bos_token_id": 0, "eos_token_id": 1}
_MIXED = {"moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH, "num_experts": 2}
_MIXED |= {"num_experts_per_tok": 1, "linear_num_value_heads": 4, "linear_num_key_heads": 2}
_MIXED |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "gpt2": _of(hf.GPT2LMHeadModel, hf.GPT2Config, **_OLD),
    "llama": _of(hf.LlamaForCausalLM, hf.LlamaConfig, **_GROUPED),
    "mistral": _of(hf.MistralForCausalLM, hf.MistralConfig, **_GROUPED, sliding_window=8),
    "qwen2": _of(hf.Qwen2ForCausalLM, hf.Qwen2Config, **_GROUPED),
    "qwen3": _of(hf.Qwen3ForCausalLM, hf.Qwen3Config, **_GROUPED),
    "qwen3_next": _of(hf.Qwen3NextForCausalLM, hf.Qwen3NextConfig, **_GROUPED, **_MIXED),
    "phi": _of(hf.PhiForCausalLM, hf.PhiConfig, **_TEXT, **_ENDS),
    "gpt_neox": _of(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, **_TEXT, **_ENDS),
    "olmo": _of(hf.OlmoForCausalLM, hf.OlmoConfig, **_GROUPED),
    "gemma2": _of(hf.Gemma2ForCausalLM, hf.Gemma2Config, **_GROUPED, query_pre_attn_scalar=8),
    "gpt_oss": _of(hf.GptOssForCausalLM, hf.GptOssConfig, **_GROUPED, num_local_experts=2, num_experts_per_tok=1),
    "opt": _of(hf.OPTForCausalLM, hf.OPTConfig, **_TEXT, **_ENDS, ffn_dim=64, word_embed_proj_dim=WIDTH),
    "falcon": _of(hf.FalconForCausalLM, hf.FalconConfig, **_TEXT, **_ENDS, new_decoder_architecture=False),
    "falcon_alibi": _of(hf.FalconForCausalLM, hf.FalconConfig, **_TEXT, **_ENDS, alibi=True),
    "bloom": _of(
        hf.BloomForCausalLM, hf.BloomConfig, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY
    ),
    "gptj": _of(hf.GPTJForCausalLM, hf.GPTJConfig, **_OLD, rotary_dim=4),
    "gpt_neo": _of(
        hf.GPTNeoForCausalLM,
        hf.GPTNeoConfig,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        vocab_size=VOCABULARY,
        attention_types=[[["global"], LAYERS]],
        max_position_embeddings=64,
    ),
    "bert": _of(hf.BertForMaskedLM, hf.BertConfig, **_TEXT),
    "roberta": _of(hf.RobertaForMaskedLM, hf.RobertaConfig, **_TEXT, **_ENDS),
    "electra": _of(hf.ElectraForMaskedLM, hf.ElectraConfig, **_TEXT, embedding_size=WIDTH),
    "albert": _of(hf.AlbertForMaskedLM, hf.AlbertConfig, **_TEXT, embedding_size=16),
    "distilbert": _of(
        hf.DistilBertForMaskedLM,
        hf.DistilBertConfig,
        dim=WIDTH,
        hidden_dim=2 * WIDTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
    ),
    "deberta_v2": _of(
        hf.DebertaV2ForMaskedLM, hf.DebertaV2Config, **_TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "modernbert": _of(hf.ModernBertForMaskedLM, hf.ModernBertConfig, **_TEXT, **_ENDS, cls_token_id=0, sep_token_id=1),
    "t5": _of(
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        d_model=WIDTH,
        d_kv=8,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    ),
    "bart": _of(hf.BartForConditionalGeneration, hf.BartConfig, **_PAIR, **_ENDS),
    "whisper": _of(
        hf.WhisperForConditionalGeneration,
        hf.WhisperConfig,
        **_PAIR,
        **_ENDS,
        max_source_positions=TOKENS,
        decoder_start_token_id=0,
    ),
    "vit": _of(hf.ViTForImageClassification, hf.ViTConfig, **_IMAGE),
    "deit": _of(hf.DeiTForImageClassification, hf.DeiTConfig, **_IMAGE),
    "dinov2": _of(hf.Dinov2ForImageClassification, hf.Dinov2Config, **_IMAGE),
    "swin": _of(
        hf.SwinForImageClassification,
        hf.SwinConfig,
        image_size=16,
        patch_size=1,
        embed_dim=8,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "clip": _clip,
}


def build(name: str, seed: int = 0) -> Any:
    """The model, with random weights, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ARCHITECTURES[name]().eval()


def batch(name: str, rows: int = 4, seed: int = 0) -> Inputs:
    """Random inputs of a model; token ids stay away from the special ones."""
    generator = torch.Generator().manual_seed(seed)
    inputs: Inputs = {}
    if name == "whisper":
        inputs["input_features"] = torch.randn(rows, 8, 2 * TOKENS, generator=generator)
    elif name in ("vit", "deit", "dinov2", "swin", "clip"):
        inputs["pixel_values"] = torch.rand(rows, 3, 16, 16, generator=generator) * 2 - 1
    if name not in ("vit", "deit", "dinov2", "swin", "whisper"):
        inputs["input_ids"] = torch.randint(3, VOCABULARY, (rows, TOKENS), generator=generator)
    if name in ("t5", "bart", "whisper"):
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (rows, TOKENS), generator=generator)
    return inputs

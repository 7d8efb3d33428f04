"""Tiny models of every family, in float64, with weights large enough for inherited scores to matter."""

from __future__ import annotations

import torch
import transformers as hf

from uncollapse.models.families import FAMILIES

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 40,
    "max_position_embeddings": 48,
}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": 5,
}
GROUPED = {"num_key_value_heads": 2}
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


def _gpt2():
    names = {"n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 40, "n_positions": 48}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**names, **SPECIAL, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))


def _distilbert():
    names = {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 32, "vocab_size": 40, "max_position_embeddings": 48}
    return hf.DistilBertForMaskedLM(hf.DistilBertConfig(**names, pad_token_id=0, dropout=0.0, attention_dropout=0.0))


BUILDERS = {
    "gpt2": _gpt2,
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **SPECIAL, **GROUPED)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**TEXT, **SPECIAL, **GROUPED, sliding_window=None)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**TEXT, **SPECIAL, **GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**TEXT, **SPECIAL, **GROUPED, head_dim=8)),
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**TEXT, **SPECIAL, resid_pdrop=0.0, embd_pdrop=0.0)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**TEXT, **SPECIAL)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT, pad_token_id=0, **NO_DROPOUT)),
    "bert_decoder": lambda: hf.BertLMHeadModel(hf.BertConfig(**TEXT, **SPECIAL, **NO_DROPOUT, is_decoder=True)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**TEXT, **SPECIAL, **NO_DROPOUT)),
    "distilbert": _distilbert,
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGE, **NO_DROPOUT)),
    "deit": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**IMAGE, **NO_DROPOUT)),
    "dinov2": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**IMAGE, **NO_DROPOUT, mlp_ratio=2)),
}
CAUSAL = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "phi", "gpt_neox", "bert_decoder")
ENCODERS = ("bert", "roberta", "distilbert")
VISION = ("vit", "deit", "dinov2")
assert {name.removesuffix("_decoder") for name in BUILDERS} == set(FAMILIES)  # a new row must come with a builder


def build(name: str, seed: int = 0) -> hf.PreTrainedModel:
    """A float64 model in evaluation mode whose attention is far from uniform."""
    torch.manual_seed(seed)
    model = BUILDERS[name]().double().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if "norm" in path.lower() or "ln_" in path or "lambda" in path:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(noise * (0.8 if parameter.dim() < 2 else 2.0 / parameter.shape[-1] ** 0.5))
    return model


def batch(name: str, length: int = 11, seed: int = 0, rows: int = 2) -> dict[str, torch.Tensor]:
    """A batch the model takes: token ids without special ones, or images."""
    generator = torch.Generator().manual_seed(seed)
    if name in VISION:
        return {"pixel_values": torch.randn(rows, 3, 12, 12, generator=generator, dtype=torch.float64)}
    return {"input_ids": torch.randint(3, 40, (rows, length), generator=generator)}


def logits(model, **inputs) -> torch.Tensor:
    """The model's logits, without gradients."""
    with torch.no_grad():
        return model(**inputs).logits

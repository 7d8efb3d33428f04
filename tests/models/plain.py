"""GPT-2, LLaMA, BERT and ViT with inherited scores once more, in plain torch, from a state dict: an independent oracle.

Written from the papers' formulas and the models' descriptions; shares no code with src/.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F  # noqa: N812


def inherit(hidden, scores, n, keep, start):
    """H_n = keep H_{n-1} + (1 - keep) S_n, H_0 = 0; or H_1 = S_1."""
    if n == 1:
        return scores if start == "raw" else (1 - keep) * scores
    return keep * hidden + (1 - keep) * scores


def heads(x, count):
    return torch.stack(x.chunk(count, dim=-1), dim=1)  # (B, T, M) -> (B, H, T, D)


def joined(x):
    return torch.cat(x.unbind(1), dim=-1)


def causal(scores):
    t = scores.shape[-1]
    return scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)


def gpt2(w, config, ids, alpha, keep, start):
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    hidden = None
    for i in range(config.n_layer):
        p = f"transformer.h.{i}."
        y = F.layer_norm(x, x.shape[-1:], w[p + "ln_1.weight"], w[p + "ln_1.bias"], config.layer_norm_epsilon)
        q, k, v = (y @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]).chunk(3, dim=-1)
        q, k, v = (heads(t, config.n_head) for t in (q, k, v))
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        mixed = joined(causal(hidden).softmax(-1) @ v)
        x = x + alpha * y + (1 - alpha) * (mixed @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"])
        y = F.layer_norm(x, x.shape[-1:], w[p + "ln_2.weight"], w[p + "ln_2.bias"], config.layer_norm_epsilon)
        y = F.gelu(y @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"], approximate="tanh")
        x = x + y @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    x = F.layer_norm(x, x.shape[-1:], w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], 1e-5)
    return x @ w["transformer.wte.weight"].T


def rms_norm(x, weight, eps):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def rotated(x, theta):
    """Rotary positions as complex numbers: coordinate pairs (i, i + D/2) turn by t theta^(-2i/D)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float32) / half)  # transformers computes angles in float32
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequency
    turn = torch.complex(angle.cos().double(), angle.sin().double())
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)


def llama(w, config, ids, alpha, keep, start):
    x, hidden, theta = w["model.embed_tokens.weight"][ids], None, config.rope_parameters["rope_theta"]
    group = config.num_attention_heads // config.num_key_value_heads
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        y = rms_norm(x, w[p + "input_layernorm.weight"], config.rms_norm_eps)
        q = rotated(heads(y @ w[p + "self_attn.q_proj.weight"].T, config.num_attention_heads), theta)
        k = rotated(heads(y @ w[p + "self_attn.k_proj.weight"].T, config.num_key_value_heads), theta)
        v = heads(y @ w[p + "self_attn.v_proj.weight"].T, config.num_key_value_heads)
        k, v = (torch.stack([t[:, h // group] for h in range(q.shape[1])], dim=1) for t in (k, v))
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        mixed = joined(causal(hidden).softmax(-1) @ v)
        x = x + alpha * y + (1 - alpha) * mixed @ w[p + "self_attn.o_proj.weight"].T
        y = rms_norm(x, w[p + "post_attention_layernorm.weight"], config.rms_norm_eps)
        gate = F.silu(y @ w[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return rms_norm(x, w["model.norm.weight"], config.rms_norm_eps) @ w["lm_head.weight"].T


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer_norm(w, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)


def bert(w, config, ids, alpha, keep, start):
    e = "bert.embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "token_type_embeddings.weight"][0]
    x = layer_norm(w, e + "LayerNorm", x + w[e + "position_embeddings.weight"][: ids.shape[1]], config.layer_norm_eps)
    hidden = None
    for i in range(config.num_hidden_layers):
        p = f"bert.encoder.layer.{i}."
        q, k, v = (
            heads(linear(w, f"{p}attention.self.{t}", x), config.num_attention_heads) for t in ("query", "key", "value")
        )
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.output.dense", joined(hidden.softmax(-1) @ v))
        x = layer_norm(w, p + "attention.output.LayerNorm", x + alpha * x + (1 - alpha) * out, config.layer_norm_eps)
        out = linear(w, p + "output.dense", F.gelu(linear(w, p + "intermediate.dense", x)))
        x = layer_norm(w, p + "output.LayerNorm", x + out, config.layer_norm_eps)
    x = F.gelu(linear(w, "cls.predictions.transform.dense", x))
    x = layer_norm(w, "cls.predictions.transform.LayerNorm", x, config.layer_norm_eps)
    return x @ w["bert.embeddings.word_embeddings.weight"].T + w["cls.predictions.bias"]


def vit(w, config, images, alpha, keep, start):
    e, size = "vit.embeddings.", config.patch_size
    patches = images.unfold(2, size, size).unfold(3, size, size)  # (B, C, rows, columns, size, size)
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    weight, bias = w[e + "patch_embeddings.projection.weight"], w[e + "patch_embeddings.projection.bias"]
    x = patches @ weight.flatten(1).T + bias
    x = torch.cat([w[e + "cls_token"].expand(len(x), -1, -1), x], dim=1) + w[e + "position_embeddings"]
    hidden = None
    for i in range(config.num_hidden_layers):
        p = f"vit.layers.{i}."
        y = layer_norm(w, p + "layernorm_before", x, config.layer_norm_eps)
        q, k, v = (heads(linear(w, f"{p}attention.{t}_proj", y), config.num_attention_heads) for t in "qkv")
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.o_proj", joined(hidden.softmax(-1) @ v))
        x = x + alpha * y + (1 - alpha) * out
        y = layer_norm(w, p + "layernorm_after", x, config.layer_norm_eps)
        x = x + linear(w, p + "mlp.fc2", F.gelu(linear(w, p + "mlp.fc1", y)))
    x = layer_norm(w, "vit.layernorm", x, config.layer_norm_eps)
    return linear(w, "classifier", x[:, 0])


PLAIN = {"gpt2": gpt2, "llama": llama, "bert": bert, "vit": vit}

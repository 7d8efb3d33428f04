"""Every family with inherited scores once more, in plain torch, from a state dict: an independent oracle.

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


def mixed_in(x, y, out, alpha, skip):
    """The tokens after the attention of a block: x entered the block, y the attention."""
    if skip == "replace":
        return alpha * x + (1 - alpha) * out
    return x + alpha * (y if skip == "normed" else x) + (1 - alpha) * out


def heads(x, count):
    return torch.stack(x.chunk(count, dim=-1), dim=1)  # (B, T, M) -> (B, H, T, D)


def joined(x):
    return torch.cat(x.unbind(1), dim=-1)


def causal(scores):
    t = scores.shape[-1]
    return scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)


def gpt2(w, config, ids, alpha, keep, start, skip):
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    hidden = None
    for i in range(config.n_layer):
        p = f"transformer.h.{i}."
        y = F.layer_norm(x, x.shape[-1:], w[p + "ln_1.weight"], w[p + "ln_1.bias"], config.layer_norm_epsilon)
        q, k, v = (y @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]).chunk(3, dim=-1)
        q, k, v = (heads(t, config.n_head) for t in (q, k, v))
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        mixed = joined(causal(hidden).softmax(-1) @ v)
        x = mixed_in(x, y, mixed @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"], alpha, skip)
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


def llama(w, config, ids, alpha, keep, start, skip):
    """Also Mistral, Qwen2 (biases) and Qwen3 (normed queries and keys)."""
    x, hidden, theta = w["model.embed_tokens.weight"][ids], None, config.rope_parameters["rope_theta"]
    group = config.num_attention_heads // config.num_key_value_heads
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        y = rms_norm(x, w[p + "input_layernorm.weight"], config.rms_norm_eps)
        counts = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        q, k, v = (heads(maybe_biased(w, f"{p}self_attn.{t}_proj", y), count) for t, count in counts.items())
        if p + "self_attn.q_norm.weight" in w:
            q, k = (
                rms_norm(t, w[f"{p}self_attn.{n}_norm.weight"], config.rms_norm_eps) for t, n in ((q, "q"), (k, "k"))
            )
        q, k = rotated(q, theta), rotated(k, theta)
        k, v = (torch.stack([t[:, h // group] for h in range(q.shape[1])], dim=1) for t in (k, v))
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        mixed = joined(causal(hidden).softmax(-1) @ v)
        x = mixed_in(x, y, mixed @ w[p + "self_attn.o_proj.weight"].T, alpha, skip)
        y = rms_norm(x, w[p + "post_attention_layernorm.weight"], config.rms_norm_eps)
        gate = F.silu(y @ w[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return rms_norm(x, w["model.norm.weight"], config.rms_norm_eps) @ w["lm_head.weight"].T


def partly_rotated(x, theta, share):
    """Rotary positions on the first coordinates of each head only."""
    size = int(share * x.shape[-1])
    return torch.cat([rotated(x[..., :size], theta), x[..., size:]], dim=-1)


def phi(w, config, ids, alpha, keep, start, skip):
    """Attention and MLP side by side, from one norm."""
    x, hidden = w["model.embed_tokens.weight"][ids], None
    rope = config.rope_parameters
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        y = layer_norm(w, p + "input_layernorm", x, config.layer_norm_eps)
        q, k, v = (heads(linear(w, f"{p}self_attn.{t}_proj", y), config.num_attention_heads) for t in "qkv")
        q, k = (partly_rotated(t, rope["rope_theta"], rope["partial_rotary_factor"]) for t in (q, k))
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "self_attn.dense", joined(causal(hidden).softmax(-1) @ v))
        mlp = linear(w, p + "mlp.fc2", F.gelu(linear(w, p + "mlp.fc1", y), approximate="tanh"))
        x = mixed_in(x, y, out, alpha, skip) + mlp
    x = layer_norm(w, "model.final_layernorm", x, config.layer_norm_eps)
    return linear(w, "lm_head", x)


def gpt_neox(w, config, ids, alpha, keep, start, skip):
    """Attention and MLP side by side, each with a norm of its own; queries, keys and values fused head by head."""
    x, hidden = w["gpt_neox.embed_in.weight"][ids], None
    rope, count = config.rope_parameters, config.num_attention_heads
    for i in range(config.num_hidden_layers):
        p = f"gpt_neox.layers.{i}."
        y = layer_norm(w, p + "input_layernorm", x, config.layer_norm_eps)
        fused = linear(w, p + "attention.query_key_value", y)
        q, k, v = torch.stack([torch.stack(t.chunk(3, dim=-1)) for t in fused.chunk(count, dim=-1)], dim=2)
        q, k = (partly_rotated(t, rope["rope_theta"], rope["partial_rotary_factor"]) for t in (q, k))
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.dense", joined(causal(hidden).softmax(-1) @ v))
        normed = layer_norm(w, p + "post_attention_layernorm", x, config.layer_norm_eps)
        mlp = linear(w, p + "mlp.dense_4h_to_h", F.gelu(linear(w, p + "mlp.dense_h_to_4h", normed)))
        x = mixed_in(x, y, out, alpha, skip) + mlp
    x = layer_norm(w, "gpt_neox.final_layer_norm", x, config.layer_norm_eps)
    return x @ w["lm_head.weight"].T


def maybe_biased(w, name, x):
    return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer_norm(w, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)


def bert(w, config, ids, alpha, keep, start, skip, root="bert", first=0):
    """Also RoBERTa, whose positions begin behind that of the padding."""
    e = f"{root}.embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "token_type_embeddings.weight"][0]
    places = w[e + "position_embeddings.weight"][first : first + ids.shape[1]]
    x = layer_norm(w, e + "LayerNorm", x + places, config.layer_norm_eps)
    hidden = None
    for i in range(config.num_hidden_layers):
        p = f"{root}.encoder.layer.{i}."
        q, k, v = (
            heads(linear(w, f"{p}attention.self.{t}", x), config.num_attention_heads) for t in ("query", "key", "value")
        )
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.output.dense", joined(hidden.softmax(-1) @ v))
        x = layer_norm(w, p + "attention.output.LayerNorm", mixed_in(x, x, out, alpha, skip), config.layer_norm_eps)
        out = linear(w, p + "output.dense", F.gelu(linear(w, p + "intermediate.dense", x)))
        x = layer_norm(w, p + "output.LayerNorm", x + out, config.layer_norm_eps)
    if root == "roberta":
        x = layer_norm(w, "lm_head.layer_norm", F.gelu(linear(w, "lm_head.dense", x)), config.layer_norm_eps)
        return x @ w["roberta.embeddings.word_embeddings.weight"].T + w["lm_head.bias"]
    x = F.gelu(linear(w, "cls.predictions.transform.dense", x))
    x = layer_norm(w, "cls.predictions.transform.LayerNorm", x, config.layer_norm_eps)
    return x @ w["bert.embeddings.word_embeddings.weight"].T + w["cls.predictions.bias"]


def roberta(w, config, ids, alpha, keep, start, skip):
    return bert(w, config, ids, alpha, keep, start, skip, root="roberta", first=config.pad_token_id + 1)


def distilbert(w, config, ids, alpha, keep, start, skip):
    e = "distilbert.embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][: ids.shape[1]]
    x, hidden = layer_norm(w, e + "LayerNorm", x, 1e-12), None
    for i in range(config.n_layers):
        p = f"distilbert.transformer.layer.{i}."
        q, k, v = (heads(linear(w, f"{p}attention.{t}_lin", x), config.n_heads) for t in "qkv")
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.out_lin", joined(hidden.softmax(-1) @ v))
        x = layer_norm(w, p + "sa_layer_norm", mixed_in(x, x, out, alpha, skip), 1e-12)
        out = linear(w, p + "ffn.lin2", F.gelu(linear(w, p + "ffn.lin1", x)))
        x = layer_norm(w, p + "output_layer_norm", x + out, 1e-12)
    x = layer_norm(w, "vocab_layer_norm", F.gelu(linear(w, "vocab_transform", x)), 1e-12)
    return x @ w["distilbert.embeddings.word_embeddings.weight"].T + w["vocab_projector.bias"]


def patches_of(w, e, images, size):
    patches = images.unfold(2, size, size).unfold(3, size, size)  # (B, C, rows, columns, size, size)
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    weight, bias = w[e + "patch_embeddings.projection.weight"], w[e + "patch_embeddings.projection.bias"]
    return patches @ weight.flatten(1).T + bias


def vit(w, config, images, alpha, keep, start, skip, root="vit", own=("cls_token",)):
    """Also DeiT, which has a second token of its own."""
    e = f"{root}.embeddings."
    x = patches_of(w, e, images, config.patch_size)
    x = torch.cat([*(w[e + token].expand(len(x), -1, -1) for token in own), x], dim=1) + w[e + "position_embeddings"]
    hidden = None
    for i in range(config.num_hidden_layers):
        p = f"{root}.layers.{i}."
        y = layer_norm(w, p + "layernorm_before", x, config.layer_norm_eps)
        q, k, v = (heads(linear(w, f"{p}attention.{t}_proj", y), config.num_attention_heads) for t in "qkv")
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.o_proj", joined(hidden.softmax(-1) @ v))
        x = mixed_in(x, y, out, alpha, skip)
        y = layer_norm(w, p + "layernorm_after", x, config.layer_norm_eps)
        x = x + linear(w, p + "mlp.fc2", F.gelu(linear(w, p + "mlp.fc1", y)))
    x = layer_norm(w, f"{root}.layernorm", x, config.layer_norm_eps)
    return linear(w, "classifier", x[:, 0])


def deit(w, config, images, alpha, keep, start, skip):
    return vit(w, config, images, alpha, keep, start, skip, root="deit", own=("cls_token", "distillation_token"))


def dinov2(w, config, images, alpha, keep, start, skip):
    """The sum is scaled by LayerScale, the visible skip with it."""
    e = "dinov2.embeddings."
    x = patches_of(w, e, images, config.patch_size)
    x = torch.cat([w[e + "cls_token"].expand(len(x), -1, -1), x], dim=1) + w[e + "position_embeddings"]
    hidden = None
    for i in range(config.num_hidden_layers):
        p = f"dinov2.encoder.layer.{i}."
        y = layer_norm(w, p + "norm1", x, config.layer_norm_eps)
        q, k, v = (heads(linear(w, f"{p}attention.{t}_proj", y), config.num_attention_heads) for t in "qkv")
        hidden = inherit(hidden, q @ k.mT / math.sqrt(q.shape[-1]), i + 1, keep, start)
        out = linear(w, p + "attention.o_proj", joined(hidden.softmax(-1) @ v))
        branch = alpha * (y if skip == "normed" else x) + (1 - alpha) * out
        x = x + w[p + "layer_scale1.lambda1"] * branch
        y = layer_norm(w, p + "norm2", x, config.layer_norm_eps)
        x = x + w[p + "layer_scale2.lambda1"] * linear(w, p + "mlp.fc2", F.gelu(linear(w, p + "mlp.fc1", y)))
    x = layer_norm(w, "dinov2.layernorm", x, config.layer_norm_eps)
    return linear(w, "classifier", torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=-1))


PLAIN = {
    "gpt2": gpt2,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), llama),
    "phi": phi,
    "gpt_neox": gpt_neox,
    "bert": bert,
    "roberta": roberta,
    "distilbert": distilbert,
    "vit": vit,
    "deit": deit,
    "dinov2": dinov2,
}

"""Every number of a diagnosis once more, in numpy and float64, straight from the definitions.

Whole score matrices and all token pairs are held. Scores are what enters the softmax of an ordinary forward pass;
tokens are what leaves the blocks. Shares no code with src/.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

HIDDEN = -1e20  # a score below this was masked
BINS = 64
COSINE_BINS = np.linspace(-1, 1, 401)


@dataclass
class Seen:
    """What one layer did: tokens (T, M) and scores (H, Q, K), a sequence at a time, with its real tokens."""

    tokens: list = field(default_factory=list)
    scores: list = field(default_factory=list)
    real: list = field(default_factory=list)


@contextmanager
def captured(owner, name, dimensions=4):
    """The first argument of every call of a softmax, while the block runs.

    It runs in float64: asked for float32, the rows of a float64 model that see no key would be NaN.
    """
    inputs, stock = [], getattr(owner, name)

    def noting(x, *args, dtype=None, **kwargs):
        if x.dim() == dimensions:
            inputs.append(x.detach().double().clone())
        return stock(x, *args, **kwargs)

    setattr(owner, name, noting)
    try:
        yield inputs
    finally:
        setattr(owner, name, stock)


def blocks(model):
    from transformers.modeling_layers import GradientCheckpointingLayer  # the rest of the oracle needs no transformers

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def watch(model, batches, softmax=(torch.nn.functional, "softmax")):
    """Run the model on the batches: a `Seen` a layer. `softmax`: the function whose input are the scores."""
    layers = [Seen() for _ in blocks(model)]
    outputs = {}

    def hook(index):
        return lambda _m, _a, out: outputs.__setitem__(index, out[0] if isinstance(out, tuple) else out)

    handles = [block.register_forward_hook(hook(index)) for index, block in enumerate(blocks(model))]
    for batch in batches:
        with torch.no_grad(), captured(*softmax) as scores:
            model(**batch)
        assert len(scores) == len(layers)
        for index, layer in enumerate(layers):
            add(layer, outputs[index], scores[index], batch.get("attention_mask"))
    for handle in handles:
        handle.remove()
    return layers


def add(layer, tokens, scores, mask=None):
    for row in range(len(tokens)):
        layer.tokens.append(tokens[row].detach().double().numpy())
        layer.scores.append(scores[row].detach().double().numpy())
        real = np.ones(tokens.shape[1], dtype=bool) if mask is None else mask[row].bool().numpy()
        layer.real.append(real)


def eager(model, batches):
    """What a stock model does, with its own eager attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        return watch(model, batches)
    finally:
        model.set_attn_implementation(before)


def layer_row(seen, decompositions=1):
    """The columns of `Diagnosis.layers` that come from tokens; the median and mode as a range they must lie in."""
    rows, raw, centred = [], [], []
    for tokens, real in zip(seen.tokens, seen.real, strict=True):
        x = tokens[real]
        if len(x) < 2:
            continue
        rest = x - x.mean(axis=0)
        rows.append(
            {
                "residual_ratio": math.sqrt(one_norm(rest) * one_norm(rest.T) / one_norm(x) / one_norm(x.T)),
                "residual_frobenius": np.sqrt((rest**2).sum() / (x**2).sum()),
                "norm_mean": np.sqrt((x**2).sum(axis=1)).mean(),
            }
        )
        if len(rows) <= decompositions:
            s = np.linalg.svd(x, compute_uv=False)
            share = s[s > 1e-9 * s[0]] / s.sum()
            rows[-1]["stable_rank"] = (s**2).sum() / s[0] ** 2
            rows[-1]["effective_rank"] = np.exp(-(share * np.log(share)).sum())
        raw.append(cosines(x))
        centred.append(cosines(rest))
    raw, centred = np.concatenate(raw), np.concatenate(centred)
    ordered, counts = np.sort(raw), np.histogram(raw, COSINE_BINS)[0]
    ranked = rows[:decompositions]
    return {
        **{name: np.mean([row[name] for row in rows]) for name in ("residual_ratio", "residual_frobenius")},
        "norm_mean": np.mean([row["norm_mean"] for row in rows]),
        **{name: np.mean([row[name] for row in ranked]) for name in ("stable_rank", "effective_rank")},
        "cosine_mean": raw.mean(),
        "cosine_median": (ordered[(len(raw) - 1) // 2] - 0.006, ordered[len(raw) // 2] + 0.006),
        "cosine_mode": [low + 0.0025 for low, count in zip(COSINE_BINS, counts, strict=False) if count == counts.max()],
        "cosine_aligned": (raw > 0.99).mean(),
        "cosine_centred": centred.mean(),
        "cosine_centred_aligned": (centred > 0.99).mean(),
    }


def one_norm(x):
    return np.abs(x).sum(axis=0).max()


def cosines(x):
    unit = x / np.sqrt((x**2).sum(axis=1, keepdims=True))
    return (unit @ unit.T)[np.triu_indices(len(x), 1)]


def head_rows(seen, query=-1):
    """The columns of `Diagnosis.heads` that come from attention, and rho by bin: one dict a head."""
    return [_head(seen, head, query) for head in range(seen.scores[0].shape[0])]


def mixing(scores, real):
    """The smaller of ||P - 1 mean||_F and the root of the largest column sum, P from real tokens to real tokens.

    NaN where there are not as many keys as queries, or a token sees no key.
    """
    if scores.shape[0] != scores.shape[1] or not (scores[real] > HIDDEN).any(axis=1).all():
        return math.nan
    weights = np.stack([softmax(row) for row in scores[real][:, real]])
    return math.sqrt(min(((weights - weights.mean(axis=0)) ** 2).sum(), weights.sum(axis=0).max()))


def _head(seen, head, query):
    mixed = [mixing(s[head], r) for s, r in zip(seen.scores, seen.real, strict=True) if r.sum() > 1]
    entropies, relative, without, sinks, logits, strongest, gaps, spreads = [], [], [], [], [], [], [], []
    propagated, positions = np.zeros(BINS), np.zeros(BINS)
    for scores, real in zip(seen.scores, seen.real, strict=True):
        received = []
        for index in np.flatnonzero(real):
            row = scores[head, index]
            visible = row > HIDDEN
            if visible.sum() < 2:
                continue
            p = softmax(row[visible])
            entropies.append(entropy(p))
            relative.append(entropy(p) / math.log(len(p)))
            without.append(entropy(softmax(row[visible][1:])))
            sinks.append(p[0])
            logits.extend(row[visible])
            below, top = np.sort(row[visible])[-2:]
            gaps.append(top - below)
            spreads.append(top - row[visible].mean())
            received.append(np.where(visible, softmax(np.where(visible, row, -1e30)), 0.0))
        if received:
            strongest.append(np.mean(received, axis=0).max())
        places = np.flatnonzero(real)
        if -len(places) <= query < len(places):
            row = scores[head, places[query]]
            row = row[row > HIDDEN]
            gate = (row - row.mean() + 1) / len(row)
            for i, g in enumerate(gate if len(row) > 1 else ()):
                positions[int((i + 0.5) / len(row) * BINS)] += 1
                propagated[int((i + 0.5) / len(row) * BINS)] += 0 <= g <= 1
    rho = propagated[positions > 0] / positions[positions > 0]
    return {
        "entropy_mean": np.mean(entropies),
        "entropy_min": np.min(entropies),
        "entropy_normalised": np.mean(relative),
        "entropy_no_first": np.mean(without),
        "sink": np.mean(sinks),
        "sink_strongest": np.mean(strongest),
        "mixing_bound": np.nan if np.isnan(mixed).all() else np.nanmean(mixed),
        "logit_max": np.max(logits),
        "gap_mean": np.mean(gaps),
        "gap_max": np.max(gaps),
        "spread_max": np.max(spreads),
        "logit_std": np.std(logits),
        "propagation_mean": propagated.sum() / positions.sum(),
        "localisation": 1 - rho.sum() ** 2 / (len(rho) * (rho**2).sum()) if rho.any() else 0.0,
        "rho": rho,
        "position": (np.flatnonzero(positions) + 0.5) / BINS,
    }


def softmax(row):
    e = np.exp(row - row.max())
    return e / e.sum()


def entropy(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()


FUSED = {"gpt2": "attn.c_attn", "gpt_neox": "attention.query_key_value"}
SEPARATE = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi"), ("self_attn.q_proj", "self_attn.k_proj")),
    **dict.fromkeys(("bert", "bert_decoder", "roberta"), ("attention.self.query", "attention.self.key")),
    "distilbert": ("attention.q_lin", "attention.k_lin"),
    **dict.fromkeys(("vit", "deit", "dinov2"), ("attention.q_proj", "attention.k_proj")),
}


def query_key_matrices(name, block, heads=4, width=32):
    """W (M, M) of each head, read off the projections as functions: W = W_Q^T W_K without the biases."""

    def columns(path):
        project = block.get_submodule(path)
        with torch.no_grad():
            return (project(torch.eye(width).double()) - project(torch.zeros(1, width).double())).numpy()

    if name == "gpt2":
        q, k, _ = np.split(columns(FUSED[name]), 3, axis=1)
    elif name == "gpt_neox":
        fused = columns(FUSED[name]).reshape(width, heads, 3, -1)
        q, k = fused[:, :, 0].reshape(width, -1), fused[:, :, 1].reshape(width, -1)
    else:
        q, k = (columns(path) for path in SEPARATE[name])
    q = np.split(q, heads, axis=1)
    k = np.split(k, k.shape[1] // q[0].shape[1], axis=1)
    return [q[h] @ k[h * len(k) // heads].T for h in range(heads)], 1 / math.sqrt(q[0].shape[1])


def spectrum_row(w, scale):
    s = (w + w.T) / 2
    squares = np.trace(s @ s)
    return {
        "qk_trace": np.trace(w),
        "qk_square": np.trace(w @ w),
        "qk_scale": np.trace(w.T @ w),
        "qk_variance": len(w) * squares - np.trace(w) ** 2,
        "qk_spectral_norm": np.linalg.norm(w, 2),
        "xi": np.trace(w) / np.sqrt(squares),
        "eta": np.sqrt(squares) * scale,
    }

"""QK-norm: each head's queries and keys are divided by their root mean square, so that logits are bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from uncollapse.models.anatomy import anatomy
from uncollapse.models.convert import find_transformers_model
from uncollapse.models.editing import (
    AttentionCall,
    Edit,
    EditedLayer,
    begin_editing,
    edited_model,
    end_editing,
    weights_of,
)
from uncollapse.models.learned import is_ours
from uncollapse.models.plain import first_tensor, on_device_of, quiet_evaluation, run_batch

from .remedy import EditRemedy

HALF = (torch.float16, torch.bfloat16)


class NormedHeads(Edit):
    """The norms of one layer, with gains (D,) that its heads share, (H, D) of their own, or none."""

    name = "qk_norm"
    at_projections = True
    query: nn.Parameter | None
    key: nn.Parameter | None

    def __init__(self, query: Tensor | None, key: Tensor | None, eps: float) -> None:
        super().__init__()
        self.register_parameter("query", None if query is None else nn.Parameter(query))
        self.register_parameter("key", None if key is None else nn.Parameter(key))
        self.eps = eps

    def queries(self, heads: Tensor) -> Tensor:
        """Normalise queries (..., H, D)."""
        return normed(heads, self.query, self.eps)

    def keys(self, heads: Tensor) -> Tensor:
        """Normalise keys (..., G, D)."""
        return normed(heads, self.key, self.eps)


def normed(heads: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """Gain x / sqrt(mean(x^2) + eps) over the last dimension, in float32 for half precision."""
    wide = heads.float() if heads.dtype in HALF else heads
    unit = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(heads.dtype)
    return unit if gain is None else gain * unit


@dataclass(frozen=True)
class QKNorm(EditRemedy):
    """Queries and keys of each head over their root mean square, before any rotation, times a gain.

    Weights that were trained without it compute something else at gains of 1. With `fit=True` the gains start where
    attention on the batch `example` changes least, and the notes of `uncollapse.remedies.check` say how far the loss
    has moved.

    Args:
        gain: True for gains (D,) that the heads of a layer share, as Qwen3 has them; "head" for gains of each head's
            own, which keep trained weights closer to what they were; False for none.
        fit: choose the start of the gains from `example`, a batch; with labels the note is about the loss.
        eps: added to the mean square; None is the model's own (`rms_norm_eps`), or 1e-6.

    >>> import torch, uncollapse as uc
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> model = uc.apply(model, "qk_norm", example=torch.randn(1, 3, 8))
    >>> tuple(model.layers[0].self_attn.uncollapse_qk_norm.query.shape)
    (4,)
    """

    name: ClassVar[str] = "qk_norm"
    kind: ClassVar[type[Edit]] = NormedHeads
    gain: bool | Literal["head"] = True
    fit: bool = False
    eps: float | None = None

    def __post_init__(self) -> None:
        if self.gain not in (True, False, "head"):
            raise ValueError(f'gain must be True, False or "head", got {self.gain!r}.')
        if self.fit and not self.gain:
            raise ValueError("fit=True chooses where gains start, and gain=False has none; leave one out.")
        if self.eps is not None and not (isinstance(self.eps, int | float) and 0 <= self.eps < 1):
            raise ValueError(f"eps must be a small number that is not negative, got {self.eps!r}.")

    def refusal(self, layer: EditedLayer) -> str:
        """One norm is enough."""
        has = [name for name, _ in layer.attention.named_children() if name in ("q_norm", "k_norm", "q_layernorm")]
        return f"has a norm of its own already ({has[0]})" if has else ""

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """The norms of one layer, with gains of 1."""
        query, key = layer.plan.query, layer.plan.key
        assert query is not None
        assert key is not None
        config = getattr(layer.attention, "config", None)
        eps = getattr(config, "rms_norm_eps", 1e-6) if self.eps is None else self.eps
        if not self.gain:
            return NormedHeads(None, None, eps)
        shapes = [(len(rows.starts), rows.size) if self.gain == "head" else (rows.size,) for rows in (query, key)]
        return NormedHeads(like.new_ones(shapes[0]), like.new_ones(shapes[1]), eps)

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Add the norms; with `fit`, let their gains start where attention changes least."""
        if not self.fit:
            return super().install(model, optimizer, example)
        if example is None:
            raise ValueError("qk_norm with fit=True chooses its gains from data: give a batch as example=.")
        if edited_model(model) is None:
            begin_editing(anatomy(model, example))
        stock, fits = _fit(model, example, type(model).__name__)
        shared = self.install_in(model, None)
        with torch.no_grad():
            for layer in shared.layers:
                edit = next(edit for edit in layer.edits if isinstance(edit, NormedHeads))
                query, key = _gains(*fits[layer.n], layer, by_head=self.gain == "head")
                for gain, start in ((edit.query, query), (edit.key, key)):
                    assert gain is not None
                    gain.copy_(start.unsqueeze(-1).expand_as(gain))
        shared.notes[self.name] = moved(stock, _run(model, example))
        return None


def _run(model: nn.Module, example: Any) -> Any:
    with quiet_evaluation(model):
        return run_batch(model, on_device_of(model, example))


def _fit(model: nn.Module, example: Any, name: str) -> tuple[Any, dict[int, tuple[Tensor, Tensor]]]:
    """What the model gives without the norms, and for each layer (above, below): c = above / below of each head.

    Scores c s' with s' of normalised queries and keys are nearest to the scores s in the sense of the softmax A: the
    divergence of the two is half the variance of their difference under A, so c is a regression weighted by A.
    """
    shared = edited_model(model)
    assert shared is not None
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    shared.observe = lambda seen: sums.update({seen.layer.n: _regression(seen.call)})
    try:
        stock = _run(model, example)
    finally:
        shared.observe = None
    if len(sums) < len(shared.layers):
        if not any(layer.edits for layer in shared.layers):
            end_editing(model)
        raise ValueError(
            f"fit=True reads the queries and keys of scaled_dot_product_attention, which {name} does not call; "
            "set its attention implementation to 'sdpa', or leave out fit."
        )
    return stock, sums


def _regression(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Sums over all rows of the covariance of s and s', and of the variance of s', under A: (H,) each."""
    weights = weights_of(call)  # (B, H, Q, K)
    key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    pairs = ((call.query, key), (normed(call.query, None, 0.0), normed(key, None, 0.0)))
    centred = [s - (weights * s).sum(-1, keepdim=True) for s in (scale * q @ k.mT for q, k in pairs)]
    above = (weights * centred[0] * centred[1]).sum((0, 2, 3))
    return above, (weights * centred[1].square()).sum((0, 2, 3))


def _gains(above: Tensor, below: Tensor, layer: EditedLayer, by_head: bool) -> tuple[Tensor, Tensor]:
    """Gains of queries and keys whose product is c: () for all heads, or (H,) and (G,)."""
    if not by_head:
        gain = (above.sum() / below.sum().clamp(min=1e-12)).clamp(min=1e-4).sqrt()
        return gain, gain
    assert layer.plan.key is not None
    wanted = (above / below.clamp(min=1e-12)).clamp(min=1e-4)  # (H,)
    key = wanted.view(len(layer.plan.key.starts), -1).mean(1).sqrt()  # a key serves its group
    return wanted / key.repeat_interleave(len(wanted) // len(key)), key


def moved(before: Any, after: Any) -> str:
    """How far a start from data has moved what the model gives on it."""
    losses = [float(output.loss) for output in (before, after) if isinstance(getattr(output, "loss", None), Tensor)]
    if len(losses) == 2:
        return f"the loss of the example moved from {losses[0]:.4f} to {losses[1]:.4f}"
    one, other = (first_tensor(output) for output in (before, after))
    assert one is not None
    assert other is not None
    return f"the output on the example moved by {((other - one).norm() / one.norm()).item():.2%} of its norm"


def to_qwen3(model: nn.Module) -> Any:
    """A LLaMA with QK-norm as the Qwen3 that computes the same, on the same weights; save it with `save_pretrained`.

    >>> import uncollapse as uc
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> size = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 16}
    >>> config = LlamaConfig(num_hidden_layers=1, **size)
    >>> type(uc.remedies.to_qwen3(uc.apply(LlamaForCausalLM(config), "qk_norm"))).__name__
    'Qwen3ForCausalLM'
    """
    from transformers import LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    inner, shared = find_transformers_model(model), edited_model(model)
    edits = [] if shared is None else [edit for layer in shared.layers for edit in layer.edits]
    if not isinstance(inner, LlamaForCausalLM) or not edits or not all(isinstance(e, NormedHeads) for e in edits):
        raise ValueError(f"expected a LlamaForCausalLM with qk_norm and no other remedy, got {type(model).__name__}.")
    norms = [edit for edit in edits if isinstance(edit, NormedHeads)]
    config: Any = inner.config
    if any(e.query is None or e.query.dim() != 1 or e.eps != config.rms_norm_eps for e in norms) or config.mlp_bias:
        raise ValueError("Qwen3 has gains that the heads share, one eps for all norms, and no biases in its MLP.")
    given = {key: value for key, value in config.to_dict().items() if key in QWEN3_KEYS}
    with torch.device("meta"):
        twin: Any = Qwen3ForCausalLM(Qwen3Config(**given))  # type: ignore[no-untyped-call]
    weights = {name: value for name, value in inner.state_dict().items() if not is_ours(name)}
    for n, edit in enumerate(norms):
        path = f"model.layers.{n}.self_attn"
        assert edit.query is not None
        assert edit.key is not None
        weights |= {f"{path}.q_norm.weight": edit.query.detach(), f"{path}.k_norm.weight": edit.key.detach()}
    twin.load_state_dict(weights, assign=True)
    twin.model.rotary_emb = inner.model.rotary_emb  # its buffers are no weights
    return twin.train(inner.training)


QWEN3_KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache"),
    *("tie_word_embeddings", "rope_parameters", "attention_bias", "attention_dropout"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)

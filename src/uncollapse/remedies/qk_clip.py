"""QK-clip: after each step, heads whose logits have grown beyond a threshold get smaller query and key weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from uncollapse.attention.masking import HIDING, Masking
from uncollapse.attention.row_statistics import compiled_largest
from uncollapse.attention.scores import QueryKeyScores
from uncollapse.models.anatomy import Anatomy
from uncollapse.models.editing import AttentionCall, Edit, EditedLayer, EditedModel, Surroundings, edited_model

from .remedy import EditRemedy, attention_in
from .seen import LayerProof, Seen
from .soft_cap import check_positive
from .steps import OTHER_OPTIMIZER, StepHooks, followed, forget_steps, on_steps, trains
from .weights import HeadRows, query_key_rows

ROWS = 128  # queries whose scores are made at once


class LogitTap(Edit):
    """Notes the largest logit of each head in the forward passes of training."""

    name = "qk_clip"
    at_call = True
    inherits = False
    largest: Tensor | None  # (H,): since the last step

    def __init__(self) -> None:
        super().__init__()
        self.largest = None

    def before(self, call: AttentionCall, around: Surroundings) -> AttentionCall:
        """Look at the queries and keys; the call stays as it is."""
        if self.training and torch.is_grad_enabled():
            found = largest_logits(call)
            self.largest = found if self.largest is None else torch.maximum(self.largest, found)
        return call


@torch.no_grad()
def largest_logits(call: AttentionCall) -> Tensor:
    """The largest logit of each head (H,), over all queries and the keys that they see; never less than -inf."""
    call = call.with_mask()
    compiled = None if torch.compiler.is_compiling() else _compiled_rows(call)
    if compiled is not None:
        return compiled.amax((0, 2)).float()
    query, key = call.query.detach(), call.key.detach()
    heads, groups, queries = query.shape[1], key.shape[1], query.shape[2]
    scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
    query = query.unflatten(1, (groups, -1)).flatten(2, 3)  # type: ignore[no-untyped-call]  # (B, G, H/G Q, D)
    query = query.unflatten(2, (-1, queries))
    found = []
    for start in range(0, queries, ROWS):
        stop = min(start + ROWS, queries)
        seen = stop if call.is_causal else key.shape[2]
        scores = query[..., start:stop, :] @ key[:, :, None, :seen].mT  # (B, G, H/G, rows, keys)
        if call.is_causal:
            rows, columns = torch.arange(start, stop, device=key.device), torch.arange(seen, device=key.device)
            scores.masked_fill_(columns > rows.unsqueeze(1), float("-inf"))
        elif call.attn_mask is not None:
            scores = _masked(scores.flatten(1, 2), call.attn_mask, start, stop).view_as(scores)
        found.append(scores.amax((0, 3, 4)).view(heads))
    return scale * torch.stack(found).amax(0).float()


def _compiled_rows(call: AttentionCall) -> Tensor | None:
    """The largest logit of each row (B, H, Q) by the compiled pass of a diagnosis; None where that does not serve."""
    if call.query.device.type != "cpu":
        return None
    visible = call.attn_mask
    if visible is not None and visible.dtype != torch.bool:
        visible = visible > HIDING  # what is added to a score is no part of the logit
    source = QueryKeyScores(call.query, call.key, call.scale)
    return compiled_largest(source, Masking(visible, is_causal=call.is_causal))


def _masked(scores: Tensor, mask: Tensor, start: int, stop: int) -> Tensor:
    mask = mask[..., start:stop, :] if mask.shape[-2] > 1 else mask
    hidden = ~mask if mask.dtype == torch.bool else mask <= HIDING
    return scores.masked_fill(hidden, float("-inf"))


@dataclass(frozen=True)
class QKClip(EditRemedy):
    """After each step, for each head: eta = min(1, threshold / S_max), W_Q *= eta^balance, W_K *= eta^(1 - balance).

    S_max is the largest logit of the head in the forward passes since the last step, over all processes. Where query
    heads share a key, W_K takes the largest of its group. A whole head is scaled, biases with it, so that rotary
    positions change nothing. What is saved is a stock checkpoint.

    Args:
        threshold: tau, the largest logit that is allowed; 100 in Kimi K2.
        balance: a, how much of the scaling W_Q takes.

    >>> import torch, uncollapse as uc
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> model = uc.apply(model, uc.remedies.QKClip(threshold=100), optimizer=optimizer)
    """

    name: ClassVar[str] = "qk_clip"
    kind: ClassVar[type[Edit]] = LogitTap
    travels: ClassVar[bool] = False
    needs_optimizer: ClassVar[bool] = True
    threshold: float = 100.0
    balance: float = 0.5

    def __post_init__(self) -> None:
        check_positive("threshold", self.threshold)
        if not isinstance(self.balance, int | float) or not 0 <= self.balance <= 1:
            raise ValueError(f"balance must lie between 0 and 1, got {self.balance!r}.")

    def refusal(self, layer: EditedLayer) -> str:
        """A norm would undo what is scaled."""
        has = [name for name, _ in layer.attention.named_children() if name in ("q_norm", "k_norm", "q_layernorm")]
        return f"normalises its queries and keys ({has[0]}), which then do not change with W_Q and W_K" if has else ""

    def edit(self, layer: EditedLayer, like: Tensor) -> Edit:
        """The tap of one layer."""
        return LogitTap()

    def install(self, model: nn.Module, optimizer: Optimizer | None, example: Any) -> None:
        """Add the taps, and clip after each step."""
        assert optimizer is not None
        found = attention_in(model, example)
        rows = list(query_key_rows(found, self.name))
        if not any(trains(optimizer, [side.weight for pair in rows for side in pair])):
            raise ValueError(OTHER_OPTIMIZER)
        shared = self.install_in(model, found if edited_model(model) is None else None)
        on_steps(model, self.name, StepHooks(optimizer, found.plan, after=lambda: self.clip(shared, found)))

    def remove(self, model: nn.Module) -> None:
        """Take the taps away; weights that were clipped stay so."""
        forget_steps(model, self.name)
        super().remove(model)

    def clip(self, shared: EditedModel, found: Anatomy) -> list[Tensor]:
        """Scale the weights by what the taps have seen, and start anew; gives eta (H,) of each layer."""
        taps = [edit for layer in shared.layers for edit in layer.edits if isinstance(edit, LogitTap)]
        if not taps or any(tap.largest is None for tap in taps):
            return []  # no forward pass of training since the last step
        largest = [tap.largest for tap in taps if tap.largest is not None]
        for tap in taps:
            tap.largest = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            for seen in largest:
                dist.all_reduce(seen, dist.ReduceOp.MAX)
        pairs = query_key_rows(found, self.name)
        return [self.scale(*pair, seen) for pair, seen in zip(pairs, largest, strict=True)]

    def scale(self, query: HeadRows, key: HeadRows, largest: Tensor) -> Tensor:
        """Scale the heads of one layer; `largest` (H,) are their largest logits."""
        known = largest.where(largest.isfinite(), self.threshold)  # one that overflowed tells no factor
        eta = self.threshold / known.clamp(min=self.threshold)  # (H,)
        if bool((eta < 1).any()):
            group = eta.view(len(key.rows.starts), -1).amin(1)  # of the largest logit among the heads of a key
            query.scale(eta**self.balance)
            key.scale(group ** (1.0 - self.balance))
        return eta

    def prove(self, model: nn.Module, seen: Seen) -> list[LayerProof]:
        """A row for each layer: a copy of the model whose layer is clipped at half its largest logit has that logit."""
        place = followed(model, self.name)
        if place is None or edited_model(model) is None:
            return [LayerProof(self.name, 1, 0.0, 0.0, note="it follows the steps of no optimizer of this model")]
        copies: dict[int, Any] = {}
        twin = copy.deepcopy(model, copies)
        places = list(query_key_rows(place._replace(root=copies[id(place.root)]), self.name))
        rows = []
        for n, pair in enumerate(places, start=1):
            stock = [side.weight.detach().clone() for side in pair]
            biases = [None if side.bias is None else side.bias.detach().clone() for side in pair]
            before = largest_logits(seen.calls[n].call)
            tau = float(before.max()) / 2
            if tau <= 0:
                rows.append(LayerProof(self.name, n, 0.0, 0.0, note="its largest logit is not above 0 on this batch"))
                continue
            trial = QKClip(tau, self.balance)
            trial.scale(*pair, before)
            after = _logits_of(twin, seen, n)
            note = f"largest logit {float(before.max()):.3g}, clipped above {self.threshold:g}"
            rows.append(
                LayerProof(
                    self.name,
                    n,
                    effect=1.0 - float(after.max() / before.max()),
                    error=abs(float(after.max()) / tau - 1.0),
                    note=note,
                    allowed=1e-2,
                )
            )
            with torch.no_grad():
                for side, weight, bias in zip(pair, stock, biases, strict=True):
                    side.weight.copy_(weight)
                    if side.bias is not None and bias is not None:
                        side.bias.copy_(bias)
        return rows


def _logits_of(model: nn.Module, seen: Seen, n: int) -> Tensor:
    """The largest logits of layer n on the batch that was seen."""
    shared = edited_model(model)
    assert shared is not None
    found: list[Tensor] = []

    def note(one: Any) -> None:
        if one.layer.n == n:
            found.append(largest_logits(one.call))

    shared.observe = note
    try:
        with torch.no_grad():
            seen.run(model.eval(), seen.batch)
    finally:
        shared.observe = None
    return found[0]

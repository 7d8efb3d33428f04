"""An edit: what one remedy does in one attention layer, and what it may look at."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ._attention_call import AttentionCall


class Surroundings(NamedTuple):
    """What an edit may need beside the call."""

    tokens: Tensor | None = None  # (B, Q, M): what enters the attention
    first_values: Tensor | None = None  # (B, G, K, Dv): the values of layer 1
    values: Tensor | None = None  # of this layer, before any edit


class Edit(nn.Module):
    """What one remedy does in one attention layer: override the places where it acts, and say so."""

    name = ""  # of the remedy
    at_projections = False  # `queries` and `keys` are overridden
    at_call = False  # `before` or `after` is overridden
    needs_tokens = False  # `after` is to get what enters the attention
    needs_first = False  # `after` is to get the values of layer 1
    inherits = True  # goes with inherited scores, which have an attention function of their own
    cap: float | None = None  # that `before` gives the call
    sink: Tensor | None = None  # likewise

    def queries(self, heads: Tensor) -> Tensor:
        """Change the queries (..., H, D) as they leave W_Q."""
        return heads

    def keys(self, heads: Tensor) -> Tensor:
        """Change the keys (..., G, D) as they leave W_K."""
        return heads

    def before(self, call: AttentionCall, around: Surroundings) -> AttentionCall:
        """Change the call."""
        return call

    def after(self, out: Tensor, call: AttentionCall, around: Surroundings) -> Tensor:
        """Change what was attended to (B, H, Q, Dv), which enters W_O next; `call` is the one that was run."""
        return out


def names(edits: list[Edit]) -> str:
    """For a sentence."""
    return ", ".join(edit.name for edit in edits)

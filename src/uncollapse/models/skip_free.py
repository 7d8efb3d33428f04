"""ViT blocks without their own residual connections: the first paper's skip-free nets."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.vit.modeling_vit import ViTLayer

SKIP_FREE_KEY = "uncollapse_skip_free"  # in the model's config, so that a saved model is loaded as it was


class SkipFreeLayer(ViTLayer):
    """A ViT block whose two branches replace the tokens; the visible skip of a converted model is not touched."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Attention, then the MLP, each on normed tokens."""
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask, **kwargs)
        attended = self.dropout(attended)
        tokens: Tensor = self.dropout(self.mlp(self.layernorm_after(attended)))
        return tokens


def remove_residuals(model: PreTrainedModel) -> None:
    """Make every block of a ViT skip-free, in place; weights and their names stay, and the config remembers it.

    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, image_size=8)
    >>> model = ViTModel(config)
    >>> remove_residuals(model)
    >>> {type(layer).__name__ for layer in model.layers}
    {'SkipFreeLayer'}
    """
    layers = [module for module in model.modules() if isinstance(module, ViTLayer)]
    if not layers:
        raise ValueError(f"residual: false is for ViT only; a {type(model).__name__} has no ViT block.")
    for layer in layers:
        layer.__class__ = SkipFreeLayer
    setattr(model.config, SKIP_FREE_KEY, True)

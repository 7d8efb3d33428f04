"""Attention inside models people already have: how it is found and how it is changed."""

from .convert import convert, from_pretrained, restore, set_alpha
from .learned import parameter_groups

__all__ = ["convert", "from_pretrained", "parameter_groups", "restore", "set_alpha"]

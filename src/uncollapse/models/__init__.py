"""Attention inside models people already have: how it is found and how it is changed."""

from .convert import convert, from_pretrained, plan, restore, set_alpha
from .learned import parameter_groups
from .saving import load, save

__all__ = ["convert", "from_pretrained", "load", "parameter_groups", "plan", "restore", "save", "set_alpha"]

"""Attention inside models people already have: how it is found and how it is changed."""

from .convert import convert, plan, restore, set_alpha
from .learned import parameter_groups

__all__ = ["convert", "parameter_groups", "plan", "restore", "set_alpha"]

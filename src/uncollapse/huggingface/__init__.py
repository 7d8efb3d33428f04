"""Inherited scores and LocAteR in stock Hugging Face models, without touching their code."""

from .convert import convert, from_pretrained, restore, set_alpha
from .locater import LocaterCallback, locater_penalty

__all__ = ["LocaterCallback", "convert", "from_pretrained", "locater_penalty", "restore", "set_alpha"]

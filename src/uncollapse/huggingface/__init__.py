"""Inherited scores in stock Hugging Face models, without touching their code."""

from .convert import convert, from_pretrained, restore, set_alpha

__all__ = ["convert", "from_pretrained", "restore", "set_alpha"]

"""Tile loops and row statistics in C++, each compiled on first use."""

from .loader import available, compiler, operators, serves

__all__ = ["available", "compiler", "operators", "serves"]

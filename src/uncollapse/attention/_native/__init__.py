"""The tile loops in C++, compiled on first use."""

from .loader import operators, serves

__all__ = ["operators", "serves"]

"""The tile loops in C++, compiled on first use."""

from .loader import compiler, operators, serves

__all__ = ["compiler", "operators", "serves"]

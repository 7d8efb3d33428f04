"""The tile loops in C++, compiled on first use."""

from .loader import kernels, loaded

__all__ = ["kernels", "loaded"]

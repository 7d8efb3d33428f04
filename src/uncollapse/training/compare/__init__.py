"""Runs set side by side: what differs, what came out, and whether seeds explain the difference."""

from .result import Comparison, compare_runs

__all__ = ["Comparison", "compare_runs"]

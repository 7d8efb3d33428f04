"""Measures of collapse: pure functions of tensors, one definition each."""

from .rank import norm_1, norm_1_inf, norm_inf, residual, residual_ratio

__all__ = ["norm_1", "norm_1_inf", "norm_inf", "residual", "residual_ratio"]

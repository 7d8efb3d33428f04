"""Closed forms, bounds, simulations and the continuous network of the two papers, corrected and as printed."""

from .entropy_bound import entropy_lower_bound, entropy_minimiser, scores_norm_bound
from .exact_residual import LayerState, exact_residuals
from .form import Form
from .gradient import PRINTED_ORDERS, OneLayer, Orders, gradient_orders, qk_gradient
from .hopfield_network import HopfieldNetwork, Trajectory, stepper_errors
from .inequalities import Link, chain_7, chain_10, eigenspectrum_variance
from .moments import GaussianMoments, WalkMoments, gaussian_moments, walk_moments
from .piecewise_softmax import piecewise_coefficients, piecewise_softmax
from .propagation import (
    asymmetric_variance,
    asymmetric_variance_factors,
    derivative_bound,
    propagation_mean,
    propagation_probability,
    propagation_variance,
    signal_propagation,
    signal_propagation_derivative,
    signal_propagation_limit,
    variance_factor,
)
from .random_walk import (
    Band,
    QKStatistics,
    Simulation,
    anisotropic_covariance,
    generator,
    qk_matrix,
    qk_statistics,
    random_walks,
    simulate,
)
from .residual_bounds import (
    SPAN,
    LayerBounds,
    column_factor,
    depth_bound,
    dong_bound,
    layer_factor,
    residual_bounds,
    residual_coefficients,
)

__all__ = [
    "PRINTED_ORDERS",
    "SPAN",
    "Band",
    "Form",
    "GaussianMoments",
    "HopfieldNetwork",
    "LayerBounds",
    "LayerState",
    "Link",
    "OneLayer",
    "Orders",
    "QKStatistics",
    "Simulation",
    "Trajectory",
    "WalkMoments",
    "anisotropic_covariance",
    "asymmetric_variance",
    "asymmetric_variance_factors",
    "chain_7",
    "chain_10",
    "column_factor",
    "depth_bound",
    "derivative_bound",
    "dong_bound",
    "eigenspectrum_variance",
    "entropy_lower_bound",
    "entropy_minimiser",
    "exact_residuals",
    "gaussian_moments",
    "generator",
    "gradient_orders",
    "layer_factor",
    "piecewise_coefficients",
    "piecewise_softmax",
    "propagation_mean",
    "propagation_probability",
    "propagation_variance",
    "qk_gradient",
    "qk_matrix",
    "qk_statistics",
    "random_walks",
    "residual_bounds",
    "residual_coefficients",
    "scores_norm_bound",
    "signal_propagation",
    "signal_propagation_derivative",
    "signal_propagation_limit",
    "simulate",
    "stepper_errors",
    "variance_factor",
    "walk_moments",
]

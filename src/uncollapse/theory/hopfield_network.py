"""The continuous Modern Hopfield Network behind the attention (Eq. 45, 46), integrated by scipy.

    tau_v dx/dt = softmax(h) V - x,    tau_h dh/dt = beta x K^T - h

K holds one pattern per row; V = K unless values are given. With V = K there is an energy that never rises,

    E(x, h) = |x|^2 / 2 - entropy(f)/beta - f K x,    f = softmax(h)
    dE/dt   = -tau_v |dx/dt|^2 - (tau_h/beta) (dh/dt)^T (diag f - f f^T) dh/dt  <=  0

(Krotov and Hopfield's model B). tau_hidden = 0 is the adiabatic limit h = beta x K^T, where one Euler step of length
tau_v is the softmax update x -> softmax(beta x K^T) V, that is attention.

Shapes: K patterns, M components; states are numpy float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from uncollapse.attention import ScoreRule
from uncollapse.attention.discretisation import Discretisation, Scheme, integrate, step_weight
from uncollapse.extras import require
from uncollapse.metrics import entropy

from .form import Array, positive


@dataclass(frozen=True)
class Trajectory:
    """The states over time, one row per point in time."""

    time: Array  # (n,)
    visible: Array  # (n, M)
    hidden: Array  # (n, K)
    overlap: Array  # (n, K): cosine with each pattern
    energy: Array | None  # (n,); None where the values differ from the patterns, which have no energy


class HopfieldNetwork:
    """A continuous Hopfield network that stores patterns (Eq. 45, 46).

    Args:
        patterns: K, one pattern per row: (K, M).
        beta: inverse temperature; large beta retrieves single patterns, small beta their mean.
        tau_visible: time constant of the visible state, positive.
        tau_hidden: time constant of the hidden state; 0 is the adiabatic limit.
        values: V (K, M); the patterns themselves unless given.

    >>> network = HopfieldNetwork(np.eye(3), beta=8.0)
    >>> network.retrieve([0.9, 0.2, 0.1])
    0
    """

    def __init__(
        self,
        patterns: ArrayLike,
        beta: float = 1.0,
        tau_visible: float = 1.0,
        tau_hidden: float = 1.0,
        values: ArrayLike | None = None,
    ) -> None:
        self.patterns = np.asarray(patterns, dtype=np.float64)
        if self.patterns.ndim != 2 or len(self.patterns) < 1:
            raise ValueError(f"patterns must be a table with one pattern per row, got shape {self.patterns.shape}.")
        self.tied = values is None
        self.values = self.patterns if values is None else np.asarray(values, dtype=np.float64)
        if self.values.shape != self.patterns.shape:
            raise ValueError(
                f"values must have the shape of the patterns {self.patterns.shape}, got {self.values.shape}."
            )
        self.beta = float(positive("beta", beta))
        self.tau_visible = float(positive("tau_visible", tau_visible))
        if not tau_hidden >= 0.0:
            raise ValueError(f"tau_hidden must not be negative, got {tau_hidden}.")
        self.tau_hidden = float(tau_hidden)

    def scores(self, visible: ArrayLike) -> Array:
        """Beta x K^T: (..., M) -> (..., K)."""
        return np.asarray(self.beta * np.asarray(visible, dtype=np.float64) @ self.patterns.T)

    def softmax_update(self, visible: ArrayLike) -> Array:
        """X -> softmax(beta x K^T) V: attention, and the limit tau_hidden -> 0 with a step of tau_visible."""
        return np.asarray(_softmax(self.scores(visible)) @ self.values)

    def velocity(self, visible: Array, hidden: Array) -> tuple[Array, Array]:
        """dx/dt and dh/dt (Eq. 45, 46); needs tau_hidden > 0."""
        pull = _softmax(hidden) @ self.values
        return (pull - visible) / self.tau_visible, (self.scores(visible) - hidden) / self.tau_hidden

    def energy(self, visible: ArrayLike, hidden: ArrayLike | None = None) -> Array:
        """E(x, h), which never rises along a solution; h = beta x K^T unless given: (..., M), (..., K) -> (...).

        In the adiabatic limit it is |x|^2/2 - logsumexp(beta x K^T)/beta.
        """
        if not self.tied:
            raise ValueError("there is no energy unless the values are the patterns; leave values out.")
        x = np.asarray(visible, dtype=np.float64)
        h = self.scores(x) if hidden is None else np.asarray(hidden, dtype=np.float64)
        f = _softmax(h)
        spread = entropy(torch.as_tensor(f)).numpy()
        return np.asarray((x**2).sum(axis=-1) / 2.0 - spread / self.beta - (f * (x @ self.patterns.T)).sum(axis=-1))

    def overlap(self, visible: ArrayLike) -> Array:
        """Cosine of a state with every pattern: (..., M) -> (..., K); a state or pattern of zeros has overlap 0."""
        x = np.asarray(visible, dtype=np.float64)
        sizes = np.linalg.norm(x, axis=-1, keepdims=True) * np.linalg.norm(self.patterns, axis=-1)
        products = x @ self.patterns.T
        return np.asarray(np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0.0))

    def solve(
        self, cue: ArrayLike, time: float = 20.0, points: int = 101, hidden: ArrayLike | None = None, rtol: float = 1e-8
    ) -> Trajectory:
        """Follow the differential equation from a cue x(0) and h(0) = 0 (or `hidden`) for a time.

        >>> network = HopfieldNetwork(np.eye(3), beta=8.0, tau_hidden=0.1)
        >>> bool((np.diff(network.solve([0.9, 0.2, 0.1]).energy) <= 1e-9).all())
        True
        """
        x0 = np.asarray(cue, dtype=np.float64)
        count, width = self.patterns.shape
        if x0.shape != (width,):
            raise ValueError(f"the cue must have {width} components like the patterns, got shape {x0.shape}.")
        adiabatic = self.tau_hidden == 0.0
        if adiabatic and hidden is not None:
            raise ValueError("tau_hidden = 0 makes h = beta x K^T; hidden cannot be given with it.")
        h0 = np.zeros(count) if hidden is None else np.asarray(hidden, dtype=np.float64)

        require("scipy")
        from scipy.integrate import solve_ivp

        def velocity(_: float, state: Array) -> Array:
            if adiabatic:
                return (self.softmax_update(state) - state) / self.tau_visible
            return np.concatenate(self.velocity(state[:width], state[width:]))

        solution = solve_ivp(
            velocity,
            (0.0, float(positive("time", time))),
            x0 if adiabatic else np.concatenate([x0, h0]),
            method="LSODA",  # turns to an implicit method by itself where tau_hidden << tau_visible makes it stiff
            t_eval=np.linspace(0.0, time, points),
            rtol=rtol,
            atol=rtol * 1e-2,
        )
        if not solution.success:
            raise RuntimeError(f"the differential equation was not solved: {solution.message}")
        visible = solution.y[:width].T
        states = self.scores(visible) if adiabatic else solution.y[width:].T
        return Trajectory(
            time=solution.t,
            visible=visible,
            hidden=states,
            overlap=self.overlap(visible),
            energy=self.energy(visible, states) if self.tied else None,
        )

    def retrieve(self, cue: ArrayLike, time: float = 20.0) -> int:
        """The pattern that the network ends nearest to, counted from 0."""
        return int(self.solve(cue, time, points=2).overlap[-1].argmax())

    def steps(self, cue: ArrayLike, time: float, count: int, scheme: Scheme = ("forward", "backward")) -> Array:
        """`count` steps of a discretisation of Appendix F from x(0) = cue, h = 0; the visible states: (count, M).

        The steppers are those of `AttentionOnly`: one layer per step, with rho = dt/tau_v and rho' = dt/tau_h.

        >>> HopfieldNetwork(np.eye(3), beta=8.0).steps([0.9, 0.2, 0.1], time=1.0, count=10).shape
        (10, 3)
        """
        dt = time / count
        if self.tau_hidden == 0.0 and scheme[1] != "backward":
            raise ValueError(f"tau_hidden = 0 needs a backward hidden difference, got {scheme[1]!r}.")
        alpha = step_weight(scheme[0], dt / self.tau_visible)
        alpha_hidden = 0.0 if self.tau_hidden == 0.0 else step_weight(scheme[1], dt / self.tau_hidden)
        if not (0.0 <= alpha <= 1.0 and 0.0 <= alpha_hidden <= 1.0):
            raise ValueError(
                f"a step of {dt:g} is longer than a time constant ({self.tau_visible:g}, {self.tau_hidden:g}), "
                "which explicit differences do not allow; raise count."
            )
        layer = _PatternLayer(self)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="A central difference")  # said in the docstring of the schemes
            discretisation = Discretisation(*scheme, tolerance=1e-13, max_iterations=1000)
        states = integrate(
            [layer] * count,
            torch.as_tensor(np.asarray(cue, dtype=np.float64)).view(1, 1, -1),
            discretisation,
            alpha,
            ScoreRule.hopfield(alpha_hidden),
        )
        visible: Array = torch.cat(states).view(count, -1).numpy()
        return visible


def _softmax(scores: Array) -> Array:
    """Softmax over the last axis."""
    return np.asarray(torch.as_tensor(scores).softmax(dim=-1))


class _PatternLayer:
    """The network as a layer of `integrate`: the same patterns in every step."""

    def __init__(self, network: HopfieldNetwork) -> None:
        self.keys, self.values = torch.as_tensor(network.beta * network.patterns), torch.as_tensor(network.values)

    def norm(self, x: Tensor, /) -> Tensor:
        return x

    def scores(self, x: Tensor, /) -> Tensor:
        return x @ self.keys.mT

    def read(self, hidden: Tensor, x: Tensor, /, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        return hidden.softmax(dim=-1) @ self.values


def stepper_errors(
    network: HopfieldNetwork, cue: ArrayLike, scheme: Scheme, time: float = 1.0, counts: Sequence[int] = (40, 80, 160)
) -> tuple[Array, float]:
    """Errors of a stepper at the end of `time` for several numbers of steps, and its measured order.

    The order is the slope of log error against log step; both differences central give 2, every other pair 1.

    >>> _, order = stepper_errors(HopfieldNetwork(np.eye(2), beta=2.0), [0.8, 0.1], ("forward", "backward"))
    >>> round(order)
    1
    """
    exact = network.solve(cue, time, points=2, rtol=1e-11).visible[-1]
    errors = np.array([np.abs(network.steps(cue, time, count, scheme)[-1] - exact).max() for count in counts])
    order = float(np.polyfit(np.log(1.0 / np.asarray(counts, dtype=np.float64)), np.log(errors), 1)[0])
    return errors, order

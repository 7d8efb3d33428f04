"""Formulae in plain text made readable: Greek letters, superscripts and subscripts."""

from __future__ import annotations

import re
from html import escape

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "Gamma": "Γ", "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ",
    "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "Sigma": "Σ", "Phi": "Φ", "tau": "τ",
}  # fmt: skip
_NAMES = re.compile(rf"(?<![A-Za-z])({'|'.join(_GREEK)})(?![A-Za-z])")
_LETTER = "A-Za-zα-ωΑ-Ω"
_RAISED = re.compile(rf"\^(?:\(((?:[^()]|\([^()]*\))*)\)|(-?[{_LETTER}0-9]+(?:\.[0-9]+)?))")
_LOWERED = re.compile(rf"([{_LETTER}|])_(QK|VO|inf|[A-Za-z0-9])(?![A-Za-z0-9_])")


def readable(text: str) -> str:
    """Replace names by Greek letters and symbols, except in code between backticks.

    >>> readable("theta - 1 <= alpha' sqrt(d), see `theta_0`")
    'θ − 1 ≤ α′ √(d), see `theta_0`'
    """
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else _signs(part) for part in parts)


def formula_html(text: str) -> str:
    """`readable` as escaped HTML with superscripts, subscripts and code.

    >>> formula_html("W_QK^2 < `a<b`")
    'W<sub>QK</sub><sup>2</sup> &lt; <code>a&lt;b</code>'
    """
    parts = re.split(r"(`[^`]+`)", readable(text))
    return "".join(f"<code>{escape(part[1:-1])}</code>" if part.startswith("`") else _placed(part) for part in parts)


def _signs(text: str) -> str:
    text = _NAMES.sub(lambda name: _GREEK[name[1]], text)
    text = re.sub(r"([αρτ])'", r"\1′", text)
    text = re.sub(r"(?<=\s)-(?=\s)", "−", text)
    return text.replace("<=", "≤").replace(">=", "≥").replace("sqrt(", "√(")


def _placed(text: str) -> str:
    safe = escape(text, quote=False)
    safe = _RAISED.sub(lambda found: f"<sup>{found[1] if found[1] is not None else found[2]}</sup>", safe)
    return _LOWERED.sub(r"\1<sub>\2</sub>", safe)

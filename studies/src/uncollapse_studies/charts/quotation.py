"""Quotations of the papers as text: the LaTeX that the extraction left, in words and signs that `formula` can set."""

# ruff: noqa: RUF001
from __future__ import annotations

import re

_STYLES = "mathbf|boldsymbol|mathbb|mathrm|mathcal|text|operatorname|underbrace"
_SIGNS = {
    "leq": "≤", "geq": "≥", "neq": "≠", "approx": "≈", "sim": "~", "gg": "≫", "in": "∈", "infty": "∞", "sum": "∑",
    "nabla": "∇", "rightarrow": "→", "Rightarrow": "⇒", "implies": "⇒", "langle": "⟨", "rangle": "⟩", "top": "⊤",
    "odot": "⊙", "dots": "…", "ell": "ℓ", "setminus": "∖", "times": "×", "cdot": "·", "quad": " ", "left": "",
    "right": "", "alpha": "α", "beta": "β", "gamma": "γ", "Gamma": "Γ", "eta": "η", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "Sigma": "Σ", "Phi": "Φ", "omega": "ω",
    "|": "‖", "{": "⦃", "}": "⦄", ",": " ", " ": " ",
}  # fmt: skip


def readable_quote(text: str) -> str:
    """A quotation without LaTeX's marks.

    >>> readable_quote(r"v^i = \\left( \\frac{2i^2}{T^2} + \\frac{7}{12} \\right) \\text{tr}(\\mathbf{W}^2)/\\lambda^2")
    'v^i = (2i^2/T^2 + 7/12) tr(W^2)/λ^2'
    >>> readable_quote("(T^2i - 2Ti^2)")
    '(T^2 i - 2Ti^2)'
    """
    text = re.sub(r"\\begin\{cases\}", "⦃", text.replace(" ... ", " […] "))
    text = re.sub(r"([_^]\w)(?=\w)", r"\1 ", text)  # without braces an exponent is one sign: T^2i is T^2 times i
    text = re.sub(r"\\(?:begin|end)\{\w+\}", "", text)
    text = re.sub(r"\\\\", "; ", text).replace("$", "").replace("&", "").replace("*", "")
    text = re.sub(r"\\([|{}, ])", lambda found: _SIGNS[found[1]], text)
    while (shorter := _unnested(text)) != text:
        text = shorter
    text = re.sub(r"\\([A-Za-z]+)", lambda found: _SIGNS.get(found[1], found[1]), text)
    text = text.replace("⦃", "{").replace("⦄", "}")
    text = re.sub(r"([(⟨]) | ([,.;)⟩])", r"\1\2", " ".join(text.split()))
    return text.replace(",;", ",")


def _unnested(text: str) -> str:
    """One level of braces less: the commands whose arguments have none inside."""
    text = re.sub(r"(?<=\w)(?=\\(?:text|operatorname)\{tr\})", " ", text)
    text = re.sub(rf"\\(?:{_STYLES})\{{([^{{}}]*)\}}", r"\1", text)
    text = re.sub(r"\\(?:tilde|check)\{([^{}]*)\}", r"\1~", text)
    text = re.sub(r"\\tag\{([^{}]*)\}", r"(\1)", text)
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", lambda found: f"{_part(found[1])}/{_part(found[2])}", text)
    return re.sub(r"([_^])\{([^{}]*)\}", lambda found: found[1] + _index(found[2]), text)


def _part(text: str) -> str:
    """A numerator or denominator, in brackets unless it is one number, letter or function."""
    text = text.strip()
    return text if re.fullmatch(r"\\?[\w^]+|\|[^|]*\||\\?\w+\([^()]*\)", text) else f"({text})"


def _index(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9]+|-[0-9]+", text) else f"({text})"

"""What helps against a collapse: each line with what shows it, and none that the model follows already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """One remedy: what to do, and who or what has shown that it helps."""

    what: str
    evidence: str
    settled_by: str = ""  # the setting that says the model has it already


STEADIER = "steadies training where norms come after the residual sum: Xiong et al. 2020, arXiv 2002.04745"
GROWTH = "attention scores grow at high rates: Wortsman et al. 2023, arXiv 2309.14322"
RANK = (
    Advice("a smaller learning rate", STEADIER),
    Advice("a warm-up of it", "the same", settled_by="warmup"),
    Advice(
        "residual branches scaled down with depth, by 1/sqrt(layers)",
        "Noci et al. 2022, arXiv 2206.03126, at initialisation",
        settled_by="scaled_residuals",
    ),
    Advice(
        "a visible skip, uncollapse.convert(model, alpha=0.5)",
        "keeps tokens apart at initialisation: uncollapse demo",
        settled_by="alpha",
    ),
)
ENTROPY = (
    Advice("a smaller learning rate", GROWTH),
    Advice("a warm-up of it", "the same", settled_by="warmup"),
    Advice("QK-norm", "Henry et al. 2020, arXiv 2010.04245; Dehghani et al. 2023, arXiv 2302.05442", "qk_norm"),
    Advice("sigma-reparam", "Zhai et al. 2023, arXiv 2303.06296", "sigma_reparam"),
    Advice(
        "a soft cap on the scores, best with QK-norm",
        "Rybakov et al. 2024, arXiv 2410.16682; Gemma 2 has one, arXiv 2408.00118",
        "softcap",
    ),
)
NOT_FINITE = (
    Advice(
        "look at the layer named first, and run it in float32 (--dtype float32)",
        "float16 ends at 65,504, bfloat16 and float32 at 3e38",
    ),
)
DEAD = (
    Advice(
        "load the weights again, and compare them with what was saved", "zeros in, zeros out: nothing can be learned"
    ),
)
BY_KIND: dict[str, tuple[Advice, ...]] = {
    "rank collapse": RANK,
    "entropy collapse": ENTROPY,
    "not finite": NOT_FINITE,
    "dead network": DEAD,
    "dead attention": DEAD,
}


def advice(kind: str, settings: Mapping[str, object]) -> str:
    """A sentence on what helps against a kind of collapse; `settings` is what the model has already.

    >>> "alpha=0.5" in advice("rank collapse", {}), "alpha=0.5" in advice("rank collapse", {"alpha": 0.5})
    (True, False)
    """
    lines = BY_KIND.get(kind, ())
    settled = [line.settled_by for line in lines if settings.get(line.settled_by)]
    rest = [f"{line.what} ({line.evidence})" for line in lines if not settings.get(line.settled_by)]
    if not rest:
        return ""
    had = (
        f" The model has {', '.join(f'{name} = {_text(settings[name])}' for name in settled)} already."
        if settled
        else ""
    )
    return f"What helps: {'; '.join(rest)}.{had}"


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

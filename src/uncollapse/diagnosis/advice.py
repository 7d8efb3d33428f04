"""What helps against a collapse: each line with what shows it, and none that the model follows already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from uncollapse.remedies.contents import BY_NAME, against, main_finding


@dataclass(frozen=True)
class Advice:
    """One remedy: what to do, and who or what has shown that it helps."""

    what: str
    evidence: str
    settled_by: str = ""  # the entry of `Diagnosis.info["settings"]` that says the model has it already


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


def known(kind: str) -> tuple[Advice, ...]:
    """What is known to help against a kind of collapse: what to do in training, then the remedies of the table."""
    remedies = [Advice(entry.call, f"{entry.paper}; {main_finding(entry.name)}", entry.name) for entry in against(kind)]
    return (*BY_KIND.get(kind, ()), *remedies)


def advice(kind: str, settings: Mapping[str, object]) -> str:
    """A sentence on what helps against a kind of collapse; `settings` is what the model has already.

    >>> "alpha=0.5" in advice("rank collapse", {}), "alpha=0.5" in advice("rank collapse", {"alpha": 0.5})
    (True, False)
    """
    lines = known(kind)
    settled = [_had(line, settings[line.settled_by]) for line in lines if settings.get(line.settled_by)]
    rest = [f"{line.what} ({line.evidence})" for line in lines if not settings.get(line.settled_by)]
    if not rest:
        return ""
    had = f" The model has {', '.join(settled)} already." if settled else ""
    return f"What helps: {'; '.join(rest)}.{had}"


def _had(line: Advice, value: object) -> str:
    """What the model has of an advice: a setting with its number, or the advice's own words.

    >>> _had(Advice("a warm-up, by 1/t", "", "warmup"), True), _had(Advice("hopfield", "", "alpha"), 0.5)
    ('a warm-up', 'alpha = 0.5')
    """
    if value is True:
        return line.settled_by if line.settled_by in BY_NAME else line.what.split(",")[0]
    return f"{line.settled_by} = {value:g}" if isinstance(value, float) else f"{line.settled_by} = {value}"

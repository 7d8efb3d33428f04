"""The table of contents: every remedy, what it is against, where it acts, and what shows that it helps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

EVIDENCE = Path(__file__).with_name("evidence.json")  # name -> a sentence; written by studies of this project
UNTESTED = "not tested here"


@dataclass(frozen=True)
class Entry:
    """One remedy."""

    name: str
    against: str
    form: str  # what it computes
    place: str  # where it acts
    checkpoint: str  # what a saved model has more than a stock one
    paper: str
    verdicts: tuple[str, ...] = ()  # kinds of a diagnosis' verdicts that it is known to help against
    home: str = ""  # "file:Class" in this room
    arguments: str = ""  # without which it cannot be applied

    @property
    def call(self) -> str:
        """How it is applied."""
        more = f", {self.arguments}" if self.arguments else ""
        return f'uncollapse.apply(model, "{self.name}"{more})'


ENTRIES = (
    Entry(
        "qk_clip",
        "logit growth",
        "after a step, per head: eta = min(1, tau / S_max), W_Q *= eta^a, W_K *= eta^(1-a)",
        "weights, after each step",
        "stock",
        "Kimi Team 2025, arXiv 2507.20534",
        ("entropy collapse",),
        "qk_clip:QKClip",
        "optimizer=optimizer",
    ),
    Entry(
        "qk_norm",
        "logit growth, rate sensitivity",
        "q / rms(q) and k / rms(k) of each head, times a gain",
        "after W_Q and W_K, before rotation",
        "gains; LLaMA's as Qwen3",
        "Henry et al. 2020, arXiv 2010.04245; Dehghani et al. 2023, arXiv 2302.05442",
        ("entropy collapse",),
        "qk_norm:QKNorm",
    ),
    Entry(
        "sigma_reparam",
        "entropy collapse",
        "W = gamma W / sigma(W), gamma starts at sigma(W)",
        "parametrisation of every linear map of the blocks",
        "stock",
        "Zhai et al. 2023, arXiv 2303.06296",
        ("entropy collapse",),
        "sigma_reparam:SigmaReparam",
    ),
    Entry(
        "qk_rate",
        "fast logit changes",
        "a learning rate of their own for W_Q and W_K",
        "optimizer",
        "stock",
        "Wortsman et al. 2023, arXiv 2309.14322",
        ("entropy collapse",),
        "qk_rate:QKRate",
        "optimizer=optimizer",
    ),
    Entry(
        "soft_cap",
        "logit growth",
        "scores become c tanh(s / c)",
        "attention function",
        "stock weights; the cap is in the config",
        "Gemma 2, arXiv 2408.00118; Rybakov et al. 2024, arXiv 2410.16682",
        ("entropy collapse",),
        "soft_cap:SoftCap",
    ),
    Entry(
        "sink",
        "forced attention",
        "one more logit for each head in the softmax's sum; 0 is softmax off by one",
        "attention function",
        "H numbers a layer",
        "Miller 2023, evanmiller.org/attention-is-off-by-one.html; gpt-oss, arXiv 2508.10925",
        (),
        "sink:Sink",
    ),
    Entry(
        "output_gate",
        "sinks, spikes",
        "W_O (2 sigmoid(X W_g) * heads), W_g starts at 0",
        "before W_O",
        "W_g",
        "Qiu et al. 2025, arXiv 2505.06708",
        (),
        "output_gate:OutputGate",
    ),
    Entry(
        "value_mixing",
        "rank collapse",
        "A (a V + f V_1) + b V + c mean(V) + e V_1, per head",
        "attention function",
        "5 H numbers a layer if learned",
        "Noci et al. 2023, arXiv 2306.17759; Wang et al. 2022, arXiv 2203.05962; "
        "Nguyen et al. 2023, arXiv 2312.00751; Zhou et al. 2024, arXiv 2410.17897",
        ("rank collapse",),
        "value_mixing:ValueMixing",
        "own=0.5, mean=-0.5",  # shaped attention
    ),
    Entry(
        "hopfield",
        "rank and entropy collapse, says the first paper",
        "H_n = alpha' H_{n-1} + (1 - alpha') Q K^T, and a visible skip alpha",
        "attention function and after W_O",
        "stock weights; alpha and alpha' are in the config",
        "docs/attention.md",
        (),
        "hopfield:Hopfield",
    ),
    Entry(
        "locater",
        "entropy collapse, says the second paper",
        "a penalty kappa_1 tr(W^T W) + kappa_2 (tr W - 1)^2 on W = W_Q^T W_K",
        "gradients, before each step",
        "stock",
        "docs/locater.md",
        (),
        "locater_remedy:Locater",
    ),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}

# Pairs that cannot go together, and why. Whatever is not here goes together, and is tested to.
APART: dict[frozenset[str], str] = {
    frozenset(pair): why
    for pair, why in (
        (("qk_clip", "qk_norm"), "normalised queries and keys do not change when W_Q and W_K are scaled"),
        (("qk_clip", "sigma_reparam"), "W / sigma(W) does not change when W is scaled"),
        (
            ("qk_rate", "sigma_reparam"),
            "the size of W / sigma(W) is learned by gamma, which no rate of W_Q and W_K holds back",
        ),
        (
            ("locater", "sigma_reparam"),
            "LocAteR's gradient is that of W_Q and W_K themselves, not of a parametrisation",
        ),
        (("qk_clip", "hopfield"), "the largest logit is one of inherited scores, which other layers' weights make too"),
        (("soft_cap", "hopfield"), "inherited scores have an attention function of their own, without a cap"),
        (("sink", "hopfield"), "inherited scores have an attention function of their own, without a sink"),
    )
}


def together(name: str, others: list[str]) -> None:
    """Raise if a remedy does not go with one that the model has.

    >>> together("qk_norm", ["sink", "output_gate"])
    >>> together("qk_norm", ["qk_clip"])
    Traceback (most recent call last):
    ...
    ValueError: qk_norm does not go with qk_clip: normalised queries and keys do not change when W_Q and W_K are scaled.
    """
    for other in others:
        why = APART.get(frozenset((name, other)))
        if why is not None:
            raise ValueError(f"{name} does not go with {other}: {why}.")


def read(text: str) -> list[tuple[str, dict[str, object]]]:
    """Names and settings from one line, as recipes and the command line have them.

    >>> read("qk_norm + soft_cap(cap=30)")
    [('qk_norm', {}), ('soft_cap', {'cap': 30})]
    """
    found: list[tuple[str, dict[str, object]]] = []
    for part in re.split(r"\+(?![^(]*\))", text):
        match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", part)
        if match is None or match[1] not in BY_NAME:
            raise ValueError(
                f"remedy must be names such as qk_norm or soft_cap(cap=30), joined by +, got {text!r}; "
                f"there are {', '.join(BY_NAME)}."
            )
        together(match[1], [name for name, _ in found])
        found.append((match[1], dict(_setting(one, text) for one in (match[2] or "").split(",") if one.strip())))
    return found


def _setting(text: str, whole: str) -> tuple[str, object]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (equals and key.isidentifier() and value):
        raise ValueError(f"a setting of a remedy must be of the form key=number, got {text!r} in {whole!r}.")
    try:
        return key, json.loads(value.lower() if value in ("True", "False") else value)
    except json.JSONDecodeError:
        return key, value


@cache
def evidence() -> dict[str, str]:
    """What studies of this project have found of each remedy, as one sentence each."""
    found = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    return {entry.name: str(found.get(entry.name, UNTESTED)) for entry in ENTRIES}


def main_finding(name: str) -> str:
    """What counts of the evidence on a remedy: its first clause.

    >>> main_finding("qk_norm") == evidence()["qk_norm"].partition(";")[0]
    True
    """
    return evidence()[name].partition(";")[0]


def against(verdict: str) -> Iterator[Entry]:
    """The remedies that are known to help against a kind of verdict."""
    return (entry for entry in ENTRIES if verdict in entry.verdicts)


def table() -> pd.DataFrame:
    """Every remedy in a table: name, what it is against, its form, where it acts, the checkpoint, evidence.

    >>> import uncollapse as uc
    >>> uc.remedies.list().set_index("name").loc["qk_norm", "against"]
    'logit growth, rate sensitivity'
    """
    import pandas as pd

    columns = ("name", "against", "form", "place", "checkpoint", "paper")
    rows = [{key: getattr(entry, key) for key in columns} for entry in ENTRIES]
    return pd.DataFrame([row | {"evidence": evidence()[row["name"]]} for row in rows])

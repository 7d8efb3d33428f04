"""Run the checks and put what they found into one record, from which the pages and tables are made."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..localization.simulation import one_thread
from ..locations import path_in_repository
from .claim import ERROR, FAILS, AuditRun, Claim, Evidence
from .headline import outcome

PAPERS = {
    "hopfield": {
        "authors": "Masumura and Taki",
        "title": "On the Role of Hidden States of Modern Hopfield Network in Transformer",
        "venue": "NeurIPS 2025",
        "read": "its appendix and its abstract page, quoted from a text in which exponents and fractions are flattened"
        "; of the main text only the result tables and a summary of Eq. 17",
    },
    "localization": {
        "authors": "Bao, Hataya and Karakida",
        "title": "Self-attention Networks Localize When QK-eigenspectrum Concentrates",
        "venue": "arXiv 2402.02098, ICML 2024",
        "read": "the preprint of 6 February 2024; the published version, whose abstract differs, was not read",
    },
}


def audit(chosen: Iterable[Claim], run: AuditRun, tick: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """One row per claim: what it states, what was found, where its check is. A check that crashes is a row too."""
    rows = []
    with one_thread():
        for claim in chosen:
            started = time.perf_counter()
            try:
                found = claim.check(run)
            except Exception as error:  # a bug of ours, to be shown as one and not to stop the others
                trace = traceback.extract_tb(error.__traceback__)[-1]
                found = Evidence(
                    ERROR,
                    f"The check crashed, which is a bug of uncollapse: {type(error).__name__}: {error} "
                    f"({Path(trace.filename).name}, line {trace.lineno}).",
                    {},
                )
            rows.append(row(claim, found, time.perf_counter() - started))
            tick()
    return rows


def row(claim: Claim, found: Evidence, seconds: float) -> dict[str, Any]:
    """A claim and its evidence as plain data."""
    turn = claim.turn(found.verdict)
    return {
        "id": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "statement": claim.statement,
        "quote": claim.quote,
        "seed": claim.seed,
        "unverified": claim.unverified,
        "how": how(claim),
        "verdict": found.verdict,
        "outcome": outcome(found.verdict, claim.root),
        "root": claim.root,
        "evidence": found.sentence,
        "numbers": {name: _plain(value) for name, value in found.numbers.items()},
        "standard_error": None if found.standard_error is None else _plain(found.standard_error),
        "corrected": claim.corrected,
        "survives": claim.survives if found.verdict == FAILS else None,
        "consequence": claim.for_user(found.verdict),
        "changed": {"says": turn.says, "verdict": turn.verdict},
        "perturbed": list(claim.perturbation.factors) if claim.perturbation else claim.no_perturbation,
        "changes_our_mind": claim.changes_our_mind,
        "artefacts": list(claim.artefacts),
        "plot": None if found.plot is None else _plain(asdict(found.plot)),
        "check": code(claim),
        "seconds": round(seconds, 2),
    }


def how(claim: Claim) -> str:
    """What a check computes and from which number on the statement counts as holding: its docstring, in one line."""
    return " ".join((inspect.getdoc(inspect.unwrap(claim.check)) or "").split())


def code(claim: Claim) -> dict[str, str | int]:
    """File (from the root of the repository), function and line of a check."""
    check = inspect.unwrap(claim.check)
    file = Path(inspect.getsourcefile(check) or "")
    name = check.__qualname__.split(".<locals>")[0]
    return {"file": path_in_repository(file).as_posix(), "function": name, "line": inspect.getsourcelines(check)[1]}


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, with six digits: what JSON can hold and a reader can compare."""
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    number = float(value)
    return float(f"{number:.6g}") if np.isfinite(number) else str(number)

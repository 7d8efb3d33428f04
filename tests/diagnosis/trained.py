"""Trained models that lie under $UNCOLLAPSE_DATA/models: whether there are any, and how they are loaded."""

from __future__ import annotations

import os

import pytest

from uncollapse_studies.trained_models import TRAINED, encoder, model_folder, reactions, stories

DATA = os.environ.get("UNCOLLAPSE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="UNCOLLAPSE_DATA names no folder with trained models")
__all__ = ["TRAINED", "encoder", "model_folder", "needs_data", "reactions", "stories"]

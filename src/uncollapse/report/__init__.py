"""Charts and pages. Takes tables; knows nothing of models."""

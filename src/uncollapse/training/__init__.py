"""From a recipe to a run folder: data, model, trainer, checkpoints."""

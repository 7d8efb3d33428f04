"""From a recipe to a run folder, and from run folders to a comparison."""

"""How often the verdicts of a diagnosis are wrong: planted faults and healthy models, counted."""

"""What a model is looked at with: for now, the sample that comes with every Python."""

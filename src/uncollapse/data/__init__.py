"""Text, images and samples: the data that models are trained on and diagnosed with."""

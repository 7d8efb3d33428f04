"""Text, images and samples: what models are trained on and looked at with."""

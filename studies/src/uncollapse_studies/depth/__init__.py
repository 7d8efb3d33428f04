"""Without crutches: which remedies let a small ViT train without residual connections, or without norms under SGD."""

"""The first paper: Masumura and Taki, on hidden states of Modern Hopfield Networks."""

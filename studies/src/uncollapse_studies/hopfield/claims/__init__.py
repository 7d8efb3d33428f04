"""Statements of the first paper: Masumura and Taki, NeurIPS 2025."""

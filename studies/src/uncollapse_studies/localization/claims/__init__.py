"""Statements of the second paper: Bao, Hataya and Karakida, February 2024."""

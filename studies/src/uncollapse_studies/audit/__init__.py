"""The audit: every statement of the two papers with a check that computes its verdict."""

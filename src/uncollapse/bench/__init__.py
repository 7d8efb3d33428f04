"""Measurements of what inherited scores cost in time and memory against torch's own attention."""

"""Side-by-side measurements: what inherited scores cost against torch's own attention."""

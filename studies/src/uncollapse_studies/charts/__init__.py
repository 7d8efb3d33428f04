"""Charts and pages that only the studies draw."""

"""Experiments of the papers, one file a table or figure."""

"""Reproduction and audit of the two papers that uncollapse is built on, and our own studies."""

__version__ = "0.2.0"

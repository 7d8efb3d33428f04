"""Cells: trained networks, one command and one JSON file each, from which tables and figures fill over time."""

"""Attacks on purpose: kills, damage, full disks, hostile files, races, random input.

A fast subset runs with the ordinary tests. `make attack` (UNCOLLAPSE_ATTACK=full) runs all of it and writes
counts.json, which docs/reliability.md states.
"""

"""A run of a second with all parts of a run folder, and what two runs must have in common."""

import json

from tests.training.tiny import KEYS

# Plain attention: the tiles are not compiled in a child. Two checkpoints and three diagnoses.
SMALL = KEYS | {"rule": "self_attention", "steps": 4, "save_every": 2, "diagnose_every": 2, "eval_every": 4}
CLOCK = ("seconds", "tokens_per_second", "diagnose/seconds")


def same_outcome(ours, theirs):
    """Whether two finished runs have the same model folder byte for byte, and the same numbers."""
    return model_files(ours) == model_files(theirs) and numbers(ours) == numbers(theirs) and is_finished(ours)


def is_finished(folder):
    return status(folder) == "finished"


def status(folder):
    file = folder / "status.json"
    return json.loads(file.read_text())["status"] if file.exists() else None


def model_files(folder):
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


def numbers(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in lines]

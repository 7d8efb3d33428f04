"""Verified checkpoints: one is used only if its manifest, which is written last, matches every file."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from uncollapse import files

MANIFEST = "manifest.json"
KEPT = 2


def seal(checkpoint: Path) -> None:
    """Write the manifest of a finished checkpoint: name, size and sha256 of every file."""
    entries = {
        str(file.relative_to(checkpoint)): {"size": file.stat().st_size, "sha256": _sha256(file)}
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name != MANIFEST and not files.is_temporary(file)
    }
    files.write(checkpoint / MANIFEST, json.dumps(entries, indent=1) + "\n")


def fault(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be used, or None if it verifies."""
    try:
        entries = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was not finished (no manifest)"
    except (OSError, ValueError):
        return "its manifest cannot be read"
    for name, entry in entries.items():
        file = checkpoint / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["size"]:
            return f"{name} has {file.stat().st_size:,} bytes, not {entry['size']:,}"
        if _sha256(file) != entry["sha256"]:
            return f"the content of {name} has changed"
    return None


def step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def newest_first(folder: Path) -> list[Path]:
    """All checkpoints of a folder, complete or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=step_of, reverse=True)


def last_good(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a sentence for each newer one that does not."""
    warnings: list[str] = []
    for checkpoint in newest_first(folder):
        reason = fault(checkpoint)
        if reason is None:
            return checkpoint, warnings
        warnings.append(f"{checkpoint} is not used: {reason}.")
    return None, warnings


def rotate(folder: Path, trusted: Path | None = None) -> None:
    """Remove all but the newest two checkpoints that verify; `trusted`, just sealed, is not read again."""
    good = 0
    for checkpoint in newest_first(folder):
        if good < KEPT and (checkpoint == trusted or fault(checkpoint) is None):
            good += 1
        else:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

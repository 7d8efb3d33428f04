"""The checkout of uncollapse that a command writes to."""

from __future__ import annotations

from pathlib import Path

from uncollapse.cli.command import UserError

from .. import locations


def find_project(given: Path | None) -> Path:
    """The checkout to write to; the files of any other project are left alone."""
    if given is None:
        root = locations.project()
        if root is None:
            raise UserError(
                "what this command writes is part of the repository of uncollapse, and this package is installed "
                "without it; name a checkout with --project DIR."
            )
        return root
    if not locations.is_project(given):
        raise UserError(
            f"{given} is no checkout of uncollapse, whose pyproject.toml names uncollapse and which has a folder "
            "studies; name one with --project DIR."
        )
    return given

"""`uncollapse remedies`: what is known to help, where it acts, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .command import Command, UserError, option


@dataclass(frozen=True)
class RemediesOptions:
    """Options of `uncollapse remedies`."""

    svg: Path | None = option(None, "write a picture of where each acts to this file, and print nothing else")
    json: bool = option(False, "print the table as JSON")
    force: bool = option(False, "replace a picture that is there")


def run(settings: RemediesOptions) -> int:
    """Print the table of contents, or draw it."""
    from uncollapse import files
    from uncollapse.remedies.contents import table

    found = table()
    if settings.svg is not None:
        from uncollapse.report.remedies_picture import remedies_picture

        if settings.svg.exists() and not settings.force:
            raise UserError(f"{settings.svg} exists; choose another file with --svg, or pass --force to replace it.")
        rows = [{"name": row["name"], "place": row["place"]} for _, row in found.iterrows()]
        files.write(settings.svg, remedies_picture(rows))
        print(f"picture: {settings.svg}")
        return 0
    if settings.json:
        print(found.to_json(orient="records", indent=1))
        return 0
    for _, row in found.iterrows():
        print(f"{row['name']}: against {row['against']}")
        for key in ("form", "place", "checkpoint", "paper", "evidence"):
            print(f"  {key:<11}{row[key]}")
    print("\nTo apply one: uncollapse.apply(model, NAME), or uncollapse train RECIPE --remedy NAME.")
    return 0


COMMAND = Command(
    name="remedies",
    summary="List what is known to help against collapse: what it computes, where it acts, what shows it.",
    example="uncollapse remedies --svg remedies.svg",
    options=RemediesOptions,
    run=run,
)

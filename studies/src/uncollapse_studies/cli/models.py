"""`uncollapse reproduce models`: diagnoses of small models that others trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from uncollapse.cli.command import Command, option
from uncollapse.cli.output import output_folder


@dataclass(frozen=True)
class ModelsOptions:
    """Options of `uncollapse reproduce models`."""

    out: Path = option(Path("trained-models"), "folder for summary.txt and the tables of layers and heads")
    force: bool = option(False, "replace the files of an earlier run")


def run(settings: ModelsOptions) -> int:
    """Diagnose each model, print the summaries, write them with the tables."""
    with output_folder(settings.out, settings.force) as folder:  # refuses before any work is done
        from ..diagnosed_models import diagnose_models

        print(diagnose_models(folder))
    print(f"\ntables: {settings.out}")
    return 0


COMMAND = Command(
    name="reproduce models",
    summary="Diagnose the small trained models in the folder `models` of $UNCOLLAPSE_DATA.",
    example="uncollapse reproduce models --out trained-models",
    options=ModelsOptions,
    run=run,
)

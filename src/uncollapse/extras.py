"""Optional dependencies: which extra installs which package, and the error where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

EXTRA_OF = {  # top-level package -> the extra of uncollapse that installs it
    "accelerate": "train",
    "altair": "report",
    "datasets": "train",
    "kornia": "train",
    "PIL": "hf",
    "safetensors": "hf",
    "scipy": "train",
    "shtab": "completion",
    "sklearn": "hf",
    "tokenizers": "hf",
    "transformers": "hf",
    "vl_convert": "report",
    "yaml": "train",
}


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message says how to install it."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"this needs the package {package}, which is not installed; "
            f"install it with: pip install 'uncollapse[{EXTRA_OF[package]}]'.",
            name=package,
        )


def require(*packages: str) -> None:
    """Raise a `MissingExtraError` for the first of the packages that is not installed.

    >>> require("transformers")
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(package)


@contextmanager
def naming_missing_extra() -> Iterator[None]:
    """Turn the ModuleNotFoundError of an optional dependency into a `MissingExtraError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise MissingExtraError(package) from error

"""Where the results of the studies lie: inside an installed wheel, or beside the sources in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
CHECKOUT = _PACKAGE.parents[1]  # studies/, if this is a checkout


def results() -> Path:
    """The folder of committed results.

    >>> (results() / "claims.json").is_file()
    True
    """
    packaged = _PACKAGE / "results"
    return packaged if packaged.is_dir() else CHECKOUT / "results"


def project() -> Path | None:
    """The root of the checkout, with README.md and docs/; None where the package is installed without one."""
    root = CHECKOUT.parent
    return root if (root / "studies" / "pyproject.toml").is_file() else None

"""Arrays in .npz files, read without pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file by name; raises a ValueError that names the file if it cannot be read."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # numpy does not see damage that makes an array shorter
        if damaged is not None:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {damaged!r}")
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # zip, zlib and numpy raise many kinds for a damaged file
        raise ValueError(f"{file} cannot be read as .npz ({type(error).__name__}: {error}).") from error

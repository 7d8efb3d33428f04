"""Code run in a process of its own, whose peak memory or cache is then its own."""

import os
import subprocess
import sys
from pathlib import Path

import uncollapse as uc

SOURCE = Path(uc.__file__).parents[1]


def process(code, cache=None, **environment):
    if cache is not None:
        environment["UNCOLLAPSE_CACHE"] = str(cache)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

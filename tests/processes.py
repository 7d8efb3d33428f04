"""Code run in a process of its own, whose peak memory or cache is then its own."""

import os
import subprocess
import sys
from pathlib import Path

import uncollapse as uc

SOURCE = Path(uc.__file__).parents[1]
AT_ONCE = str(1 << 16)  # bytes: blocks from this size on go back to the system as soon as they are freed


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


def printed_alone(code):
    """What the code prints in a process whose heap no test has shaped, so that memory can be measured there."""
    run = process(code, OMP_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_=AT_ONCE)
    out, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    return out

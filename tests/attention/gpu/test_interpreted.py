"""The kernels under Triton's interpreter, which acts when a kernel is decorated: one process per group of tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: the kernels cannot be interpreted")
HERE = Path(__file__).parent
INTERPRETED = {"TRITON_INTERPRET": "1", "UNCOLLAPSE_TRITON": "1", "UNCOLLAPSE_NATIVE": "0", "OMP_NUM_THREADS": "1"}


def run_group(file, *options):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", HERE / file, *options]
    run = subprocess.run(
        command, env={**os.environ, **INTERPRETED}, cwd=HERE.parents[2], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr  # pytest exits with 5 if it has run no test


def test_the_kernels_are_the_definition():
    run_group("interpreted_parity.py", "-q", "-o", "console_output_style=classic", "--no-header", "-rN")


def test_some_seeded_bugs_are_noticed():
    run_group("interpreted_bugs.py", "-q")


@pytest.mark.slow
def test_every_seeded_bug_is_noticed(monkeypatch):
    monkeypatch.setenv("ALL_BUGS", "1")
    run_group("interpreted_bugs.py", "-q")

"""Two processes with remedies take the step of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.models.builders import batch
from tests.remedies.two_processes import CASES, KINDS, stepped, with_remedies


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The weights of every case, by two processes that are started once."""
    folder = tmp_path_factory.mktemp("weights")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*command, "-m", "tests.remedies.two_processes", folder],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_take_the_step_of_one(kind, case, folder):
    model = with_remedies(case)
    wanted = stepped(case, model, model, batch("llama", rows=2)["input_ids"])
    got = torch.load(folder / f"{kind}-{case}.pt", weights_only=True)
    assert got.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert (got[name] - weight).abs().max() <= 1e-5 * weight.abs().max(), name  # LLaMA's norms run in float32

"""Two processes give the gradients of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import uncollapse as uc
from tests.models.builders import batch
from tests.models.modules import build as build_plain
from tests.models.modules import first
from tests.models.two_processes import CHECKPOINTING, KINDS, READINGS, converted


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The gradients of every case, by two processes that are started once."""
    folder = tmp_path_factory.mktemp("gradients")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*command, "-m", "tests.models.two_processes", folder],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return folder


@pytest.mark.parametrize("skip", READINGS)
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_give_the_gradients_of_one(kind, checkpointing, skip, folder):
    model = converted(skip)
    model(**batch("llama", rows=2)).logits.square().mean().backward()
    got = torch.load(folder / f"{kind}-{checkpointing}-{skip}.pt", weights_only=True)
    wanted = {name: p.grad for name, p in model.named_parameters()}
    assert got.keys() == wanted.keys()
    scale = max(grad.abs().max() for grad in wanted.values())
    for name, grad in wanted.items():
        assert (got[name] - grad).abs().max() <= 1e-6 * scale, name  # LLaMA's RMSNorm runs in float32


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_of_a_plain_module(kind, checkpointing, folder):
    model, ids = build_plain("nanogpt")
    first(uc.convert(model, alpha=0.4, alpha_hidden=0.6, example=ids)(ids)).square().mean().backward()
    got = torch.load(folder / f"{kind}-{checkpointing}-nanogpt.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(got[name], parameter.grad, rtol=1e-11, atol=1e-14)  # float64

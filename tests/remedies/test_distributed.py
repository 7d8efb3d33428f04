"""Two processes with remedies take the step of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.remedies.two_processes import CASES, KINDS, built, stepped, with_remedies


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


@pytest.mark.parametrize(("remedy", "name"), CASES)
def test_two_processes_take_the_step_of_one(remedy, name, folder):
    model, (_, rows) = with_remedies(remedy, name), built(name)
    wanted = stepped((remedy, name), model, model, rows)
    close = 1e-5 if name == "llama" or remedy == "qk_clip" else 1e-9  # LLaMA's norms and largest logits are float32
    for kind in KINDS:
        got = torch.load(folder / f"{kind}-{remedy}-{name}.pt", weights_only=True)
        assert got.keys() == wanted.keys()
        for key, weight in wanted.items():
            assert (got[key] - weight).abs().max() <= close * weight.abs().max(), (kind, key)


def test_attention_that_sharding_hides_is_asked_for_as_a_plan(folder):
    words = (folder / "refusal.txt").read_text()
    assert words.startswith("qk_clip needs W_Q and W_K of h.0.attn, which were not found; ")
    assert words.endswith("give example=uncollapse.plan(model, example=batch), made before it was sharded.")

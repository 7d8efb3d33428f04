"""Two processes give the numbers of one, and one without batches does not make the other wait."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import uncollapse as uc
from tests.models.builders import batch, build
from tests.models.modules import build as build_plain
from tests.watching.loops import sgd, train

ABOUT_PROCESSES = ["processes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tables of every case, by two processes that are started once."""
    folder = tmp_path_factory.mktemp("tables")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*command, "-m", "tests.watching.two_processes", folder],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_the_tables_are_those_of_one_process(kind, rank, folder):
    model, inputs = build("llama").train(), batch("llama", rows=2)
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=1) as watch:
        train(model, optimizer, [inputs])
    for name in ("heads", "layers", "optimizer"):
        got, wanted = pd.read_pickle(folder / f"{kind}-{name}-{rank}.pkl"), getattr(watch, name)
        got, wanted = (table.drop(columns=ABOUT_PROCESSES, errors="ignore") for table in (got, wanted))
        # gradients are those of a mean over processes in another order; LLaMA's RMSNorm runs in float32
        pd.testing.assert_frame_equal(got, wanted, rtol=1e-4, atol=1e-5)
    assert set(pd.read_pickle(folder / f"{kind}-layers-{rank}.pkl")["processes"]) == {2}
    assert len((folder / f"{kind}.jsonl").read_text().splitlines()) == 2  # the first process writes


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_plain_module(kind, folder):
    model, ids = build_plain("nanogpt")
    optimizer = sgd(model.train())
    with uc.watch(model, optimizer, every=1) as watch:
        train(model, optimizer, [ids[:2]])
    wanted = watch.heads
    if kind == "fsdp2":  # the weights that a forward uses are not the parameters, so the plan does not know them
        wanted = wanted.drop(columns=["qk_trace", "qk_scale"])
    pd.testing.assert_frame_equal(pd.read_pickle(folder / f"{kind}-nanogpt-0.pkl"), wanted, rtol=1e-5, atol=1e-6)


def test_a_process_without_a_batch_gets_the_numbers_of_the_others(folder):
    first, second = (pd.read_pickle(folder / f"without-{rank}.pkl") for rank in (0, 1))
    pd.testing.assert_frame_equal(first, second)
    assert len(first) == 16


def test_a_process_that_has_left_is_not_waited_for(folder):
    layers = pd.read_pickle(folder / "uneven-0.pkl")
    assert layers.groupby("step")["processes"].first().to_dict() == {1: 2, 2: 1, 3: 1}

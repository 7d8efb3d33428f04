"""Two processes train as one does, and a run outlives a worker that is killed."""

import pytest
import torch
from safetensors.torch import load_file

import uncollapse as uc
from tests.training.tiny import KEYS, accelerate_launch, torchrun
from uncollapse.training.run_folder import RunFolder

STEPS = 6
PLAIN = KEYS | {"dropout": 0.0, "diagnose_every": 6, "kappa_scale": 0.01}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return uc.train("quickstart", tmp_path_factory.mktemp("alone") / "run", progress=False, steps=STEPS, **PLAIN)


def values(folder, name):
    return [line[name] for line in RunFolder(folder).metrics() if name in line]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(parallel, alone, tmp_path):
    run = tmp_path / "run"
    process = torchrun(run, steps=STEPS, parallel=parallel, **PLAIN)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
    assert RunFolder(run).status()["sharded"] == (parallel == "fsdp")
    for name in ("loss", "eval_loss", "locater/penalty"):
        assert values(run, name) == pytest.approx(values(alone.folder, name), abs=1e-5), name
    ratio = "diagnose/layer_02/residual_ratio"
    assert values(run, ratio) == pytest.approx(values(alone.folder, ratio), rel=1e-3)
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (run, alone.folder))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=0)  # Adam magnifies rounding at first


def test_accelerate_launch_does_the_same(alone, tmp_path):
    run = tmp_path / "run"
    process = accelerate_launch(run, steps=STEPS, **PLAIN)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
    assert RunFolder(run).status()["processes"] == 2
    assert values(run, "loss") == pytest.approx(values(alone.folder, "loss"), abs=1e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_after_a_worker_is_killed_torchrun_restarts_and_the_run_goes_on(parallel, tmp_path):
    run = tmp_path / "run"
    killed = ("SIGKILL", "in a step", 8)
    process = torchrun(run, "--resume", restarts=1, signalled=killed, steps=16, parallel=parallel, **PLAIN)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
    assert "going on from step 6" in said
    steps = [line["step"] for line in RunFolder(run).metrics() if "loss" in line]
    assert steps == list(range(1, 17))
    assert RunFolder(run).status()["status"] == "finished"


def test_a_batch_that_eight_processes_cannot_share_is_told_once_and_at_once(tmp_path):
    process = torchrun(tmp_path / "run", processes=3, **KEYS | {"batch_size": 4})
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    sentence = "batch_size must be a multiple of processes x accumulation = 3 x 1, got 4; use --batch_size 3, or"
    assert said.count(sentence) == 1


def test_data_that_is_missing_is_told_once(tmp_path):
    process = torchrun(tmp_path / "run", **KEYS | {"data": str(tmp_path / "absent.txt")})
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert said.count("uncollapse train: ") == 1
    assert "absent.txt" in said


def test_a_batch_of_each_process(alone, tmp_path):
    keys = PLAIN | {"batch_size": PLAIN["batch_size"] // 2, "batch_of": "process"}
    process = torchrun(tmp_path / "run", steps=STEPS, **keys)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said[-3000:]
    assert values(tmp_path / "run", "loss") == pytest.approx(values(alone.folder, "loss"), abs=1e-5)
    kept = uc.Recipe.find(tmp_path / "run")
    assert (kept.batch_size, kept.batch_of) == (PLAIN["batch_size"], "update")

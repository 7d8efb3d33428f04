"""Heads that are divided between two processes: every process has the report of all of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import uncollapse as uc
from tests.models.builders import batch, build

SINGLE = 1e-5  # the model is in float32


def test_two_processes_report_what_one_does(tmp_path):
    model = build("llama").float()
    model.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [*command, "-m", "tests.diagnosis.two_processes", tmp_path],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    for name in ("stock", "converted"):
        wanted = uc.diagnose(model, batch("llama"), progress=False)
        for rank in range(2):
            got = uc.Diagnosis.load(tmp_path / f"{name}-{rank}")
            for table in ("heads", "layers"):
                one, other = getattr(got, table), getattr(wanted, table)
                assert list(one.columns) == list(other.columns)
                np.testing.assert_allclose(one.to_numpy(float), other.to_numpy(float), rtol=1e-3, atol=SINGLE)
            assert not got.missing
        model = uc.convert(model, alpha=0.3, alpha_hidden=0.6)
